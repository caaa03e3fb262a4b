"""L2P-CSR in training: neutral setting, side effects, combinations, and recipes."""

import copy

import numpy as np
import pytest
import torch

from csezoo.modeling import L2PCSRConfig, L2PCSRForContrastiveLearning, SimCSEForContrastiveLearning
from csezoo.modeling.contrastive.perturbations import perturbed
from tests.methods.l2pcsr import l2pcsr
from tests.tiny import PROMPTS, batch, gradients

# --- neutral, and what stays untouched


def test_every_inner_step_has_new_dropout():
    model, seen = l2pcsr(backbone={}, threshold=0.0), []
    model.model.backbone.embeddings.register_forward_hook(lambda *call: seen.append(call[2].detach()))
    model(**batch())
    assert all(not torch.equal(seen[0], later) for later in seen[1:])


def test_evaluation_and_serving_are_not_weakened():
    model, rows = l2pcsr(), batch()
    simcse = l2pcsr(training_class=SimCSEForContrastiveLearning).eval()
    simcse.load_state_dict(model.state_dict())
    served = model.model(rows["input_ids"][:, 0], rows["attention_mask"][:, 0]).pooler_output  # in training mode, even
    expected = simcse.model(rows["input_ids"][:, 0], rows["attention_mask"][:, 0]).pooler_output
    torch.testing.assert_close(served, expected)
    model.eval()
    torch.testing.assert_close(model(**rows).embeddings, simcse(**rows).embeddings)


def test_all_hooks_are_removed_even_after_an_error():
    model, rows = l2pcsr(projection="batchnorm"), batch()
    model.gradient_checkpointing_enable()
    hooks = {name: len(module._forward_hooks) for name, module in model.named_modules()}
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.learn_weakening(**rows)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name
    model(**rows).loss.backward()

    def fail(*_):
        raise RuntimeError("out of memory")

    handle = model.model.backbone.encoder.layer[2].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        model(**rows)
    handle.remove()
    assert hooks == {name: len(module._forward_hooks) for name, module in model.named_modules()}
    assert all(layer.gradient_checkpointing for layer in model.model.backbone.encoder.layer)


def embedding_calls(model):
    """For every call of the embedding layer, its rows and whether it was weakened: to nothing, in these tests."""
    calls = []
    model.model.backbone.embeddings.register_forward_hook(
        lambda *call: calls.append((len(call[2]), not call[2].any().item()))
    )
    return calls


def test_only_views_are_weakened():
    heads = {"mlm_weight": 0.1, "mask_token_id": 4, "special_token_ids": [0, 2, 3, 4]}
    model = l2pcsr(threshold=1.0, inner_steps=2, nli_classes=2, nli_weight=0.1, **heads)
    calls = embedding_calls(model)
    nli = batch(sentences=3, views=3)
    model(**batch(), nli_input_ids=nli["input_ids"], nli_attention_mask=nli["attention_mask"])
    assert calls == [(8, True)] * 3 + [(8, False), (9, False)], "three times the views, then MLM, then NLI"


def prompted(kind, **changes):
    template = [[5, 6], [7, 4, 2]]  # 4 is the mask token
    prompt = {"pooling": "prompt", "prompts": PROMPTS[kind], "prompt_token_ids": [template, template]}
    model = l2pcsr(kind, **prompt, denoise="train", mask_token_id=4, **changes)
    rows = batch(tokens=9)
    for sentence, view in np.ndindex(4, 2):
        length = int(rows["attention_mask"][sentence, view].sum())
        rows["input_ids"][sentence, view, :2] = torch.tensor(template[0])
        rows["input_ids"][sentence, view, length - 3 : length] = torch.tensor(template[1])
    return model, rows


def test_a_prompts_bias_is_not_weakened(kind):
    model, rows = prompted(kind, threshold=1.0, inner_steps=1)
    calls = embedding_calls(model)
    model(**rows)
    lengths = 9 - 5 + 1  # a row of the bias for every length of a sentence
    assert calls == [(8, True), (lengths, False), (lengths, False)] * 2


def test_with_a_prompt_and_threshold_0_it_is_promptbert(kind):
    model, rows = prompted(kind)
    loss = model(**rows).loss
    loss.backward()
    assert torch.isfinite(loss) and model.get_input_embeddings().weight.grad.any()
    neutral, _ = prompted(kind, threshold=0.0)
    plain = neutral.eval()(**rows).loss
    torch.testing.assert_close(neutral.train()(**rows).loss, plain, atol=1e-6, rtol=0)
    assert not torch.isclose(loss, plain)


@pytest.mark.parametrize("attended", [False, True])
def test_attend_padding_decides_whether_padding_is_attended_to(attended):
    model, rows = l2pcsr(attend_padding=attended, weakened_layers=1), batch()
    other = {**rows, "input_ids": rows["input_ids"].clone()}
    other["input_ids"][0, :, 5:] = 11
    model.learn_weakening = lambda *_: learned
    torch.manual_seed(0)
    learned = model.initial_probabilities(**rows)
    first, second = (model(**one).embeddings for one in (rows, other))
    assert torch.allclose(first[1:], second[1:])
    assert torch.allclose(first[0], second[0]) != attended
    first, second = (model.eval()(**one).embeddings for one in (rows, other))
    torch.testing.assert_close(first, second)


# --- together with everything else


def test_the_masks_increase_the_loss_that_training_decreases():
    seen = []

    class Squared(SimCSEForContrastiveLearning):
        def contrastive_loss(self, embeddings, duplicates=None):
            seen.append(embeddings.requires_grad)
            return (embeddings[:, 0] - embeddings[:, 1]).square().mean()

    class Both(L2PCSRForContrastiveLearning, Squared):
        pass

    Both.config_class = L2PCSRConfig
    model = l2pcsr(training_class=Both, inner_steps=3)
    model(**batch()).loss.backward()
    assert seen == [True] * 4


def test_autocast_treats_the_learned_masks_as_constants():
    """Autocast caches half-precision copies of weights. The inner steps must not change them."""
    model, rows = l2pcsr().float(), batch()
    plain = copy.deepcopy(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.manual_seed(3)
        learned = model.learn_weakening(**rows)
        torch.manual_seed(3)
        model(**rows).loss.backward()
    plain.learn_weakening = lambda *_: learned
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain(**rows).loss.backward()
    assert learned["token"].dtype == torch.float32
    for name, gradient in gradients(plain).items():
        torch.testing.assert_close(gradients(model)[name], gradient, msg=name)


def test_pure_bfloat16_and_a_forward_without_gradients_work():
    model = l2pcsr().bfloat16()
    assert torch.isfinite(model(**batch()).loss)
    with torch.no_grad():
        assert not model(**batch()).loss.requires_grad


def test_recorded_hidden_states_are_the_weakened_ones_in_every_forward():
    model, rows = l2pcsr(pooling="first_last_mean"), batch()
    model.learn_weakening = lambda *_: learned
    learned = model.initial_probabilities(**rows)
    first, second = (model(**rows).embeddings for _ in range(2))
    torch.testing.assert_close(first, second)
    ids, mask = rows["input_ids"].flatten(0, 1), rows["attention_mask"].flatten(0, 1)
    with perturbed(model.model.backbone, [lambda hidden, packing: torch.full_like(hidden, 7)] * 2):
        states = model.model.backbone(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    assert [(state == 7).all().item() for state in states] == [True, True, False, False]
