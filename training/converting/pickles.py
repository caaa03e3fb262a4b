"""Read the tensors of a pickle without running anything that it names. Nothing else in csezoo reads pickles."""

from __future__ import annotations

import pickle
import pickletools
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import torch

from ..errors import UserError, one_line

# What a state dict needs: the dictionary, tensors, and their numbers. The Hub lists these for the released files.
HARMLESS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch FloatStorage",
    "torch LongStorage",
}
SAFE_TORCH = "2.10"  # has the fixes of CVE-2025-32434 and CVE-2026-24747, which `weights_only` did not stop
# Before torch 1.6, torch.save wrote a mark, its version, the machine, the tensors without their numbers, and the names
# of those numbers, each as a pickle. The numbers follow.
OLD_PICKLES = 5
# Opcodes that import what a GLOBAL opcode does not name. torch.save writes none of them.
HIDDEN = {"STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"}
# What zipfile, pickletools and torch raise for a damaged file, each in many places. MemoryError: a damaged length.
DAMAGED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
    zipfile.BadZipFile,
)


def read_pickle(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a `pytorch_model.bin`, mapped from the file: memory is used for those that are read.

    The imports of the pickle are read first, without running it. Only then does `torch.load` read it, with
    `weights_only=True`.

    Args:
        file: what `torch.save` wrote: since torch 1.6 an archive without compression, before that pickles in a row
            (which cannot be mapped, so they need memory for the complete file).

    Raises:
        UserError: the pickle imports anything but `HARMLESS`, the file is damaged, it contains more than tensors, or
            torch is too old to read pickles safely.
    """
    if torch.__version__ < SAFE_TORCH:
        raise UserError(
            f"{file.name} is a pickle: reading it safely needs torch {SAFE_TORCH}, this is {torch.__version__}; "
            "install a newer torch"
        )
    try:
        archive = zipfile.is_zipfile(file)
        foreign = sorted({name for pickled in _pickles(file, archive) for name in imports(pickled)} - HARMLESS)
    except DAMAGED as error:
        raise _unsound(file, error) from error
    if foreign:
        names = ", ".join(name.replace(" ", ".") for name in foreign)
        raise UserError(
            f"{file.name} is a pickle that imports {names}, which tensors in float32 do not need; it was not read"
        )
    try:
        state = torch.load(file, map_location="cpu", mmap=archive, weights_only=True)
    except DAMAGED as error:
        raise _unsound(file, error) from error
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise UserError(f"{file.name} is not a state dict: it contains more than tensors by name")
    return {str(name): tensor for name, tensor in state.items()}


def _unsound(file: Path, error: Exception) -> UserError:
    why = one_line(error) or type(error).__name__  # an AssertionError says nothing
    return UserError(f"{file.name} is damaged, or not a pickle of tensors that torch.save wrote ({why})")


def _pickles(file: Path, archive: bool) -> Iterator[IO[bytes]]:
    """Yield the pickles of a file. Each must be read before the next."""
    if not archive:
        with file.open("rb") as opened:
            for _ in range(OLD_PICKLES):
                yield opened
        return
    with zipfile.ZipFile(file) as opened:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in opened.infolist()):
            raise UserError(f"{file.name} is compressed, so torch.save did not write it; it is not read")
        for name in opened.namelist():
            if name.endswith(".pkl"):
                yield opened.open(name)


def imports(pickled: IO[bytes]) -> Iterator[str]:
    """Yield what a pickle imports, as `module name`, without running it; for a hidden import, the opcode.

    Example:
        >>> import io
        >>> list(imports(io.BytesIO(pickle.dumps(print, protocol=2))))
        ['__builtin__ print']
    """
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL":
            yield str(argument)
        elif opcode.name in HIDDEN:
            yield opcode.name
