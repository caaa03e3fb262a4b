"""Which method trains which family of backbones, and the table of `docs/backbones.md` that says so.

    python -m tests.family_table DIRECTORY docs/backbones.md

runs all checks on tiny random models, and writes the table. It keeps the models, environments with other versions of
transformers, and what has been checked in DIRECTORY, and continues there if it was interrupted.
`tests/modeling/test_backbones.py` runs a part of the checks.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from tqdm import tqdm
from transformers.utils import logging

from csezoo.modeling.contrastive.published import load_published
from csezoo.modeling.serving.modeling_csezoo import CsezooModel
from csezoo.training.errors import UserError, one_line
from csezoo.training.loop.building import Build, build
from csezoo.training.loop.health import refuse_padding_dependence, views_differ
from csezoo.training.publishing.audit import audit
from csezoo.training.publishing.onnx_graph import write_onnx
from csezoo.training.recipes import Recipe, make_recipe
from tests.across_versions import OTHERS, run
from tests.clean_interpreter import WITHOUT_CSEZOO
from tests.conftest import SENTENCES
from tests.families import CAUSAL_FAMILIES, FAMILIES, NO_DROPOUT, save_family
from tests.methods import exact
from tests.tiny import gradients
from tests.two_processes import model, one_step, rows_of, two_processes_of_one_group, two_updates

PROMPT = "the {sentence} sees {mask} ."
NO_CLASSES: dict[str, object] = {"method": "diffaug", "nli_classes": 0}
METHODS: dict[str, dict[str, object]] = {
    "SimCSE": {"method": "simcse", "projection": "tanh"},
    "prompt": {"method": "simcse", "pooling": "prompt", "prompts": [PROMPT]},
    "LoRA": {"method": "simcse", "lora_rank": 4, "lora_dropout": 0.1},
    "mlm": {"method": "simcse", "mlm_weight": 0.1},
    "PrdSimCSE": {"method": "prdsimcse"},
    "SG-OPT": {"method": "sgopt", "projection_size": 48},
    "DiffCSE": {"method": "diffcse"},
    "L2P-CSR": {"method": "l2pcsr"},
    "DiffAug prefix": {**NO_CLASSES, "prefix_length": 4},
    "DiffAug LoRA": {**NO_CLASSES, "views_module": "lora"},
    "DiffAug adapter": {**NO_CLASSES, "views_module": "adapter"},
}
LOAD = """
import json
from transformers import CONFIG_MAPPING, AutoModel
found = []
for path in json.loads(PATHS):
    with open(path + "/config.json") as config:
        content = json.load(config)
        if content.get("backbone_config", content)["model_type"] not in CONFIG_MAPPING:
            found.append("absent")
            continue
    try:
        AutoModel.from_pretrained(path, trust_remote_code=True).verify()
        found.append(None)
    except Exception as error:
        found.append(repr(error))
print(json.dumps(found))
"""
# What is checked of each cell, each with its error or None. A cell that is refused has the reason instead.
REFUSED, TRAINED, REMOTE, ONNX, PROCESSES = "refused", "trained", "remote code", "ONNX", "two processes"
ABSENT = "absent"  # instead of an error: this version of transformers does not have the family
UNCHECKED = {("mlm", PROCESSES): "mlm draws its masks, so two processes draw others than one"}
Cell = tuple[str, str]  # a family and a method
Checks = dict[str, str | None]


def recipe_of(family: str, method: str, base: Path) -> Recipe:
    """Return the recipe of a cell. Causal models pool the last token, and models without dropout get some."""
    keys: dict[str, object] = {"name": "tiny", "base_model": str(base), "batch_size": 8, "max_length": 16}
    keys |= METHODS[method]
    if family in CAUSAL_FAMILIES:
        keys |= {"pooling": "last"}
        keys |= {"prompts": ['the "{sentence}" means in one word : "']} if method == "prompt" else {}
    if family in NO_DROPOUT and method != "LoRA":
        keys |= {"dropout": 0.1}
    return make_recipe({**keys, "generator": str(base)} if method == "DiffCSE" else keys)


def check_cell(family: str, method: str, base: Path, directory: Path) -> str | None:
    """Build, train two updates, save and load one cell.

    Args:
        base: from `save_family`.
        directory: for the published model; its parent exists.

    Returns:
        Why the cell is refused; None if it is not.
    """
    recipe = recipe_of(family, method, base)
    try:
        built = build(recipe)
        refuse_padding_dependence(built, recipe)
    except UserError as error:
        return str(error).replace(str(base), family)
    _train(built)
    serving = built.model.serving_model().eval()
    serving.tokenizer = built.serving_tokenizer
    serving.save_pretrained(directory)
    expected = serving.encode(SENTENCES[:4], convert_to_numpy=False)
    loaded = load_published(directory)
    torch.testing.assert_close(loaded.encode(SENTENCES[:4], convert_to_numpy=False), expected, atol=1e-6, rtol=1e-6)
    _check_padding(loaded, family in CAUSAL_FAMILIES)
    if loaded.config.is_plain:
        served = SentenceTransformer(str(directory), device="cpu").encode(SENTENCES[:4], convert_to_tensor=True)
        torch.testing.assert_close(served, expected, atol=2e-5, rtol=0)
    return None


def _train(built: Build) -> None:
    """Two updates. Every trained parameter gets a gradient, and then views differ (LoRA starts at zero)."""
    torch.manual_seed(0)
    batch = built.collator(texts=True)([{"0": text} for text in SENTENCES[:8]])
    frozen = {id(parameter) for parameter in built.model.frozen_parameters("contrastive")}
    trained = {n: p for n, p in built.model.named_parameters() if p.requires_grad and id(p) not in frozen}
    before = {name: parameter.detach().clone() for name, parameter in trained.items()}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2, weight_decay=0.0)  # only gradients move
    built.model.train()
    for _ in range(2):
        output = built.model(**batch)
        output.loss.backward()
        assert output.loss.isfinite()
        assert [name for name, parameter in trained.items() if parameter.grad is None] == []
        optimizer.step()
        optimizer.zero_grad()
    assert views_differ(batch["input_ids"], built.model(**batch).embeddings, 1e-5)
    still = [name for name, parameter in trained.items() if torch.equal(parameter, before[name])]
    assert still == [], "the optimizer moved every trained tensor"


def _check_padding(encoder: CsezooModel, causal: bool) -> None:
    """A sentence has the same vector alone and beside a longer one, for a causal model with padding on either side."""
    tokenizer = encoder.tokenizer
    alone = encoder.encode(SENTENCES[0], convert_to_numpy=False)
    for side in ("right", "left") if causal else ("right",):
        tokenizer.padding_side = side
        texts = [SENTENCES[0], " ".join(SENTENCES[:2])]
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            beside = encoder(batch["input_ids"], batch["attention_mask"]).pooler_output[0]
        torch.testing.assert_close(beside, alone, atol=2e-5, rtol=0)
    tokenizer.padding_side = "right"


def check_remote_code(directories: list[Path], tmp_path: Path) -> list[str | None]:
    """Load all published models in one interpreter without this project, and compare them with their fingerprints.

    Returns:
        The error of each, or None.
    """
    # Not by `run_without_csezoo`: what it starts from this file, run as a script, would import csezoo.
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_CSEZOO + loading(directories)]
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    return printed(subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True))


def loading(directories: list[Path]) -> str:
    """Return the code that loads published models, and prints the error of each."""
    return f"PATHS = {json.dumps(list(map(str, directories)))!r}\n{LOAD}"


def printed(done: subprocess.CompletedProcess) -> list[str | None]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check_audit_and_onnx(directory: Path) -> None:
    """Audit a published model and write its ONNX file, whose vectors are compared."""
    assert audit(directory) == []
    encoder = load_published(directory)
    texts = [SENTENCES[0], " ".join(SENTENCES[:2]), ""]
    write_onnx(directory / "onnx" / "model.onnx", encoder, encoder.tokenizer, texts)


def distributed_setting(family: str, method: str, base: Path) -> dict[str, object]:
    """Return the configuration of a cell in which nothing is drawn, for `tests.modeling.test_distributed`."""
    config = build(recipe_of(family, method, base)).model.config
    for name in vars(config.backbone_config):
        if "dropout" in name and isinstance(getattr(config.backbone_config, name), float):
            setattr(config.backbone_config, name, 0.0)
    keys = {key: value for key, value in METHODS[method].items() if key not in ("method", "lora_dropout")}
    name = str(METHODS[method]["method"])
    keys |= {"backbone_config": config.backbone_config, "lora_dropout": 0.0, "prefix_dropout": 0.0}
    keys |= {"pooling": config.pooling, "prompts": config.prompts, "prompt_token_ids": config.prompt_token_ids}
    keys |= {"mask_token_id": config.mask_token_id, **exact(name), "method": name, "mlm_probability": 0.999}
    if not name.startswith("diffaug"):
        del keys["prefix_dropout"]
    return keys


def check_two_processes(in_both: Callable, setting: dict[str, object], views: int) -> None:
    """Two processes have the loss and the gradients of one."""
    loss, shared, _, _ = in_both(one_step, 4, views, setting)
    single = model(setting)
    torch.testing.assert_close(loss, two_updates(single, single, rows_of(4, views, setting)), atol=1e-5, rtol=1e-4)
    for name, gradient in gradients(single).items():
        if gradient is not None:
            torch.testing.assert_close(shared[name], gradient, atol=1e-5, rtol=1e-3, msg=name)


def table(cells: dict[Cell, Checks]) -> str:
    """Return the table in Markdown, and below it the reason of each cell that is refused, or that failed a check."""
    lines = [f"| family | {' | '.join(METHODS)} |", "|---|" + "---|" * len(METHODS)]
    reasons: dict[str, int] = {}
    for family in FAMILIES:
        marks = []
        for method in METHODS:
            refused = cells[family, method].get(REFUSED)
            failed = {check: error for check, error in cells[family, method].items() if error not in (None, ABSENT)}
            why = refused.replace(family, "BASE") if refused else "; ".join(f"{c}: {e}" for c, e in failed.items())
            number = reasons.setdefault(why, len(reasons) + 1) if why else None
            marks.append(f"{'refused' if refused else 'failed'} ({number})" if number else "✔")
        lines.append(f"| {family} | {' | '.join(marks)} |")
    passed = sum(line.count("✔") for line in lines)
    lines += ["", f"{passed} of {len(cells)} cells pass ({100 * passed / len(cells):.0f} %). The others:", ""]
    lines += [f"{number}. `{reason}`" for reason, number in reasons.items()]
    for version in OTHERS:
        lacking = {family for (family, _), checks in cells.items() if checks.get(of_version(version)) == ABSENT}
        if lacking:
            lines += ["", f"transformers {version} does not have {', '.join(f for f in FAMILIES if f in lacking)}."]
    return "\n".join(lines)


def of_version(version: str) -> str:
    return f"transformers {version}"


class Work:
    """The checks of all cells. `cells.json` in the directory says which are done.

    Args:
        directory: of the models and of `cells.json`.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.bases = {family: directory / "bases" / family.replace(" ", "-") for family in FAMILIES}
        for family, base in self.bases.items():
            if not base.is_dir():
                save_family(family, base)
        self.file = directory / "cells.json"
        known = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.cells: dict[Cell, Checks] = {(f, m): known.get(f"{f} / {m}", {}) for f in FAMILIES for m in METHODS}

    def model(self, cell: Cell) -> Path:
        return self.directory / "models" / "-".join(cell).replace(" ", "-")

    def done(self, cell: Cell, check: str, error: str | None) -> None:
        self.cells[cell][check] = error
        self.file.write_text(json.dumps({" / ".join(key): checks for key, checks in self.cells.items()}))

    def missing(self, check: str) -> list[Cell]:
        cells = [cell for cell, checks in self.cells.items() if not checks.keys() & {check, REFUSED}]
        return [cell for cell in cells if (cell[1], check) not in UNCHECKED]

    def each(self, check: str, make: Callable[[Cell], str | None]) -> None:
        """Make a check of every cell that lacks it; it returns why the cell is refused, or None."""
        for cell in tqdm(self.missing(check), desc=check):
            try:
                refused = make(cell)
            except (AssertionError, RuntimeError, ValueError, UserError) as error:
                self.done(cell, check, one_line(error))
            else:
                self.done(cell, REFUSED if refused else check, refused)

    def train(self, cell: Cell) -> str | None:
        to = self.model(cell)
        shutil.rmtree(to, ignore_errors=True)
        to.parent.mkdir(exist_ok=True)
        return check_cell(*cell, self.bases[cell[0]], to)

    def load(self, check: str, errors_of: Callable[[list[Path]], list[str | None]]) -> None:
        """Load the models that were not loaded in this way yet, a family at a time."""
        for family in tqdm(FAMILIES, desc=check):
            cells = [cell for cell in self.missing(check) if cell[0] == family]
            errors = errors_of([self.model(cell) for cell in cells]) if cells else []
            for cell, error in zip(cells, errors, strict=True):
                self.done(cell, check, error)

    def load_with(self, version: str) -> None:
        """Load the models with another version of transformers."""
        packages = {"transformers": version}
        self.load(of_version(version), lambda paths: printed(run(self.directory, packages, loading(paths), paths[0])))

    def run_two_processes(self) -> None:
        with two_processes_of_one_group() as in_both:

            def check(cell: Cell) -> None:
                setting = distributed_setting(*cell, self.bases[cell[0]])
                check_two_processes(in_both, setting, {"PrdSimCSE": 3, "SG-OPT": 1}.get(cell[1], 2))

            self.each(PROCESSES, check)


def main(directory: Path, page: Path) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    work = Work(directory)
    work.each(TRAINED, work.train)
    work.load(REMOTE, lambda paths: check_remote_code(paths, directory))
    work.each(ONNX, lambda cell: check_audit_and_onnx(work.model(cell)))
    work.run_two_processes()
    for version in OTHERS:
        work.load_with(version)
    # The table is between two marks of the page.
    before, rest = page.read_text(encoding="utf-8").split("<!-- table -->\n")
    _, after = rest.split("<!-- end of the table -->\n")
    marked = f"<!-- table -->\n{table(work.cells)}\n<!-- end of the table -->\n"
    page.write_text(before + marked + after, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
