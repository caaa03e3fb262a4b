"""Two real gloo processes train as one on the same global batch, ragged and empty shares included."""

import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from csezoo.modeling import METHODS
from csezoo.modeling.distributed import gather_rows
from csezoo.training.batches import own_share
from tests.conftest import tiny_config
from tests.modeling.test_methods import batch


def model(changes, stage="contrastive"):
    """The method named in `changes`, SimCSE if none is, as a stage trains it."""
    torch.manual_seed(0)
    backbone = tiny_config("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config_class, _, training_class = METHODS[changes.get("method", "simcse")]
    options = {key: value for key, value in changes.items() if key != "method"}
    made = training_class(config_class(backbone_config=backbone, **options)).double()
    for parameter in made.frozen_parameters(stage):
        parameter.requires_grad_(False)
    return made


def gradients(module):
    return {name: p.grad for name, p in module.named_parameters()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def one_step(rank, sentences, views, changes):
    """Loss, gradients, gathered rows and state after one backward of this process's share."""
    rows = batch(sentences=sentences, views=views)
    share = own_share(list(range(sentences)), rank, 2)
    own = {key: value[share or [0]] for key, value in rows.items()}
    replica = DistributedDataParallel(model(changes))
    output = replica(**own, rows=len(share))
    output.loss.backward()
    gathered, _ = gather_rows(torch.full((len(share), 1), float(rank)))
    return output.loss.detach(), gradients(replica.module), gathered, replica.module.state_dict()


def worker(rank, port, sentences, views, changes, results):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    # The replica must be gone before its process group is: the other order can wait for ever.
    made = one_step(rank, sentences, views, changes)
    if rank == 0:
        torch.save(made, results)
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("sentences", "views", "changes"),
    [
        (6, 2, {}),
        (5, 3, {"hard_negative_weight": 0.5}),  # ragged
        (1, 3, {}),  # one process has an empty share
        (5, 2, {"projection": "batchnorm"}),
        (1, 2, {"projection": "batchnorm", "projection_at_test": True}),
        (3, 2, {"projection": "none", "pooling": "mean"}),
        (5, 3, {"method": "diffaug"}),
        (1, 2, {"method": "diffaug", "views_module": "lora"}),
    ],
)
def test_two_processes_give_the_gradient_of_one(tmp_path, sentences, views, changes):
    results = tmp_path / "results.pt"
    mp.spawn(worker, args=(free_port(), sentences, views, changes, results), nprocs=2)
    loss, gradient, gathered, state = torch.load(results)
    alone = model(changes)
    output = alone(**batch(sentences=sentences, views=views))
    output.loss.backward()
    torch.testing.assert_close(loss, output.loss, atol=1e-12, rtol=0)
    for name, expected in gradients(alone).items():
        torch.testing.assert_close(gradient[name], expected, atol=1e-10, rtol=1e-8, msg=name)
    for name, expected in alone.state_dict().items():
        torch.testing.assert_close(state[name], expected, atol=1e-10, rtol=1e-8, msg=name)
    assert gathered.flatten().tolist() == [0.0] * -(-sentences // 2) + [1.0] * (sentences // 2)
