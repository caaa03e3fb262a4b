"""The methods, one folder each. A folder is a method by being here.

`l2pcsr+diffcse` combines two methods that change different seams.
"""

from copy import copy
from functools import cache
from importlib import import_module
from inspect import get_annotations
from pkgutil import iter_modules
from typing import Any

from ..contrastive.configuration import SentenceEncoderConfig
from ..contrastive.sentence_encoder import SentenceEncoderModel
from ..contrastive.training_model import ForContrastiveLearning

Method = tuple[type[SentenceEncoderConfig], type[SentenceEncoderModel], type[ForContrastiveLearning]]

# By model type: configuration, serving model, training model. The base of all methods comes first.
METHODS: dict[str, Method] = {
    name: import_module(f".{name}", __name__).METHOD
    for name in sorted((folder.name for folder in iter_modules(__path__)), key=lambda name: name != "simcse")
}


@cache
def method(name: str) -> Method:
    """Return configuration, serving model and training model of a method, or of several methods joined by `+`.

    A combination inherits from its methods. Each method overrides the seams it changes. Only the views reach the
    serving model. The combination is therefore served and published as the method that changes the views, or as the
    first method if none does. The Auto classes know only that method; the training model of the combination is
    restored from the checkpoints of its run.

    Raises:
        ValueError: a method is unknown or given twice, or two methods change the same seam.

    Example:
        >>> config, serving, training = method("simcse")
        >>> serving.__name__
        'SimCSEModel'
    """
    names = name.split("+")
    if unknown := [one for one in names if one not in METHODS]:
        raise ValueError(f"{unknown[0]!r:.60} must be one of {', '.join(METHODS)}")
    if len(names) == 1:
        return METHODS[name]
    if repeated := [one for number, one in enumerate(names) if one in names[:number]]:
        raise ValueError(f"{repeated[0]!r} is given twice; give it once")
    owners: dict[str, str] = {}
    for one in names:
        for seam in METHODS[one][2].seams:
            if seam in owners:
                raise ValueError(
                    f"{owners[seam]} and {one} cannot be combined: both change the {seam}; leave out one of them"
                )
            owners[seam] = one
    first = owners.get("views", names[0])
    names.sort(key=lambda one: one != first)
    configs, servings, trainings = zip(*(METHODS[one] for one in names), strict=True)

    # A dataclass takes a field from its first base, which has all of them. Here the first one that declares it counts.
    own: dict[str, Any] = {"__annotations__": {}}
    for config in reversed(configs):
        for key, annotation in get_annotations(config).items():
            own["__annotations__"][key] = annotation
            own[key] = copy(config.__dataclass_fields__[key])
    own["__reduce__"] = lambda self: (_config_of, (name, self.__dict__))  # worker processes receive it
    # With the name and module of the first method, a saved model is loaded as that method.
    config = type(configs[0].__name__, configs, {"__module__": configs[0].__module__, **own})
    place = {"__module__": trainings[0].__module__, "config_class": config, "serving_class": servings[0]}
    return config, servings[0], type(trainings[0].__name__, trainings, place)


def _config_of(name: str, state: dict[str, Any]) -> SentenceEncoderConfig:
    """Return the configuration of a method with the state of another one."""
    config_class, _, _ = method(name)
    config = config_class.__new__(config_class)
    config.__dict__.update(state)
    return config
