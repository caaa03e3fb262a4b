"""Encoder passes that compute no padding.

A padded batch `(R, T)` has rows of different lengths. Linear layers, norms and activations treat every token by
itself, so they can read the real tokens of all rows as one sequence `(1, N)`. Only attention must know the rows. There
is one way to compute it for each kind of device, see `packed_rows`.

The embedding layer still reads the padded batch, because positions are counted there. Its output is packed, and the
output of the last layer is unpacked again. Dropout is drawn for real tokens only; without dropout every number is that
of the padded batch.

If pooling reads one token of each row, the last layer computes only that one. It reads the keys and values of all.

An encoder that cannot read such a sequence reads the batch in parts with rows of similar length. Each part is padded
to its own longest row.
"""

import inspect
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from threading import get_ident
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import ModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..serving.encoder_layers_csezoo import KEY, VALUE, hidden_layers, projections_of
from ..serving.modeling_csezoo import is_causal
from .backbones import embedding_layer, embedding_output, position_tables, without_checkpointing
from .mirrored_mask import MirroredMask, on_host, plain
from .packed_rows import EqualLengths, Packing, PaddedAttention, fastest_kernels

# The attention implementation below.
PACKED = "csezoo_packed"
# Below this share of padding, attention of packed tokens costs more than the padding: on a CPU, on other devices.
LEAST_PADDING, LEAST_ON_DEVICE = 1 / 32, 1 / 3
# A packed pass starts more kernels. With fewer tokens than this, at BERT-base's width, a device waits for the host.
# On an H200, updates of BERT-base on 10,000 tokens with 63 % of padding took 45 ms padded and 65 ms packed.
LEAST_TOKENS = 16_384
# Parts of a batch, see `LengthBuckets`. More would compute less padding, with smaller products of matrices.
PARTS, LEAST_ROWS = 8, 4
# Of a backbone, whether the projections of its layers read what the layers read, and not a norm of it.
READS_ITS_INPUT: MutableMapping[PreTrainedModel, bool] = WeakKeyDictionary()
# What an encoder returns for each token.
OUTPUTS = {"last_hidden_state", "hidden_states", "logits"}


class LengthBuckets:
    """A padded batch in parts with rows of similar length, each padded to its own longest row.

    Args:
        attention_mask: `(R, T)`, 1 for real tokens; R is at least 2 · `LEAST_ROWS`. Only padding on the right is cut.
    """

    def __init__(self, attention_mask: torch.Tensor):
        self.shape = attention_mask.shape
        ends = (attention_mask.bool() * torch.arange(1, self.shape[1] + 1, device=attention_mask.device)).amax(1)
        self.order = ends.argsort(stable=True)
        self.rows = self.order.chunk(min(PARTS, self.shape[0] // LEAST_ROWS))
        self.lengths: list[int] = [int(ends[rows[-1]]) for rows in self.rows]
        computed = sum(len(rows) * length for rows, length in zip(self.rows, self.lengths, strict=True))
        self.padding = computed - int(attention_mask.sum())

    def unpack(self, padded: torch.Tensor) -> torch.Tensor:
        """Return what `run` made, which is padded."""
        return padded

    def run(self, encoder: PreTrainedModel, **inputs: Any) -> ModelOutput:
        """Call an encoder for each part, and return its `OUTPUTS` `(R, T, …)`, with zeros at the padding that was cut.

        Tensors `(R, T, …)` among the inputs are cut into parts.
        """

        def cut(value: Any, rows: torch.Tensor, length: int) -> Any:
            return value[rows, :length] if isinstance(value, torch.Tensor) and value.shape[:2] == self.shape else value

        outputs = [
            encoder(**{name: cut(value, rows, length) for name, value in inputs.items()})
            for rows, length in zip(self.rows, self.lengths, strict=True)
        ]
        joined: dict[str, Any] = {}
        for name in OUTPUTS & outputs[0].keys():
            made = [output[name] for output in outputs]
            layers = isinstance(made[0], tuple)
            joined[name] = tuple(map(self._join, zip(*made, strict=True))) if layers else self._join(made)
        return type(outputs[0])(**joined)

    def _join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        joined = parts[0].new_zeros(*self.shape, *parts[0].shape[2:])
        for rows, length, part in zip(self.rows, self.lengths, parts, strict=True):
            joined[rows, :length] = part
        return joined


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packing: Packing | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with the interface of transformers: `sdpa`, or with a packing one attention for each group."""
    if packing is None:
        with fastest_kernels(query):
            return ALL_ATTENTION_FUNCTIONS["sdpa"](
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
            )
    return packing.attend(query, key, value, dropout=dropout, scale=scaling), None


ALL_ATTENTION_FUNCTIONS.register(PACKED, packed_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(PACKED, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def _without_head(encoder: PreTrainedModel) -> PreTrainedModel:
    return cast(PreTrainedModel, encoder.base_model)


def can_pack(encoder: PreTrainedModel) -> bool:
    """Return whether an encoder can leave out padding.

    It needs the attention interface of transformers, with `sdpa`, and an embedding layer that adds the positions. In
    other encoders (MPNet, DeBERTa, ModernBERT, NomicBERT) a layer counts positions itself, and in decoders tokens see
    only those before them.
    """
    return encoder.config._attn_implementation in ("sdpa", PACKED) and _is_built_to_pack(encoder)


def use_packed_attention(encoder: PreTrainedModel) -> None:
    """Give an encoder the attention above, if it can leave out padding. Without a packing, it is `sdpa`."""
    if can_pack(encoder):
        encoder.config._attn_implementation = PACKED


Answer = TypeVar("Answer")


def _once_per_encoder(look: Callable[[PreTrainedModel], Answer]) -> Callable[[PreTrainedModel], Answer]:
    """Remember an answer about an encoder: to go through its modules takes as long as some of its layers on a GPU."""
    answers: MutableMapping[PreTrainedModel, Answer] = WeakKeyDictionary()

    @wraps(look)
    def answer(encoder: PreTrainedModel) -> Answer:
        if encoder not in answers:
            answers[encoder] = look(encoder)
        return answers[encoder]

    return answer


@_once_per_encoder
def _is_built_to_pack(encoder: PreTrainedModel) -> bool:
    embeddings = embedding_layer(_without_head(encoder))
    return (
        encoder._supports_attention_backend
        and "position_ids" in inspect.signature(embeddings.forward).parameters
        and any(True for _ in position_tables(embeddings))
        and "kwargs" in inspect.signature(encoder.forward).parameters
        and not is_causal(encoder)
    )


@_once_per_encoder
def _last_of_its_kind(encoder: PreTrainedModel) -> torch.nn.Module | None:
    """Return the last layer, if it runs once and is built like the first one."""
    if not (layers := hidden_layers(_without_head(encoder))):
        return None
    *others, last = layers
    return last if others and type(others[0]) is type(last) and last not in others else None


def can_pool_early(encoder: PreTrainedModel) -> bool:
    """Return whether the last layer of an encoder that packs can compute single tokens.

    It must have one projection to keys and one to values, which an adapter that is added later replaces.
    """
    last = _last_of_its_kind(encoder)
    return last is not None and all(len(projections_of(last, ends)) == 1 for ends in (KEY, VALUE))


def packing_of(
    encoder: PreTrainedModel, attention_mask: torch.Tensor, pooled: torch.Tensor | None = None
) -> Packing | LengthBuckets | None:
    """Return how an encoder leaves out the padding of a batch `(R, T)`, or None if it must or should compute it.

    It should if there is little of it and all tokens are read, if a device has little to do, if a compiler would
    compile every batch anew, or if only the device knows the mask, because to ask would be to wait for it. It must if
    it cannot read packed tokens and a hook changes its embedding layer's output.

    Args:
        pooled: `(R,)`, the position of the only token of each row whose last vector is read, if there is one.
    """
    known = on_host(attention_mask)
    if torch.compiler.is_compiling() or known is None:
        return None
    on_device = isinstance(attention_mask, MirroredMask)
    lengths, tokens = known.numpy().sum(1), known.numel()
    most = (1 - (LEAST_ON_DEVICE if on_device else LEAST_PADDING)) * tokens
    little = bool(lengths.sum() > most)
    if not lengths.all() or little and (pooled is None or on_device):
        return None
    if on_device and tokens * (encoder.config.hidden_size / 768) ** 2 < LEAST_TOKENS:
        return None
    if can_pack(encoder):
        if pooled is not None:
            # Only the device may know the places. In a row that is padded on the right, each is that of a real token.
            real = known[:, 0] if on_device else known.gather(1, pooled[:, None])
            pooled = pooled if real.all() and can_pool_early(encoder) else None
        if on_device:
            return PaddedAttention(known, pooled, device=attention_mask.device)
        return None if little and pooled is None else EqualLengths(known, pooled)
    if on_device or len(known) < 2 * LEAST_ROWS or embedding_output(_without_head(encoder))._forward_hooks:
        return None
    parts = LengthBuckets(known)
    return parts if parts.padding + lengths.sum() <= most else None


def _in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that does nothing in other threads."""
    thread = get_ident()
    return lambda *arguments: hook(*arguments) if get_ident() == thread else None


@contextmanager
def _pooling_early(backbone: PreTrainedModel, packing: Packing) -> Iterator[None]:
    """Let the last layer of a backbone compute only the pooled tokens of a packing, inside the context.

    The layer gets only these tokens. The keys and values of all tokens are made from what it would have got, so its
    projections must read that itself, and not a norm of it. What those of the first layer read in the first pass shows
    whether they do.
    """
    first, *_, last = hidden_layers(backbone)
    entered = None

    @_in_this_thread
    def enter(layer: torch.nn.Module, inputs: tuple) -> None:
        nonlocal entered
        entered = inputs[0]

    @_in_this_thread
    def project(linear: torch.nn.Module, inputs: tuple) -> None:
        READS_ITS_INPUT[backbone] = inputs[0] is entered

    @_in_this_thread
    def pool(layer: torch.nn.Module, inputs: tuple) -> tuple | None:
        if not READS_ITS_INPUT[backbone]:
            return None
        tokens, *others = inputs
        packing.all_tokens = [projections_of(layer, ends)[0][1](tokens) for ends in (KEY, VALUE)]
        return (packing.pack_pooled(tokens), *others)

    hooks = {last: pool}
    if backbone not in READS_ITS_INPUT:
        hooks |= {first: enter, projections_of(first, KEY)[0][1]: project}
    handles = [module.register_forward_pre_hook(hook) for module, hook in hooks.items()]
    try:
        with without_checkpointing([last]):  # it keeps only a few tokens
            yield
    finally:
        for handle in handles:
            handle.remove()


def _mask_to_pass(encoder: PreTrainedModel, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return the mask for a pass that computes its padding.

    On a device, transformers would wait for it, to see whether any token is padding. It takes a mask `(R, 1, 1, T)` as
    it is.
    """
    known = on_host(attention_mask)
    if known is attention_mask or torch.compiler.is_compiling() or not can_pack(encoder):
        return plain(attention_mask)
    if known is not None and known.all():
        return None
    return plain(attention_mask)[:, None, None].bool()


@contextmanager
def packed(
    encoder: PreTrainedModel, attention_mask: torch.Tensor | None, packing: Packing | LengthBuckets | None
) -> Iterator[Callable[..., Any]]:
    """Make an encoder leave out padding inside the context, if there is a packing of the mask `(R, T)`.

    Enter it after other hooks on the embedding layer were registered: they see padded rows. Other threads may use the
    same encoder meanwhile.

    Returns:
        What to call instead of the encoder, with its arguments except the mask. `packing.unpack` takes its outputs.

    Raises:
        ValueError: the encoder did not hand the packing to its attention.
    """
    if not torch.compiler.is_compiling():
        # Not only inside the context: checkpointed layers run again in the backward pass.
        use_packed_attention(encoder)
    if packing is None:
        yield partial(encoder, attention_mask=_mask_to_pass(encoder, attention_mask))
        return
    if isinstance(packing, LengthBuckets):
        yield partial(packing.run, encoder, attention_mask=attention_mask)
        return
    packing.attended = False
    backbone = _without_head(encoder)

    @_in_this_thread
    def pack(module: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> torch.Tensor:
        return packing.pack(output)

    handle = embedding_output(backbone).register_forward_hook(pack)
    try:
        with nullcontext() if packing.pooled_places is None else _pooling_early(backbone, packing):
            yield partial(encoder, packing=packing)
    finally:
        handle.remove()
    if not packing.attended:
        raise ValueError(
            f"{type(encoder).__name__} does not pass options to its attention; compute its padding (padded: true)"
        )
