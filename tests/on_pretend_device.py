"""Train on the pretend device, in a process of its own, and say what happened.

    python -m tests.on_pretend_device FILE KIND[:NAME] ...

`updates` makes two updates of each setting of the matrix and counts the waits of the second one. `runs` trains each
method to the end, again up to a line of the log, and resumes. `moved` begins on the CPU and resumes on the device.
`faults` does what the device must notice. FILE becomes a JSON object: for each kind and name its `waits`, and its
`error` or null.
"""

import gc
import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

os.environ["HF_HUB_OFFLINE"] = "1"  # before any library reads it

import torch
from accelerate.state import AcceleratorState, PartialState
from safetensors.torch import load_file

from csezoo.modeling import METHODS
from csezoo.training.errors import UserError
from csezoo.training.loop.runs import run_recipe
from csezoo.training.loop.training_loop import start_stage, update
from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES, save_base, write_pairs
from tests.methods import CONFIGS, TESTED, run_keys
from tests.pretend_device import GPU, WAITS, PretendGPU
from tests.tiny import configure
from tests.training.faults import AtRecord, Stopped, stop
from tests.training.runs import values

# Changes of a method's setting beside those of the matrix.
MORE = {f"{name}, duplicates masked": (name, {"mask_duplicates": True}) for name in TESTED}
MORE |= {"simcse, ranked": ("simcse", {"rank_weight": 1.0})}
# Templates of ids that every batch of `batch` has round its sentences.
PROMPT = {"pooling": "prompt", "denoise": "train", "prompts": ['"{sentence}" means {mask}.']}
PROMPT |= {"prompt_token_ids": [[[2, 7], [8, 4, 3]]]}
MORE |= {f"{name}, prompt": (name, PROMPT) for name in ("simcse", "l2pcsr", "diffaug")}
MORE |= {f"simcse, {pooling}": ("simcse", {"pooling": pooling}) for pooling in ("max", "last2_mean", "wk")}
UPDATES = {name: (name, {}) for name in CONFIGS} | MORE


def batch(name: str, config, sentences: int = 8) -> dict[str, torch.Tensor]:
    """A batch of the host for every loss of a configuration, with padding."""
    views = 3 if getattr(config, "predicted_sentence", "same") != "same" else TESTED[name].views
    shape = (sentences, views, 9)

    def rows(shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
        ids = torch.randint(10, 40, shape)
        mask = torch.ones_like(ids)
        for row, length in ((0, 6), (1, 8), (slice(2, None), 9)):
            ids[row, :, :2], ids[row, :, length - 3 : length] = torch.tensor([2, 7]), torch.tensor([8, 4, 3])
            mask[row, :, length:] = 0
        return {"input_ids": ids, "attention_mask": mask}

    made = rows(shape)
    if config.nli_weight > 0 or config.nli_classes:
        pairs = rows((sentences, 3 if config.nli_classes == 2 else 2, 9))
        made |= {f"nli_{key}": value for key, value in pairs.items()}
        made |= {"nli_labels": torch.randint(3, (sentences,))} if config.nli_classes == 3 else {}
    return made | ({"teacher_vectors": torch.randn(sentences, 5)} if config.rank_weight > 0 else {})


def two_updates(setting: str) -> None:
    """Make two updates as the loop does; `WAITS` has those of the second."""
    name, changes = UPDATES[setting]
    method = name.split("-")[0]
    config = configure(name, "bert", **changes)
    config.backbone_config.num_hidden_layers = 2
    model = METHODS[method][2](config).train().to(GPU)
    recipe = make_recipe({"name": "tiny", "method": method, "base_model": "tiny", "train_file": "none"})
    accelerator = accelerator_on_device()
    model.begin_stage("contrastive")
    stage = SimpleNamespace(name="contrastive", decay=9, learning_rate=1e-3)
    wrapped, optimizer, scheduler = start_stage(stage, recipe, model, accelerator)
    for _ in range(2):
        WAITS.clear()
        update(wrapped, optimizer, iter([batch(method, model.config)]), recipe, accelerator)
        scheduler.step()
        with torch.no_grad():
            model.after_update()
    AcceleratorState._reset_state()


def accelerator_on_device():
    from accelerate import Accelerator

    PartialState(cpu=True)
    PartialState._shared_state["device"] = GPU
    return Accelerator()


def recipe_in(directory: Path, method: str) -> dict[str, object]:
    """Write the inputs of a run into a directory, and return its recipe."""
    with torch.utils._python_dispatch._disable_current_modes():
        save_base("bert", directory / "base")
    (directory / "train.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    triplets = [",".join(SENTENCES[number : number + 3]) for number in range(40)]
    text = "\n".join(["premise,entailed,contradicted", *triplets]) + "\n"
    (directory / "triplets.csv").write_text(text, encoding="utf-8")
    columns = ["premise", "entailed", "contradicted"]
    triplets = {"nli_file": str(directory / "triplets.csv"), "nli_columns": columns, "nli_classes": 2}
    keys = run_keys(method, directory / "base", triplets)
    inputs = directory / "base", directory / "train.txt", write_pairs(directory / "dev.csv")
    return values(*inputs, directory / "run", log_steps=2, **keys)


def train_up_to(line: str, recipe: dict[str, object]) -> None:
    """Train up to a line of the log."""
    logger = logging.getLogger("csezoo")
    before = list(logger.handlers)
    AtRecord(line, stop).install()
    try:
        run_recipe(make_recipe(recipe), show=False)
    except Stopped:
        logger.handlers[:] = before
        return
    raise AssertionError(f"never logged: {line}")


def whole_and_broken_run(method: str) -> None:
    """Train to the end; train up to the last update but two and resume: both must end with the same weights."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        recipe = recipe_in(directory, method)
        broken = {**recipe, "output_dir": str(directory / "broken")}
        accelerator_on_device()
        run_recipe(make_recipe({**recipe, "output_dir": str(directory / "whole")}), show=False)
        accelerator_on_device()
        train_up_to("step 4  dev", broken)
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator_on_device()
        run_recipe(make_recipe(broken), show=False)
        one, other = (load_file(directory / run / "best" / "model.safetensors") for run in ("whole", "broken"))
        if different := [tensor for tensor in one if not torch.equal(one[tensor], other[tensor])]:
            raise AssertionError(f"resumed, {different[0]} is another one")


def moved_run(name: str) -> None:
    """Begin a run on the CPU, and resume it on the device: only by force, and then with random numbers of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        recipe = {**recipe_in(directory, name), "padded": True}
        with torch.utils._python_dispatch._disable_current_modes():
            train_up_to("step 4  dev", recipe)
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator_on_device()
        try:
            run_recipe(make_recipe(recipe), show=False)
        except UserError as error:
            assert "step-00000002 was written with another device; " in str(error), error
        else:
            raise AssertionError("resumed on another device")
        results = run_recipe(make_recipe({**recipe, "force": True}), show=False)
        assert results["training"]["resumed_with_another"] == ["device"], results["training"]


def fault(name: str) -> None:
    """Do what must not stay unnoticed: mix tensors of two devices, or wait for the device."""
    mine = torch.ones(2, device=GPU)
    {"mixed": lambda: mine + torch.ones(2), "wait": lambda: mine.sum().item()}[name]()


def report(work: Callable[[str], None], name: str) -> dict[str, object]:
    torch.manual_seed(0)
    WAITS.clear()
    try:
        with PretendGPU():
            work(name)
    except Exception:  # what it is decides the test, and the other names are still to be tried
        return {"error": traceback.format_exc(), "waits": {}}
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    return {"error": None, "waits": dict(WAITS)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.freeze()  # accelerate collects twice in each run
    kinds = {"updates": (two_updates, UPDATES), "runs": (whole_and_broken_run, TESTED)}
    kinds |= {"faults": (fault, ("mixed", "wait")), "moved": (moved_run, ("simcse",))}
    content: dict[str, dict] = {}
    for kind, _, name in (word.partition(":") for word in sys.argv[2:]):
        work, known = kinds[kind]
        content[kind] = {each: report(work, each) for each in ([name] if name else known)}
    Path(sys.argv[1]).write_text(json.dumps(content, indent=1), encoding="utf-8")
