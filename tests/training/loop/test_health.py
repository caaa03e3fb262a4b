"""A run stops before it learns from vectors that mean nothing: equal views, and vectors that depend on padding."""

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModel, MambaConfig

from csezoo.training.errors import UserError
from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.loading.backbones import set_dropout
from csezoo.training.loop.building import build
from csezoo.training.loop.health import refuse_padding_dependence, views_differ
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import make_recipe
from tests.conftest import tiny_config, tiny_tokenizer
from tests.training.runs import lines, train, values

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
SIZES |= {"intermediate_size": 64, "vocab_size": 300, "max_position_embeddings": 66, "embedding_size": 32}
SIZES |= {"pad_token_id": 0, "layer_types": ["full_attention"] * 2}
WITHOUT_DROPOUT = ["modernbert", "nomic_bert", "eurobert", "albert", "rembert", "qwen3"]
# Views that start as equals, in an encoder without dropout.
PARTING = [{"method": "contrastive_tension"}, {"lora_rank": 4}]
PARTING += [{"method": "diffaug", "views_module": module} for module in ("lora", "adapter")]
READ_PADDING = ["convbert", "fnet", "nystromformer", "yoso"]
MASK_PADDING = ["bert", "roberta", "modernbert", "deberta-v2", "mpnet", "mobilebert", "electra", "longformer", "qwen3"]


def tiny_base(kind, directory):
    """A tiny random encoder of any architecture, as its configuration is by default."""
    config = CONFIG_MAPPING[kind]
    known = config().to_dict()
    torch.manual_seed(0)
    AutoModel.from_config(config(**{key: value for key, value in SIZES.items() if key in known})).save_pretrained(
        directory
    )
    tiny_tokenizer("bert").save_pretrained(directory)
    return directory


@pytest.fixture
def recipe(train_file, dev_file, tmp_path):
    def make(kind, **changes):
        base = tiny_base(kind, tmp_path / kind)
        keys = {"max_steps": 1, "pooling": "mean", **changes}  # a decoder's first token knows no other
        return make_recipe(values(base, train_file, dev_file, tmp_path / "run", **keys))

    return make


@pytest.mark.parametrize("kind", WITHOUT_DROPOUT)
def test_a_method_that_needs_dropout_refuses_an_encoder_without(recipe, kind, tmp_path):
    line = "the two views of every sentence are equal: simcse makes them with dropout, .* give --dropout 0.1, or"
    with pytest.raises(UserError, match=line):
        run_recipe(recipe(kind))
    assert not [line for line in lines(tmp_path / "run") if "loss" in line] and not list(
        tmp_path.rglob("checkpoints/step-*")
    )


@pytest.mark.parametrize("keys", PARTING, ids=str)
def test_views_that_training_parts_may_be_equal_in_the_first_batch(recipe, keys):
    made = recipe("modernbert", **keys)
    model, ids = build(made).model, torch.randint(5, 40, (16, 1, 7)).expand(-1, 2, -1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    differ = []
    for _ in range(4):
        output = model(input_ids=ids)
        differ.append(views_differ(ids, output.embeddings, 1e-5).item())
        output.loss.backward()
        optimizer.step()
    assert not differ[0] and differ[-1]
    run_recipe(made)


def test_the_same_modules_for_both_views_do_not_part_them(recipe):
    with pytest.raises(UserError, match="the two views of every sentence are equal"):
        run_recipe(recipe("modernbert", method="diffaug", views_module="lora", views_mode="same"))


@pytest.mark.parametrize("kind", WITHOUT_DROPOUT)
def test_dropout_reaches_every_encoder_and_the_saved_configuration(recipe, kind, tmp_path):
    run_recipe(recipe(kind, dropout=0.2))
    model = AutoModel.from_pretrained(tmp_path / "run" / "best").train()
    found = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    assert set(found) <= {0.2}
    ids = torch.randint(5, 40, (4, 7))
    assert not torch.allclose(*(model(input_ids=ids).last_hidden_state for _ in range(2)), atol=1e-3)
    config = model.config.to_dict()
    dropouts = {key: value for key, value in config.items() if "dropout" in key and value is not None}
    assert dropouts and set(dropouts.values()) == {0.2}


def test_a_sentence_with_one_view_has_no_equal_views():
    assert views_differ(torch.ones(4, 1, 3), torch.ones(4, 1, 8), 1e-5)


def test_dropout_reaches_every_encoder_of_a_method(bases):
    for method in ("sgopt", "diffcse"):
        keys = {"base_model": str(bases["bert"]), "generator": str(bases["bert"]), "method": method, "dropout": 0.3}
        for encoder in build(make_recipe(keys)).model.encoders():
            found = [module.p for module in encoder.modules() if isinstance(module, torch.nn.Dropout)]
            assert found and set(found) == {0.3}


def test_dropout_can_be_turned_off_for_views_that_differ_without(tiny, pairs, tmp_path):
    recipe = tiny(dropout=0.0, max_steps=1)
    with pytest.raises(UserError, match=r"hidden_dropout_prob 0\.0.*give --dropout"):
        train(recipe)
    run_recipe(make_recipe({**recipe, **pairs, "output_dir": str(tmp_path / "pairs")}))
    method = {"method": "prdsimcse", "positive_prefix": "one-um", "output_dir": str(tmp_path / "prefixes")}
    train(recipe, **method)


def test_a_run_that_is_resumed_without_dropout_is_refused(tiny, train_up_to):
    recipe = tiny(eval_steps=1)
    train_up_to("step 2  dev", recipe)
    with pytest.raises(UserError, match="the two views of every sentence are equal"):
        train(recipe, dropout=0.0, force=True)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_views_are_equal_in_any_precision_of_mini_batches(
    base_without_dropout, train_file, dev_file, tmp_path, precision
):
    keys = {"mixed_precision": precision, "mini_batch_size": 5, "projection": "batchnorm"}
    with pytest.raises(UserError, match="the two views of every sentence are equal"):
        train(values(base_without_dropout, train_file, dev_file, tmp_path / "run", **keys))


def test_an_encoder_whose_configuration_has_no_dropout_cannot_get_one():
    with pytest.raises(UserError, match="dropout: the configuration of mamba has no dropout to set; leave it out"):
        set_dropout(MambaConfig(), 0.1)


@pytest.mark.parametrize("kind", READ_PADDING)
def test_an_encoder_that_reads_padding_is_refused_before_it_is_scored(recipe, kind, tmp_path):
    line = rf"base_model: .* \({kind}\) changes the vectors of a sentence when .*; give an encoder that masks"
    with pytest.raises(UserError, match=line):
        run_recipe(recipe(kind))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_encoder_that_reads_padding_reads_one_sentence_at_a_time(tmp_path, caplog, dtype):
    base = str(tiny_base("convbert", tmp_path / "convbert"))
    encode, receipt = load_encoder(base, pooling="mean", dtype=dtype)
    assert "convbert changes the vectors" in caplog.text and receipt["batch_size"] == 1
    alone, beside = encode(["one"]), encode(["one", "a longer sentence"])
    np.testing.assert_array_equal(alone[0], beside[0])


@pytest.mark.parametrize("kind", MASK_PADDING)
def test_an_encoder_that_masks_padding_is_accepted_and_the_random_state_stays(recipe, kind):
    made = recipe(kind)
    built = build(made)
    before = torch.get_rng_state()
    refuse_padding_dependence(built, made)
    assert torch.equal(torch.get_rng_state(), before) and built.model.training


def test_every_pooling_and_prompt_is_checked(bases):
    for keys in ({"pooling": "prompt", "prompts": ['This "{sentence}" means{mask}.']}, {"method": "diffaug"}):
        made = make_recipe({"base_model": str(bases["bert"]), **keys})
        refuse_padding_dependence(build(made), made)
    assert tiny_config("bert").hidden_dropout_prob == 0.1
