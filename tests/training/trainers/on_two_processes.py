"""Trains with losses on this process and another, and writes what the main one has: python FILE BASE GENERATOR OUT."""

import pickle
import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed as dist

from tests.methods import RUNS
from tests.training.trainers.training import loss_of, sentences, still, train_in_trainer

KINDS = ("together", "apart", "copied")


def main(base: str, generator: str, out: str) -> None:
    warnings.simplefilter("ignore")
    for name in RUNS:
        for kind in KINDS if name in ("simcse", "diffcse") else KINDS[:1]:
            loss = loss_of(name, base, generator, gather_across_devices=kind != "apart", **still(name))
            if kind == "copied":
                loss = pickle.loads(pickle.dumps(loss))  # noqa: S301  # made here
            directory = Path(out) / f"{name}-{kind}"
            train_in_trainer(loss, directory, sentences(8), ddp_backend="gloo", num_train_epochs=2, max_steps=-1)
            if dist.get_rank() == 0:
                state = {key: value.contiguous().clone() for key, value in loss.trained.state_dict().items()}
                save_file(state, f"{directory}.safetensors")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
