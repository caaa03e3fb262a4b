"""Write the card of a checkpoint that a paper's authors released, before and after it was converted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from ..recipes.released import STATUS, Kind, Released
from ..tables import markdown_table
from .card_tables import score_tables
from .method_texts import BIASES, DATA_LIMITS, UNCASED, ideas, method_entries
from .model_card import TAGS, fill_card, no_plain_form
from .published import published_rows


@dataclass
class Conversion:
    """What a conversion found.

    Args:
        kind: the name of the rules.
        license: what the card of the original states, if it does.
        receipt: the content of `conversion.json`.
    """

    kind: str
    license: str | None
    receipt: dict[str, Any]


def released_card(
    name: str, kind: Kind, entry: Released | None, conversion: Conversion | None = None, *, ideas_at: str | None = None
) -> ModelCard:
    """Return the card of a released checkpoint, or of another one of its kind."""
    title = name.rpartition("/")[2]
    repository, commit = kind.release.split("@")
    text = conversion.license if conversion else None
    rows = published_rows(entry.scores) if entry else []
    results = "Not evaluated. The authors report no score for this file."
    if rows:
        notes = [f"{_capitalised(entry.notes)}."] if entry and entry.notes else []
        about = "csezoo did not measure these scores. The authors of the checkpoint report:"
        results = "\n\n".join([about, *score_tables(rows), *notes])
    return fill_card(
        ModelCardData(
            language="en",
            license=text or kind.license or "unknown",
            library_name="transformers",
            pipeline_tag="sentence-similarity",
            tags=[*TAGS, kind.method],
            base_model=(name if conversion else entry.base_model) if entry else None,
        ),
        title=title if conversion else name,
        status=f"{STATUS}." if entry else None,
        pictures=ideas(kind.texts) if ideas_at else [],
        ideas_at=ideas_at,
        description="\n\n".join(method_entries()[text]["description"] for text in kind.texts),
        origin=_origin(name, conversion),
        convert=None if conversion else name,
        servings=", ".join(kind.servings),
        path="REPOSITORY" if conversion else title,
        obstacle=_no_plain_form(kind, conversion),
        conversion=conversion and _conversion(conversion.receipt),
        conversion_notes=list(map(_capitalised, conversion.receipt["notes"])) if conversion else [],
        release=repository,
        commit=commit,
        results=results,
        license_note=kind.license_note.strip() + (f" The card of the original states `{text}`." if text else ""),
        limits=_limits(kind, entry),
        citations="\n\n".join(method_entries()[text]["citation"] for text in kind.texts),
    )


def _capitalised(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _origin(name: str, conversion: Conversion | None) -> str:
    link = f"[{name}](https://huggingface.co/{name})"
    if not conversion:
        return f"The weights are on the Hub: {link}."
    commit = conversion.receipt["revision"]
    where = f"{link} at commit `{commit}`" if commit else f"`{name}`"
    return (
        f"This is a copy of {where}, made with csezoo, a model zoo of contrastive sentence embeddings. It was read as "
        f"`{conversion.kind}`. csezoo did not train it."
    )


def _conversion(receipt: dict[str, Any]) -> str:
    """Return the table of what a conversion kept and dropped."""
    rows = [
        ["file", f"`{receipt['file']}`, sha256 `{receipt['sha256']}`"],
        *([["serving", receipt["serving"]]] if receipt["serving"] else []),
        *([key, str(value)] for key, value in receipt["configuration"].items()),
        ["tensors kept", str(len(receipt["kept"]))],
    ]
    if receipt["transform_from"]:
        rows.append(["masked-LM transform of", receipt["transform_from"]])
    counts = Counter((old.split(".")[0], why) for old, why in receipt["dropped"].items())
    for (head, why), count in counts.items():
        rows.append(["dropped", f"`{head}` ({count} {'tensor' if count == 1 else 'tensors'}): {why}"])
    return markdown_table(["", ""], *rows)


def _no_plain_form(kind: Kind, conversion: Conversion | None) -> str | None:
    """Return why the converted model is not a plain encoder, in its serving or in the default one."""
    serving = conversion and conversion.receipt["serving"]
    served = kind.servings[serving] if serving else next(iter(kind.servings.values()), {})
    prompts = {"prompts": [next(iter(kind.prompts.values()))]} if kind.prompts else {}
    return no_plain_form(kind.method, {**kind.model, **prompts, **served})


def _limits(kind: Kind, entry: Released | None) -> list[str]:
    data = (entry and entry.data) or kind.data
    lines = [method_entries()[text]["limits"] for text in kind.texts]
    lines += [DATA_LIMITS[data]] if data else []
    lines += [UNCASED] if entry and entry.base_model.endswith("uncased") else []
    return [*lines, BIASES]
