"""Finished repositories of tiny models, as a run saves them, and the command that publishes them."""

import json
import subprocess
from pathlib import Path

import torch

from csezoo.modeling import METHODS
from csezoo.modeling.contrastive.sentence_encoder import SentenceEncoderModel
from csezoo.training.files import read_json, write_json
from csezoo.training.loading.templates import serving_tokenizer, template_token_ids
from csezoo.training.publishing.repository import save_repository
from csezoo.training.recipes import make_recipe
from tests.conftest import tiny_config, tiny_tokenizer
from tests.families import FAMILIES, family_config, family_tokenizer
from tests.hub_server import TOKEN
from tests.interpreters import EACH_COMMAND, run_python

PROMPT = {"pooling": "prompt", "prompts": ["this sentence : {sentence} means {mask} ."]}


def tiny_backbone(kind: str):
    """The configuration and the tokenizer of a tiny backbone: `bert`, `roberta`, or a family of `FAMILIES`."""
    if kind in FAMILIES:
        return family_config(kind), family_tokenizer(kind)
    return tiny_config(kind), tiny_tokenizer(kind)


def tiny_encoder(method: str = "simcse", kind: str = "bert", **changes) -> SentenceEncoderModel:
    """An encoder in which no tensor has its initial value, with its serving tokenizer.

    Args:
        changes: changes to its configuration.
    """
    torch.manual_seed(0)
    backbone, tokenizer = tiny_backbone(kind)
    prompts = changes.get("prompts")
    templates = [template_token_ids(tokenizer, prompt) for prompt in prompts or [None]]
    config_class, model_class, _ = METHODS[method]
    config = config_class(
        backbone_config=backbone,
        prompt_token_ids=templates if prompts else None,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
        **changes,
    )
    model = model_class(config).eval()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.randn_like(tensor))
    model.tokenizer = serving_tokenizer(
        tokenizer,
        templates[0],
        max_length=64 - config.prefix_positions,
        leading_space=bool(prompts),
        full_stop=config.full_stop,
    )
    return model


def save_encoder(directory: Path, encoder: SentenceEncoderModel) -> Path:
    """Save an encoder with its tokenizer as a run does at its end."""
    recipe = make_recipe({"name": "tiny", "method": encoder.config.model_type, "base_model": "zoo/tiny"})
    save_repository(directory, encoder, encoder.tokenizer, recipe)
    return directory


def tiny_repository(directory: Path, method: str = "simcse", kind: str = "bert", **changes) -> Path:
    """Save the repository of a `tiny_encoder`."""
    return save_encoder(directory, tiny_encoder(method, kind, **changes))


def publish_each(hub, home: Path, commands: list[list[str]]) -> list[subprocess.CompletedProcess[str]]:
    """Run `csezoo publish` several times in one new process, which is much faster, and return its answers."""
    words = json.dumps([["publish", *command] for command in commands])
    done = run_python("-W", "ignore", "-c", EACH_COMMAND, words, **hub.environment(home))
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    return [subprocess.CompletedProcess(words, *answer[:3]) for words, answer in zip(commands, answers, strict=True)]


def publish_to(hub, home: Path, run: Path, *options: str, to: str = "zoo/tiny", **environment: str):
    """Run `csezoo publish` in a new process, because the client reads the Hub's address when it is imported."""
    command = ["-m", "csezoo.training.cli", "publish", run, "--to", to, *options]
    return run_python(*command, **{**hub.environment(home), **environment})


def edit_json(path: Path, **changes) -> None:
    """Change keys of a JSON file."""
    write_json(path, {**read_json(path), **changes})


def local_files(directory):
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


def assert_refused(done, *parts):
    """The command ends with exit code 2 and one error line with all parts; the token is nowhere in the output."""
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line
    assert TOKEN not in done.stdout + done.stderr
