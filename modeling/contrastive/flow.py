"""BERT-flow: fit an invertible map to a set of embeddings, so that it makes them Gaussian."""

import math

import torch

from ..serving.own_form_csezoo import SCALE, ActNorm, Flow, FlowStep

WIDTH = 32  # hidden units of a coupling, in the release


def steps_of(flow: Flow) -> list[FlowStep]:
    """Return the steps of all levels, in the order in which a vector passes them."""
    return [step for level in flow.levels for step in level]  # type: ignore[attr-defined]  # a list's modules have no type


@torch.no_grad()
def start_flow(flow: Flow, vectors: torch.Tensor) -> None:
    """Fit the ActNorms of a flow to `(n, H)` vectors, and make its couplings add 0.

    Every feature then has mean 0 and variance 1 after each ActNorm.
    """

    def fit(norm: ActNorm, inputs: tuple[torch.Tensor]) -> None:
        (x,) = inputs
        norm.bias.copy_(-x.mean(0))
        norm.log_scale.copy_(-((x + norm.bias).square().mean(0).sqrt() + 1e-6).log() / SCALE)

    hooks = []
    for step in steps_of(flow):
        _start_coupling(step)
        hooks += [norm.register_forward_pre_hook(fit) for norm in (step.norm, *step.hidden_norm)]
    flow(vectors)
    for hook in hooks:
        hook.remove()


@torch.no_grad()
def draw_flow(flow: Flow) -> None:
    """Draw the first weights of a flow as the release of BERT-flow does, whose start from data never runs.

    The norms get the default of TensorFlow 1 (Glorot and Bengio 2010), and the couplings add 0.
    """
    for step in steps_of(flow):
        for norm in (step.norm, *step.hidden_norm):
            limit = math.sqrt(6 / (1 + len(norm.bias)))
            norm.bias.uniform_(-limit, limit)
            norm.log_scale.uniform_(-limit, limit)
        _start_coupling(step)


def _start_coupling(step: FlowStep) -> None:
    """Draw the hidden layers of a coupling. The last one is 0, so that the coupling adds 0."""
    for layer in step.hidden:
        layer.get_parameter("weight").normal_(0, 0.05)
    for tensor in (step.last.weight, step.last_norm.bias, step.last_norm.log_scale):
        tensor.zero_()


def flow_loss(flow: Flow, vectors: torch.Tensor) -> torch.Tensor:
    r"""Return the mean negative log-likelihood of `(n, H)` vectors in bits per dimension.

    .. math:: \log p(u) = \log N(f(u); 0, I) + \log |\det \partial f / \partial u|

    References:
        Li et al. 2020, "On the Sentence Embeddings from Pre-trained Language Models", equation 4.

    Example:
        >>> flow, vectors = Flow(16, 4), torch.zeros(5, 16)
        >>> round(flow_loss(flow, vectors).item(), 4)  # log2(2 pi) / 2
        1.3257
    """
    latent = flow(vectors)
    # log |det ∂f/∂u| is the same for every vector: reordering and additive couplings keep volumes.
    log_determinant = torch.stack([SCALE * step.norm.log_scale.sum() for step in steps_of(flow)]).sum()
    log_density = -0.5 * (latent.square() + math.log(2 * math.pi)).sum(-1).mean() + log_determinant
    return -log_density / (math.log(2) * vectors.shape[-1])
