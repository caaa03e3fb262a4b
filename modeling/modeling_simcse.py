r"""SimCSE: contrastive learning with nothing but dropout between the views, or with NLI triplets.

The positive of a sentence is the sentence itself, encoded a second time with another dropout mask (unsupervised,
section 3), or its entailed hypothesis, with the contradicted one as hard negative (supervised, section 4):

.. math:: \ell_i = -\log \frac{e^{\cos(z_i, z_i^+)/\tau}}
          {\sum_j \left(e^{\cos(z_i, z_j^+)/\tau} + e^{\,w [i = j]}\, e^{\cos(z_i, z_j^-)/\tau}\right)}

with z = tanh(W h_CLS + b). Both views of the batch go through the encoder in one forward pass.

References:
    Gao, Yao, Chen 2021, "SimCSE: Simple Contrastive Learning of Sentence Embeddings", EMNLP. The release keeps the
    projection at test time for supervised models and drops it for unsupervised ones; so do the recipes.

Relations:
    Every other method of the zoo is this one plus one change; at its neutral setting it gives this loss.
"""

# Those marked F401 are what the others import: from a directory, transformers 4 copies no import of an import.
from .configuration_sentence_encoder import SentenceEncoderConfig  # noqa: F401
from .configuration_simcse import SimCSEConfig
from .distributed import gather_rows  # noqa: F401
from .encoding import encode_texts  # noqa: F401
from .fingerprint import verify_fingerprint  # noqa: F401
from .masked_language_modeling import MaskedLMHead  # noqa: F401
from .mini_batches import in_mini_batches  # noqa: F401
from .modeling_contrastive import ForContrastiveLearning
from .modeling_sentence_encoder import SentenceEncoderModel
from .natural_language_inference import NLIClassifier  # noqa: F401
from .objectives import info_nce  # noqa: F401
from .pooling import pool  # noqa: F401
from .prompts import template_bias  # noqa: F401
from .whitening import Whitening  # noqa: F401


class SimCSEModel(SentenceEncoderModel):
    """The encoder a SimCSE checkpoint serves.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = SimCSEModel(SimCSEConfig(backbone_config=tiny)).eval()
        >>> model(input_ids=torch.tensor([[1, 2, 3]])).pooler_output.shape
        torch.Size([1, 8])
    """

    config_class = SimCSEConfig


class SimCSEForContrastiveLearning(ForContrastiveLearning):
    """SimCSE in training.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = SimCSEForContrastiveLearning(SimCSEConfig(backbone_config=tiny))
        >>> ids = torch.tensor([[[1, 2], [1, 2]], [[3, 4], [3, 4]]])  # 2 sentences, 2 views, 2 tokens
        >>> output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
        >>> output.embeddings.shape, list(output.losses)
        (torch.Size([2, 2, 8]), ['contrastive'])
    """

    config_class = SimCSEConfig
    serving_class = SimCSEModel
