"""Building a training model: where its weights come from, and what is refused."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from csezoo.training.errors import UserError
from csezoo.training.loading.backbones import load_backbone
from csezoo.training.loop.building import build
from csezoo.training.publishing.repository import save_repository
from csezoo.training.recipes import load_recipe, make_recipe
from tests.conftest import SENTENCES, tiny_config


def test_mlm_head_starts_from_the_base_models(base, kind):
    built = build(make_recipe({"base_model": str(base), "mlm_weight": 0.1}))
    masked_lm = AutoModelForMaskedLM.from_pretrained(base).eval()
    model = built.model.eval()
    ids = torch.tensor([[2, 10, 11, 12, 3]])
    hidden = model.model.backbone(input_ids=ids).last_hidden_state
    ours = model.lm_head(hidden, model.get_input_embeddings().weight)
    torch.testing.assert_close(ours, masked_lm(input_ids=ids).logits, atol=1e-5, rtol=1e-5)


def test_a_checkpoint_of_the_zoo_can_be_a_base_model(base, tmp_path):
    recipe = make_recipe({"base_model": str(base), "name": "first"})
    built = build(recipe)
    save_repository(tmp_path / "best", built.model.model, built.serving_tokenizer, recipe)
    backbone = load_backbone(str(tmp_path / "best"))
    for name, tensor in built.model.model.backbone.state_dict().items():
        assert torch.equal(backbone.state_dict()[name], tensor), name
    again = build(make_recipe({"base_model": str(tmp_path / "best")}))
    assert again.templates == built.templates


@pytest.mark.parametrize(
    ("method", "keys", "modules"),
    [("simcse", {"lora_rank": 4}, "lora"), ("diffaug", {"views_module": "lora"}, "view_adapters")],
)
def test_a_checkpoint_with_lora_is_a_base_model_with_its_changes(base, tmp_path, caplog, method, keys, modules):
    recipe = make_recipe({"base_model": str(base), "method": method, "pooling": "mean", **keys})
    built = build(recipe)
    served = built.model.model.eval()
    for weight in served.get_submodule(modules).parameters():
        torch.nn.init.normal_(weight, std=0.3)
    save_repository(tmp_path / "best", served, built.serving_tokenizer, recipe)
    again = build(make_recipe({"base_model": str(tmp_path / "best"), "pooling": "mean"}))
    expected = served.encode(SENTENCES[:4], built.serving_tokenizer)
    actual = again.model.model.eval().encode(SENTENCES[:4], again.serving_tokenizer)
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    assert "without the checkpoint's" not in caplog.text


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        ({"method": "diffaug", "prefix_length": 2}, "prefixes"),
        ({"method": "diffaug", "views_module": "adapter"}, "adapters"),
    ],
)
def test_what_a_base_model_serves_beside_its_encoder_is_left_with_a_warning(base, tmp_path, caplog, keys, left):
    recipe = make_recipe({"base_model": str(base), **keys})
    built = build(recipe)
    save_repository(tmp_path / "best", built.model.model, built.serving_tokenizer, recipe)
    build(make_recipe({"base_model": str(tmp_path / "best")}))
    assert f"the encoder is loaded without the repository's {left}" in caplog.text


def test_the_masked_lm_transform_starts_from_the_base_model(base):
    built = build(make_recipe({"base_model": str(base), "projection": "mlm_transform", "projection_at_test": True}))
    transform, head = built.model.model.transform, AutoModelForMaskedLM.from_pretrained(base)
    original = head.cls.predictions.transform if head.config.model_type == "bert" else head.lm_head
    assert torch.equal(transform.dense.weight, original.dense.weight)


def test_an_average_of_the_weights_starts_from_all_weights_of_the_base_model(base):
    changes = {"projection": "mlm_transform", "projection_at_test": True, "ema_decay": 0.9}
    model = build(make_recipe({"base_model": str(base), **changes})).model
    for (name, mean), weight in zip(model.average.named_parameters(), model.model.parameters(), strict=True):
        assert torch.equal(mean, weight), name


def test_an_encoder_without_some_tensors_is_refused(bases, tmp_path):
    model = AutoModel.from_pretrained(bases["bert"])
    state = {name: tensor for name, tensor in model.state_dict().items() if "layer.1." not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(UserError, match="lacks 16 tensors .encoder.layer.1"):
        load_backbone(str(tmp_path))


def test_a_base_model_without_a_tokenizer_is_refused(bases, tmp_path):
    AutoModel.from_pretrained(bases["bert"]).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="tokenizer"):
        build(make_recipe({"base_model": str(tmp_path)}))


@pytest.mark.parametrize(
    "kind_and_recipe", [("bert", "promptbert-bert-base-uncased"), ("roberta", "promptbert-roberta-base")]
)
def test_max_length_does_not_count_a_prompt(bases, kind_and_recipe):
    family, name = kind_and_recipe
    built = build(load_recipe(name, {"base_model": str(bases[family])}))
    assert built.sentence_length == 32
    assert len(built.templates) == 2
    assert built.model.config.prompt_token_ids == built.templates


def test_a_template_without_a_place_for_the_sentence_is_refused(bases):
    with pytest.raises(UserError, match="prompts: 'means {mask}' must contain {sentence} and {mask} once each"):
        build(make_recipe({"base_model": str(bases["bert"]), "pooling": "prompt", "prompts": ["means {mask}"]}))


def test_a_default_prompt_without_a_place_for_a_word_is_refused(bases):
    """All texts would be equal."""
    keys = {"base_model": str(bases["bert"]), "named_prompts": {"q": "the cat sees "}, "default_prompt_name": "q"}
    line = "max_length: 5 leaves no place for a word after the default prompt of 3 word pieces; give 6 or more"
    with pytest.raises(UserError, match=line):
        build(make_recipe({**keys, "max_length": 5}))
    collate = build(make_recipe({**keys, "max_length": 6})).collator(texts=True)
    (first, _), (second, _) = collate([{"0": "a"}, {"0": "the"}])["input_ids"]
    assert len(first) == 6 and not torch.equal(first, second)


def test_a_served_length_without_a_place_for_a_word_is_refused(bases):
    keys = {"base_model": str(bases["bert"]), "named_prompts": {"q": "the cat "}, "default_prompt_name": "q"}
    keys |= {"pooling": "prompt", "prompts": ['the "{sentence}" sees {mask} .']}
    line = "served_length: 10 leaves no place for a word beside 8 word pieces of template and special tokens and 2 of"
    with pytest.raises(UserError, match=f"{line} the default prompt; give 11 or more"):
        build(make_recipe({**keys, "served_length": 10}))
    built = build(make_recipe({**keys, "served_length": 11}))
    vectors = built.model.model.eval().encode(["a", "the"], built.serving_tokenizer)
    assert not torch.allclose(*torch.as_tensor(vectors))


def test_attention_implementation_reaches_the_trained_backbone(base):
    built = build(make_recipe({"base_model": str(base), "attn_implementation": "eager"}))
    assert built.model.model.backbone.config._attn_implementation == "eager"


@pytest.mark.parametrize("keys", [{"method": "l2pcsr"}, {"method": "simcse", "mlm_weight": 0.1}])
def test_methods_that_need_the_complete_batch_refuse_mini_batches(base, keys):
    with pytest.raises(UserError, match="mini_batch_size: .* complete batch; leave it out"):
        build(make_recipe({**keys, "base_model": str(base), "mini_batch_size": 4}))


def test_max_length_counts_special_tokens_without_a_prompt(base):
    assert build(make_recipe({"base_model": str(base), "max_length": 32})).sentence_length == 30


@pytest.mark.parametrize(
    "keys",
    [
        {"matryoshka_dims": [8]},
        {"mlm_weight": 0.1},
        {"rank_weight": 1.0, "teachers": ["vectors"]},
        {"rank_consistency_weight": 1.0},
    ],
)
def test_what_only_sentences_train_is_refused_if_there_are_only_labelled_pairs(base, keys):
    recipe = {"base_model": str(base), "nli_classes": 2, "nli_steps": 1, "max_steps": 0}
    build(make_recipe(recipe))
    with pytest.raises(UserError, match=": only the sentences train it, and max_steps: 0 trains on none; leave it"):
        build(make_recipe({**recipe, **keys}))


def test_the_bias_of_a_template_needs_positions_from_its_offset_on(base, kind):
    keys = {"base_model": str(base), "pooling": "prompt", "prompts": ['This "{sentence}" means{mask}.']}
    keys |= {"denoise": "always"}
    needed = 32 + sum(map(len, build(make_recipe(keys)).templates[0]))
    most = tiny_config(kind).max_position_embeddings - needed
    built = build(make_recipe({**keys, "denoise_position_offset": most}))
    vectors = built.model.model.eval().encode(["the cat " * 50], built.serving_tokenizer)
    assert vectors.shape == (1, 32), "a long text is cut to the positions that its bias has"
    line = f"denoise_position_offset: {most + 1} leaves {needed - 1} positions of .*, which needs {needed}; lower it"
    with pytest.raises(UserError, match=line):
        build(make_recipe({**keys, "denoise_position_offset": most + 1}))
