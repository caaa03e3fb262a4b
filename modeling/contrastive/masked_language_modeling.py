"""Masked language modelling beside a contrastive loss (an ablation of SimCSE; Devlin et al. 2019, section 3.1)."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from ..objectives import at_least_float32
from .backbones import norm_eps
from .distributed import gather_rows


def mask_tokens(
    input_ids: torch.Tensor, maskable: torch.Tensor, *, probability: float, mask_token_id: int, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose each maskable token with a probability. 80 % become the mask, 10 % a random token, 10 % stay unchanged.

    Args:
        input_ids: `(B, T)`.
        maskable: `(B, T)` bool, false for special tokens and padding.

    Returns:
        The masked ids and the labels `(B, T)`, -100 where no token was chosen.

    Example:
        >>> ids = torch.full((1, 4), 7)
        >>> mask_tokens(ids, ids < 0, probability=0.15, mask_token_id=3, vocab_size=9)[1]
        tensor([[-100, -100, -100, -100]])
    """
    chosen = (torch.rand(input_ids.shape, device=input_ids.device) < probability) & maskable
    labels = input_ids.masked_fill(~chosen, -100)
    fate = torch.rand(input_ids.shape, device=input_ids.device)
    random_ids = torch.randint(vocab_size, input_ids.shape, device=input_ids.device)
    masked = torch.where(chosen & (fate < 0.8), mask_token_id, input_ids)
    return torch.where(chosen & (fate >= 0.9), random_ids, masked), labels


class MaskedLMTransform(nn.Module):
    """Linear(H, E) - GELU - LayerNorm: the transform in front of a masked-LM head's decoder. `(…, H) -> (…, E)`.

    Supervised PromptBERT starts from the pre-trained one and applies it to the vector and to the template's bias
    before it subtracts them. E is H, or the width of the word embeddings if these are narrower.

    Example:
        >>> MaskedLMTransform(4, 1e-12)(torch.zeros(2, 4)).shape
        torch.Size([2, 4])
    """

    def __init__(self, hidden_size: int, layer_norm_eps: float, embedding_size: int | None = None):
        super().__init__()
        self.dense = nn.Linear(hidden_size, embedding_size or hidden_size)
        self.layer_norm = nn.LayerNorm(embedding_size or hidden_size, eps=layer_norm_eps)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.layer_norm(F.gelu(self.dense(vectors)))


class MaskedLMHead(MaskedLMTransform):
    """Maps token vectors to vocabulary logits: the transform, then the tied word embeddings and a bias.

    Args:
        backbone: whose token vectors and word embeddings it reads.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9)
        >>> MaskedLMHead(BertModel(tiny))(torch.zeros(2, 3, 8), torch.ones(9, 8)).shape
        torch.Size([2, 3, 9])
    """

    def __init__(self, backbone: PreTrainedModel):
        words = backbone.get_input_embeddings()
        super().__init__(backbone.config.hidden_size, norm_eps(backbone), words.embedding_dim)  # type: ignore[arg-type]
        self.decoder_bias = nn.Parameter(torch.zeros(backbone.config.vocab_size))

    def forward(self, hidden_state: torch.Tensor, word_embeddings: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return F.linear(super().forward(hidden_state), word_embeddings, self.decoder_bias)


def chosen_tokens(vectors: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the vectors and labels of the chosen tokens alone, because a head can cost as much as all layers.

    On a device it returns all: to find the chosen ones would be to wait for it.

    Args:
        vectors: `(B, T, H)`.
        labels: `(B, T)`, -100 where no token was chosen.

    Returns:
        `(1, n, H)` and `(1, n)`, or what was given.

    Example:
        >>> vectors, labels = chosen_tokens(torch.zeros(2, 2, 4), torch.tensor([[-100, 1], [-100, -100]]))
        >>> vectors.shape, labels
        (torch.Size([1, 1, 4]), tensor([[1]]))
    """
    if vectors.device.type != "cpu" or torch.compiler.is_compiling():
        return vectors, labels
    chosen = labels != -100
    return vectors[chosen][None], labels[chosen][None]


def masked_lm_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over the chosen tokens of all processes, or 0 if none was chosen.

    Args:
        logits: `(B, T, vocabulary)`.
        labels: `(B, T)`, -100 where no token was chosen.

    Example:
        >>> masked_lm_loss(torch.zeros(1, 2, 4), torch.tensor([[-100, 1]])).item() == torch.tensor(4.0).log().item()
        True
    """
    per_token = F.cross_entropy(at_least_float32(logits).flatten(0, 1), labels.flatten(), reduction="none")
    sums = torch.stack([per_token.sum(), (labels != -100).sum().to(per_token.dtype)])
    total, count = gather_rows(sums[None])[0].sum(0)
    return total / count.clamp(min=1)
