"""An exponential moving average of the weights is served instead of the trained weights."""

import pytest
import torch

from tests.tiny import batch, training_model


def model(name="simcse", **changes):
    return training_model(name, ema_decay=0.9, **changes)


def update(trained):
    optimizer = torch.optim.SGD([p for p in trained.parameters() if p.requires_grad], lr=0.5)
    trained(**batch()).loss.backward()
    optimizer.step()
    with torch.no_grad():
        trained.after_update()


def test_the_average_keeps_its_share_at_each_update():
    trained = model()
    trained.begin_stage("contrastive")
    expected = {name: weight.clone() for name, weight in trained.model.named_parameters()}
    for _ in range(3):
        update(trained)
        for name, weight in trained.model.named_parameters():
            expected[name] = 0.9 * expected[name] + 0.1 * weight.detach()
    for name, mean in trained.serving_model().named_parameters():
        torch.testing.assert_close(mean, expected[name], msg=name)
        assert not mean.requires_grad


def test_the_average_starts_anew_with_each_stage():
    trained = model()
    trained.begin_stage("nli")
    update(trained)
    trained.begin_stage("contrastive")
    for mean, weight in zip(trained.average.parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(mean, weight)


def test_the_average_starts_from_the_pre_trained_weights():
    trained, other = model(), model()
    with torch.no_grad():
        for weight in other.model.backbone.parameters():
            weight.add_(1)
    trained.start_from(other.model.backbone)
    states = (served.backbone.embeddings.word_embeddings.weight for served in (trained.serving_model(), other.model))
    assert torch.equal(*states)


def test_statistics_of_a_batch_norm_are_copied():
    trained = model(projection="batchnorm", projection_at_test=True)
    update(trained)
    for mean, buffer in zip(trained.average.buffers(), trained.model.buffers(), strict=True):
        assert torch.equal(mean, buffer)


def test_an_average_in_half_precision_is_refused():
    with pytest.raises(ValueError, match="ema_decay: an average of torch.bfloat16 weights would not move"):
        model().to(torch.bfloat16).after_update()


def test_the_prefixes_that_are_served_come_from_an_average():
    trained = model("diffaug")
    trained.begin_stage("contrastive")
    before = trained.prefix_encoder.embedding.weight.detach().clone()
    update(trained)
    after = trained.prefix_encoder.embedding.weight.detach()
    assert not torch.equal(before, after)
    torch.testing.assert_close(trained.average_prefix_encoder.embedding.weight, 0.9 * before + 0.1 * after)
    served = trained.serving_model().prefixes
    assert torch.equal(served, trained.prefixes(averaged=True)) and not torch.equal(served, trained.prefixes())
