"""Two real gloo processes in `SentenceTransformerTrainer` end where one does on the same global batches."""

import pytest
import torch
from safetensors.torch import load_file

from tests.interpreters import run_two
from tests.methods import RUNS
from tests.training.trainers.training import loss_of, sentences, still, train_in_trainer


@pytest.fixture(scope="module")
def trained(base_without_dropout, bases, tmp_path_factory):
    """The tensors after training on two processes, by the name of a run."""
    out = tmp_path_factory.mktemp("two")
    run_two("-m", "tests.training.trainers.on_two_processes", base_without_dropout, bases["bert"], out)
    return {file.stem: load_file(file) for file in out.glob("*.safetensors")}


def on_one_process(name, base, generator, directory, **arguments):
    loss = loss_of(name, base, generator, **still(name))
    train_in_trainer(loss, directory, sentences(8), num_train_epochs=2, max_steps=-1, **arguments)
    return loss.trained


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_as_one(name, trained, base_without_dropout, bases, tmp_path):
    alone = on_one_process(name, base_without_dropout, bases["bert"], tmp_path, per_device_train_batch_size=8)
    for key, tensor in alone.state_dict().items():
        torch.testing.assert_close(trained[f"{name}-together"][key], tensor, atol=1e-6, rtol=0, msg=key)


@pytest.mark.parametrize("name", ["simcse", "diffcse"])
def test_without_gathering_each_process_is_an_accumulated_batch(name, trained, base_without_dropout, bases, tmp_path):
    arguments = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    alone = on_one_process(name, base_without_dropout, bases["bert"], tmp_path, **arguments)
    for key, parameter in alone.named_parameters():
        torch.testing.assert_close(trained[f"{name}-apart"][key], parameter.data, atol=1e-6, rtol=0, msg=key)


@pytest.mark.parametrize("name", ["simcse", "diffcse"])
def test_a_copy_of_a_loss_trains_its_heads_as_the_loss_does(name, trained):
    """Heads differ between the processes if their gradients are not averaged."""
    for key, tensor in trained[f"{name}-together"].items():
        torch.testing.assert_close(trained[f"{name}-copied"][key], tensor, atol=1e-6, rtol=0, msg=key)
