"""Contrastive losses, and measures of the embedding space, on vectors of any floating type.

Half-precision inputs are compared in float32, without autocast: in bf16, similarities divided by a small temperature
would lose their order.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from .contrastive.distributed import full_tensor

REDUCTIONS = ("mean", "nonpad_mean", "sum")
EVERY = slice(None)  # all rows of a batch


def at_least_float32(values: torch.Tensor) -> torch.Tensor:
    """Convert half-precision values to float32, and leave others unchanged.

    Example:
        >>> at_least_float32(torch.zeros(1, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    """Scale vectors to length 1, in float32 or better."""
    return F.normalize(at_least_float32(vectors), dim=-1)


def cosine_logits(left: torch.Tensor, right: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return `(n, m)` cosines of all rows of `left` `(n, H)` and `right` `(m, H)`, divided by `temperature`."""
    with torch.autocast(left.device.type, enabled=False):
        return _unit(left) @ _unit(right).T / temperature


def select_rows(batch: torch.Tensor, rows: slice) -> torch.Tensor:
    """Return some rows of a batch, or itself if they are all: then its gradients are added up in the same order."""
    some = batch[rows]
    return batch if len(some) == len(batch) else some


def row_numbers(rows: slice, batch: torch.Tensor) -> torch.Tensor:
    """Return the numbers of some rows of a batch, `(b,)`."""
    return torch.arange(len(batch), device=batch.device)[rows]


def _itself(numbers: torch.Tensor, total: int) -> torch.Tensor:
    """Return where rows `(b,)` meet themselves among all, `(b, B)` of bool."""
    return numbers[:, None] == torch.arange(total, device=numbers.device)


def mean_or_share(losses: torch.Tensor, total: int) -> torch.Tensor:
    """Return the mean of all losses, or the share that some of `total` losses have in it."""
    return losses.mean() if losses.numel() == total else losses.sum() / total


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor, total: int) -> torch.Tensor:
    if len(logits) == total:
        return F.cross_entropy(logits, targets)
    return F.cross_entropy(logits, targets, reduction="sum") / total


def _hash(tokens: torch.Tensor) -> torch.Tensor:
    """Return a number of 64 bits for each row of token ids `(…, T)`: a sum with random weights, which wraps around.

    Rows that differ have the same number with a probability of at most 10⁻¹⁴ (ids are below 2¹⁸). To number the
    distinct rows instead, as `torch.unique` does, would wait for the device.
    """
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(-(2**63), 2**63 - 1, tokens.shape[-1:], generator=generator)
    return (tokens.long() * weights.to(tokens.device, non_blocking=True)).sum(-1)


def duplicate_rows(input_ids: torch.Tensor, rows: slice = EVERY) -> torch.Tensor:
    """Find rows of a batch with the same sentence: equal token ids as anchor or positive.

    Args:
        input_ids: `(B, V, T)`, padded to the same length. The first view is the anchor, the second one the positive.
        rows: b of the sentences; all by default.

    Returns:
        `(b, B)` of bool, false where a sentence meets itself.

    Example:
        >>> duplicate_rows(torch.tensor([[[1, 2], [1, 2]], [[3, 4], [3, 4]], [[1, 2], [1, 2]]])).int()
        tensor([[0, 0, 1],
                [0, 0, 0],
                [1, 0, 0]], dtype=torch.int32)
    """
    texts = _hash(input_ids[:, :2])  # (B, 1 or 2)
    same = (texts[rows, None, :, None] == texts[None, :, None, :]).flatten(2).any(2)
    same[:, rows].fill_diagonal_(False)
    return same


def without_duplicates(logits: torch.Tensor, duplicates: torch.Tensor | None) -> torch.Tensor:
    """Remove the logits `(b, B)` of `duplicates` `(b, B)` from every denominator."""
    return logits if duplicates is None else logits.masked_fill(duplicates, -torch.inf)


def info_nce(
    anchors: torch.Tensor,
    positives: torch.Tensor,
    hard_negatives: torch.Tensor | None = None,
    *,
    temperature: float,
    hard_negative_weight: float = 0.0,
    duplicates: torch.Tensor | None = None,
    rows: slice = EVERY,
) -> torch.Tensor:
    r"""The SimCSE loss: find each anchor's positive among the positives (and hard negatives) of the batch.

    Without hard negatives (SimCSE eq. 4), with :math:`s_{ij} = \cos(z_i, z^+_j)/\tau`:

    .. math:: \ell = \frac{1}{B} \sum_i \Big[ \log \sum_j e^{s_{ij}} - s_{ii} \Big]

    Hard negatives (eq. 5) are in the denominator of every anchor. `hard_negative_weight` is a *log* weight: it is
    added, after the division by the temperature, only to the logit of the anchor's *own* hard negative, so that 0
    means weight 1.

    Args:
        anchors, positives: `(B, H)`; row i of one belongs to row i of the other.
        hard_negatives: `(B, H)`, optional.
        temperature: the published temperature τ (0.05); sentence-transformers' `scale` is 1/τ.
        hard_negative_weight: log weight of each anchor's own hard negative.
        duplicates: `(b, B)` of bool: where [i, j] is true, the positive of row j is not a negative of anchor i, see
            `duplicate_rows`. The hard negative of row j still is: what contradicts a sentence contradicts its
            duplicate.
        rows: the b anchors whose losses are computed; all by default.

    Returns:
        The mean loss over the anchors, a scalar of at least float32; with `rows` their share in it.

    References:
        Gao et al. 2021, "SimCSE: Simple Contrastive Learning of Sentence Embeddings", sections 3 and 4.

    Relations:
        `MultipleNegativesRankingLoss` of sentence-transformers with cosine similarity and scale 1/τ is the same loss
        at `hard_negative_weight=0`.

    Example:
        >>> z = torch.eye(3)
        >>> round(info_nce(z, z, temperature=1.0).item(), 4)  # log(e + 2) - 1
        0.5514
    """
    own, numbers = select_rows(anchors, rows), row_numbers(rows, anchors)
    logits = without_duplicates(cosine_logits(own, positives, temperature), duplicates)  # (b, B)
    if hard_negatives is not None:
        itself = _itself(numbers, len(anchors)).to(logits.dtype)
        hard = cosine_logits(own, hard_negatives, temperature) + hard_negative_weight * itself  # (b, B)
        logits = torch.cat([logits, hard], dim=1)  # (b, 2B)
    return _cross_entropy(logits, numbers, len(anchors))


def prefix_contrastive(
    anchors: torch.Tensor,
    positives: torch.Tensor,
    negatives: torch.Tensor | None,
    *,
    temperature: float,
    denominator: str = "batch",
    duplicates: torch.Tensor | None = None,
    rows: slice = EVERY,
) -> torch.Tensor:
    r"""The PrdSimCSE loss: each sentence has one prefixed copy as positive and one as negative.

    .. math:: \ell_i = -\log \frac{e^{s_{ii}}}{\sum_{x \in D_i} e^{\cos(z_i, x)/\tau}}, \quad
              s_{ii} = \cos(z_i, z^+_i)/\tau

    The paper (section 2, eq. 2) uses "other samples in the batch" and the negative prefix as negatives, and does not
    say which vectors those are. `denominator` selects a reading of D:

    * `batch`: all positives and all negatives of the batch (SimCSE's loss on triplets; the authors used its code);
    * `own`: all positives, and the anchor's own negative;
    * `all`: all positives, all negatives, and all other anchors (the paper prints N - 2 negatives among N vectors).

    Args:
        anchors, positives, negatives: `(B, H)`; row i of each belongs to sentence i. `negatives` None means no
            negative copies (the ablation "+Pos").
        temperature: τ.
        denominator: `batch`, `own` or `all`.
        duplicates, rows: as in `info_nce`. With `all`, the anchors of duplicates are not negatives either.

    Returns:
        The mean loss over the anchors, a scalar of at least float32; with `rows` their share in it.

    Relations:
        With `batch` it equals `info_nce` with the negatives as hard negatives.

    Example:
        >>> z = torch.eye(3)
        >>> round(prefix_contrastive(z, z, -z, temperature=1.0, denominator="own").item(), 4)  # log(e + 2 + 1/e) - 1
        0.6265
    """
    if denominator not in ("batch", "own", "all"):
        raise ValueError(f"denominator: {denominator!r} must be one of batch, own, all")
    own, numbers = select_rows(anchors, rows), row_numbers(rows, anchors)
    logits = [without_duplicates(cosine_logits(own, positives, temperature), duplicates)]  # (b, B)
    if negatives is not None:
        hard = cosine_logits(own, negatives, temperature)  # (b, B)
        logits.append(hard[:, rows].diagonal()[:, None] if denominator == "own" else hard)
    if denominator == "all":
        itself = _itself(numbers, len(anchors))
        others = cosine_logits(own, anchors, temperature).masked_fill(itself, -torch.inf)
        logits.append(without_duplicates(others, duplicates))
    return _cross_entropy(torch.cat(logits, dim=1), numbers, len(anchors))


def self_guided(
    embeddings: torch.Tensor,
    views: torch.Tensor,
    *,
    temperature: float,
    variant: str = "opt3",
    layers: torch.Tensor | None = None,
    duplicates: torch.Tensor | None = None,
    rows: slice = EVERY,
) -> torch.Tensor:
    r"""The SG-OPT losses: match each sentence vector with the layers of a fixed twin on the same sentence.

    With c_i the embedding, h_ik the view of layer k, h_i one of them, and :math:`\phi(u, v) = e^{\cos(u, v)/\tau}`:

    * `base` (section 3.1): NT-Xent over the 2B vectors X = {c_i} and {h_i}, each of which is an anchor:

      .. math:: -\frac{1}{2B} \sum_{x \in X} \log \frac{\phi(x, \mathrm{mate}(x))}{\sum_{y \in X, y \ne x} \phi(x, y)}

    * `opt1` (section 3.2): only the c_i are anchors, and the denominator is {c_j, j ≠ i} and all {h_j};
    * `opt2`: the denominator is all {h_j};
    * `opt3`: all layers at once, without the other layers of the same sentence in the denominator:

      .. math:: -\frac{1}{BK} \sum_i \sum_k \log \frac{\phi(c_i, h_{ik})}
                {\phi(c_i, h_{ik}) + \sum_{m \ne i} \sum_n \phi(c_i, h_{mn})}

    These are the paper's equations. The release drops one negative of `opt2` and cannot run `base`.

    Args:
        embeddings: `(B, H)`.
        views: `(B, K, H)`.
        temperature: τ (0.01).
        variant: `base`, `opt1`, `opt2` or `opt3`.
        layers: `(B,)`, index of the view to use for each sentence with `base`, `opt1`, `opt2`; not needed if K is 1.
        duplicates: `(b, B)` of bool: rows that are left out of an anchor's denominators, see `duplicate_rows`.
        rows: the b sentences whose losses are computed; all by default.

    Returns:
        A scalar of at least float32; with `rows` their share in it.

    References:
        Kim, Yoo, Lee 2021, "Self-Guided Contrastive Learning for BERT Sentence Representations", ACL.

    Relations:
        `opt2` with one view per sentence equals `info_nce`.

    Example:
        >>> c = torch.eye(3)
        >>> round(self_guided(c, c[:, None], temperature=1.0).item(), 4)  # log(e + 2) - 1
        0.5514
    """
    if variant not in ("base", "opt1", "opt2", "opt3"):
        raise ValueError(f"variant: {variant!r} must be one of base, opt1, opt2, opt3")
    batch, count, _ = views.shape
    own, mates = select_rows(embeddings, rows), row_numbers(rows, embeddings)
    if variant == "opt3":
        logits = cosine_logits(own, views.flatten(0, 1), temperature).unflatten(1, (batch, count))  # (b, B, K)
        itself = _itself(mates, batch)
        itself = (itself if duplicates is None else itself | duplicates)[:, :, None]
        positive = logits[:, rows].diagonal().T  # (b, K): [i, k] = s(c_i, h_ik)
        least = torch.finfo(logits.dtype).min  # not -inf: a single sentence has no others, but needs a gradient
        others = logits.masked_fill(itself, least).flatten(1).logsumexp(1, keepdim=True)  # (b, 1)
        return mean_or_share(torch.logaddexp(positive, others) - positive, batch * count)
    if layers is None:
        if count > 1:
            raise ValueError(f"layers: variant {variant} uses one of the {count} views of a sentence; give its index")
        layers = torch.zeros(batch, dtype=torch.long, device=views.device)
    chosen = views[torch.arange(batch, device=views.device), layers]  # (B, H)
    if variant == "opt2":
        return _cross_entropy(without_duplicates(cosine_logits(own, chosen, temperature), duplicates), mates, batch)
    everyone = torch.cat([embeddings, chosen])  # (2B, H)
    both = everyone if own is embeddings else torch.cat([own, chosen[rows]])  # (2b, H)
    logits = cosine_logits(both, everyone, temperature)  # (2b, 2B)
    itself = _itself(torch.cat([mates, mates + batch]), 2 * batch)
    logits = logits.masked_fill(itself, -torch.inf)
    logits = without_duplicates(logits, None if duplicates is None else duplicates.repeat(2, 2))
    if variant == "opt1":
        return _cross_entropy(logits[: len(own)], mates + batch, batch)
    return _cross_entropy(logits, torch.cat([mates + batch, mates]), 2 * batch)


def parameter_distance(tuned: nn.Module, fixed: nn.Module) -> torch.Tensor:
    r"""Squared distance :math:`\sum_\theta \lVert \theta - \theta^{fixed} \rVert_2^2` over the shared parameters.

    SG-OPT's regulariser (section 3.2): a sum, not a mean.

    Args:
        tuned, fixed: modules. Parameters of the same name are compared, and only `tuned` gets gradients.

    Raises:
        ValueError: the modules have no parameter name in common.

    Example:
        >>> one, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> _ = other.load_state_dict({name: value + 1 for name, value in one.state_dict().items()})
        >>> round(parameter_distance(one, other).item(), 4)
        3.0
    """
    references = dict(fixed.named_parameters())
    shared = [(value, references[name].detach()) for name, value in tuned.named_parameters() if name in references]
    if not shared:
        raise ValueError("the two modules have no parameter of the same name")

    def complete(tensor: torch.Tensor) -> torch.Tensor:
        return at_least_float32(full_tensor(tensor))

    # It keeps no differences for the backward pass, which would be as large as the encoder.
    squares = (F.mse_loss(complete(value), complete(reference), reduction="sum") for value, reference in shared)
    return cast(torch.Tensor, sum(squares))


def replaced_token_detection(
    logits: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor, *, reduction: str = "mean"
) -> torch.Tensor:
    r"""Cross-entropy of detecting for each token whether it was edited (ELECTRA's discriminator; DiffCSE section 3).

    With :math:`y_{it} \in \{0, 1\}`, 1 if token t of row i differs from the original:

    .. math:: \ell = \frac{1}{N} \sum_{i,t} \Big[ \log \sum_{c} e^{s_{itc}} - s_{it\,y_{it}} \Big]

    Args:
        logits: `(B, T, 2)`: kept, changed.
        labels: `(B, T)`, 0 or 1. Padding counts only in `mean`.
        attention_mask: `(B, T)`, 1 for real tokens.
        reduction: `mean` over all positions, padding included (N = BT, DiffCSE's release), `nonpad_mean` over the real
            tokens, or `sum` over the real tokens of all sentences (N = 1, the paper's expression).

    Returns:
        A scalar of at least float32.

    Raises:
        ValueError: the reduction is unknown.

    References:
        Chuang et al. 2022, "DiffCSE: Difference-based Contrastive Learning for Sentence Embeddings", section 3. Its
        weight λ = 0.005 was chosen for the release's mean; with the paper's sum it counts about 10^3 times more.

    Relations:
        With D the probability of a kept token, `sum` is the paper's equation. ELECTRA's loss is a mean.

    Example:
        >>> logits = torch.tensor([[[0.0, 0.0], [0.0, 9.0]]])  # undecided, sure of a change
        >>> round(replaced_token_detection(logits, torch.tensor([[0, 1]]), torch.ones(1, 2)).item(), 4)
        0.3466
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: {reduction!r} must be one of {', '.join(REDUCTIONS)}")
    scores = at_least_float32(logits)
    per_token = F.cross_entropy(scores.flatten(0, 1), labels.flatten().long(), reduction="none").view_as(labels)
    if reduction == "mean":
        return per_token.mean()
    real = attention_mask.to(per_token.dtype)
    total = (per_token * real).sum()
    return total if reduction == "sum" else total / real.sum().clamp(min=1)


def alignment(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean squared distance of positive pairs on the unit sphere (Wang & Isola 2020, eq. 1): smaller is better.

    Args:
        x, y: `(n, H)`, of any length; row i of one is the positive of row i of the other.

    Example:
        >>> alignment(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])).item()
        2.0
    """
    return (_unit(x) - _unit(y)).square().sum(-1).mean()


def uniformity(x: torch.Tensor) -> torch.Tensor:
    """Log of the mean Gaussian potential over all distinct pairs (Wang & Isola 2020, eq. 2, t = 2): smaller is better.

    Args:
        x: `(n, H)`, n at least 2, of any length.

    Example:
        >>> uniformity(torch.tensor([[1.0, 0.0], [-5.0, 0.0]])).item()  # the squared distance of opposite poles is 4
        -8.0
    """
    return torch.pdist(_unit(x)).square().mul(-2).exp().mean().log()
