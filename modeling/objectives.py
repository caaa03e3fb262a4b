"""Contrastive losses and the geometry they shape, on vectors of any floating type.

Half-precision inputs are compared in float32 and autocast is off inside: similarities divided by a small temperature
lose their order in bf16.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

REDUCTIONS = ("mean", "nonpad_mean", "sum")


def at_least_float32(values: torch.Tensor) -> torch.Tensor:
    """Half-precision values in float32, others as they are.

    Example:
        >>> at_least_float32(torch.zeros(1, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    """Vectors of length one, in float32 or better."""
    return F.normalize(at_least_float32(vectors), dim=-1)


def cosine_logits(left: torch.Tensor, right: torch.Tensor, temperature: float) -> torch.Tensor:
    """Cosine of every row of `left` (n, H) with every row of `right` (m, H), divided by `temperature`: (n, m)."""
    with torch.autocast(left.device.type, enabled=False):
        return _unit(left) @ _unit(right).T / temperature


def duplicate_rows(input_ids: torch.Tensor) -> torch.Tensor:
    """Which rows of a batch are the same sentence: the anchor or positive of one is that of the other, token by token.

    Args:
        input_ids: `(B, V, T)`, padded alike: anchor and, for V > 1, positive of each row first.

    Returns:
        `(B, B)` of bool, false for a row and itself.

    Example:
        >>> duplicate_rows(torch.tensor([[[1, 2], [1, 2]], [[3, 4], [3, 4]], [[1, 2], [1, 2]]])).int()
        tensor([[0, 0, 1],
                [0, 0, 0],
                [1, 0, 0]], dtype=torch.int32)
    """
    pairs = input_ids[:, :2]
    _, texts = torch.unique(pairs.flatten(0, 1), dim=0, return_inverse=True)
    texts = texts.view(pairs.shape[:2])  # (B, 1 or 2): a number for each different text
    same = (texts[:, None, :, None] == texts[None, :, None, :]).flatten(2).any(2)
    return same.fill_diagonal_(False)


def without(logits: torch.Tensor, duplicates: torch.Tensor | None) -> torch.Tensor:
    """Logits `(B, B)` with those of `duplicates` `(B, B)` out of every denominator."""
    return logits if duplicates is None else logits.masked_fill(duplicates, -torch.inf)


def info_nce(
    anchors: torch.Tensor,
    positives: torch.Tensor,
    hard_negatives: torch.Tensor | None = None,
    *,
    temperature: float,
    hard_negative_weight: float = 0.0,
    duplicates: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""The SimCSE loss: find each anchor's positive among the positives (and hard negatives) of the whole batch.

    Without hard negatives (SimCSE eq. 4), with :math:`s_{ij} = \cos(z_i, z^+_j)/\tau`:

    .. math:: \ell = \frac{1}{B} \sum_i \Big[ \log \sum_j e^{s_{ij}} - s_{ii} \Big]

    Hard negatives (eq. 5) enter the denominator of every anchor. `hard_negative_weight` is a *log* weight: it is
    added, after the division by the temperature, to the logit of the anchor's *own* hard negative only, so 0 means
    weight 1.

    Args:
        anchors, positives: `(B, H)`; row i of one belongs to row i of the other.
        hard_negatives: `(B, H)`, optional.
        temperature: the published temperature τ (0.05); sentence-transformers' `scale` is 1/τ.
        hard_negative_weight: log weight of the own hard negative.
        duplicates: `(B, B)` of bool: positives of other rows that are none of an anchor's negatives, see
            `duplicate_rows`. Their hard negatives stay: what contradicts a sentence contradicts its duplicate.

    Returns:
        The mean loss over the anchors, a scalar of at least float32.

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
    logits = without(cosine_logits(anchors, positives, temperature), duplicates)  # (B, B)
    if hard_negatives is not None:
        own = torch.eye(len(anchors), dtype=logits.dtype, device=logits.device)
        hard = cosine_logits(anchors, hard_negatives, temperature) + hard_negative_weight * own  # (B, B)
        logits = torch.cat([logits, hard], dim=1)  # (B, 2B)
    return F.cross_entropy(logits, torch.arange(len(anchors), device=logits.device))


def prefix_contrastive(
    anchors: torch.Tensor,
    positives: torch.Tensor,
    negatives: torch.Tensor | None,
    *,
    temperature: float,
    denominator: str = "batch",
    duplicates: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""The PrdSimCSE loss: each sentence has a prefixed copy that agrees and a prefixed copy that contradicts it.

    .. math:: \ell_i = -\log \frac{e^{s_{ii}}}{\sum_{x \in D_i} e^{\cos(z_i, x)/\tau}}, \quad
              s_{ii} = \cos(z_i, z^+_i)/\tau

    The paper (section 2, eq. 2) counts "other samples in the batch" and the negative prefix as negatives and leaves
    open which vectors those are; `denominator` names the reading of D:

    * `batch`: all positives and all negatives of the batch (SimCSE's loss on triplets, whose code the authors used);
    * `own`: all positives, and the anchor's own negative;
    * `all`: all positives, all negatives, and all other anchors (the printed N - 2 negatives among N vectors).

    Args:
        anchors, positives, negatives: `(B, H)`; row i of each belongs to sentence i. `negatives` may be None: no
            negative copies then (the ablation "+Pos").
        temperature: τ.
        denominator: `batch`, `own` or `all`.
        duplicates: as of `info_nce`; with `all`, their anchors are no negatives either.

    Returns:
        The mean loss over the anchors, a scalar of at least float32.

    Relations:
        With `batch` it is `info_nce` with the negatives as hard negatives.

    Example:
        >>> z = torch.eye(3)
        >>> round(prefix_contrastive(z, z, -z, temperature=1.0, denominator="own").item(), 4)  # log(e + 2 + 1/e) - 1
        0.6265
    """
    if denominator not in ("batch", "own", "all"):
        raise ValueError(f"denominator: {denominator!r} is none of batch, own, all")
    logits = [without(cosine_logits(anchors, positives, temperature), duplicates)]  # (B, B)
    if negatives is not None:
        hard = cosine_logits(anchors, negatives, temperature)  # (B, B)
        logits.append(hard.diagonal()[:, None] if denominator == "own" else hard)
    if denominator == "all":
        itself = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
        others = cosine_logits(anchors, anchors, temperature).masked_fill(itself, -torch.inf)
        logits.append(without(others, duplicates))
    return F.cross_entropy(torch.cat(logits, dim=1), torch.arange(len(anchors), device=anchors.device))


def self_guided(
    embeddings: torch.Tensor,
    views: torch.Tensor,
    *,
    temperature: float,
    variant: str = "opt3",
    layers: torch.Tensor | None = None,
    duplicates: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""The SG-OPT losses: a sentence vector finds the layers of a fixed twin that saw the same sentence.

    With c_i the embedding, h_ik the view of layer k, h_i one of them, and :math:`\phi(u, v) = e^{\cos(u, v)/\tau}`:

    * `base` (section 3.1): NT-Xent over the 2B vectors X = {c_i} and {h_i}, each of them an anchor:

      .. math:: -\frac{1}{2B} \sum_{x \in X} \log \frac{\phi(x, \mathrm{mate}(x))}{\sum_{y \in X, y \ne x} \phi(x, y)}

    * `opt1` (section 3.2): the c_i alone are anchors, the denominator is {c_j, j ≠ i} and all {h_j};
    * `opt2`: the denominator is all {h_j};
    * `opt3`, every layer at once, and a sentence's own other layers nowhere:

      .. math:: -\frac{1}{BK} \sum_i \sum_k \log \frac{\phi(c_i, h_{ik})}
                {\phi(c_i, h_{ik}) + \sum_{m \ne i} \sum_n \phi(c_i, h_{mn})}

    The release drops one negative of `opt2` and cannot run `base`; these are the paper's formulae.

    Args:
        embeddings: `(B, H)`.
        views: `(B, K, H)`.
        temperature: τ (0.01).
        variant: `base`, `opt1`, `opt2` or `opt3`.
        layers: `(B,)`, the view each sentence takes in `base`, `opt1`, `opt2`; may be left out where K is 1.
        duplicates: `(B, B)` of bool: rows that are in none of an anchor's denominators, see `duplicate_rows`.

    Returns:
        A scalar of at least float32.

    References:
        Kim, Yoo, Lee 2021, "Self-Guided Contrastive Learning for BERT Sentence Representations", ACL.

    Relations:
        `opt2` with one view a sentence is `info_nce`.

    Example:
        >>> c = torch.eye(3)
        >>> round(self_guided(c, c[:, None], temperature=1.0).item(), 4)  # log(e + 2) - 1
        0.5514
    """
    if variant not in ("base", "opt1", "opt2", "opt3"):
        raise ValueError(f"variant: {variant!r} is none of base, opt1, opt2, opt3")
    batch, count, _ = views.shape
    if variant == "opt3":
        logits = cosine_logits(embeddings, views.flatten(0, 1), temperature).view(batch, batch, count)  # [i, m, n]
        itself = torch.eye(batch, dtype=torch.bool, device=logits.device)
        itself = (itself if duplicates is None else itself | duplicates)[:, :, None]
        own = logits.diagonal().T  # (B, K): [i, k] = s(c_i, h_ik)
        nothing = torch.finfo(logits.dtype).min  # not -inf: a sentence alone has no others, and still a gradient
        others = logits.masked_fill(itself, nothing).flatten(1).logsumexp(1, keepdim=True)  # (B, 1)
        return (torch.logaddexp(own, others) - own).mean()
    if layers is None:
        if count > 1:
            raise ValueError(f"variant {variant} takes one of {count} views a sentence: say which with layers")
        layers = torch.zeros(batch, dtype=torch.long, device=views.device)
    chosen = views[torch.arange(batch, device=views.device), layers]  # (B, H)
    mates = torch.arange(batch, device=views.device)
    if variant == "opt2":
        return F.cross_entropy(without(cosine_logits(embeddings, chosen, temperature), duplicates), mates)
    everyone = torch.cat([embeddings, chosen])  # (2B, H)
    logits = cosine_logits(everyone, everyone, temperature)
    logits = logits.masked_fill(torch.eye(2 * batch, dtype=torch.bool, device=logits.device), -torch.inf)
    logits = without(logits, None if duplicates is None else duplicates.repeat(2, 2))
    if variant == "opt1":
        return F.cross_entropy(logits[:batch], mates + batch)
    return F.cross_entropy(logits, torch.cat([mates + batch, mates]))


def parameter_distance(tuned: nn.Module, fixed: nn.Module) -> torch.Tensor:
    r"""Squared distance :math:`\sum_\theta \lVert \theta - \theta^{fixed} \rVert_2^2` over the parameters both have.

    SG-OPT's regulariser (section 3.2): a sum, not a mean.

    Args:
        tuned, fixed: modules; parameters of the same name are compared, and gradients reach those of `tuned`.

    Raises:
        ValueError: no name is common to both.

    Example:
        >>> one, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> _ = other.load_state_dict({name: value + 1 for name, value in one.state_dict().items()})
        >>> round(parameter_distance(one, other).item(), 4)
        3.0
    """
    there = dict(fixed.named_parameters())
    shared = [(value, there[name].detach()) for name, value in tuned.named_parameters() if name in there]
    if not shared:
        raise ValueError("the two modules have no parameter of the same name")
    pairs = [(at_least_float32(here), at_least_float32(reference)) for here, reference in shared]
    return cast(torch.Tensor, sum(F.mse_loss(*pair, reduction="sum") for pair in pairs))


def replaced_token_detection(
    logits: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor, *, reduction: str = "mean"
) -> torch.Tensor:
    r"""Cross-entropy of telling, token by token, what an editor changed (ELECTRA's discriminator; DiffCSE section 3).

    With :math:`y_{it} \in \{0, 1\}`, 1 where token t of row i differs from the original:

    .. math:: \ell = \frac{1}{N} \sum_{i,t} \Big[ \log \sum_{c} e^{s_{itc}} - s_{it\,y_{it}} \Big]

    Args:
        logits: `(B, T, 2)`: kept, changed.
        labels: `(B, T)`, 0 or 1; what stands at padding counts in `mean` alone.
        attention_mask: `(B, T)`, 1 for real tokens.
        reduction: `mean` over all positions, padding included (N = BT, DiffCSE's release), `nonpad_mean` over the real
            tokens, or `sum` over the real tokens of all sentences (N = 1, the paper's expression).

    Returns:
        A scalar of at least float32.

    Raises:
        ValueError: another reduction.

    References:
        Chuang et al. 2022, "DiffCSE: Difference-based Contrastive Learning for Sentence Embeddings", section 3. Its
        weight λ = 0.005 belongs to the release's mean; under the paper's sum the same λ weighs about 10^3 times more.

    Relations:
        With D the probability of a kept token, `sum` is the paper's equation; ELECTRA's own loss is a mean.

    Example:
        >>> logits = torch.tensor([[[0.0, 0.0], [0.0, 9.0]]])  # undecided, sure of a change
        >>> round(replaced_token_detection(logits, torch.tensor([[0, 1]]), torch.ones(1, 2)).item(), 4)
        0.3466
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: {reduction!r} is none of {', '.join(REDUCTIONS)}")
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
