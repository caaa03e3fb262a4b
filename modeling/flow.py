"""BERT-flow: an invertible map, fitted once on a set of embeddings, that makes them Gaussian."""

import math

import torch
import torch.nn.functional as F
from torch import nn

LEVELS, DEPTH, WIDTH = 3, 3, 32  # of the release: levels, steps of a level, hidden units of a coupling
SCALE = 3.0  # of the logarithms of scales in Glow, so that they are learned faster


class ActNorm(nn.Module):
    """y = (x + b) · exp(3 s), with a bias and a scale for each feature. `(n, H) -> (n, H)`."""

    def __init__(self, size: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size), requires_grad=False)
        self.log_scale = nn.Parameter(torch.zeros(size), requires_grad=False)

    def forward(self, x: torch.Tensor, start: bool = False) -> torch.Tensor:
        """Normalise; with `start`, first set bias and scale so that every feature of `x` has mean 0 and variance 1."""
        if start:
            self.bias.copy_(-x.mean(0))
            self.log_scale.copy_(-((x + self.bias).square().mean(0).sqrt() + 1e-6).log() / SCALE)
        return (x + self.bias) * (SCALE * self.log_scale).exp()


class FlowStep(nn.Module):
    """ActNorm, the features in reverse order, and an additive coupling: the second half gets a function of the first.

    The function is a network with two hidden layers, each normalised and rectified. `(n, H) -> (n, H)`.
    """

    def __init__(self, size: int, width: int):
        super().__init__()
        self.norm = ActNorm(size)
        self.hidden = nn.ModuleList(nn.Linear(inputs, width, bias=False) for inputs in (size // 2, width))
        self.hidden_norm = nn.ModuleList(ActNorm(width) for _ in self.hidden)
        self.last = nn.Linear(width, size // 2, bias=False)
        self.last_norm = ActNorm(size // 2)
        for layer in (*self.hidden, self.last):
            layer.requires_grad_(False)

    def forward(self, x: torch.Tensor, start: bool = False) -> torch.Tensor:
        first, second = self.norm(x, start).flip(-1).chunk(2, -1)
        shift = first
        for layer, norm in zip(self.hidden, self.hidden_norm, strict=True):
            if start:
                layer.get_parameter("weight").normal_(0, 0.05)
            shift = F.relu(norm(layer(shift), start))
        if start:
            for tensor in (self.last.weight, self.last_norm.bias, self.last_norm.log_scale):
                tensor.zero_()
        return torch.cat([first, second + self.last_norm(self.last(shift))], -1)


class Flow(nn.Module):
    r"""z = f(u), f invertible, such that z is distributed as a standard Gaussian.

    f is a Glow: three levels of three steps. Each level passes the first half of its features to the next one, and the
    second half is a part of z. f is fitted to vectors u of the frozen encoder by maximising their likelihood:

        log p(u) = log N(f(u); 0, I) + log |det ∂f/∂u|,   log |det ∂f/∂u| = 3 Σ s over the ActNorms of the steps

    because reordering and additive couplings keep volumes. It is saved in the model's checkpoint.

    Args:
        hidden_size: H, the dimensions of the vectors, a multiple of 8. `(…, H) -> (…, H)`.
        width: hidden units of a coupling.

    Raises:
        ValueError: the dimensions cannot be halved three times.

    References:
        Li et al. 2020, "On the Sentence Embeddings from Pre-trained Language Models", section 4, equation 4; sizes are
        those of the release's `config_l3_d3_w32`.

    Example:
        >>> flow = Flow(16, 4)
        >>> flow(torch.randn(5, 16)).shape, flow.log_determinant()
        (torch.Size([5, 16]), tensor(0.))
    """

    def __init__(self, hidden_size: int, width: int = WIDTH):
        super().__init__()
        if hidden_size % 2**LEVELS:
            raise ValueError(
                f"flow: {hidden_size} dimensions cannot be halved {LEVELS} times; choose a base_model whose hidden "
                f"size is a multiple of {2**LEVELS}"
            )
        sizes = [hidden_size // 2**level for level in range(LEVELS)]
        self.levels = nn.ModuleList(nn.ModuleList(FlowStep(size, width) for _ in range(DEPTH)) for size in sizes)

    def forward(self, vectors: torch.Tensor, start: bool = False) -> torch.Tensor:
        """Map vectors; with `start`, first fit the ActNorms to them and make the couplings add 0."""
        x, latent = vectors, []
        for number, level in enumerate(self.levels, start=1):
            for step in level:  # type: ignore[attr-defined]  # the modules of a list have no type
                x = step(x, start)
            if number < LEVELS:
                x, part = x.chunk(2, -1)
                latent.append(part)
        return torch.cat([*latent, x], -1)

    def log_determinant(self) -> torch.Tensor:
        """Return log |det ∂f/∂u|, which is the same for every vector."""
        steps = [step for level in self.levels for step in level]  # type: ignore[attr-defined]  # as above
        return torch.stack([SCALE * step.norm.log_scale.sum() for step in steps]).sum()

    def loss(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the mean negative log-likelihood of `(n, H)` vectors in bits per dimension."""
        latent = self(vectors)
        log_density = -0.5 * (latent.square() + math.log(2 * math.pi)).sum(-1).mean() + self.log_determinant()
        return -log_density / (math.log(2) * vectors.shape[-1])
