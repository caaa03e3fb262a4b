r"""SimCSE: contrastive learning with views that differ only by dropout, or with NLI triplets.

The positive of a sentence is the sentence itself, encoded again with another dropout mask (unsupervised, section 3),
or its entailed hypothesis, with the contradicted hypothesis as hard negative (supervised, section 4):

.. math:: \ell_i = -\log \frac{e^{\cos(z_i, z_i^+)/\tau}}
          {\sum_j \left(e^{\cos(z_i, z_j^+)/\tau} + e^{\,w [i = j]}\, e^{\cos(z_i, z_j^-)/\tau}\right)}

with z = tanh(W h_CLS + b). Both views of the batch go through the encoder in one forward pass. The formula is
`objectives.info_nce`, called by `ForContrastiveLearning.contrastive_loss`. `SentenceEncoderConfig.view_columns` makes
the second view.

References:
    Gao, Yao, Chen 2021, "SimCSE: Simple Contrastive Learning of Sentence Embeddings", EMNLP. The release keeps the
    projection at test for supervised models and drops it for unsupervised ones, and so do the recipes.

Relations:
    Every other method of the zoo changes this one, and has the same loss at its neutral setting. Only IS-BERT and
    Contrastive Tension do not extend it.
"""

from ...contrastive.sentence_encoder import SentenceEncoderModel
from ...contrastive.training_model import ForContrastiveLearning
from .configuration import SimCSEConfig


class SimCSEModel(SentenceEncoderModel):
    """The encoder that a SimCSE checkpoint serves.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = SimCSEModel(SimCSEConfig(backbone_config=tiny)).eval()
        >>> model(input_ids=torch.tensor([[1, 2, 3]])).pooler_output.shape
        torch.Size([1, 8])
    """

    config_class = SimCSEConfig


class SimCSEForContrastiveLearning(ForContrastiveLearning):
    """The training model of SimCSE.

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
