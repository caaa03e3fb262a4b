"""Write the card of a checkpoint that a paper's authors released, before and after it was converted."""

from __future__ import annotations

from collections import Counter
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from ..recipes.released import STATUS, Kind, Released
from ..tables import markdown_table
from .card_tables import score_tables
from .method_texts import BIASES, DATA_LIMITS, UNCASED, ideas, method_entries
from .model_card import IDEAS_AT, TAGS, fill_card, no_plain_form
from .published import published_rows


def released_card(
    name: str, kind: Kind, entry: Released | None, receipt: dict[str, Any] | None = None, *, stated: str | None = None
) -> ModelCard:
    """Return the card of a released checkpoint, or of another one of its kind.

    Args:
        receipt: the content of `conversion.json`, if it was converted.
        stated: the license on the card of the original, if there is one.
    """
    title = name.rpartition("/")[2]
    repository, commit = kind.release.split("@")
    rows = published_rows(entry.scores) if entry else []
    results = "Not evaluated. The authors report no score for this file."
    if rows:
        notes = [f"{_capitalised(entry.notes)}."] if entry and entry.notes else []
        about = "csezoo did not measure these scores. The authors of the checkpoint report:"
        results = "\n\n".join([about, *score_tables(rows), *notes])
    return fill_card(
        ModelCardData(
            language="en",
            license=stated or kind.license or "unknown",
            library_name="transformers",
            pipeline_tag="sentence-similarity",
            tags=[*TAGS, kind.method],
            base_model=(name if receipt else entry.base_model) if entry else None,
        ),
        title=title if receipt else name,
        status=f"{STATUS}." if entry else None,
        pictures=[] if receipt else ideas(kind.texts),
        ideas_at=IDEAS_AT,
        description="\n\n".join(method_entries()[text]["description"] for text in kind.texts),
        origin=_origin(name, receipt),
        convert=None if receipt else name,
        servings=", ".join(kind.servings),
        path="REPOSITORY" if receipt else title,
        obstacle=_no_plain_form(kind, receipt),
        conversion=receipt and _conversion(receipt),
        conversion_notes=list(map(_capitalised, receipt["notes"])) if receipt else [],
        release=repository,
        commit=commit,
        results=results,
        license_note=kind.license_note.strip() + (f" The card of the original states `{stated}`." if stated else ""),
        limits=_limits(kind, entry),
        citations="\n\n".join(method_entries()[text]["citation"] for text in kind.texts),
    )


def _capitalised(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _origin(name: str, receipt: dict[str, Any] | None) -> str:
    link = f"[{name}](https://huggingface.co/{name})"
    if not receipt:
        return f"The weights are on the Hub: {link}."
    commit = receipt["revision"]
    where = f"{link} at commit `{commit}`" if commit else f"`{name}`"
    return (
        f"This is a copy of {where}, made with csezoo, a model zoo of contrastive sentence embeddings. It was read as "
        f"`{receipt['as']}`. csezoo did not train it."
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


def _no_plain_form(kind: Kind, receipt: dict[str, Any] | None) -> str | None:
    """Return why the converted model is not a plain encoder, in its serving or in the default one."""
    serving = receipt and receipt["serving"]
    served = kind.servings[serving] if serving else next(iter(kind.servings.values()), {})
    prompts = {"prompts": [next(iter(kind.prompts.values()))]} if kind.prompts else {}
    return no_plain_form(kind.method, {**kind.model, **prompts, **served})


def _limits(kind: Kind, entry: Released | None) -> list[str]:
    data = (entry and entry.data) or kind.data
    lines = [method_entries()[text]["limits"] for text in kind.texts]
    lines += [DATA_LIMITS[data]] if data else []
    lines += [UNCASED] if entry and entry.base_model.endswith("uncased") else []
    return [*lines, BIASES]
