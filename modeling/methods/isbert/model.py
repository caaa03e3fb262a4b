r"""IS-BERT: a sentence's vector tells its own n-grams from those of other sentences.

Convolutions of several widths over the token vectors :math:`h_1, \dots, h_l` of the encoder make n-gram features, and
their mean over the tokens is the sentence's vector (section 3.1),

.. math:: F_i(x) = \big[\phi(W_k h_{i-(k-1)/2 : i+(k-1)/2} + b_k)\big]_k, \quad
          E(x) = \frac{1}{l} \sum_i F_i(x)

Training maximises the Jensen-Shannon estimate of the mutual information of a sentence's vector and its n-gram features
(section 3.2, eq. 2). With :math:`\mathrm{sp}(z) = \log(1 + e^z)`, the loss is

.. math:: L = \mathbb{E}_{x, i}[\mathrm{sp}(-T(F_i(x), E(x)))]
          + \mathbb{E}_{x, x' \ne x, i}[\mathrm{sp}(T(F_i(x'), E(x)))]

Here :math:`\phi` is the identity or ReLU (`activation`). The convolutions stay at test.

References:
    Zhang, He, Liu, Lim, Bing 2020, "An Unsupervised Sentence Embedding Method by Mutual Information Maximization",
    EMNLP. The paper gives T parameters without describing it, and leaves open which other sentences are drawn and how
    the sums are weighted. Here, as in the release, T is the dot product, x' are the other sentences of the batch, and
    the expectations are means over all pairs of a token and a sentence. The paper has a ReLU after the convolutions,
    the release has none. There the convolutions start with torch's default weights, as here, and convolve padding too.

Relations:
    It does not extend SimCSE: no setting makes the two the same. It needs one view of a sentence, and changes data,
    views and objective, so it combines with no other method.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...contrastive.distributed import gather_rows, sum_over_processes
from ...contrastive.mini_batches import in_mini_batches
from ...contrastive.packing import LengthBuckets, Packing
from ...contrastive.sentence_encoder import SentenceEncoderModel
from ...contrastive.training_model import ForContrastiveLearning
from ...objectives import at_least_float32
from ...serving.own_form_csezoo import NGramFeatures
from ...serving.pooling_csezoo import BackboneOutput
from .configuration import ISBERTConfig

PADDING = -(2.0**15)  # in place of the features of padding: a number of every precision that no feature is


def jensen_shannon(
    sentences: torch.Tensor,
    features: torch.Tensor,
    owners: torch.Tensor,
    duplicates: torch.Tensor | None = None,
    first: int = 0,
    real: torch.Tensor | None = None,
) -> torch.Tensor:
    """Minus the Jensen-Shannon estimate of the mutual information of sentences and their features (eq. 2).

    Args:
        sentences: `(B, H)`.
        features: `(N, H)`, of the tokens of b sentences, all by default.
        owners: `(N,)`, the sentence of each feature among the b.
        duplicates: `(b, B)` of bool: sentences whose features are not each other's negatives.
        first: the number of the first of the b sentences, if each process has the features of its own ones.
        real: `(N,)` of bool, false for features that do not count; all count by default.

    Returns:
        A scalar of at least float32, the share of these features in the estimate. A single sentence has no negatives.

    Example:
        >>> sentences = torch.eye(2)
        >>> round(jensen_shannon(sentences, sentences, torch.tensor([0, 1])).item(), 4)  # sp(-1) + sp(0)
        1.0064
    """
    with torch.autocast(sentences.device.type, enabled=False):
        scores = at_least_float32(features) @ at_least_float32(sentences).T  # (N, B)
    own = owners[:, None] + first == torch.arange(len(sentences), device=owners.device)
    others = ~own if duplicates is None else ~(own | duplicates[owners])
    if real is not None:
        own, others = own & real[:, None], others & real[:, None]
    same, different = F.softplus(-scores) * own, F.softplus(scores) * others
    pairs, other_pairs = sum_over_processes(own.sum()), sum_over_processes(others.sum())
    return same.sum() / pairs + different.sum() / other_pairs.clamp(min=1)


class ISBERTModel(SentenceEncoderModel):
    """The encoder that an IS-BERT checkpoint serves. Its last hidden state are the n-gram features."""

    config_class = ISBERTConfig

    def __init__(self, config: ISBERTConfig):
        super().__init__(config)
        self.ngrams = NGramFeatures(config.hidden_size, config.kernel_sizes, config.features, config.activation)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Conv1d):
            module.reset_parameters()  # as in the release; transformers would draw them from N(0, 0.02²)
        else:
            super()._init_weights(module)

    def run_backbone(
        self, attention_mask: torch.Tensor, packing: Packing | LengthBuckets | None = None, **inputs: Any
    ) -> BackboneOutput:
        outputs = super().run_backbone(attention_mask, packing, **inputs)
        outputs.last_hidden_state = self.ngrams(outputs.last_hidden_state, attention_mask)
        if outputs.hidden_states is not None:
            outputs.hidden_states = (*outputs.hidden_states, outputs.last_hidden_state)
        return outputs

    def own_form(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        own, tensors = super().own_form()
        own["ngrams"] = {key: getattr(self.config, key) for key in ("kernel_sizes", "features", "activation")}
        return own, tensors | {f"ngrams.{name}": tensor for name, tensor in self.ngrams.state_dict().items()}


class ISBERTForContrastiveLearning(ForContrastiveLearning):
    """The training model of IS-BERT.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> model = ISBERTForContrastiveLearning(ISBERTConfig(backbone_config=tiny))
        >>> ids = torch.randint(9, (4, 1, 6))
        >>> model(input_ids=ids, attention_mask=torch.ones_like(ids)).embeddings.shape  # a vector, and six features
        torch.Size([4, 7, 8])
    """

    config_class = ISBERTConfig
    serving_class = ISBERTModel
    seams = ("data", "views", "objective", "auxiliary")
    ranked_views = (0, 0)  # the others are features

    def pool_views(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, rows: int | None = None
    ) -> torch.Tensor:
        """Encode `(B, 1, T)` to `(B, 1 + T, H)`: each sentence's vector, then its features, `PADDING` at padding."""

        def encode(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            outputs, pooled = self.encode_views(input_ids, attention_mask)
            padding = attention_mask.flatten(0, 1).unsqueeze(-1) == 0
            return torch.cat([pooled[:, None], outputs.last_hidden_state.masked_fill(padding, PADDING)], dim=1)

        return in_mini_batches(encode, self.mini_batch_size, input_ids, attention_mask)

    def contrastive_loss(self, embeddings: torch.Tensor, duplicates: torch.Tensor | None = None) -> torch.Tensor:
        """Compute the loss of vectors and features `(B, 1 + T, H)`, with the sentences of all processes."""
        sentences, mine = gather_rows(embeddings[:, 0])
        features, tokens = embeddings[:, 1:].flatten(0, 1), embeddings.shape[1] - 1  # (B · T, H)
        places = torch.arange(len(embeddings) * tokens, device=embeddings.device)
        if embeddings.device.type == "cpu":  # elsewhere the number of real tokens would have to be waited for
            places = (features[:, 0] != PADDING).nonzero()[:, 0]
            features = features[places]
        real = features[:, 0] != PADDING
        features = features.masked_fill(~real[:, None], 0)
        return sum_over_processes(jensen_shannon(sentences, features, places // tokens, duplicates, mine.start, real))
