"""SimCSE: the loss, projection, masked language modelling and configuration errors."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from csezoo.modeling import SimCSEConfig, SimCSEModel
from csezoo.modeling.contrastive import training_model as of_training
from csezoo.modeling.contrastive.masked_language_modeling import mask_tokens, masked_lm_loss
from tests.conftest import tiny_config
from tests.formulas import linear, numpy_info_nce
from tests.tiny import batch, training_model


def simcse(**changes):
    return training_model("simcse", backbone={}, **changes)


@pytest.mark.parametrize("views", [2, 3])
def test_loss_is_info_nce_of_the_projected_cls_vectors(views):
    model = simcse(temperature=0.1, hard_negative_weight=0.7).eval()
    rows = batch(views=views)
    z = []
    for v in range(views):
        hidden = model.model.backbone(rows["input_ids"][:, v], attention_mask=rows["attention_mask"][:, v])
        z.append(np.tanh(linear(model.projection.dense, hidden.last_hidden_state[:, 0])))
    weight = {"weight": 0.7} if views == 3 else {}
    expected = numpy_info_nce(*z, temperature=0.1, **weight)
    assert model(**rows).loss.item() == pytest.approx(expected, abs=1e-9)


def test_two_views_of_a_sentence_differ_only_by_dropout():
    rows = batch()
    rows["input_ids"][:, 1] = rows["input_ids"][:, 0]
    first, second = simcse().eval()(**rows).embeddings.unbind(1)
    torch.testing.assert_close(first, second)
    first, second = simcse().train()(**rows).embeddings.unbind(1)
    assert not torch.allclose(first, second)


@pytest.mark.parametrize("pooling", ["cls", "first_last_mean", "last2_mean"])
def test_hidden_states_are_returned_if_the_call_or_the_configuration_asks(pooling):
    torch.manual_seed(0)
    model = SimCSEModel(SimCSEConfig(backbone_config=tiny_config("bert"), pooling=pooling)).eval()
    rows = {name: tensor[:, 0] for name, tensor in batch().items()}
    assert len(model(**rows, output_hidden_states=True).hidden_states) == 1 + model.config.num_hidden_layers
    vectors = model(**rows, output_hidden_states=False).pooler_output
    torch.testing.assert_close(vectors, model(**rows, output_hidden_states=True).pooler_output)
    model.config.output_hidden_states = True
    assert model(**rows).hidden_states is not None


def test_a_tensor_that_a_served_projection_does_not_have_is_refused(tmp_path):
    config = SimCSEConfig(backbone_config=tiny_config("bert"), projection_at_test=True)
    SimCSEModel(config).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["projection.another.weight"] = torch.zeros(2, 2)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="unexpected projection.another.weight"):
        SimCSEModel.from_pretrained(tmp_path)


def test_without_an_attention_mask_all_tokens_of_labelled_pairs_are_attended():
    model = simcse(nli_classes=2).eval()
    ids = batch(views=3)["input_ids"]
    torch.testing.assert_close(
        model(nli_input_ids=ids).loss, model(nli_input_ids=ids, nli_attention_mask=torch.ones_like(ids)).loss
    )


@pytest.mark.parametrize("probability", [0.5, 1e-9])
def test_the_mlm_head_reads_the_chosen_tokens_alone_with_the_loss_and_gradient_of_all(monkeypatch, probability):
    results = []
    for everything in (False, True):
        model = simcse(mlm_weight=0.5, mlm_probability=probability, mask_token_id=4, special_token_ids=[0, 2, 3, 4])
        if everything:
            monkeypatch.setattr(of_training, "chosen_tokens", lambda vectors, labels: (vectors, labels))
        read = []
        model.lm_head.register_forward_hook(
            lambda module, inputs, logits, read=read: read.append(logits[..., 0].numel())
        )
        torch.manual_seed(1)
        model.train()(**batch()).loss.backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        results.append((read[0], gradients))
    (few, some), (many, all_of_them) = results
    assert few < many
    torch.testing.assert_close(some, all_of_them)


def test_real_tokens_that_are_not_special_may_be_masked():
    model = simcse(mlm_weight=0.5, mask_token_id=4, special_token_ids=[0, 2, 3, 4])
    ids, mask = torch.tensor([[2, 10, 4, 11, 3, 12]]), torch.tensor([[1, 1, 1, 1, 1, 0]])
    assert model.maskable(ids, mask).tolist() == [[False, True, False, True, False, False]]


def test_without_the_contrastive_loss_another_one_is_learned_or_it_is_refused():
    heads = {"mlm_weight": 0.5, "mask_token_id": 4, "special_token_ids": [0, 2, 3, 4]}
    output = simcse(contrastive_weight=0.0, **heads).eval()(**batch())
    assert list(output.losses) == ["mlm"]
    torch.testing.assert_close(output.loss, 0.5 * output.losses["mlm"])
    with pytest.raises(ValueError, match="contrastive_weight: 0 needs an auxiliary loss"):
        simcse(contrastive_weight=0.0)(**batch())


def test_masking_follows_80_10_10():
    torch.manual_seed(0)
    ids = torch.full((400, 500), 7)
    maskable = torch.ones_like(ids, dtype=torch.bool)
    maskable[:, 0] = False
    masked, labels = mask_tokens(ids, maskable, probability=0.15, mask_token_id=3, vocab_size=1000)
    chosen = labels != -100
    assert not chosen[:, 0].any()
    assert chosen.float().mean().item() == pytest.approx(0.15, abs=0.005)
    assert (masked[chosen] == 3).float().mean().item() == pytest.approx(0.8, abs=0.01)
    assert (masked[chosen] == 7).float().mean().item() == pytest.approx(0.1, abs=0.01)
    assert torch.equal(masked[~chosen], ids[~chosen])


def test_masked_lm_loss_averages_over_chosen_tokens():
    logits = torch.randn(2, 3, 5, dtype=torch.float64)
    labels = torch.tensor([[-100, 2, -100], [4, -100, 0]])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(masked_lm_loss(logits, labels), expected)
    assert masked_lm_loss(logits, torch.full_like(labels, -100)).item() == 0
