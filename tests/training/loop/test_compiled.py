"""torch.compile, as accelerate's launcher enables it: the same numbers, without a recompilation for each length."""

import copy
import random
import shutil
from pathlib import Path

import pytest
import torch
import torch._dynamo
from accelerate.state import AcceleratorState
from transformers import AutoModel

from csezoo.training.benchmarks.training import Updates
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES
from tests.methods import SIMCSE_FIRST, run_keys
from tests.training.runs import lines, values

WHOLE = ("simcse", "prdsimcse")  # the others hook into layers or draw edits, where torch breaks the graph


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Lines of many lengths."""
    draw = random.Random(0)
    made = (" ".join(draw.choices(SENTENCES, k=draw.randint(1, 3))) for _ in range(64))
    path = tmp_path_factory.mktemp("data") / "lengths.txt"
    path.write_text("\n".join(line[: draw.randint(10, 120)] for line in made) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def shallow(base_without_dropout, tmp_path_factory):
    """A base model of one layer: others would be compiled in the same way."""
    directory = shutil.copytree(base_without_dropout, tmp_path_factory.mktemp("base") / "shallow")
    AutoModel.from_pretrained(directory, num_hidden_layers=1).save_pretrained(directory)
    return directory


@pytest.fixture
def recipe(shallow, bases, text, dev_file, tmp_path):
    def make(method, name="run", **changes):
        options = {**run_keys(method, bases["bert"]), "batch_size": 8, "max_steps": 3, **changes}
        options |= {"weakened_layers": 2} if method == "l2pcsr" else {}
        return make_recipe(values(shallow, text, dev_file, tmp_path / name, **options))

    return make


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Where a graph breaks, torch itself looks at what it carries over.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("method", SIMCSE_FIRST)
def test_compiling_changes_no_loss_and_no_gradient(recipe, method):
    updates = Updates(recipe(method), steps=2)
    model, batches = updates.built.model.train(), list(updates.batches())
    model.compute_padding()  # as compiled code does
    another = copy.deepcopy(model)  # a method may remember the batches it has seen
    assert len({batch["input_ids"].shape[-1] for batch in batches}) > 1
    compiled = torch.compile(another, backend="aot_eager", dynamic=True, fullgraph=method in WHOLE)
    for batch in batches:
        made = []
        for trained, run in ((model, model), (another, compiled)):
            torch.manual_seed(0)
            trained.zero_grad()
            loss = run(**batch).loss
            loss.backward()
            made.append((loss.item(), [weight.grad for weight in trained.parameters() if weight.grad is not None]))
        (loss, gradient), (compiled_loss, compiled_gradient) = made
        assert compiled_loss == pytest.approx(loss, rel=1e-6)
        torch.testing.assert_close(compiled_gradient, gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("method", ["simcse", pytest.param("prdsimcse", marks=pytest.mark.slow)])
def test_a_new_length_is_not_compiled_again(recipe, method):
    updates = Updates(recipe(method), steps=8)
    first, *others = updates.batches()
    compiled = torch.compile(updates.built.model, backend="aot_eager", dynamic=True, fullgraph=True)
    compiled(**first)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert len({compiled(**batch).embeddings.shape for batch in others}) == 1
    assert len({batch["input_ids"].shape[-1] for batch in others}) > 3


@pytest.mark.slow
def test_a_compiled_run_equals_an_uncompiled_one(recipe, pairs, monkeypatch):
    run_recipe(recipe("simcse", "plain", **pairs), show=False)
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "AOT_EAGER")  # as accelerate launch --dynamo_backend sets it
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_DYNAMIC", "true")
    run_recipe(recipe("simcse", "compiled", **pairs), show=False)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    plain, compiled = (lines(Path(recipe("simcse", name).output_dir)) for name in ("plain", "compiled"))
    assert [line.keys() for line in compiled] == [line.keys() for line in plain]
    for one, other in zip(compiled, plain, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
