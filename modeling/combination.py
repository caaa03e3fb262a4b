"""Methods by name, alone or combined: `l2pcsr+diffcse` is both at once, where they change different seams."""

from functools import cache
from typing import Any

from .configuration_sentence_encoder import SentenceEncoderConfig
from .modeling_contrastive import ForContrastiveLearning
from .modeling_sentence_encoder import SentenceEncoderModel

Method = tuple[type[SentenceEncoderConfig], type[SentenceEncoderModel], type[ForContrastiveLearning]]


@cache
def method(name: str) -> Method:
    """Configuration, serving model and training model of a method or of several joined by `+`.

    A combination inherits from its methods, each of which overrides the seams it changes and leaves the others to the
    next. It is served, and published, as the one that changes the views (else the first): nothing but the views
    reaches the serving model. The training model of a combination goes on from its run's own checkpoints; the Auto
    classes know the model it is served as.

    Raises:
        ValueError: an unknown method, or two that decide the same seam.

    Example:
        >>> config, serving, training = method("simcse")
        >>> serving.__name__
        'SimCSEModel'
    """
    from . import METHODS

    names = name.split("+")
    if unknown := [one for one in names if one not in METHODS]:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(METHODS)}")
    if len(names) == 1:
        return METHODS[name]
    owners: dict[str, str] = {}
    for one in names:
        for seam in METHODS[one][2].seams:
            if seam in owners:
                raise ValueError(f"{owners[seam]} and {one} cannot combine: both decide the {seam}")
            owners[seam] = one
    first = owners.get("views", names[0])
    names.sort(key=lambda one: one != first)
    configs, servings, trainings = zip(*(METHODS[one] for one in names), strict=True)

    def configure(self: SentenceEncoderConfig, **kwargs: Any) -> None:
        configs[0].__init__(self, **kwargs)

    # Of the first one's name and module: what is saved is found again as that one.
    place = {"__module__": configs[0].__module__, "__init__": configure}
    config = type(configs[0].__name__, configs, place)
    place = {"__module__": trainings[0].__module__, "config_class": config, "serving_class": servings[0]}
    return config, servings[0], type(trainings[0].__name__, trainings, place)
