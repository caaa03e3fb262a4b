"""ConSERT: its views and its loss against independent float64 implementations."""

from random import Random

import pytest
import torch

from csezoo.modeling import ConSERTConfig
from csezoo.modeling.methods.consert.model import feature_cutoff, token_cutoff
from csezoo.training.data.collation import ViewCollator
from tests.formulas import numpy_self_guided
from tests.tiny import batch, training_model


def model(kind="bert", **keys):
    return training_model("consert", kind, **{"pooling": "mean", "projection": "none", **keys})


def test_the_loss_is_nt_xent_over_both_views():
    vectors = torch.randn(5, 2, 32, dtype=torch.float64)
    expected = numpy_self_guided(vectors[:, 0].numpy(), vectors[:, 1:].numpy(), "base", [0] * 5, 0.1)  # one formula
    assert model().contrastive_loss(vectors).item() == pytest.approx(expected, abs=1e-10)


def test_token_cutoff_leaves_out_its_share_of_the_real_tokens():
    mask = torch.tensor([[1] * n + [0] * (20 - n) for n in (20, 11, 3, 1)])
    torch.manual_seed(0)
    kept = token_cutoff(mask, 4, 0.3)
    assert (kept == kept[..., :1]).all()
    cut = (1 - kept[..., 0]) * mask
    assert cut.sum(1).tolist() == [6, 3, 0, 0]
    places = torch.stack([token_cutoff(mask, 1, 0.3)[0, :, 0] for _ in range(200)]).mean(0)
    assert places.min() > 0.5 and places.max() < 0.9, "every place is cut off in 30 % of the draws"


def test_feature_cutoff_leaves_out_the_same_features_of_all_tokens_of_a_row():
    kept = feature_cutoff(torch.ones(6, 5), 32, 0.2)
    assert (kept == kept[:, :1]).all()
    assert (kept[:, 0] == 0).sum(1).tolist() == [6] * 6
    assert len({tuple(row.tolist()) for row in kept[:, 0]}) > 1


def test_a_cut_off_view_is_encoded_with_zeros_after_the_embedding_layer(kind):
    trained, rows = model(kind, first_view="token_cutoff", second_view="none", cutoff_rate=0.4), batch()
    ids, mask = rows.values()
    torch.manual_seed(7)
    pooled = trained.pool_views(**rows)
    torch.manual_seed(7)
    kept = token_cutoff(mask[:, 0], 32, 0.4).double()
    backbone = trained.model.backbone
    handle = backbone.embeddings.register_forward_hook(lambda module, inputs, output: output * kept)
    hidden = backbone(input_ids=ids[:, 0], attention_mask=mask[:, 0]).last_hidden_state
    handle.remove()
    real = mask[:, 0].unsqueeze(-1)
    torch.testing.assert_close(pooled[:, 0], (hidden * real).sum(1) / real.sum(1), atol=1e-10, rtol=0)
    plain = trained.eval().pool_views(**rows)
    torch.testing.assert_close(pooled[:, 1], plain[:, 1], atol=1e-10, rtol=0)
    assert not torch.allclose(pooled[:, 0], plain[:, 0], atol=1e-3)


def test_a_shuffled_view_has_the_same_pieces_in_an_order_of_its_draw():
    config, pieces = ConSERTConfig(), list(range(30))
    first, second = config.edit_sentence([pieces, pieces], Random(1))
    assert first == pieces and second != pieces and sorted(second) == pieces
    assert config.edit_sentence([pieces, pieces], Random(1)) == [first, second]
    assert pieces == list(range(30))
    assert config.edit_sentence([pieces] * 3, Random(1)) == [first, second, pieces], "a hard negative is not shuffled"


def test_special_tokens_are_shuffled_too_as_in_the_release():
    pieces = list(range(10, 40))
    for pooling, moves, shuffles in (("mean", True, True), ("mean", False, False), ("cls", True, False)):
        config = ConSERTConfig(pooling=pooling, shuffle_special_tokens=moves)
        edits = {"edit_sentence": config.edit_sentence, "edits_special_tokens": config.edits_special_tokens}
        collate = ViewCollator([([1], [2])], 0, config.view_columns, **edits)
        first, second = collate([{"0": pieces}], [Random(1)])["input_ids"][0].tolist()
        assert first == [1, *pieces, 2] and second != first and sorted(second) == sorted(first)
        assert ((second[0], second[-1]) != (1, 2)) == shuffles, "one pooled token would be another one"


def test_the_order_of_all_tokens_is_the_order_of_their_positions(kind):
    """The release permutes the positions; the mean over the tokens is the same if the tokens are permuted."""
    trained, rows = model(kind).eval(), batch()
    ids = rows["input_ids"][:1, 0, : int(rows["attention_mask"][0, 0].sum())]
    order = torch.randperm(ids.shape[1], generator=torch.Generator().manual_seed(1))
    first = 0 if kind == "bert" else trained.config.backbone_config.pad_token_id + 1
    shuffled = trained.model(input_ids=ids[:, order]).pooler_output
    moved = trained.model(input_ids=ids, position_ids=order.argsort()[None] + first).pooler_output
    torch.testing.assert_close(shuffled, moved, atol=1e-12, rtol=0)
    assert not torch.allclose(shuffled, trained.model(input_ids=ids).pooler_output, atol=1e-3)


def test_training_may_pool_otherwise_than_the_finished_model():
    keys = {"first_view": "none", "second_view": "none", "pooling": "last2_mean"}
    trained, rows = model(training_pooling="mean", **keys), batch()
    flat = {name: values.flatten(0, 1) for name, values in rows.items()}
    outputs = trained.eval().model(**flat, output_hidden_states=True)
    last, before = outputs.hidden_states[-1], outputs.hidden_states[-2]
    real = flat["attention_mask"].unsqueeze(-1)
    expected = {
        mode: (states * real).sum(1) / real.sum(1) for mode, states in (("mean", last), ("both", (last + before) / 2))
    }
    torch.testing.assert_close(outputs.pooler_output, expected["both"], atol=1e-10, rtol=0)
    pooled = trained.train().pool_views(**rows).flatten(0, 1)
    torch.testing.assert_close(pooled, expected["mean"], atol=1e-10, rtol=0)


def test_cutoffs_leave_the_bias_of_a_template_as_it_is():
    keys = {"pooling": "prompt", "prompts": ["{sentence} {mask}"], "denoise": "train", "second_view": "feature_cutoff"}
    trained, rows = model(prompt_token_ids=[[[1], [4]]], mask_token_id=4, **keys), batch()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pooled = trained.train().pool_views(**rows)
    trained.config.denoise = "none"
    torch.manual_seed(0)
    bias = trained.prompt_biases(**rows)
    torch.testing.assert_close(trained.pool_views(**rows) - bias, pooled, atol=1e-12, rtol=0)
