"""Every kind of model loads as an encoder, and a finished repository loads without this project."""

import json
import shutil

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer
from sentence_transformers import __version__ as sentence_transformers_version
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Dense, Dropout, Pooling, StaticEmbedding, Transformer
from transformers import AutoModel, AutoTokenizer, ModernBertConfig

from csezoo.modeling.contrastive.published import load_published
from csezoo.modeling.pooling import pool
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.evaluation.encoders import PLAIN_POOLINGS, load_encoder, model_receipt, plain_encoder, recipe_of
from csezoo.training.loop.building import build
from csezoo.training.publishing.repository import save_card, save_repository
from csezoo.training.recipes import dump_recipe, load_recipe
from tests.conftest import SENTENCES, tiny_tokenizer
from tests.hub_server import HubServer
from tests.interpreters import run_python
from tests.repositories import tiny_repository

TINY_MODERNBERT = {
    "vocab_size": len(tiny_tokenizer("bert")),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
}
POOLINGS = ["cls", "mean", "max", "first_last_mean", "embeddings_last_mean", "last2_mean", "wk"]
TEXTS = [*SENTENCES[:9], "the cat", "dog", "the cat sees the house " * 30]
RECIPES = {
    ("bert", "cls"): "simcse-bert-base-uncased",
    ("roberta", "cls"): "simcse-roberta-base",
    ("bert", "prompt"): "promptbert-bert-base-uncased",
    ("roberta", "prompt"): "promptbert-roberta-base",
}
RESULTS = [
    {"task": task, "metric": "spearman", "value": value, "dataset": dataset, "revision": revision, "rows": rows}
    for task, value, dataset, revision, rows in [
        ("STSBenchmark-dev", 81.20456, "mteb/stsbenchmark-sts", "b0fddb5", 1500),
        ("STS12", 68.4, "SentEval STS/STS12-en-test", None, 3108),
        ("SICK-R", 72.236, "SentEval SICK/SICK_test_annotated.txt", None, 4927),
    ]
]


@pytest.fixture(scope="module")
def repositories(bases, train_file, tmp_path_factory):
    """Finished repositories by backbone and pooling, as training saves them with a local base and a local file."""
    directories = {}
    for (kind, pooling), name in RECIPES.items():
        torch.manual_seed(0)
        local = {"base_model": str(bases[kind]), "train_file": str(train_file), "max_length": 16}
        recipe = load_recipe(name, local)
        built = build(recipe)
        directory = tmp_path_factory.mktemp("repository") / f"{kind}-{pooling}"
        save_repository(directory, built.model.model.eval(), built.serving_tokenizer, recipe)
        save_card(directory, recipe, {"results": RESULTS})
        directories[kind, pooling] = directory
    return directories


def same(actual, expected, atol=1e-6):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), atol=atol, rtol=0)


def refusal(*arguments, **options) -> str:
    """The error message, which must be one line."""
    with pytest.raises(UserError) as error:
        load_encoder(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("pooling", ["cls", "prompt"])
def test_a_zoo_checkpoint_encodes_like_its_model(repositories, kind, pooling):
    directory = repositories[kind, pooling]
    encode, receipt = load_encoder(str(directory), batch_size=4)
    assert receipt.items() >= {"pooling": pooling, "dtype": "float32", "kind": "csezoo"}.items()
    model, tokenizer = load_published(directory), AutoTokenizer.from_pretrained(directory)
    with torch.no_grad():
        alone = [model(**tokenizer(t, return_tensors="pt", truncation=True)).pooler_output[0] for t in TEXTS]
    same(encode(TEXTS), torch.stack(alone))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_plain_encoder_uses_the_given_pooling(kind, base, pooling):
    encode, receipt = load_encoder(str(base), pooling=pooling, batch_size=4)
    assert receipt.items() >= {"pooling": pooling, "dtype": "float32", "kind": "transformers"}.items()
    tokenizer, model = AutoTokenizer.from_pretrained(base), AutoModel.from_pretrained(base).eval()
    longest = {"bert": 66, "roberta": 64}[kind]  # RoBERTa's positions start after the padding index
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=longest, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch, output_hidden_states=True).hidden_states
    # The tiny encoder's vectors hardly change between layers, so that WK pooling amplifies the noise of a batch.
    same(encode(TEXTS), pool(states, batch["attention_mask"], pooling), atol=5e-3 if pooling == "wk" else 1e-6)


def test_the_help_names_every_pooling(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["evaluate", "--help"])
    assert ", ".join(PLAIN_POOLINGS) in " ".join(capsys.readouterr().out.split())


def test_half_precision_does_not_round_the_frequencies_of_rotary_positions(tmp_path):
    """transformers keeps them in float32: rounded, they move every token of a long text."""
    AutoModel.from_config(ModernBertConfig(**TINY_MODERNBERT)).save_pretrained(tmp_path)
    tiny_tokenizer("bert").save_pretrained(tmp_path)
    ids = torch.arange(5, 25).repeat(1, 16)
    expected = AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()(input_ids=ids).last_hidden_state
    encoder, _ = plain_encoder(str(tmp_path), "mean", "bfloat16")
    load_encoder(str(tmp_path), pooling="mean", dtype="bfloat16")  # which looks at padding in float32
    assert torch.equal(encoder.backbone(input_ids=ids).last_hidden_state, expected)


def test_a_sentence_transformers_model_encodes_like_the_library(base, tmp_path):
    transformer = Transformer(str(base), max_seq_length=32)
    SentenceTransformer(modules=[transformer, Pooling(32, "mean")]).save(str(tmp_path / "model"))
    encode, receipt = load_encoder(str(tmp_path / "model"), batch_size=4)
    assert (receipt["kind"], receipt["sentence_transformers"]) == (
        "sentence-transformers",
        sentence_transformers_version,
    )
    same(encode(TEXTS), SentenceTransformer(str(tmp_path / "model")).encode(TEXTS))
    assert "defines its pooling itself" in refusal(str(tmp_path / "model"), pooling="mean")


@pytest.mark.parametrize("which", ["plain", "zoo", "sentence-transformers", "in folders", "routed"])
def test_a_model_receipt_depends_exactly_on_the_files_that_determine_the_vectors(base, kind, tmp_path, which):
    model, copy = tmp_path / "model", tmp_path / "copy"
    if which == "sentence-transformers":
        modules = [Transformer(str(base)), Pooling(32, "mean"), Dense(32, 8)]
        SentenceTransformer(modules=modules).save(str(model))
    elif which in ("in folders", "routed"):
        transformer = [Transformer(str(base)), Pooling(32, "mean")]
        router = Router(
            {
                "query": transformer,
                "document": [StaticEmbedding(AutoTokenizer.from_pretrained(base), embedding_dim=32)],
            }
        )
        SentenceTransformer(modules=[router] if which == "routed" else [Dropout(), *transformer]).save(str(model))
    elif which == "zoo":
        tiny_repository(model, kind=kind, whitening_size=8)
    else:
        shutil.copytree(base, model)
    receipt = model_receipt(str(model))
    assert receipt["model_revision"] is None
    decisive = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    decisive |= {"sentence_bert_config.json", "router_config.json"}
    for file in [file for file in model.rglob("*") if file.suffix in (".json", ".safetensors", ".md", ".py")]:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(model, copy)
        assert model_receipt(str(copy)) == receipt, "the place does not matter"
        with (copy / file.relative_to(model)).open("a") as content:
            content.write(" ")
        if file.name in decisive:
            assert model_receipt(str(copy)) != receipt, file
        elif file.suffix in (".md", ".py"):
            assert model_receipt(str(copy)) == receipt, file


def test_the_receipt_of_a_model_on_the_hub_has_its_commit(bases, tmp_path):
    code = """
import json
from csezoo.training.evaluation.encoders import load_encoder
print(json.dumps([load_encoder(model, pooling="cls")[1] for model in {models}]))
"""
    files = {file.name: file.read_bytes() for file in bases["bert"].iterdir()}
    with HubServer() as hub:
        for card in (b"first", b"second"):
            commit = hub.commit("zoo/plain", "a card", {**files, "README.md": card}).id
            made = code.format(models=["zoo/plain", str(bases["bert"])])
            done = run_python("-c", made, **hub.environment(tmp_path / "hf"))
            assert done.returncode == 0, done.stderr
            there, here = json.loads(done.stdout)
            assert (there["model_revision"], here["model_revision"]) == (commit, None)
            assert there["model_sha256"] == here["model_sha256"]


def test_weights_can_be_loaded_in_another_dtype(repositories):
    directory = str(repositories["bert", "cls"])
    encode, receipt = load_encoder(directory, dtype="bfloat16")
    assert receipt["dtype"] == "bfloat16" and encode(TEXTS).dtype == np.float32
    same(encode(TEXTS), load_encoder(directory)[0](TEXTS), atol=0.1)


def test_a_model_that_cannot_be_loaded_is_named_with_the_way_out(bases, repositories, tmp_path):
    plain, zoo = str(bases["bert"]), str(repositories["bert", "cls"])
    assert f"{plain} is a bare encoder, which needs a pooling: give --pooling with one of cls, mean, max" in refusal(
        plain
    )
    assert "--pooling mean" in refusal(zoo, pooling="mean") and zoo in refusal(zoo, pooling="mean")
    assert "pooling: 'median' must be one of cls" in refusal(plain, pooling="median")
    for unknown in (str(tmp_path), str(tmp_path / "nowhere"), "zoo/nothing-here"):
        assert f"{unknown} is neither a directory with a model nor a model on the Hub" in refusal(unknown)


def test_a_hub_that_cannot_be_reached_is_asked_once(tmp_path):
    code = """
import sys
from csezoo.training.cli.parser import main
main(["evaluate", "zoo/nothing-here", "--pooling", "cls"])
"""
    with HubServer() as hub:
        hub.cuts["/zoo/"] = "before"
        done = run_python("-c", code, **hub.environment(tmp_path / "hf"))
        assert (done.returncode, [line for line in hub.requests if "/zoo/" in line]) == (
            2,
            ["HEAD /zoo/nothing-here/resolve/main/config.json"],
        )
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: zoo/nothing-here is neither a directory with a model nor a model on the Hub")


def test_the_recipe_of_a_model_is_that_of_its_run(repositories, tmp_path):
    recipe = load_recipe("simcse-bert-base-uncased", {"seeds": [1, 2]})
    for model in ("run/best", "seeds/seed-2/best", "published"):
        shutil.copytree(repositories["bert", "cls"], tmp_path / model)
        assert recipe_of(str(tmp_path / model)) is None
    assert recipe_of("bag-of-words") is None
    for place in ("run", "seeds", "published"):
        dump_recipe(recipe, tmp_path / place / "recipe.yaml")
    for model in ("run/best", "seeds/seed-2/best", "published"):
        assert recipe_of(str(tmp_path / model)) == recipe


@pytest.mark.parametrize("which", ["plain", "zoo"])
def test_damaged_weights_are_a_one_line_error(bases, repositories, tmp_path, which):
    source, options = {"plain": (bases["bert"], {"pooling": "cls"}), "zoo": (repositories["bert", "cls"], {})}[which]
    copy = shutil.copytree(source, tmp_path / "copy")
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert str(copy) in refusal(str(copy), **options)


@pytest.mark.parametrize(("kind", "pooling"), RECIPES)
def test_the_card_has_the_metadata_the_hub_reads(repositories, kind, pooling):
    card = ModelCard.load(repositories[kind, pooling] / "README.md")
    assert (card.data.license, card.data.language) == ("apache-2.0", "en")
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "sentence-similarity")
    assert {"sentence-transformers", "simcse"} <= set(card.data.tags)
    assert card.data.model_name == RECIPES[kind, pooling]
    shown = [(r.dataset_name, r.dataset_type, r.dataset_revision, r.metric_value) for r in card.data.eval_results]
    assert shown == [(r["task"], r["dataset"], r["revision"], round(r["value"], 2)) for r in RESULTS]
    for result in RESULTS:
        assert f"| {result['task']} | {result['rows']} | {result['value']:.2f} | {result['dataset']} |" in card.text


def test_a_repository_contains_no_path_of_the_training_machine(repositories, bases, train_file):
    paths = [str(bases["bert"].parent), str(bases["roberta"].parent), str(train_file.parent)]
    for directory in repositories.values():
        for file in (path for path in directory.rglob("*") if path.is_file()):
            content = file.read_bytes()
            assert not [path for path in paths if path.encode() in content], file.name
