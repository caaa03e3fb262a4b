"""The house: `training` imports `modeling` and never the other way round; its wings import those before them alone."""

import ast
import graphlib
import sys
from pathlib import Path

import pytest

import csezoo.modeling
import csezoo.training

MODELING = Path(csezoo.modeling.__file__).parent
TRAINING = Path(csezoo.training.__file__).parent
# In order: a wing may import itself and every wing before it. The modules of the top level are beside them.
WINGS = ["recipes", "loading", "evaluation", "data", "pictures", "cards", "publishing", "converting", "embedding"]
WINGS += ["loop", "trainers", "machines", "reproducing", "tuning", "quickstart", "benchmarks", "cli"]
# What is imported from everywhere, and imports no wing.
FOUNDATION = {"errors", "files", "hub", "environment", "tables"}
ENTRY = {"train"}  # what `accelerate launch -m` starts


def imports(file: Path, package: str, when_imported: bool = False) -> list[str]:
    """Dotted names of everything that a file imports, wherever in it; modules inside `package` by their full name.

    `when_imported` leaves out what functions import, and what is imported for types alone.
    """
    here = [package, *file.relative_to(TRAINING if package.endswith("training") else MODELING).parent.parts]
    found = []
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body if when_imported else ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (above, node.module) if part)
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


def wing(module: str) -> str:
    """The part of `training` that a full module name is in."""
    return module.removeprefix("csezoo.training").strip(".").split(".")[0]


FILES = sorted(file.relative_to(TRAINING).as_posix() for file in TRAINING.rglob("*.py") if "metrics" not in file.parts)


@pytest.mark.parametrize("name", FILES)
def test_a_file_imports_its_wing_and_those_before_it(name):
    mine = Path(name).parts[0].removesuffix(".py")
    allowed = FOUNDATION | set(WINGS[: WINGS.index(mine) + 1] if mine in WINGS else [])
    if mine in ENTRY:
        allowed |= set(WINGS)
    if name == "__init__.py":
        allowed |= {"cards"}  # `csezoo.training.list_models`, which imports nothing heavy
    if mine == "cli":
        allowed |= ENTRY
    used = {
        wing(module) for module in imports(TRAINING / name, "csezoo.training") if module.startswith("csezoo.training")
    }
    assert used - {mine} <= allowed, f"{name} imports {used - allowed}"


def test_every_wing_has_its_place():
    wings = {path.parent.name for path in TRAINING.glob("*/__init__.py")}
    assert wings == set(WINGS)
    assert {path.stem for path in TRAINING.glob("*.py")} == FOUNDATION | ENTRY | {"__init__"}


def test_modeling_knows_torch_transformers_and_peft_alone():
    allowed = {"torch", "transformers", "peft", "numpy", "tokenizers", "safetensors", "tqdm"} | sys.stdlib_module_names
    for file in MODELING.rglob("*.py"):
        for module in imports(file, "csezoo.modeling"):
            top = module.split(".")[0]
            assert module.startswith("csezoo.modeling") or top in allowed, f"{file.name} imports {module}"


ROOMS = {"serving": ["serving"], "contrastive": ["serving", "contrastive", "objectives", "pooling"]}


@pytest.mark.parametrize("name", sorted(file.relative_to(MODELING).as_posix() for file in MODELING.rglob("*/*.py")))
def test_a_room_of_modeling_imports_those_before_it_and_a_method_no_other_method(name):
    room, *inside = name.split("/")
    used = [module.split(".") for module in imports(MODELING / name, "csezoo.modeling")]
    used = [parts[2:] for parts in used if parts[:2] == ["csezoo", "modeling"]]
    if room in ROOMS:
        assert {parts[0] for parts in used} <= set(ROOMS[room])
    else:
        methods = {parts[1] for parts in used if parts[0] == "methods" and len(parts) > 2}
        assert methods <= {inside[0]}


def test_no_two_modules_of_modeling_import_each_other_when_they_are_imported():
    modules = {}
    for file in MODELING.rglob("*.py"):
        parts = file.relative_to(MODELING).with_suffix("").parts
        modules[".".join(["csezoo.modeling", *(part for part in parts if part != "__init__")])] = file
    graph = {}
    for name, file in modules.items():
        used = imports(file, "csezoo.modeling", when_imported=True)
        used = {each if each in modules else each.rpartition(".")[0] for each in used}
        graph[name] = (used & modules.keys()) - {name}
    assert list(graphlib.TopologicalSorter(graph).static_order()), "a circle is an error that names it"
