"""Account for every tensor of a checkpoint: it is kept, dropped by a rule, or an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from ..errors import UserError
from ..recipes.released import Kind

PREFIXES = ("bert.", "roberta.")
ENCODER = ("embeddings", "encoder")
POSITIONS = "embeddings.position_ids"
NAMED = 5  # tensors that an error names


def sort_tensors(names: Iterable[str], kind: Kind) -> tuple[dict[str, str], dict[str, str]]:
    """Decide for each tensor of a file what becomes of it, by its name.

    The keys of the encoder have a prefix, or none if the authors' script has removed it. That script also renames
    `mlp` to `pooler`: without a prefix and without an `mlp`, the `pooler` is the MLP.

    Returns:
        The new name of each kept tensor, and why each dropped one is dropped.

    Example:
        >>> from csezoo.training.recipes.released import kinds
        >>> sort_tensors(["bert.encoder.layer.0.output.dense.bias", "mlp.dense.bias"], kinds()["simcse-unsup"])
        ({'bert.encoder.layer.0.output.dense.bias': 'backbone.encoder.layer.0.output.dense.bias'}, \
{'mlp.dense.bias': 'is used in training only'})
    """
    names = list(names)
    prefix = next((prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in names)), "")
    renamed = not prefix and not any(name.startswith("mlp.") for name in names)
    kept: dict[str, str] = {}
    dropped: dict[str, str] = {}
    unknown = []
    for name in names:
        bare = name.removeprefix(prefix)
        head, _, rest = bare.partition(".")
        head = "mlp" if head == "pooler" and renamed else head
        if head in ENCODER and name.startswith(prefix):
            if bare == POSITIONS:
                dropped[name] = "is not needed, because the encoder counts positions itself"
            else:
                kept[name] = f"backbone.{bare}"
        elif head in kind.kept:
            kept[name] = f"{kind.kept[head]}.{rest}"
        elif head in kind.dropped:
            dropped[name] = kind.dropped[head]
        else:
            unknown.append(name)
    if unknown and all(name.startswith("module.") for name in names):
        raise UserError("every name begins with `module.`, as DataParallel saves them; remove it from the names")
    if unknown:
        raise UserError(f"no rule of this kind of checkpoint names {listed(unknown)}; is it another kind (--as)?")
    refuse_equal_names(kept)
    return kept, dropped


def refuse_equal_names(new_names: Mapping[str, str]) -> None:
    """Refuse two tensors of a file that would get one name, because only one of them could be kept."""
    first: dict[str, str] = {}
    for name, new in new_names.items():
        if (other := first.setdefault(new, name)) != name:
            raise UserError(f"{other} and {name} would both become {new}; delete the one that is not used")


def refuse_other_positions(tensors: Mapping[str, torch.Tensor], dropped: Iterable[str]) -> None:
    """Refuse a buffer of positions that does not count 0, 1, 2, …, because dropping it would change the vectors."""
    for name in dropped:
        if name.endswith(POSITIONS):
            positions = tensors[name].flatten()
            if not torch.equal(positions, torch.arange(len(positions))):
                raise UserError(f"{name} does not count 0, 1, 2, …, so these positions cannot be kept")


def refuse_other_tensors(state: Mapping[str, torch.Tensor], model: torch.nn.Module) -> None:
    """Compare tensors by their new names with what a model needs."""
    needed = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if missing := [name for name in needed if name not in state]:
        raise UserError(f"the checkpoint lacks {listed(missing)}")
    if extra := [name for name in state if name not in needed]:
        raise UserError(f"the checkpoint has {listed(extra)}, which its configuration does not need")
    for name, shape in needed.items():
        if state[name].shape != shape:
            raise UserError(f"{name} has the shape {tuple(state[name].shape)}, its configuration needs {tuple(shape)}")
    places: dict[int, str] = {}
    for name, tensor in state.items():
        first = places.setdefault(tensor.untyped_storage().data_ptr(), name)
        if first != name:
            raise UserError(f"{first} and {name} are tied: they share their numbers, but an encoder has both")


def listed(names: list[str]) -> str:
    """Return the first names as text, and how many there are.

    Example:
        >>> listed(["a", "b"]), listed([str(n) for n in range(7)])
        ('a, b', '0, 1, 2, 3, 4 (7 tensors)')
    """
    shown = ", ".join(names[:NAMED])
    return f"{shown} ({len(names)} tensors)" if len(names) > NAMED else shown
