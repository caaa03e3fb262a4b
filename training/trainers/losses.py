"""The papers' methods as losses for `SentenceTransformerTrainer`, one class each."""

from __future__ import annotations

from typing import Any

from sentence_transformers import SentenceTransformer
from transformers import PreTrainedModel

from .zoo_loss import ZooLoss


class SimCSELoss(ZooLoss):
    """SimCSE: a sentence and itself, encoded with other dropout, are a positive pair; or pairs, or triplets of NLI.

    The projection of the paper (an MLP, tanh) is between vector and loss, and dropped at test.

    Args:
        model: see `ZooLoss`.
        options: see `ZooLoss`; the keys are those of `SimCSEConfig`.

    References:
        - Gao, Yao, Chen 2021, "SimCSE: Simple Contrastive Learning of Sentence Embeddings", EMNLP.

    Requirements:
        1. Dropout in the encoder, for sentences without a positive.

    Inputs:
        +---------------------------------------+--------+
        | Inputs                                | Labels |
        +=======================================+========+
        | sentences                             | none   |
        +---------------------------------------+--------+
        | (anchor, positive) pairs              | none   |
        +---------------------------------------+--------+
        | (anchor, positive, negative) triplets | none   |
        +---------------------------------------+--------+

    Relations:
        - With `projection="none"` it is `MultipleNegativesRankingLoss` with `scale=20`, which needs a sentence twice.

    Example:
        >>> from datasets import Dataset
        >>> from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
        >>> model = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")
        >>> rows = Dataset.from_dict({"text": ["A cat sees a dog.", "It rains.", "The sun shines.", "He sings."]})
        >>> arguments = SentenceTransformerTrainingArguments("runs/simcse", max_steps=1, report_to="none")
        >>> trainer = SentenceTransformerTrainer(model, arguments, rows, loss=SimCSELoss(model))
        >>> trainer.train().global_step  # doctest: +ELLIPSIS
        {'train_runtime': ...}
        1
    """

    def __init__(self, model: SentenceTransformer, **options: Any):
        super().__init__(model, "simcse", **options)


class DiffCSELoss(ZooLoss):
    """DiffCSE: SimCSE, and a discriminator that tells from the sentence's vector which of its words were replaced.

    A frozen generator replaces words. The discriminator is a second copy of the encoder, in the loss.

    Args:
        model: see `ZooLoss`. Its vectors are as long as those of its layers.
        generator: a masked language model with the encoder's tokenizer: a Hub id, a directory or a model.
        options: see `ZooLoss`; the keys are those of `DiffCSEConfig`.

    References:
        - Chuang et al. 2022, "DiffCSE: Difference-based Contrastive Learning for Sentence Embeddings", NAACL.

    Requirements:
        1. Dropout in the encoder, for sentences without a positive.
        2. A generator that has the encoder's vocabulary.

    Inputs:
        As `SimCSELoss`.

    Relations:
        - With `rtd_weight=0, projection="tanh"` it is `SimCSELoss`.

    Example:
        >>> model = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")
        >>> loss = DiffCSELoss(model, generator="distilbert/distilbert-base-uncased", rtd_weight=0.01)
        >>> loss([model.preprocess(["A cat sees a dog.", "It rains."])]).backward()
        >>> sorted(loss.parts.take())
        ['contrastive', 'rtd']
    """

    def __init__(self, model: SentenceTransformer, generator: str | PreTrainedModel | None = None, **options: Any):
        super().__init__(model, "diffcse", generator=generator, **options)


class L2PCSRLoss(ZooLoss):
    """L2P-CSR: the views of a sentence are weakened by masks on tokens and features, which increase the loss.

    The masks are learned in `inner_steps` forward and backward passes for every batch, so an update takes several
    times as long as one of SimCSE.

    Args:
        model: see `ZooLoss`.
        options: see `ZooLoss`, but without `mini_batch_size`; the keys are those of `L2PCSRConfig`.

    References:
        - Zhou, Zhou, Zhao, Wen 2023, "Learning to Perturb for Contrastive Learning of Unsupervised Sentence
          Representations".

    Requirements:
        1. The complete batch in memory.

    Inputs:
        As `SimCSELoss`.

    Relations:
        - With `threshold=0` it is `SimCSELoss`.

    Example:
        >>> model = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")
        >>> loss = L2PCSRLoss(model, inner_steps=2)
        >>> loss([model.preprocess(["A cat sees a dog.", "It rains."])]).backward()
    """

    def __init__(self, model: SentenceTransformer, **options: Any):
        super().__init__(model, "l2pcsr", **options)


class PrdSimCSELoss(ZooLoss):
    """PrdSimCSE: the positive of a sentence is the sentence after filler words, its negative follows a contradiction.

    The loss writes the prefixes itself. It counts the words of a sentence in its decoded tokens, so that a
    hyphenated word may count as several.

    Args:
        model: see `ZooLoss`. `max_seq_length` leaves room for the prefixes.
        options: see `ZooLoss`; the keys are those of `PrdSimCSEConfig`.

    References:
        - Wang, Lv 2024, "Prefix Data Augmentation for Contrastive Learning of Unsupervised Sentence Embedding".

    Inputs:
        +--------------------------------------------------------+--------+
        | Inputs                                                 | Labels |
        +========================================================+========+
        | sentences                                              | none   |
        +--------------------------------------------------------+--------+
        | (sentence, positive, negative), with your own prefixes | none   |
        +--------------------------------------------------------+--------+

    Relations:
        - Without prefixes (`positive_prefix="none", negative_prefix="none"`) it is `SimCSELoss`. The paper keeps the
          projection at test; here it is dropped, as `model.save()` has the model's own modules.

    Example:
        >>> model = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")
        >>> loss = PrdSimCSELoss(model, positive_prefix="one-um")
        >>> loss([model.preprocess(["A cat sees a dog.", "It rains."])]).backward()
    """

    def __init__(self, model: SentenceTransformer, **options: Any):
        super().__init__(model, "prdsimcse", **options)


class SGOPTLoss(ZooLoss):
    """SG-OPT: the vector of a sentence is pulled to the hidden layers of a frozen copy of the encoder.

    The frozen copy is made when the loss is made. The embedding layer of the model is frozen (`freeze_embeddings`).

    Args:
        model: see `ZooLoss`.
        options: see `ZooLoss`; the keys are those of `SGOPTConfig`.

    References:
        - Kim, Yoo, Lee 2021, "Self-Guided Contrastive Learning for BERT Sentence Representations", ACL.

    Inputs:
        +-------------------------------------+--------+
        | Inputs                              | Labels |
        +=====================================+========+
        | sentences                           | none   |
        +-------------------------------------+--------+
        | (sentence, back-translation) pairs  | none   |
        +-------------------------------------+--------+

    Relations:
        - It combines with no other method.

    Example:
        >>> model = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")
        >>> loss = SGOPTLoss(model, projection_size=16)
        >>> loss([model.preprocess(["A cat sees a dog.", "It rains."])]).backward()
        >>> sorted(loss.parts.take())
        ['contrastive', 'regularizer']
    """

    def __init__(self, model: SentenceTransformer, **options: Any):
        super().__init__(model, "sgopt", **options)


class DiffAugLoss(ZooLoss):
    """DiffAug: the views of a sentence have different prefixes in every layer, first tuned on labelled pairs.

    Stage `nli` trains prefixes and a classifier, and freezes the encoder. Then `begin_stage("contrastive")`, and a new
    trainer, train everything. At test both prefixes are visible: `save_pretrained` writes an encoder with them, and
    `model.save()` one without. With `views_module="lora"` they are merged into a plain encoder instead.

    Args:
        model: see `ZooLoss`. `max_seq_length` leaves room for the prefixes. No gradient checkpointing.
        options: see `ZooLoss`; the keys are those of `DiffAugConfig`.

    References:
        - Wang, Lu 2022, "Differentiable Data Augmentation for Contrastive Sentence Representation Learning", EMNLP.

    Requirements:
        1. Triplets, or pairs with a label (1 follows, 0 contradicts), for stage `nli`.

    Inputs:
        As `ZooLoss`, in both stages.

    Relations:
        - With `prefix_length=0, nli_classes=0` it is `SimCSELoss`.

    Example:
        >>> model = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")
        >>> loss = DiffAugLoss(model, stage="nli", prefix_length=2)
        >>> columns = ["A cat sees a dog."], ["A cat sees."], ["A cat sleeps."]
        >>> loss([model.preprocess(texts) for texts in columns]).backward()
        >>> loss.begin_stage("contrastive")
        >>> loss([model.preprocess(["A cat sees a dog.", "It rains."])]).backward()
        >>> sorted(loss.parts.take())
        ['contrastive', 'nli']
    """

    def __init__(self, model: SentenceTransformer, **options: Any):
        super().__init__(model, "diffaug", **options)
