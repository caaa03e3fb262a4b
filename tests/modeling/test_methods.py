"""Tests that every method passes, with BERT and with RoBERTa. `tests/methods` lists the methods.

A process without this project opens their repositories in `tests/training/publishing/test_doors.py`.
"""

import copy
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForPreTraining
from transformers.dynamic_module_utils import get_relative_import_files, get_relative_imports

from csezoo.modeling import METHODS
from csezoo.modeling.contrastive.published import load_published
from tests.methods import CONFIGS
from tests.tiny import batch, configure, one_view


def train_one_step(config):
    """A training model none of whose tensors and buffers is at its initial value."""
    torch.manual_seed(0)
    model = METHODS[config.model_type][2](config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(**batch()).loss.backward()
    optimizer.step()
    model.serving_model()
    return model.eval()


@pytest.fixture(scope="module", params=CONFIGS)
def trained(request, kind):
    return train_one_step(configure(request.param, kind))


@pytest.fixture(scope="module")
def published(trained, tmp_path_factory) -> Path:
    """The repository of its encoder."""
    directory = tmp_path_factory.mktemp("published")
    trained.model.save_pretrained(directory)
    return directory


def test_the_training_output_has_loss_parts_and_views(trained):
    output = trained(**batch())
    assert output.embeddings.ndim == 3 and len(output.embeddings) == 4
    assert output.loss.ndim == 0
    assert "contrastive" in output.losses


def test_a_method_takes_a_third_view_or_says_that_it_does_not(trained):
    if trained.config.takes_three_views:
        assert trained(**batch(views=3)).loss.isfinite()
        return
    with pytest.raises(ValueError, match="^text_columns: .* needs one text column"):
        trained.config.view_columns(3)


def test_all_views_go_through_the_encoder_in_one_forward(trained):
    calls = []
    trained.model.backbone.register_forward_hook(lambda *_: calls.append(1))
    trained.pool_views(**batch())
    assert len(calls) == 1


def test_every_tensor_survives_saving_and_loading_bit_for_bit(trained, tmp_path):
    trained.save_pretrained(tmp_path)
    loaded = AutoModelForPreTraining.from_pretrained(tmp_path)
    assert type(loaded) is type(trained)
    state = loaded.state_dict()
    assert state.keys() == trained.state_dict().keys()
    for tensor_name, tensor in trained.state_dict().items():
        assert torch.equal(state[tensor_name], tensor), tensor_name
    for tensor_name, buffer in trained.named_buffers():
        assert torch.equal(dict(loaded.named_buffers())[tensor_name], buffer), tensor_name


def close(actual, expected):
    """Equal to 1e-6, relative to the vectors' size where they are larger than 1."""
    size = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, atol=1e-6 * size, rtol=0)


def test_a_published_model_serves_the_same_vectors(trained, published):
    loaded = load_published(published)
    assert not loaded.training
    assert loaded.config.is_plain == (trained.config.reason_for_own_code is None)
    close(loaded(**one_view(batch())).pooler_output, trained.model(**one_view(batch())).pooler_output)


def test_training_continues_from_a_published_model_and_from_a_training_checkpoint(trained, published, tmp_path):
    trained.save_pretrained(tmp_path)
    expected = trained.model(**one_view(batch())).pooler_output
    from_training = AutoModel.from_pretrained(tmp_path)
    assert type(from_training) is trained.serving_class
    assert torch.equal(from_training(**one_view(batch())).pooler_output, expected)
    encoder = trained.serving_class.from_pretrained(published)
    close(encoder(**one_view(batch())).pooler_output, expected)
    ids = {key: getattr(trained.config, key) for key in ("mask_token_id", "special_token_ids")}  # a tokenizer has them
    training = type(trained).from_pretrained(published, **ids)
    assert not training.training
    close(training.model(**one_view(batch())).pooler_output, expected)
    assert training(**batch()).loss.isfinite()


def test_a_head_that_is_added_to_a_training_checkpoint_leaves_the_others_as_they_are(trained, tmp_path):
    trained.save_pretrained(tmp_path)
    before = trained.state_dict()
    loaded = AutoModelForPreTraining.from_pretrained(tmp_path, ema_decay=0.9)
    state = loaded.state_dict()
    changed = [name for name in before if not torch.equal(state[name], before[name])]
    assert changed == []
    for average, module in [] if trained.averages() else loaded.averages():
        assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in average.state_dict().items())


def test_the_files_of_a_repository_that_its_config_names_import_all_others(published):
    """From a directory, transformers 4 copies imported files, but not the files that those import."""
    named = json.loads((published / "config.json").read_text())["auto_map"].values()
    imported = set()
    for file in {published / f"{reference.split('.')[0]}.py" for reference in named}:
        needed = {Path(path).stem for path in get_relative_import_files(file)}
        assert needed == set(get_relative_imports(file))
        imported |= needed | {file.stem}
    assert imported == {path.stem for path in published.glob("*.py")}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_implementation_reaches_the_backbone(trained, published, implementation):
    loaded = load_published(published, attn_implementation=implementation)
    assert loaded.backbone.config._attn_implementation == implementation
    expected = trained.model(**one_view(batch())).pooler_output
    torch.testing.assert_close(loaded(**one_view(batch())).pooler_output, expected, atol=1e-5, rtol=1e-5)


def test_bfloat16_reaches_every_weight(published):
    loaded = load_published(published, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert loaded(**one_view(batch())).pooler_output.dtype == torch.bfloat16


def test_gradient_checkpointing_changes_no_gradient(trained):
    if not trained.supports_gradient_checkpointing:
        with pytest.raises(ValueError, match="does not support"):
            trained.gradient_checkpointing_enable()
        return
    plain, checkpointed = copy.deepcopy(trained), copy.deepcopy(trained)
    checkpointed.gradient_checkpointing_enable()
    for model in (plain, checkpointed):
        model.train()
        model.zero_grad()
        torch.manual_seed(2)  # the same dropout and masks
        model(**batch()).loss.backward()
    for (parameter_name, a), b in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, msg=parameter_name)


def test_the_loss_is_at_least_float32_under_autocast(trained):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert trained(**batch()).loss.dtype == torch.float32


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in ("simcse-whitening", "simcse-flow")])
def test_a_sentence_that_is_in_a_batch_twice_can_be_left_out_of_its_negatives(name):
    def loss(rows, **changes):
        torch.manual_seed(0)
        config = configure(name, "bert", **changes)
        model = METHODS[config.model_type][2](config).train()
        torch.manual_seed(0)
        return model(**rows).losses["contrastive"].item()

    different = batch()
    repeated = {key: value[1:2].repeat(5, 1, 1) for key, value in different.items()}  # whichever pairs are drawn
    assert loss(different, mask_duplicates=True) == loss(different)
    assert loss(repeated, mask_duplicates=True) != loss(repeated)


def test_a_labelled_triplet_that_is_in_a_batch_twice_can_be_left_out_too():
    def loss(rows, **changes):
        torch.manual_seed(0)
        config = configure("simcse", "bert", nli_classes=2, nli_objective="contrastive", **changes)
        model = METHODS["simcse"][2](config).eval()
        return model(nli_input_ids=rows["input_ids"], nli_attention_mask=rows["attention_mask"]).loss.item()

    different = batch(views=3)
    twice = {key: torch.cat([value, value[1:2]]) for key, value in different.items()}
    assert loss(different, mask_duplicates=True) == loss(different)
    assert loss(twice, mask_duplicates=True) < loss(twice)
