"""What other people's clients make of a repository, as tables for the documentation."""

from functools import cache
from pathlib import Path

from csezoo.modeling.serving.pooling_csezoo import OTHER_LAYER
from csezoo.training.cli.reference import fill
from csezoo.training.files import read_json
from csezoo.training.tables import markdown_table

RESULTS = Path(__file__).parent / "clients.json"
PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
# The columns of the tables, and the poolings in each; no client tells the means of two layers apart.
COLUMNS: dict[str, tuple[str, ...]] = {f"`{pooling}`": (pooling,) for pooling in ("cls", "mean", "max", "last")}
COLUMNS |= {"two layers": tuple(OTHER_LAYER), "`prompt`": ("prompt",)}
READS = {"trusted": "the repository and its code", "plain": "the repository", "onnx": "`onnx/model.onnx`"}


@cache
def _results() -> dict:
    return read_json(RESULTS)


def _version(client: dict) -> str:
    if client["versions"] is None:
        return "*by reading*"
    return ", ".join(f"{name} {version}" for name, version in client["versions"].items())


def filled(page: str) -> str:
    """Return a page of the documentation with the current tables between its marks."""
    return fill(page, "clients", "\n\n".join(_sections()))


def _sections() -> list[str]:
    """Return a table of clients by pooling, without and with layers on top, and the reasons for what is not right."""
    reasons: list[str] = []
    tried = sum(len(cell["settings"]) for cell in _results()["cells"])
    sections = [f"The run had {tried} settings.", _versions()]
    for title, layers in (("No layer on top", False), ("A projection or whitening on top", True)):
        rows = [["client", *COLUMNS, "own code"]]
        for client in _results()["clients"]:
            marks = [_mark(client["name"], poolings, layers, False, reasons) for poolings in COLUMNS.values()]
            marks.append(_mark(client["name"], None, layers, True, reasons))
            read = "" if client["versions"] else " (*by reading*)"
            rows.append([f"{client['name']}{read}", *marks])
        sections += [f"### {title}", markdown_table(*rows)]
    return [*sections, "\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, start=1))]


def _versions() -> str:
    rows = [[client["name"], READS[client["form"]], _version(client)] for client in _results()["clients"]]
    return markdown_table(["client", "reads", "versions"], *rows)


def _mark(client: str, poolings: tuple[str, ...] | None, layers: bool, own_code: bool, reasons: list[str]) -> str:
    """Return "yes", or the numbers of the reasons, for the settings of a column; several if they differ."""
    found: list[str] = []
    for cell in _results()["cells"]:
        elsewhere = poolings is not None and cell["pooling"] not in poolings
        on_top = cell["whitened"] or cell["projection"] != "none"
        if cell["own_code"] != own_code or elsewhere or on_top != layers:
            continue
        outcome = cell["clients"].get(client)
        if outcome is None:
            continue
        if "because" in outcome:
            reason = outcome["because"]
            if reason not in reasons:
                reasons.append(reason)
            where = "no" if "texts" not in outcome else f"yes, but {' and '.join(outcome['texts'])} texts"
            found.append(f"{where} [{reasons.index(reason) + 1}]")
        else:
            found.append("yes")
    return "; ".join(sorted(set(found), reverse=True))
