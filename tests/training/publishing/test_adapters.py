"""Adapters: made of a run, loaded in three ways, merged with their base model, and published."""

import re
import shutil

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from peft import PeftConfig, PeftModel
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.evaluation.tasks.sts import HUB
from csezoo.training.files import read_json, write_json
from csezoo.training.publishing.adapters import NEEDED, adapter_of_run, merge_adapter, save_adapter, stage_adapter
from csezoo.training.publishing.fingerprints import verify_repository
from tests.conftest import SENTENCES, sentence_transformer
from tests.interpreters import run_python
from tests.repositories import local_files
from tests.training.runs import command_line, train, values

# PEFT 0.21 asks transformers for a name that it will drop.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
BASE = "sentence-transformers/all-MiniLM-L6-v2"  # in `named_models`, a tiny one
LORA = {
    "simcse": {"lora_rank": 2},
    "diffaug": {"method": "diffaug", "views_module": "lora", "bottleneck": 2, "freeze_backbone": True},
}


@pytest.fixture
def place(named_models, monkeypatch):
    """The working directory in which the base model's Hub id is the name of a directory."""
    monkeypatch.chdir(named_models)
    return named_models


def trained(place, train_file, dev_file, output, **keys):
    """A run on the base model; after so high a learning rate its vectors are far from the base model's."""
    recipe = values(BASE, train_file, dev_file, output, learning_rate=0.05, max_steps=4, select_by="last", **keys)
    train({key: value for key, value in recipe.items() if key != "max_length"})
    return output


@pytest.fixture
def run(place, train_file, dev_file, tmp_path):
    return trained(place, train_file, dev_file, tmp_path / "run", **LORA["simcse"])


@pytest.fixture
def adapter(run, tmp_path):
    stage_adapter(str(run), "zoo/tiny-adapter", tmp_path / "adapter", BASE)
    return tmp_path / "adapter"


def vectors(directory):
    return SentenceTransformer(str(directory), device="cpu").encode(SENTENCES[:8])


def close(first, second):
    np.testing.assert_allclose(first, second, atol=2e-6)


@pytest.mark.parametrize("kind", LORA)
def test_the_adapter_of_a_run_and_its_base_are_the_model_of_the_run(place, train_file, dev_file, tmp_path, kind):
    run = trained(place, train_file, dev_file, tmp_path / "run", **LORA[kind])
    stage_adapter(str(run), "zoo/tiny-adapter", tmp_path / "adapter", BASE)
    expected = vectors(run / "best")
    assert np.abs(expected - vectors(BASE)).max() > 1e-3, "the run has changed the vectors"
    # sentence-transformers
    model = SentenceTransformer(BASE, device="cpu")
    model.load_adapter(str(tmp_path / "adapter"))
    close(model.encode(SENTENCES[:8]), expected)
    # PEFT, with the base model's pooling
    batch = AutoTokenizer.from_pretrained(BASE)(SENTENCES[:1], return_tensors="pt")
    encoder = PeftModel.from_pretrained(AutoModel.from_pretrained(BASE), str(tmp_path / "adapter")).eval()
    pooled = encoder(**batch).last_hidden_state.mean(1)
    close(torch.nn.functional.normalize(pooled).detach().numpy(), expected[:1])
    # the complete model
    merge_adapter(str(tmp_path / "adapter"), str(tmp_path / "merged"))
    close(vectors(tmp_path / "merged"), expected)
    verify_repository(str(tmp_path / "merged"))


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"named_prompts": {"query": "the "}, "default_prompt_name": "query"}, "named_prompts"),
        ({"similarity": "dot"}, "similarity_fn_name"),
        ({"truncate_dim": 8}, "embedding_size"),
    ],
)
def test_a_run_with_other_settings_than_its_base_model_has_no_adapter(
    place, train_file, dev_file, tmp_path, keys, name
):
    run = trained(place, train_file, dev_file, tmp_path / "run", **LORA["simcse"], **keys)
    with pytest.raises(UserError, match=f"{name}: an adapter has that of its base model, not that of the run"):
        adapter_of_run(str(run), tmp_path / "adapter", BASE)


def test_on_a_bare_encoder_an_adapter_needs_mean_pooling(bases, train_file, dev_file, tmp_path, monkeypatch):
    shutil.copytree(bases["bert"], tmp_path / "zoo" / "base")
    monkeypatch.chdir(tmp_path)
    for pooling in ("cls", "mean"):
        keys = {"pooling": pooling, "projection": "none", "select_by": "last", **LORA["simcse"]}
        train(values(bases["bert"], train_file, dev_file, tmp_path / pooling, max_steps=1, learning_rate=0.05, **keys))
    with pytest.raises(UserError, match="reads .* by mean pooling, and the run has cls; publish the model"):
        adapter_of_run(str(tmp_path / "cls"), tmp_path / "of-cls", "zoo/base")
    adapter_of_run(str(tmp_path / "mean"), tmp_path / "of-mean", "zoo/base")
    model = SentenceTransformer(str(bases["bert"]), device="cpu")
    model.load_adapter(str(tmp_path / "of-mean"))
    close(model.encode(SENTENCES[:8]), vectors(tmp_path / "mean" / "best"))


def test_its_files_are_in_pefts_format_and_small(adapter):
    assert {path.name for path in adapter.iterdir()} >= {*NEEDED, "README.md"}
    config = read_json(adapter / "adapter_config.json")
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 2, 2)
    assert (config["target_modules"], config["base_model_name_or_path"]) == (["query", "value"], BASE)
    shapes = {tuple(tensor.shape) for tensor in load_file(adapter / "adapter_model.safetensors").values()}
    assert shapes == {(2, 32), (32, 2)}


def test_its_card_names_the_base_model_and_the_three_ways(adapter):
    card = ModelCard.load(adapter / "README.md")
    assert (card.data.library_name, card.data.base_model) == ("peft", BASE)
    assert card.data["base_model_relation"] == "adapter"
    for way in ('model.load_adapter("zoo/tiny-adapter")', "PeftModel.from_pretrained(", "csezoo merge zoo/tiny-ada"):
        assert way in card.text


def test_its_scores_on_data_sets_of_the_hub_are_published_for_its_leaderboards(adapter, tmp_path):
    measured = {"metric": "spearman", "similarity": "cosine", "rows": 1500, "seed": 1}
    results = [
        {"task": task, "value": value, "dataset": HUB[task][0], "revision": HUB[task][1], **measured}
        for task, value in (("STSBenchmark-dev", 87.5), ("STSBenchmark", 83.5))
    ]
    write_json(adapter / "results.json", {"results": results})
    stage_adapter(str(adapter), "zoo/tiny-adapter", tmp_path / "staged")
    scores = {
        score.dataset_name: score.metric_value
        for score in ModelCard.load(tmp_path / "staged" / "README.md").data.eval_results
    }
    assert scores == {"STSBenchmark-dev": 87.5, "STSBenchmark": 83.5}
    (file,) = (tmp_path / "staged" / ".eval_results").iterdir()
    assert file.name == "STSBenchmark.yaml" and "83.5" in file.read_text(encoding="utf-8")


def test_the_command_merges_and_says_what_it_checked(adapter, tmp_path, capsys):
    main(["merge", str(adapter), "--to", str(tmp_path / "merged"), "--base", BASE])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"checked   {BASE} is the base model of {adapter}" and printed[-1] == str(tmp_path / "merged")
    assert [line.split()[1] for line in printed[1:3]] == ["token", "vectors:"]


def test_another_base_is_one_line(adapter, bases, tmp_path):
    sentence_transformer(bases["roberta"]).save(str(tmp_path / "other"))
    with pytest.raises(UserError, match=f"other has other weights than {BASE}, on which .* was trained; give that"):
        merge_adapter(str(adapter), str(tmp_path / "merged"), base=str(tmp_path / "other"))
    with pytest.raises(UserError, match="nowhere has no model.safetensors, or cannot be reached; give --base DIR"):
        merge_adapter(str(adapter), str(tmp_path / "merged"), base=str(tmp_path / "nowhere"))
    assert not (tmp_path / "merged").exists()


def test_a_changed_adapter_does_not_match_its_fingerprint(adapter, tmp_path):
    from safetensors.torch import save_file

    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({name: 2 * tensor for name, tensor in tensors.items()}, adapter / "adapter_model.safetensors")
    with pytest.raises(UserError, match="does not match its fingerprint: 8 of 8 vectors differ"):
        merge_adapter(str(adapter), str(tmp_path / "merged"))
    assert not (tmp_path / "merged").exists()


def test_a_damaged_adapter_is_one_line(adapter, tmp_path):
    (adapter / "adapter_model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match="the adapter cannot be loaded"):
        merge_adapter(str(adapter), str(tmp_path / "merged"))


@pytest.mark.parametrize("content", ['{"results": [{"task": "STS12"}]}', "[]"])
def test_results_of_something_else_are_one_line(adapter, tmp_path, content):
    (adapter / "results.json").write_text(content)
    with pytest.raises(UserError, match=f"{re.escape(str(adapter))}/results.json") as refused:
        merge_adapter(str(adapter), str(tmp_path / "merged"))
    assert "\n" not in str(refused.value) and not (tmp_path / "merged").exists()


def test_an_adapter_names_the_revision_of_its_base(bases, tmp_path):
    base, tuned = (AutoModel.from_pretrained(bases["bert"]) for _ in range(2))
    with torch.no_grad():
        tuned.encoder.layer[0].attention.self.query.weight += torch.ones(32, 1) @ torch.ones(1, 32)
    save_adapter(tmp_path / "adapter", base, tuned, BASE, "abc")
    assert PeftConfig.from_pretrained(str(tmp_path / "adapter")).revision == "abc"


def test_what_is_no_adapter_is_refused(run, place, tmp_path):
    with pytest.raises(UserError, match=r"run is no adapter of the zoo: it has no adapter_config.json, adapter_model"):
        merge_adapter(str(run), str(tmp_path / "merged"))


def test_a_run_that_trained_all_weights_has_no_adapter(place, train_file, dev_file, tmp_path):
    run = trained(place, train_file, dev_file, tmp_path / "run")
    with pytest.raises(UserError, match="has changed, and not by a low rank; train with --lora_rank, or publish the"):
        stage_adapter(str(run), "zoo/tiny-adapter", tmp_path / "adapter", BASE)


def test_another_base_than_that_of_the_run_is_refused_before_the_work(run, bases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bases["bert"], "zoo/other")
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text("utf-8").replace(f"./{BASE}", str(bases["roberta"])), "utf-8")
    with pytest.raises(UserError, match="--base: zoo/other has other weights than .*, on which .* was trained; give"):
        adapter_of_run(str(run), tmp_path / "adapter", "zoo/other")


def test_an_equal_model_has_no_adapter(bases, tmp_path):
    base = AutoModel.from_pretrained(bases["bert"])
    with pytest.raises(UserError, match="no weight differs from the base model"):
        save_adapter(tmp_path / "adapter", base, base, BASE)


def test_a_base_model_in_a_directory_needs_its_name_on_the_hub(run, tmp_path):
    with pytest.raises(UserError, match="is a directory; give --base with the Hub id of that encoder"):
        stage_adapter(str(run), "zoo/tiny-adapter", tmp_path / "adapter")


def test_it_is_published_with_its_card_and_loads_from_the_hub(run, place, hub, tmp_path):
    """The Hub has the base model too; the same command again changes nothing."""
    hub.commit(BASE, "base", {".gitattributes": b"", **local_files(place / BASE)})
    away = tmp_path / "away"  # where the id is no directory
    away.mkdir()
    environment = hub.environment(tmp_path / "hf")
    (run / "recipe.yaml").write_text((run / "recipe.yaml").read_text("utf-8").replace(f"./{BASE}", BASE), "utf-8")
    command = ["-W", "ignore", "-m", "csezoo.training.cli", "publish", run, "--adapter", "--to", "zoo/tiny-adapter"]
    done = run_python(*command, cwd=away, **environment)
    assert done.returncode == 0, done.stderr
    assert "checked   token ids and vectors, merged with the base model" in done.stdout
    commit = hub.repos["zoo/tiny-adapter"][-1]
    assert {*NEEDED, "README.md"} <= commit.files.keys() and str(tmp_path).encode() not in commit.files["recipe.yaml"]
    merge = ["-W", "ignore", "-m", "csezoo.training.cli", "merge", "zoo/tiny-adapter", "--to", away / "merged"]
    assert run_python(*merge, cwd=away, **environment).returncode == 0
    close(vectors(away / "merged"), vectors(run / "best"))


def test_of_a_revision_of_a_bare_encoder_that_has_changed_since(hub, bases, train_file, dev_file, tmp_path):
    files = local_files(bases["bert"])
    first = hub.commit("zoo/base", "base", {".gitattributes": b"", **files})
    hub.commit("zoo/base", "other weights", {".gitattributes": b"", **local_files(bases["roberta"])})
    recipe = values("zoo/base", train_file, dev_file, tmp_path / "run", learning_rate=0.05, max_steps=1)
    recipe |= {"pooling": "mean", "projection": "none", "select_by": "last", "base_revision": first.id, "lora_rank": 2}
    cli, environment = ["-W", "ignore", "-m", "csezoo.training.cli"], hub.environment(tmp_path / "hf")
    for command in (
        ["train", *command_line(recipe)],
        ["publish", tmp_path / "run", "--adapter", "--to", "zoo/tiny-adapter"],
    ):
        done = run_python(*cli, *command, cwd=tmp_path, **environment)
        assert done.returncode == 0, done.stderr
    assert "merged with the base model" in done.stdout
