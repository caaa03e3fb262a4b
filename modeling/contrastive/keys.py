"""The keys of a configuration. Each is declared once: checks, errors, help and reference are made from it."""

from dataclasses import MISSING, field
from inspect import get_annotations
from typing import Any, NamedTuple


class Declared(NamedTuple):
    """What the declaration of a key says, beside its default.

    Args:
        owner: the `model_type` of the method that declares it last; empty if that is `SentenceEncoderConfig`.
        help: what it is, with the source of its default.
        allowed: the choices, or an interval as in mathematics, see `allowed_values.check_value`.
        in_recipes: whether a recipe may set it. A run fills in the others.
        hint: its type.
    """

    owner: str
    help: str
    allowed: str | tuple
    in_recipes: bool
    hint: Any = None


def key(default: Any, help: str = "", allowed: str | tuple = "", *, in_recipes: bool = True) -> Any:
    """Declare a key as a field of a configuration. A method that declares a key again keeps what it leaves out.

    Args:
        default: its value where nothing sets it. Configurations never share a default list.
        help, allowed, in_recipes: see `Declared`.

    Example:
        >>> from csezoo.modeling import SentenceEncoderConfig
        >>> class MarginConfig(SentenceEncoderConfig):
        ...     model_type = "margin"
        ...     margin: float = key(0.2, "m of eq. 3; 0 is SimCSE.", "[0, 1]")
        >>> MarginConfig(margin=2.0)
        Traceback (most recent call last):
        ValueError: margin: 2.0 must be at least 0 and at most 1
    """
    metadata = {"key": Declared("", help, allowed, in_recipes)}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def declared_keys(config: type) -> dict[str, Declared]:
    """Return what is declared of each key of a configuration class, those of its base first.

    Example:
        >>> from csezoo.modeling import METHODS
        >>> declared_keys(METHODS["sgopt"][0])["temperature"].help
        'τ, 0.01 in the paper.'
    """
    declared: dict[str, Declared] = {}
    for cls in reversed(config.__mro__):
        fields = vars(cls).get("__dataclass_fields__", {})
        own = [name for name in get_annotations(cls) if name in fields and "key" in fields[name].metadata]
        hints = get_annotations(cls, eval_str=True) if own else {}
        for name in own:
            new: Declared = fields[name].metadata["key"]
            old = declared.pop(name, new)
            said = (new.help or old.help, new.allowed or old.allowed, old.in_recipes)
            declared[name] = Declared(vars(cls).get("model_type", old.owner), *said, hints[name])
    return declared


def default_of(config: type, name: str) -> Any:
    """Return the default of a key of a configuration class."""
    declared = config.__dataclass_fields__[name]  # type: ignore[attr-defined]  # transformers makes it a dataclass
    return declared.default if declared.default is not MISSING else declared.default_factory()
