"""A repository of sentence-transformers as a base model: what is taken over, named, written back, and refused."""

import logging
import shutil
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Normalize
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel

from csezoo import losses
from csezoo.modeling.contrastive.backbones import longest_input
from csezoo.training.errors import UserError
from csezoo.training.files import read_json, write_json
from csezoo.training.loading.served_encoder import follow_base, load_as_served, served_encoder
from csezoo.training.loop.building import build
from csezoo.training.loop.served.fitted_maps import fit_map
from csezoo.training.publishing.repository import save_repository
from csezoo.training.recipes import load_recipe, make_recipe
from tests.conftest import SENTENCES, sentence_transformer
from tests.families import save_family
from tests.interpreters import run_python
from tests.repositories import edit_json, local_files
from tests.training.runs import command_line, values

TEXTS = [*SENTENCES[:3], "THE OLD CAT", "", "the small cat " * 40]


def with_layers(base: Path) -> SentenceTransformer:
    model = sentence_transformer(base, normalize=False, longest=20)
    torch.manual_seed(1)
    model.extend([Dense(32, 24, activation_function=torch.nn.Tanh()), LayerNorm(24), Normalize()])
    model.prompts, model.default_prompt_name = {"query": "the old ", "document": ""}, "query"
    model.similarity_fn_name = "dot"
    return model


def cut(base: Path) -> SentenceTransformer:
    model = sentence_transformer(base, "cls")
    model.truncate_dim = 8
    return model


MODELS = {
    "mean-normalized": sentence_transformer,
    "max": lambda base: sentence_transformer(base, "max", normalize=False),
    "last": lambda base: sentence_transformer(base, "lasttoken", normalize=False),
    "layers-prompts-dot": with_layers,
    "cut": cut,
}


@pytest.fixture(scope="module", params=MODELS)
def served(request, base, tmp_path_factory) -> Path:
    """Each of `MODELS` in a directory."""
    directory = tmp_path_factory.mktemp("served") / request.param
    MODELS[request.param](base).save(str(directory))
    return directory


def close(first, second) -> None:
    torch.testing.assert_close(torch.as_tensor(first), torch.as_tensor(second), atol=2e-6, rtol=0)


def recipe_on(directory: Path, **keys):
    """The recipe of a run that says nothing of how the base model is served."""
    return follow_base(make_recipe({"name": "adapted", "base_model": str(directory), **keys}))[0]


def publish(recipe, directory: Path) -> Path:
    """Save what a run publishes before its first update."""
    built = build(recipe)
    save_repository(directory, built.model.serving_model().eval(), built.serving_tokenizer, recipe)
    return directory


@pytest.fixture
def layered(bases, tmp_path) -> Path:
    """The tiny BERT with a prompt, and with layers after its pooling."""
    with_layers(bases["bert"]).save(str(tmp_path / "served"))
    return tmp_path / "served"


def as_served(directory):
    return load_as_served(str(directory), None, served_encoder(str(directory)))


def test_it_is_read_as_sentence_transformers_serves_it(served):
    theirs, ours = SentenceTransformer(str(served), device="cpu"), as_served(served)
    expected = theirs.encode(TEXTS)
    close(ours.encode(TEXTS), expected)
    close(ours.similarity(expected, expected), theirs.similarity(expected, expected))


def test_what_is_published_serves_the_same_through_every_door(served, tmp_path):
    best = publish(recipe_on(served), tmp_path / "best")
    theirs, again = (SentenceTransformer(str(place), device="cpu") for place in (served, best))
    ours = AutoModel.from_pretrained(best, trust_remote_code=True)
    expected = theirs.encode(TEXTS)
    for model in (again, ours):
        close(model.encode(TEXTS), expected)
        close(model.encode(TEXTS, prompt="this "), theirs.encode(TEXTS, prompt="this "))
        close(model.similarity(expected, expected), theirs.similarity(expected, expected))
    assert again.max_seq_length == theirs.max_seq_length
    assert again.default_prompt_name == theirs.default_prompt_name
    assert {name: text for name, text in again.prompts.items() if text} == {
        name: text for name, text in theirs.prompts.items() if text
    }
    assert served_encoder(str(best)).keys == served_encoder(str(served)).keys, "it can be trained further again"


@pytest.mark.parametrize("end", [None, "<pad>"])
@pytest.mark.parametrize("pooling", ["lasttoken", "mean"])
def test_a_decoder_reads_what_its_own_tokenizer_puts_around_a_text(end, pooling, tmp_path):
    """Qwen3-Embedding ends a text with another token than `eos_token`."""
    decoder = sentence_transformer(save_family("Qwen3", tmp_path / "decoder"), pooling)
    if end:
        ids = [(end, decoder.tokenizer.convert_tokens_to_ids(end))]
        decoder.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"$A {end}", special_tokens=ids)
    decoder.save(str(tmp_path / "served"))
    expected = decoder.encode(TEXTS[:4])
    close(as_served(tmp_path / "served").encode(TEXTS[:4]), expected)
    losses.SimCSELoss(decoder, projection="none").save_pretrained(tmp_path / "of-loss")
    best = publish(recipe_on(tmp_path / "served"), tmp_path / "best")
    for repository in (best, tmp_path / "of-loss"):
        close(SentenceTransformer(str(repository), device="cpu").encode(TEXTS[:4]), expected)


def test_distilbert_and_what_is_published_from_it_can_be_a_base(tmp_path):
    model = sentence_transformer(save_family("DistilBERT", tmp_path / "distilbert"))
    model.save(str(tmp_path / "served"))
    best = publish(recipe_on(tmp_path / "served"), tmp_path / "best")
    close(as_served(best).encode(TEXTS), model.encode(TEXTS))


def test_the_side_on_which_a_text_is_cut_is_the_repository_s(bases, tmp_path):
    model = sentence_transformer(bases["bert"])
    model.tokenizer.truncation_side = "left"
    model.save(str(tmp_path / "served"))
    text = "the small cat " * 40 + "sees the old dog ."
    expected = SentenceTransformer(str(tmp_path / "served"), device="cpu").encode([text])
    close(as_served(tmp_path / "served").encode([text]), expected)
    best = publish(recipe_on(tmp_path / "served"), tmp_path / "best")
    close(SentenceTransformer(str(best), device="cpu").encode([text]), expected)


def test_training_reads_the_default_prompt_and_the_repository_s_length(layered):
    built = build(recipe_on(layered))
    batch = built.collator(texts=True)([{"0": "cat"}, {"0": "dog " * 40}])
    ids, longest = batch["input_ids"][:, 0], 20
    assert built.tokenizer.convert_ids_to_tokens(ids[0])[:4] == ["[CLS]", "the", "old", "cat"]
    assert batch["attention_mask"].sum(-1).max() == longest


def test_a_repository_that_names_no_length_is_trained_at_the_recipe_s(bases, tmp_path):
    """RoBERTa has two positions fewer than its configuration says."""
    sentence_transformer(bases["roberta"]).save(str(tmp_path / "served"))
    write_json(tmp_path / "served" / "sentence_bert_config.json", {})
    edit_json(tmp_path / "served" / "tokenizer_config.json", model_max_length=10**30)
    assert "max_length" not in served_encoder(str(tmp_path / "served")).keys
    built = build(recipe_on(tmp_path / "served"))
    assert built.serving_tokenizer.model_max_length == longest_input(built.model.model.backbone)


def test_lower_casing_of_the_repository_is_part_of_the_tokenizer(bases, tmp_path):
    sentence_transformer(bases["roberta"]).save(str(tmp_path / "served"))
    settings = tmp_path / "served" / "sentence_bert_config.json"
    write_json(settings, {"max_seq_length": 24, "do_lower_case": True})
    theirs = SentenceTransformer(str(tmp_path / "served"), device="cpu")
    best = publish(recipe_on(tmp_path / "served"), tmp_path / "best")
    for model in (as_served(tmp_path / "served"), SentenceTransformer(str(best), device="cpu")):
        close(model.encode(TEXTS), theirs.encode(TEXTS))
    close(theirs.encode("THE OLD CAT"), theirs.encode("the old cat"))


def test_what_a_recipe_sets_against_the_repository_is_used_and_named_with_both_values(bases, tmp_path, caplog):
    sentence_transformer(bases["bert"]).save(str(tmp_path / "served"))
    recipe = load_recipe("simcse-bert-base-uncased", {"base_model": str(tmp_path / "served"), "normalize": "false"})
    caplog.clear()
    caplog.set_level(logging.WARNING)
    followed, _ = follow_base(recipe)
    assert (followed.model["pooling"], followed.max_length, followed.served_length) == ("cls", 32, 24)
    assert caplog.messages == [
        "pooling: cls is used; served is served with mean",
        "projection: tanh is used; served is served with none",
        "normalize: false is used; served is served with true",
        "max_length: 32 is used; served is served with 24",
    ]
    caplog.clear()
    assert follow_base(make_recipe({**followed.to_dict(), "max_length": 24}))[0].max_length == 24
    assert len(caplog.messages) == 3  # a run's recipe.yaml has every key


def test_what_the_recipe_does_not_set_is_the_repository_s(bases, tmp_path, caplog):
    sentence_transformer(bases["bert"]).save(str(tmp_path / "served"))
    with caplog.at_level(logging.INFO):
        recipe_on(tmp_path / "served")
    assert "as served is served: pooling mean, projection none, normalize true, max_length 24" in caplog.text


def test_a_bare_encoder_tells_nothing(base):
    recipe = make_recipe({"base_model": str(base)})
    assert follow_base(recipe) == (recipe, None) and as_served(base) is None


@pytest.mark.parametrize("kind", ["served", "bare"])
def test_the_license_and_the_language_are_those_on_the_card_of_the_base_model(bases, tmp_path, kind, caplog):
    directory = tmp_path / "base"
    if kind == "served":
        sentence_transformer(bases["bert"]).save(str(directory))
    else:
        shutil.copytree(bases["bert"], directory)
    readme = directory / "README.md"
    readme.write_text("---\nlicense: cc-by-nc-4.0\nlanguage: [de]\n---\n", encoding="utf-8")
    recipe = recipe_on(directory)
    assert (recipe.license, recipe.language) == ("cc-by-nc-4.0", "de")
    assert recipe_on(directory, license="mit").license == "mit"
    assert caplog.messages[-1] == "license: mit is used; the card of base states cc-by-nc-4.0"
    readme.write_text("---\nlicense: [\n---\n", encoding="utf-8")
    assert recipe_on(directory).license == "apache-2.0"


def change(directory: Path, file: str, value=None, **changes) -> None:
    write_json(directory / file, value or {**read_json(directory / file), **changes})


def modules(*kinds: str) -> list[dict]:
    paths = ["", "1_Pooling", "2_Dense", "3_LayerNorm", "4_Normalize"]
    return [{"type": f"sentence_transformers.{kind}", "path": path} for kind, path in zip(kinds, paths, strict=False)]


@pytest.mark.parametrize(
    ("file", "changes", "reason"),
    [
        ("modules.json", {"value": modules("Router")}, "its Router cannot be taken over (it encodes queries and"),
        ("modules.json", {"value": modules("CLIPModel")}, "its CLIPModel cannot be taken over (it also encodes"),
        ("modules.json", {"value": modules("StaticEmbedding")}, "its StaticEmbedding cannot be taken over (its"),
        ("modules.json", {"value": modules("Transformer", "CNN")}, "its encoder is followed by CNN (it trains convo"),
        ("modules.json", {"value": modules("Transformer", "SpladePooling")}, "followed by SpladePooling (its vectors"),
        ("modules.json", {"value": modules("Transformer")}, "its encoder is followed by nothing (not by a Pooling)"),
        ("modules.json", {"value": modules("Transformer", "Pooling", "Mine")}, "its Mine cannot be taken over (unkn"),
        ("modules.json", {"value": [{"type": "my.Transformer", "path": ""}]}, "its my.Transformer is no module of s"),
        ("modules.json", {"value": modules("Dropout")}, "its Dropout cannot be taken over (unknown here)"),
        (
            "modules.json",
            {"value": [{**modules("Transformer")[0], "path": "0_T"}]},
            "its encoder is in the folder 0_T",
        ),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "its pooling 'weightedmean' cannot be taken over"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, "its pooling ['cls', 'mean'] cannot be taken"),
        ("1_Pooling/config.json", {"embedding_dimension": 7}, "1_Pooling/config.json is for 7 dimensions, its"),
        ("1_Pooling/config.json", {"include_prompt": False}, "its pooling leaves out the tokens of a prompt"),
        ("2_Dense/config.json", {"in_features": 7}, "2_Dense is for 7 dimensions, it gets 32"),
        ("2_Dense/config.json", {"out_features": "many"}, "2_Dense makes 'many' dimensions"),
        ("2_Dense/config.json", {"activation_function": "os.system"}, "the activation of 2_Dense, 'os.system', is"),
        ("2_Dense/config.json", {"activation_function": ["x"]}, "the activation of 2_Dense, ['x'], is not Tanh"),
        ("2_Dense/config.json", {"module_input_name": ["x"]}, "its Dense in 2_Dense maps other things than"),
        ("2_Dense/config.json", {"use_residual": True}, "its Dense in 2_Dense adds what it reads to what it"),
        ("4_Normalize/config.json", {"module_input_name": "token_embeddings"}, "its Normalize in 4_Normalize maps"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 8}}}, "is loaded with proce"),
        ("sentence_bert_config.json", {"tokenizer_name_or_path": "x"}, "is loaded with tokenizer_name_or_path 'x'"),
        ("sentence_bert_config.json", {"tokenizer_args": {"model_max_length": 8}}, "is loaded with tokenizer_args"),
        ("sentence_bert_config.json", {"config_kwargs": {"hidden_act": "relu"}}, "is loaded with config_kwargs"),
        ("sentence_bert_config.json", {"query_length": 10}, "is loaded with query_length 10"),
        ("3_LayerNorm/config.json", {"dimension": 7}, "3_LayerNorm is for 7 dimensions, it gets 24"),
        ("config_sentence_transformers.json", {"prompts": {"query": 3}}, "named_prompts: 'query' is 3, which is no"),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "named_prompts: ['a'] must be texts by name"),
        ("config_sentence_transformers.json", {"prompts": {"query": "{task}: "}}, "which depends on a task"),
        ("config_sentence_transformers.json", {"default_prompt_name": "x"}, "default_prompt_name: 'x' is none of"),
        ("config_sentence_transformers.json", {"default_prompt_name": ["x"]}, "default_prompt_name: ['x'] is none"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "x"}, "its similarity 'x' is none of cosine"),
        ("config_sentence_transformers.json", {"similarity_fn_name": ["x"]}, "its similarity ['x'] is none of cos"),
        ("config_sentence_transformers.json", {"truncate_dim": "x"}, "has truncate_dim: 'x', which is no number of"),
    ],
)
def test_what_cannot_be_taken_over_is_refused_with_the_reason(layered, file, changes, reason):
    change(layered, file, **changes)
    with pytest.raises(UserError) as refused:
        recipe_on(layered)
    message = str(refused.value)
    assert message.startswith(f"base_model: {layered}: ") and reason in message
    assert message.endswith("give another --base_model, or a copy of its encoder alone") and "\n" not in message


@pytest.mark.parametrize("module", [3, {"type": "Transformer", "path": "../x"}, {"path": ""}])
def test_a_list_of_other_things_than_modules_is_refused(layered, module):
    change(layered, "modules.json", value=[module])
    with pytest.raises(UserError, match="modules.json has .*, which is no module in it"):
        recipe_on(layered)


@pytest.mark.parametrize(
    ("file", "reason"),
    [("2_Dense/model.safetensors", "2_Dense has no model.safetensors"), ("1_Pooling/config.json", "is missing")],
)
def test_a_missing_file_is_refused(layered, file, reason):
    (layered / file).unlink()
    with pytest.raises(UserError, match=reason):
        build(recipe_on(layered))


def test_tensors_of_another_shape_are_refused(layered):
    change(layered, "2_Dense/config.json", out_features=16)
    change(layered, "3_LayerNorm/config.json", dimension=16)
    with pytest.raises(UserError, match=r"2_Dense/model.safetensors has .*\(24, 32\).*, its config.json means .*\(16"):
        build(recipe_on(layered))


@pytest.mark.parametrize(
    ("method", "what"), [("sgopt", "the views of sgopt"), ("isbert", "compares sentences with t")]
)
def test_a_method_that_cannot_train_the_layers_says_so(layered, method, what):
    with pytest.raises(UserError, match=what):
        build(recipe_on(layered, method=method))


def test_a_whitening_goes_between_the_layers_and_normalize(layered, train_file, tmp_path):
    recipe = recipe_on(layered, whitening=8, train_file=str(train_file))
    built = build(recipe)
    serving = built.model.serving_model().eval()
    fit_map(serving, built.serving_tokenizer, recipe, seed=0)
    expected = serving.encode(SENTENCES, built.serving_tokenizer)
    save_repository(tmp_path / "best", serving, built.serving_tokenizer, recipe)
    vectors = SentenceTransformer(str(tmp_path / "best"), device="cpu").encode(SENTENCES)
    assert vectors.shape == (len(SENTENCES), 8)
    close(vectors, expected)
    close(torch.as_tensor(vectors).norm(dim=1), torch.ones(len(SENTENCES)))
    with pytest.raises(UserError, match="whitening: 25 must be at most 24, the dimensions of"):
        build(recipe_on(layered, whitening=25, train_file=str(train_file)))


@pytest.mark.slow
def test_a_run_asks_the_hub_once_for_each_file_that_tells_how_its_base_is_served(
    hub, layered, train_file, dev_file, tmp_path
):
    files = [file for file in layered.rglob("*") if file.is_file()]
    hub.commit("zoo/served", "a model", {str(f.relative_to(layered)): f.read_bytes() for f in files})
    recipe = values("x", train_file, dev_file, tmp_path / "run", max_steps=1, base_model="zoo/served")
    done = run_python("-m", "csezoo.training.train", *command_line(recipe), **hub.environment(tmp_path / "hf"))
    assert done.returncode == 0, done.stderr
    heads = [request.rpartition("/resolve/main/")[2] for request in hub.requests if request.startswith("HEAD")]
    told = ("modules.json", "1_Pooling/config.json", "2_Dense/config.json", "config_sentence_transformers.json")
    assert {name: heads.count(name) for name in told} == dict.fromkeys(told, 1)


FOLLOWED = (
    "from csezoo.training.loading.served_encoder import *; print(follow_base(Recipe(base_model='zoo/served'))[1])"
)


def test_a_file_that_the_hub_refuses_is_not_a_file_that_is_missing(hub, layered, tmp_path):
    hub.commit("zoo/served", "a model", local_files(layered))
    hub.failures["modules.json"] = 403
    done = run_python("-c", FOLLOWED, **hub.environment(tmp_path / "hf"))
    assert done.returncode == 1 and "zoo/served could not be reached" in done.stderr.splitlines()[-1]


def test_a_cache_that_does_not_say_how_an_encoder_is_served_is_named(hub, layered, tmp_path):
    hub.commit("zoo/served", "a model", local_files(layered))
    environment = hub.environment(tmp_path / "hf")
    cached = "from transformers import AutoModel; AutoModel.from_pretrained('zoo/served')"
    assert run_python("-c", cached, **environment).returncode == 0
    unknown = run_python("-c", FOLLOWED, **environment | {"HF_HUB_OFFLINE": "1"})
    assert unknown.stdout == "None\n" and "the cache does not say how zoo/served is served" in unknown.stderr
    known = run_python("-c", FOLLOWED, **environment)
    assert "'pooling': 'mean'" in known.stdout and "does not say" not in known.stderr
