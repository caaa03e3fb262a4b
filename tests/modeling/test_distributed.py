"""Two real gloo processes train like one on the same global batch, also with unequal and empty shares."""

import gc
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing import get_context

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from csezoo.modeling import method
from csezoo.modeling.contrastive.distributed import _scattered_sum, gather_rows, own_share_of_sum
from csezoo.training.data.batches import process_share
from tests.conftest import tiny_config
from tests.interpreters import free_port
from tests.methods import RUNS, TESTED, exact
from tests.tiny import batch


def model(changes, stage="contrastive"):
    """The method named in `changes` (SimCSE by default), as a stage trains it."""
    torch.manual_seed(0)
    backbone = tiny_config("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    changes = {"backbone_config": backbone, "mask_token_id": 4, "special_token_ids": [0, 2, 3, 4], **changes}
    config_class, _, training_class = method(changes.pop("method", "simcse"))
    mini_batch_size = changes.pop("mini_batch_size", None)
    made = training_class(config_class(**changes)).double()
    made.mini_batch_size = mini_batch_size
    for parameter in made.frozen_parameters(stage):
        parameter.requires_grad_(False)
    return made


def padded(rows):
    """Rows padded to the longest, as by a collator."""
    longest = int(rows["attention_mask"].sum(-1).max())
    return rows | {key: rows[key][..., :longest] for key in ("input_ids", "attention_mask")}


def gradients(module):
    return {name: p.grad for name, p in module.named_parameters()}


def rows_of(sentences, views, changes):
    """A batch. Its last sentence repeats the second one if duplicates are masked."""
    rows = batch(sentences=sentences, views=views)
    rows["input_ids"] *= rows["attention_mask"]  # token 0 pads
    if changes.get("mask_duplicates"):
        for value in rows.values():
            value[-1] = value[1]
    if changes.get("rank_weight"):
        rows["teacher_vectors"] = torch.randn(sentences, 3, dtype=torch.float64)
    return rows


def two_updates(forward, made, rows):
    """Forward and backward passes of two updates on the same weights. A method may keep state of the first one."""
    for _ in range(2):
        made.zero_grad()
        output = forward(**rows)
        output.loss.backward()
        with torch.no_grad():
            made.after_update()
    return output.loss.detach()


def one_step(rank, sentences, views, changes):
    """Loss, gradients, gathered rows and state after the backward passes on this process's share."""
    rows = rows_of(sentences, views, changes)
    share = process_share(list(range(sentences)), rank, 2)
    own = padded({key: value[share or [0]] for key, value in rows.items()})
    replica = DistributedDataParallel(model(changes))
    loss = two_updates(replica, replica.module, {**own, "rows": len(share)})
    gathered, _ = gather_rows(torch.full((len(share), 1), float(rank)))
    return loss, gradients(replica.module), gathered, replica.module.state_dict()


def join(rank, port):
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=timedelta(seconds=60))


def leave():
    gc.collect()  # replicas must be gone before their process group is: the other order can wait for ever
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes():
    """Runs a function in two processes of one group, and returns the result of the first."""
    port, spawn = free_port(), get_context("spawn")
    with ExitStack() as stack:
        made = [ProcessPoolExecutor(1, spawn, initializer=join, initargs=(rank, port)) for rank in range(2)]
        pools = [stack.enter_context(pool) for pool in made]

        def run(function, *arguments):
            calls = [pool.submit(function, rank, *arguments) for rank, pool in enumerate(pools)]
            return [call.result() for call in calls][0]

        yield run
        for call in [pool.submit(leave) for pool in pools]:
            call.result()


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
        (5, 2, {"rank_consistency_weight": 1.0}),
        (5, 2, {"matryoshka_dims": [4, 8], "mask_duplicates": True}),
        (1, 2, {"matryoshka_dims": [4], "projection": "batchnorm"}),
    ],
)
def test_two_processes_give_the_gradient_of_one(two_processes, sentences, views, changes):
    loss, gradient, gathered, state = two_processes(one_step, sentences, views, changes)
    alone = model(changes)
    expected_loss = two_updates(alone, alone, padded(rows_of(sentences, views, changes)))
    torch.testing.assert_close(loss, expected_loss, atol=1e-12, rtol=0)
    for name, expected in gradients(alone).items():
        torch.testing.assert_close(gradient[name], expected, atol=1e-10, rtol=1e-8, msg=name)
    for name, expected in alone.state_dict().items():
        torch.testing.assert_close(state[name], expected, atol=1e-10, rtol=1e-8, msg=name)
    assert gathered.flatten().tolist() == [0.0] * -(-sentences // 2) + [1.0] * (sentences // 2)


def both_sums(rank):
    """This process's share of a sum, by all-reduce and by reduce-scatter."""
    rows, counts = torch.arange(10.0).view(5, 2) + rank, [3, 2]
    return own_share_of_sum(rows, counts), _scattered_sum(rows, counts), rows[:3] + rows[:3] + 1


def test_devices_and_hosts_add_the_gradient_of_a_process_alike(two_processes):
    reduced, scattered, expected = two_processes(both_sums)
    assert torch.equal(reduced, expected) and torch.equal(scattered, expected)


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
