"""Write the card of a checkpoint that a paper's authors released, before and after it was converted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from ..recipes.released import STATUS, Kind, Released
from .card_tables import score_tables
from .method_texts import BIASES, DATA_LIMITS, UNCASED, method_entries, show_ideas
from .model_card import no_plain_form, use_section
from .published import published_rows
from .tables import markdown_table


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
    """Return the card of a released checkpoint, or of another one of its kind.

    Args:
        name: its Hub id, or the name of its directory.
        kind: the rules of its kind.
        entry: what is known of it; None if it is not among the released ones.
        conversion: None for a checkpoint that was not converted.
        ideas_at: path from the card to the pictures of the methods' ideas; without it, the card shows none.
    """
    title = name.rpartition("/")[2] if conversion else name
    obstacle = _no_plain_form(kind, conversion)
    license = (conversion and conversion.license) or kind.license
    sections = [f"# {title}", *([f"Status: {STATUS}."] if entry else [])]
    sections += show_ideas(kind.texts, ideas_at) if ideas_at else []
    sections += [method_entries()[text]["description"] for text in kind.texts]
    if conversion:
        sections += [
            _origin(name, conversion),
            use_section("REPOSITORY", obstacle=obstacle),
            _conversion(conversion),
        ]
    else:
        where = f"The weights are on the Hub: [{name}](https://huggingface.co/{name})."
        sections += [where, _how_to_convert(name, kind, obstacle)]
    repository, commit = kind.release.split("@")
    sections.append(
        f"The rules by which csezoo reads and serves it follow the authors' code, "
        f"[{repository}](https://github.com/{repository}) at commit `{commit}`."
    )
    sections += [_scores(entry), _license_section(kind, conversion), _limits(kind, entry)]
    citations = "\n\n".join(method_entries()[text]["citation"] for text in kind.texts)
    sections.append(f"## Citation\n\n```bibtex\n{citations}\n```")
    data = ModelCardData(
        language="en",
        license=license or "unknown",
        library_name="transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "sentence-embeddings", "feature-extraction", kind.method],
        base_model=(name if conversion else entry.base_model) if entry else None,
    )
    return ModelCard("\n\n".join([f"---\n{data.to_yaml()}\n---", *sections]) + "\n")


def _origin(name: str, conversion: Conversion) -> str:
    receipt = conversion.receipt
    where = f"[{name}](https://huggingface.co/{name})" if receipt["revision"] else f"`{name}`"
    commit = f" at commit `{receipt['revision']}`" if receipt["revision"] else ""
    return (
        f"This is a copy of {where}{commit}, made with csezoo, a model zoo of contrastive sentence embeddings. It was "
        f"read as `{conversion.kind}`. csezoo did not train it."
    )


def _conversion(conversion: Conversion) -> str:
    receipt = conversion.receipt
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
    notes = "".join(f"* {note[:1].upper()}{note[1:]}.\n" for note in receipt["notes"])
    text = f"## Conversion\n\n{markdown_table(['', ''], *rows)}\n\n`conversion.json` names every tensor."
    return f"{text}\n\n{notes}".rstrip()


def _no_plain_form(kind: Kind, conversion: Conversion | None) -> str | None:
    """Return why the converted model is not a plain encoder, in its serving or in the default one."""
    serving = conversion and conversion.receipt["serving"]
    served = kind.servings[serving] if serving else next(iter(kind.servings.values()), {})
    prompts = {"prompts": [next(iter(kind.prompts.values()))]} if kind.prompts else {}
    return no_plain_form(kind.method, {**kind.model, **prompts, **served})


def _how_to_convert(name: str, kind: Kind, obstacle: str | None) -> str:
    title = name.rpartition("/")[2]
    load = use_section(title, obstacle=obstacle).removeprefix("## Use\n\n")
    servings = ", ".join(kind.servings)
    choice = f"`--serving` is one of {servings}; the first is the default.\n\n" if servings else ""
    return f"## Use\n\n```bash\ncsezoo convert {name} --to {title}\n```\n\n{choice}{load}"


def _scores(entry: Released | None) -> str:
    rows = published_rows(entry.scores) if entry else []
    if not rows:
        return "## Results\n\nNot evaluated. The authors report no score for this file."
    notes = [f"{entry.notes[:1].upper()}{entry.notes[1:]}."] if entry and entry.notes else []
    parts = ["csezoo did not measure these scores. The authors of the checkpoint report:", *score_tables(rows), *notes]
    return "## Results\n\n" + "\n\n".join(parts)


def _license_section(kind: Kind, conversion: Conversion | None) -> str:
    stated = f" The card of the original states `{conversion.license}`." if conversion and conversion.license else ""
    return f"## License\n\n{kind.license_note.strip()}{stated}"


def _limits(kind: Kind, entry: Released | None) -> str:
    lines = [method_entries()[text]["limits"] for text in kind.texts]
    data = (entry and entry.data) or kind.data
    lines += [DATA_LIMITS[data]] if data else []
    lines += [UNCASED] if entry and entry.base_model.endswith("uncased") else []
    return "## Limits and biases\n\n" + "\n".join(f"* {line}" for line in [*lines, BIASES])
