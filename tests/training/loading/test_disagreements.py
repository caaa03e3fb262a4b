"""A repository whose files disagree is refused by every door, with one line that names both sides."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from csezoo.modeling.contrastive.published import load_published
from csezoo.training.cli.parser import main
from csezoo.training.files import write_json
from tests.clean_interpreter import run_without_csezoo
from tests.hub_server import HubServer
from tests.repositories import PROMPT, publish_each, tiny_repository

LAYERS = {"projection": "tanh", "projection_at_test": True, "whitening_size": 8}


def edit(directory, name, change):
    path = directory / name
    content = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, change(content))


def edit_tensors(directory, name, change):
    tensors = load_file(directory / name)
    save_file(change(tensors), directory / name, metadata={"format": "pt"})


def of_the_zoo(**changes):
    """Change what config.json says of what follows the encoder."""
    return lambda directory: edit(directory, "config.json", lambda c: {**c, "csezoo": {**c["csezoo"], **changes}})


def other_pooling(directory):
    modes = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    edit(directory, "2_Pooling/config.json", lambda content: {**content, **modes})


def other_activation(directory):
    edit(directory, "3_Dense/config.json", lambda c: {**c, "activation_function": "torch.nn.modules.activation.ReLU"})


def without_template(directory):
    edit(directory, "tokenizer.json", lambda content: {**content, "post_processor": None})


def without_tensor(name):
    return lambda directory: edit_tensors(
        directory, "model.safetensors", lambda tensors: {key: tensors[key] for key in tensors if key != name}
    )


def narrower(directory):
    edit_tensors(
        directory, "4_Dense/model.safetensors", lambda tensors: {key: tensors[key][:5].clone() for key in tensors}
    )


ON_TOP = "WordWeights - Pooling - Dense - Dense"
# How a repository is changed, and what the line says of each side.
CHANGES = {
    "another pooling": (other_pooling, "2_Pooling/config.json has pooling_mode: cls, config.json has mean"),
    "another pooling in config.json": (
        of_the_zoo(pooling="mean"),
        f"config.json has Pooling - Dense - Dense after the encoder, modules.json has {ON_TOP} after Transformer",
    ),
    "a missing Dense": (
        lambda directory: edit(directory, "modules.json", lambda modules: modules[:-1]),
        f"config.json has {ON_TOP} after the encoder, modules.json has WordWeights - Pooling - Dense after",
    ),
    "a missing Dense in config.json": (
        of_the_zoo(layers=[]),
        f"config.json has WordWeights - Pooling after the encoder, modules.json has {ON_TOP} after",
    ),
    "a Dense without its folder": (
        lambda directory: shutil.rmtree(directory / "4_Dense"),
        "4_Dense/config.json is missing or has no activation_function, config.json has torch.nn.",
    ),
    "a Dense of other weights": (
        narrower,
        "4_Dense/model.safetensors has tensors: {'linear.bias': (5,), 'linear.weight': (5, 32)}, config.json has "
        "{'linear.bias': (8,), 'linear.weight': (8, 32)}",
    ),
    "another activation": (
        other_activation,
        "3_Dense/config.json has activation_function: torch.nn.modules.activation.ReLU, config.json has "
        "torch.nn.modules.activation.Tanh",
    ),
    "a Dense that adds its input": (
        lambda directory: edit(directory, "3_Dense/config.json", lambda content: {**content, "use_residual": True}),
        "3_Dense/config.json has use_residual: True, config.json has False",
    ),
    "a tokenizer without the template": (
        without_template,
        "config.json has the template 'this sentence : {sentence} means {mask} .'",
    ),
    "another template": (
        of_the_zoo(template={"text": "{sentence} : {mask}", "before": [2], "after": [9, 4, 3]}),
        "config.json has the template '{sentence} : {mask}'",
    ),
    "another mask token": (of_the_zoo(mask_token_id=7), "and the mask token 7, which the template in tokenizer.json"),
    "cut vectors": (
        of_the_zoo(truncate_dim=5),
        "config_sentence_transformers.json is missing or has no truncate_dim, config.json has 5",
    ),
    "a missing tensor": (
        without_tensor("encoder.layer.1.output.dense.bias"),
        "does not fit its config.json: missing backbone.encoder.layer.1.output.dense.bias",
    ),
    "another width": (
        lambda directory: edit(directory, "config.json", lambda content: {**content, "intermediate_size": 48}),
        "does not fit its config.json: mis-shaped backbone.encoder.layer.0.intermediate.dense",
    ),
}
# Publishing loads each in a new process.
PUBLISHED = ("another pooling", "a missing Dense", "a tokenizer without the template")
COMMANDS = {
    "evaluate": "evaluate {0} --suite sts-dev --data hub",
    "encode": "encode {0} {1}/texts.txt --to {1}/vectors",
    "train": "train simcse-bert-base-uncased --eval_data none --report_to none --train_file {1}/texts.txt "
    "--output_dir {1}/run --base_model {0}",
    "export": "export {0} --to {1}/exported --truncate_dim 4",
    "verify": "verify {0}",
}


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """A directory with a repository for each change, and texts."""
    directory = tmp_path_factory.mktemp("changed")
    (directory / "texts.txt").write_text("a cat\na dog\n", encoding="utf-8")
    whole = tiny_repository(directory / "whole", **PROMPT, **LAYERS)
    edit(whole, "fingerprint.json", lambda content: {**content, "files": {}})  # or a checksum would be the reason
    for name, (change, _) in CHANGES.items():
        change(shutil.copytree(whole, directory / name))
    return directory


@pytest.mark.parametrize("name", CHANGES)
def test_every_command_ends_with_the_line(changed, capsys, name):
    with pytest.raises(ValueError) as refused:
        load_published(changed / name)
    assert CHANGES[name][1] in str(refused.value)
    for command in COMMANDS.values():
        words = [word.format(changed / name, changed) for word in command.split()]
        with pytest.raises(SystemExit, match="2"):
            main(words)
        *_, line = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ") and CHANGES[name][1] in line, command
    assert not (changed / "vectors").exists() and not (changed / "exported").exists()


def test_the_repository_s_own_code_says_the_same(changed):
    code = f"""
import json
from transformers import AutoModel

lines = {{}}
for name in {list(CHANGES)}:
    try:
        AutoModel.from_pretrained(name, trust_remote_code=True)
    except ValueError as error:
        lines[name] = str(error)
print(json.dumps(lines))
"""
    lines = run_without_csezoo(code, changed)
    assert {name: said for name, (_, said) in CHANGES.items() if said not in lines.get(name, "")} == {}


@pytest.mark.slow
def test_it_is_not_published(changed, tmp_path):
    with HubServer() as hub:
        done = publish_each(hub, tmp_path, [[str(changed / name), "--to", "zoo/tiny"] for name in PUBLISHED])
        assert hub.repos == {}
    for name, answer in zip(PUBLISHED, done, strict=True):
        (line,) = answer.stderr.splitlines()
        assert answer.returncode == 2 and CHANGES[name][1] in line
