"""The shape of a model at test: everything that its size and the time of encoding depend on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from ..files import read_json
from ..recipes import file_name, method_keys

# What `csezoo benchmark serving` measured, in the directory of the cards.
FILE = "serving.json"


class Shape(NamedTuple):
    """A serving model, as far as size and time depend on it."""

    base: str  # last part of the name of the pre-trained encoder
    projection: str = "none"  # layers that stay at test
    prefix: int = 0  # positions of prefixes
    template: int = 0  # word pieces of a prompt's template, counted as words and marks
    whitening: int = 0  # dimensions that a whitening keeps
    adapter: int = 0  # rank of an adapter that PEFT loads beside the encoder

    @property
    def name(self) -> str:
        """Return the name of the shape in `serving.json`.

        Example:
            >>> Shape("bert-base-uncased", prefix=8, template=10).name
            'bert-base-uncased, prefix 8, template 10'
        """
        _, *others = self._asdict().items()
        return ", ".join([self.base, *(f"{name} {value}" for name, value in others if value and value != "none")])


def shape_of(base_model: str, method: str, model: dict[str, Any], whitening: int | None = None) -> Shape:
    """Return the shape of a recipe's model at test.

    A model with other layers of its own (IS-BERT's convolutions) has no base here, so that it is not measured as if it
    were without them.
    """
    from csezoo.modeling.contrastive.sentence_encoder import SentenceEncoderModel
    from csezoo.modeling.methods import method as classes_of  # imports torch, as `method_keys` does

    values = {name: key.default for name, key in method_keys(method).items()} | model
    prefixes = values.get("views_module") == "prefix"
    if not prefixes and classes_of(method)[1].__init__ is not SentenceEncoderModel.__init__:
        base_model = ""
    template = (values["prompts"] or [""])[0].replace("{sentence}", "")
    return Shape(
        file_name(base_model),
        values["projection"] if values["projection_at_test"] else "none",
        values["prefix_length"] if prefixes else 0,
        len(re.findall(r"\{mask\}|\w+|[^\w\s]", template)),
        whitening or 0,
    )


def read_serving(directory: Path) -> dict[str, dict[str, Any]]:
    """Return size and time by the name of the shape; nothing if they were never measured."""
    if not (directory / FILE).is_file():
        return {}
    content = read_json(directory / FILE)
    shapes = content.get("shapes")
    if not isinstance(shapes, dict) or not all(isinstance(shape, dict) for shape in shapes.values()):
        raise UserError(f"{directory / FILE} is not a report of csezoo benchmark serving; write it again")
    return shapes
