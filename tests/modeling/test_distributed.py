"""Two real gloo processes train like one on the same global batch, also with unequal and empty shares."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from csezoo.modeling import SimCSEForContrastiveLearning
from csezoo.modeling.contrastive.distributed import equal_draw, gather_rows
from csezoo.modeling.objectives import info_nce
from csezoo.training.data.batches import process_share
from tests.methods import RUNS, TESTED, exact
from tests.two_processes import assert_like_one, model


class NoisyPositives(SimCSEForContrastiveLearning):
    """Draws in its objective, for the sentences of all processes."""

    def objective(self, embeddings, mine, duplicates):
        anchors, positives = embeddings.unbind(1)
        noisy = positives + 0.1 * equal_draw(torch.randn_like(positives))
        return info_nce(anchors, noisy, temperature=0.05, rows=mine)


OPTS = ("base", "opt1", "opt2")
LEARNED = {"method": "l2pcsr", **TESTED["l2pcsr"].exact}


def views(name):
    """Rows of a sentence that a method reads, or the one of several that reads the most."""
    return max(TESTED[one].views for one in name.split("+"))


@pytest.mark.parametrize(
    ("sentences", "views", "changes"),
    [
        *(pytest.param(5, views(name), {"method": name, **exact(name)}, id=name) for name in RUNS),
        (6, 2, {}),
        (5, 2, {"training_class": NoisyPositives}),
        (1, 2, {"training_class": NoisyPositives}),
        (5, 3, {"hard_negative_weight": 0.5}),  # ragged
        (1, 3, {}),  # one process has an empty share
        (5, 2, {"projection": "batchnorm"}),
        (1, 2, {"projection": "batchnorm", "projection_at_test": True}),
        (3, 2, {"projection": "none", "pooling": "mean"}),
        (5, 3, {"method": "prdsimcse", "denominator": "own"}),
        (5, 1, {"method": "isbert", "mask_duplicates": True}),
        (5, 2, {"method": "contrastive_tension", "mask_duplicates": True}),
        (5, 2, {"method": "contrastive_tension", "negative_pairs": "own", "mask_duplicates": True}),
        (5, 3, {"method": "prdsimcse", "denominator": "all", "mask_duplicates": True}),
        *((5, 2, {"method": "sgopt", "projection_size": 24, "guide": "self", "variant": v}) for v in OPTS),
        (3, 3, {"method": "prdsimcse", "denominator": "all"}),
        (1, 2, {"method": "sgopt", "projection_size": 24, "guide": "self", "variant": "base"}),
        # Nothing masked, so nothing drawn: the generator's own guesses at every position are the edit.
        (2, 2, {"method": "diffcse", "rtd_mask_ratio": 0.0, "rtd_weight": 1.0}),  # one pads to the other's length
        (1, 3, {"method": "diffcse", "rtd_mask_ratio": 0.0, "rtd_weight": 1.0, "predicted_sentence": "both"}),
        (2, 2, {"method": "diffcse", "rtd_mask_ratio": 0.0, "rtd_weight": 1.0, "prediction": "corrective_lm"}),
        (1, 2, {"method": "diffcse", "rtd_mask_ratio": 0.0, "rtd_weight": 1.0, "prediction": "corrective_lm"}),
        (5, 3, {**LEARNED, "method": "prdsimcse+l2pcsr", "denominator": "all"}),
        (1, 3, LEARNED),
        (5, 2, {**LEARNED, "feature_mask_scope": "shared", "attend_padding": True, "projection": "batchnorm"}),
        (2, 2, {**LEARNED, "attend_padding": True}),  # one pads to the other's length
        (5, 3, {"method": "diffaug"}),
        (5, 2, {"mini_batch_size": 1}),
        (5, 2, {"mini_batch_size": 1, "mask_duplicates": True}),
        (5, 3, {**LEARNED, "mask_duplicates": True}),
        (4, 2, {"method": "diffcse", "rtd_mask_ratio": 0.0, "rtd_weight": 1.0, "mini_batch_size": 1}),
        (1, 2, {"method": "diffaug", "views_module": "lora"}),
        (5, 2, {"rank_weight": 1.0, "ema_decay": 0.5}),
        (1, 2, {"rank_weight": 1.0, "rank_loss": "listmle"}),
        (2, 1, {"method": "isbert", "rank_weight": 1.0}),  # each process has features of another length
        (5, 2, {"rank_consistency_weight": 1.0}),
        (5, 2, {"matryoshka_dims": [4, 8], "mask_duplicates": True}),
        (1, 2, {"matryoshka_dims": [4], "projection": "batchnorm"}),
    ],
)
def test_two_processes_give_the_gradient_of_one(two_processes, sentences, views, changes):
    assert_like_one(two_processes, sentences, views, changes)


def equal_draws(rank, seed):
    """Two draws of every process `(2, processes, 3)`, and the second one again after its random state was restored."""
    torch.manual_seed(seed + rank)
    first = equal_draw(torch.rand(3))
    state = torch.get_rng_state()
    second = equal_draw(torch.rand(3))
    torch.set_rng_state(state)
    return [gather_rows(drawn[None])[0] for drawn in (first, second, equal_draw(torch.rand(3)))]


def test_an_equal_draw_is_that_of_one_process_follows_the_seed_and_survives_a_resume(two_processes):
    first, second, again = two_processes(equal_draws, 5)
    torch.manual_seed(5)
    assert torch.equal(first, torch.rand(3).expand(2, 3))
    assert torch.equal(second, torch.rand(3).expand(2, 3)) and torch.equal(again, second)
    assert not torch.equal(two_processes(equal_draws, 6)[0], first)


def operations_of_the_loss(rank, processes, changes):
    """The operations of products in the loss of this process's share of eight sentences, with their gradient."""
    made = model(changes)
    torch.manual_seed(0)
    views = 3 if changes["method"] == "prdsimcse" else 2
    embeddings = torch.randn(8, views, made.projected_size, dtype=torch.float64)
    own = embeddings[process_share(range(8), rank, processes)].requires_grad_()
    with FlopCounterMode(display=False) as counter:
        made.contrastive_loss(own).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "simcse"},
        {"method": "prdsimcse", "denominator": "all"},
        {"method": "consert"},
        {"method": "sgopt", "projection_size": 24},
        {"method": "isbert"},
    ],
    ids=lambda changes: changes["method"],
)
def test_each_process_computes_the_similarities_of_its_own_sentences_only(two_processes, changes):
    alone = operations_of_the_loss(0, 1, changes)
    assert two_processes(operations_of_the_loss, 2, changes) == alone / 2 > 0
