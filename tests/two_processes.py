"""An update of a method in two gloo processes, and in one."""

import gc
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from csezoo.modeling import method
from csezoo.modeling.contrastive.distributed import gather_rows
from csezoo.training.data.batches import process_share
from tests.conftest import NO_DROPOUT, tiny_config
from tests.interpreters import CONTEXT, free_port
from tests.tiny import batch, gradients


def model(changes, stage="contrastive"):
    """The method named in `changes` (SimCSE by default), as a stage trains it."""
    torch.manual_seed(0)
    backbone = tiny_config("bert", **NO_DROPOUT)
    changes = {"backbone_config": backbone, "mask_token_id": 4, "special_token_ids": [0, 2, 3, 4], **changes}
    config_class, _, training_class = method(changes.pop("method", "simcse"))
    training_class = changes.pop("training_class", training_class)
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


def two_updates(forward, made, rows, rank=0):
    """Forward and backward passes of two updates on the same weights. A method may keep state of the first one.

    Processes have different random states, as in training.
    """
    torch.manual_seed(rank)
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
    loss = two_updates(replica, replica.module, {**own, "rows": len(share)}, rank)
    gathered, _ = gather_rows(torch.full((len(share), 1), float(rank)))
    return loss, gradients(replica.module), gathered, replica.module.state_dict()


def assert_like_one(two_processes, sentences, views, changes):
    """Two processes have the loss, the gradients and the state of one on the same batch."""
    loss, gradient, gathered, state = two_processes(one_step, sentences, views, changes)
    alone = model(changes)
    expected_loss = two_updates(alone, alone, padded(rows_of(sentences, views, changes)))
    torch.testing.assert_close(loss, expected_loss, atol=1e-12, rtol=0)
    for name, expected in gradients(alone).items():
        torch.testing.assert_close(gradient[name], expected, atol=1e-10, rtol=1e-8, msg=name)
    for name, expected in alone.state_dict().items():
        torch.testing.assert_close(state[name], expected, atol=1e-10, rtol=1e-8, msg=name)
    assert gathered.flatten().tolist() == [0.0] * -(-sentences // 2) + [1.0] * (sentences // 2)


@contextmanager
def two_processes_of_one_group():
    """Yields what runs a function in two processes of one group, and returns the result of the first."""
    port = free_port()
    with ExitStack() as stack:
        made = [ProcessPoolExecutor(1, CONTEXT, initializer=join, initargs=(rank, port)) for rank in range(2)]
        pools = [stack.enter_context(pool) for pool in made]

        def run(function, *arguments):
            calls = [pool.submit(function, rank, *arguments) for rank, pool in enumerate(pools)]
            return [call.result() for call in calls][0]

        yield run
        for call in [pool.submit(leave) for pool in pools]:
            call.result()


def join(rank, port):
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=timedelta(seconds=60))


def leave():
    gc.collect()  # replicas must be gone before their process group is: the other order can wait for ever
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()
