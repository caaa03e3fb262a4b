"""DiffCSE from a recipe: its generator, and complete runs."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertForMaskedLM,
    BertTokenizer,
    DistilBertConfig,
    DistilBertForMaskedLM,
)

from csezoo.modeling.contrastive.published import load_published
from csezoo.training.errors import UserError
from csezoo.training.loop.building import build
from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES, tiny_config, tiny_tokenizer
from tests.refusals import refusal
from tests.training.runs import lines, train, values


def refused(**changes) -> str:
    return refusal(build, make_recipe({"method": "diffcse", **changes}))


def test_generator_encoder_and_discriminator_have_pre_trained_weights(base):
    model = build(make_recipe({"method": "diffcse", "base_model": str(base), "generator": str(base)})).model
    source = AutoModelForMaskedLM.from_pretrained(base)
    for name, tensor in source.state_dict().items():
        assert torch.equal(model.generator.state_dict()[name], tensor), name
    for encoder in (model.model.backbone, model.discriminator):
        for name, tensor in source.base_model.state_dict().items():
            assert torch.equal(encoder.state_dict()[name], tensor), name
    assert model.config.generator_config.name_or_path == "", "a path of this machine is not published"
    assert not any(parameter.requires_grad for parameter in model.generator.parameters())


def test_a_generator_may_have_any_size(bases, tmp_path):
    small = DistilBertConfig(dim=16, hidden_dim=32, n_layers=1, n_heads=2, vocab_size=300)
    DistilBertForMaskedLM(small).save_pretrained(tmp_path)
    tiny_tokenizer("bert").save_pretrained(tmp_path)
    changes = {"attn_implementation": "eager", "base_model": str(bases["bert"]), "generator": str(tmp_path)}
    model = build(make_recipe({"method": "diffcse", **changes})).model
    assert model.config.generator_config.model_type == "distilbert"
    for part in (model.generator, model.discriminator, model.model.backbone):
        assert part.config._attn_implementation == "eager"


def test_a_generator_that_is_not_read_is_named(bases, caplog):
    build(
        make_recipe({"method": "simcse", "base_model": str(bases["bert"]), "generator": "nowhere", "max_length": 16})
    )
    assert "generator has no effect: with these settings, simcse does not read one" in caplog.text


def test_settings_without_a_generator_need_none(bases):
    for changes in ({"rtd_weight": 0.0}, {"edit": "delete"}, {"prediction": "masked_lm"}):
        build(make_recipe({"method": "diffcse", "base_model": str(bases["bert"]), **changes}))


def test_a_conditional_language_model_starts_from_the_base_models_head(base):
    model = build(make_recipe({"method": "diffcse", "base_model": str(base), "prediction": "masked_lm"})).model.eval()
    ids = torch.tensor([[2, 10, 11, 12, 3]])
    ones = torch.ones_like(ids)
    vectors = model.discriminator.embeddings(input_ids=ids)[:, 0]  # conditioned on what would be there anyway
    hidden = model.discriminate(ids, ones, vectors)
    logits = model.discriminator_lm_head(hidden, model.discriminator.get_input_embeddings().weight)
    expected = AutoModelForMaskedLM.from_pretrained(base).eval()(input_ids=ids).logits
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_the_error_without_a_generator_suggests_one(bases):
    assert "give --generator" in refused(base_model=str(bases["bert"]))


def test_a_generator_of_another_vocabulary_is_refused(bases, tmp_path):
    bert = str(bases["bert"])
    assert "differs from that of" in refused(base_model=bert, generator=str(bases["roberta"]))
    shutil.copytree(bert, tmp_path / "turned")
    vocabulary = AutoTokenizer.from_pretrained(bert).get_vocab()
    vocabulary["cat"], vocabulary["dog"] = vocabulary["dog"], vocabulary["cat"]
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path / "turned")
    assert "differs from that of" in refused(base_model=bert, generator=str(tmp_path / "turned"))
    BertForMaskedLM(tiny_config("bert", vocab_size=310)).save_pretrained(tmp_path / "wider")
    tiny_tokenizer("bert").save_pretrained(tmp_path / "wider")
    assert "it has 310 word pieces and the encoder 300" in refused(base_model=bert, generator=str(tmp_path / "wider"))


def test_a_generator_without_masked_lm_head_is_refused(bases, tmp_path):
    bert = str(bases["bert"])
    AutoModel.from_pretrained(bert).save_pretrained(tmp_path / "encoder")
    tiny_tokenizer("bert").save_pretrained(tmp_path / "encoder")
    assert "not a complete masked language model" in refused(base_model=bert, generator=str(tmp_path / "encoder"))
    assert "could not be loaded" in refused(base_model=bert, generator=str(tmp_path / "absent"))
    short = tiny_config("bert", max_position_embeddings=16)
    BertForMaskedLM(short).save_pretrained(tmp_path / "short")
    tiny_tokenizer("bert").save_pretrained(tmp_path / "short")
    assert " has 16; lower it" in refused(base_model=bert, generator=str(tmp_path / "short"))


def test_a_run_serves_only_the_encoder(base, train_file, dev_file, tmp_path):
    changes = {"method": "diffcse", "generator": str(base), "max_steps": 4}
    train(values(base, train_file, dev_file, tmp_path / "run", **changes))
    logged = [line for line in lines(tmp_path / "run") if "loss" in line]
    assert all(line["rtd"] > 0 and line["contrastive"] > 0 for line in logged)
    state = load_file(tmp_path / "run" / "best" / "model.safetensors")
    assert state.keys() == AutoModel.from_pretrained(base).state_dict().keys()
    assert str(base) not in (tmp_path / "run" / "best" / "config.json").read_text(encoding="utf-8")
    served = load_published(tmp_path / "run" / "best")
    assert served.config.csezoo["method"] == "diffcse" and served.encode(SENTENCES[:3]).shape == (3, 32)


def test_a_run_on_next_sentences_reads_two_columns(bases, dev_file, tmp_path):
    rows = [json.dumps({"text": a, "next": b}) for a, b in zip(SENTENCES, SENTENCES[1:], strict=False)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    recipe = values(bases["bert"], tmp_path / "pairs.jsonl", dev_file, tmp_path / "run", max_steps=2)
    recipe |= {"method": "diffcse", "generator": str(bases["bert"]), "predicted_sentence": "both"}
    train(recipe, text_columns=["text", "next"])
    with pytest.raises(UserError, match="needs two text columns"):
        train(recipe, text_columns=["text"], output_dir=str(tmp_path / "one"))
