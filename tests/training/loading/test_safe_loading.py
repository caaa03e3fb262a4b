"""Loading is safe: it reads no pickle, fetches no code, follows no path outside and trusts no size in a file."""

import shutil
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

from csezoo.modeling.contrastive.published import load_published
from csezoo.modeling.pooling import pool
from csezoo.training.data.translation import translator
from csezoo.training.errors import UserError
from csezoo.training.evaluation.encoders import load_encoder, model_receipt
from csezoo.training.files import read_json, write_json
from csezoo.training.loading.backbones import load_backbone, run_once
from csezoo.training.loading.sizes import refuse_oversized
from csezoo.training.loop.building import build
from csezoo.training.publishing.export import export
from csezoo.training.publishing.fingerprints import verify_repository
from csezoo.training.recipes import load_recipe, make_recipe
from tests.conftest import tiny_tokenizer
from tests.interpreters import run_python
from tests.repositories import edit_json, tiny_repository
from tests.training.pickles import Trap
from tests.training.runs import train, values


@pytest.fixture(scope="module")
def checkpoint(bases, train_file, dev_file, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("safe") / "run"
    train(values(bases["bert"], train_file, dev_file, output, max_steps=1))
    return output / "best"


@pytest.fixture
def copy(checkpoint, tmp_path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


@pytest.fixture
def base(bases, tmp_path) -> Path:
    """A copy of the tiny BERT."""
    return Path(shutil.copytree(bases["bert"], tmp_path / "base"))


@pytest.fixture
def mark(tmp_path):
    """A file that a pickle or code of a repository would write. No test finds it."""
    yield tmp_path / "mark"
    assert not (tmp_path / "mark").exists()


def with_pickled_weights(directory: Path, mark: Path) -> Path:
    (directory / "model.safetensors").unlink()
    torch.save({"weight": Trap(mark)}, directory / "pytorch_model.bin")
    return directory


def test_pickled_weights_are_refused_without_reading_them(copy, base, mark):
    directory = str(with_pickled_weights(copy, mark))
    with pytest.raises(UserError, match="safetensors"):
        load_encoder(directory)
    with pytest.raises(OSError, match="safetensors"):
        load_published(directory)
    with pytest.raises(UserError, match="safetensors"):
        load_backbone(str(with_pickled_weights(base, mark)))


@pytest.mark.parametrize("load", ["load_backbone(name)", "load_encoder(name, pooling='cls')"])
def test_a_hub_repository_with_a_pickle_alone_is_refused_without_asking_a_conversion_bot(
    hub, base, tmp_path, mark, load
):
    """transformers would read the bot's pull request, and without one have a service make it with the user's token."""
    files = with_pickled_weights(base, mark).iterdir()
    hub.commit("zoo/pickled", "initial commit", {file.name: file.read_bytes() for file in files})
    code = f"""
from csezoo.training.errors import UserError
from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.loading.backbones import load_backbone

name = "zoo/pickled"
try:
    {load}
except UserError as error:
    print(error)
"""
    done = run_python("-W", "ignore", "-c", code, **hub.environment(tmp_path / "hf"))
    assert "safetensors" in done.stdout, done.stderr
    assert not [request for request in hub.requests if "/commits/" in request or "/discussions" in request]


@pytest.fixture
def foreign(checkpoint, tmp_path) -> Path:
    """A copy that has no key of the zoo: any model of sentence-transformers."""
    directory = Path(shutil.copytree(checkpoint, tmp_path / "foreign"))
    config = read_json(directory / "config.json")
    del config["csezoo"], config["auto_map"]
    write_json(directory / "config.json", config)
    return directory


def test_pickled_weights_of_a_module_of_the_zoo_are_refused(tmp_path, mark):
    directory = tiny_repository(tmp_path / "whitened", whitening_size=8)
    module = directory / "2_Dense"
    (module / "model.safetensors").unlink()
    torch.save({"linear.weight": Trap(mark)}, module / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"2_Dense/model\.safetensors is missing or has no tensors"):
        load_encoder(str(directory))


def test_pickled_weights_of_a_sentence_transformers_module_are_refused(foreign, mark):
    modules = [{"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.models.Dense"}]
    write_json(foreign / "modules.json", modules)
    (foreign / "1_Dense").mkdir()
    torch.save({"weight": Trap(mark)}, foreign / "1_Dense" / "pytorch_model.bin")
    with pytest.raises(UserError, match="1_Dense/pytorch_model.bin is a pickle, which is never read"):
        load_encoder(str(foreign))


@pytest.mark.parametrize("place", ["the model's directory", "a router", "an older router"])
def test_pickled_weights_of_a_static_embedding_are_refused(tmp_path, mark, place):
    """sentence-transformers reads them itself, wherever they are."""
    model, folder = tmp_path / "model", "" if place == "the model's directory" else "0_Router/query/"
    inner = model / folder
    inner.mkdir(parents=True)
    tiny_tokenizer("bert").backend_tokenizer.save(str(inner / "tokenizer.json"))
    torch.save({"embedding.weight": Trap(mark)}, inner / "pytorch_model.bin")
    of = "sentence_transformers.sentence_transformer.modules"
    static, router = f"{of}.static_embedding.StaticEmbedding", "sentence_transformers.base.modules.router.Router"
    module = {"idx": 0, "name": "0", "path": folder.split("/")[0], "type": router if folder else static}
    write_json(model / "modules.json", [module])
    if folder:
        config = model / "0_Router" / ("router_config.json" if place == "a router" else "config.json")
        parameters = {"types": {"query": static}, "structure": {"query": ["query"]}, "parameters": {}}
        write_json(config, parameters)
    with pytest.raises(UserError, match=f"model: {folder}pytorch_model.bin is a pickle, which is never read"):
        load_encoder(str(model))


def test_code_of_a_sentence_transformers_model_does_not_run(foreign, mark):
    modules = [{"idx": 0, "name": "0", "path": "", "type": "module_of_the_model.Module"}]
    write_json(foreign / "modules.json", modules)
    code = f"open({str(mark)!r}, 'w').close()\n"
    (foreign / "module_of_the_model.py").write_text(code, encoding="utf-8")
    with pytest.raises(UserError, match="could not be loaded"):
        load_encoder(str(foreign))


@pytest.mark.parametrize("number", [0, 1])
def test_a_module_path_outside_the_model_is_refused(copy, foreign, number, tmp_path):
    """Also if there is such a module."""
    shutil.copytree(copy / "1_Pooling", tmp_path / "elsewhere")
    modules = read_json(copy / "modules.json", list)
    modules[number]["path"] = "../elsewhere"
    for directory in (copy, foreign):
        write_json(directory / "modules.json", modules)
        with pytest.raises(UserError, match="modules.json has .*'path': '../elsewhere'.*, which is no module in it"):
            load_encoder(str(directory))


def test_a_router_with_a_module_outside_the_model_is_refused(foreign):
    module = {"idx": 0, "name": "0", "path": "0_Router", "type": "sentence_transformers.base.modules.router.Router"}
    write_json(foreign / "modules.json", [module])
    (foreign / "0_Router").mkdir()
    write_json(foreign / "0_Router" / "router_config.json", {"types": {"../../elsewhere": "a.Module"}})
    with pytest.raises(UserError, match="a router names 0_Router/../../elsewhere, which is outside of the model"):
        load_encoder(str(foreign))


def test_a_fingerprint_cannot_name_files_outside_the_repository(copy):
    fingerprint = read_json(copy / "fingerprint.json")
    edit_json(copy / "fingerprint.json", files={**fingerprint["files"], "../secret": "0" * 64})
    with pytest.raises(UserError, match="../secret is outside of the repository"):
        verify_repository(str(copy))


@pytest.mark.parametrize("place", ["plain", "own form", "backbone of an own form"])
def test_a_configuration_cannot_make_loading_fetch_code(tmp_path, place):
    """An `auto_map` names another repository. Following it would download that repository's code."""
    directory = tiny_repository(tmp_path / "model", "simcse" if place == "plain" else "diffaug")
    config = read_json(directory / "config.json")
    auto_map = {name: f"evil/repository--code.{name}" for name in ("AutoConfig", "AutoModel")}
    (config["backbone_config"] if place.startswith("backbone") else config)["auto_map"] = auto_map
    write_json(directory / "config.json", config)
    encode, _ = load_encoder(str(directory))
    assert encode(["a cat"]).shape == (1, 32)


def test_code_of_a_base_model_is_not_run(base, mark):
    (base / "code.py").write_text(f"open({str(mark)!r}, 'w')\n", encoding="utf-8")
    edit_json(base / "config.json", model_type="unheard_of", auto_map={"AutoConfig": "code.C", "AutoModel": "code.M"})
    with pytest.raises(UserError, match="could not be loaded"):
        load_backbone(str(base))


def test_a_model_larger_than_memory_is_refused_before_it_is_allocated(tiny, copy, base, tmp_path):
    edit_json(copy / "config.json", vocab_size=10**12)
    before = psutil.Process().memory_info().rss
    with pytest.raises(UserError, match="needs 119,209.* GiB for parameters, this machine has"):
        load_encoder(str(copy))
    edit_json(base / "config.json", vocab_size=10**12)
    with pytest.raises(UserError, match="needs .* GiB"):
        load_backbone(str(base))
    sgopt = tiny(method="sgopt", projection_size=10**7)
    with pytest.raises(UserError, match="sgopt: its configuration needs .* GiB"):
        build(make_recipe(sgopt))
    diffcse = tiny(method="diffcse", generator=str(base))
    with pytest.raises(UserError, match="base: its configuration needs .* GiB"):
        build(make_recipe(diffcse))
    with pytest.raises(UserError, match="needs .* GiB"):
        export(str(copy), str(tmp_path / "cut"), truncate_dim=5)
    assert psutil.Process().memory_info().rss - before < 2**30
    refuse_oversized("small", {}, lambda: torch.nn.Linear(8, 8))


def test_too_many_layers_are_refused_before_they_are_built(copy, base):
    edit_json(copy / "config.json", num_hidden_layers=10**9)
    with pytest.raises(UserError, match="has 1,000,000,000 layers; at most 1,000 are allowed"):
        load_encoder(str(copy))
    edit_json(base / "config.json", num_hidden_layers=10**9)
    with pytest.raises(UserError, match="has 1,000,000,000 layers"):
        load_backbone(str(base))


@pytest.mark.parametrize(
    ("module", "changes"), [(0, {"vocab_size": 10**12}), (2, {"in_features": 10**8, "out_features": 10**8})]
)
def test_a_sentence_transformers_model_larger_than_memory_is_refused(bases, tmp_path, module, changes):
    encoder = Transformer(bases["bert"])
    width = encoder.get_embedding_dimension()
    model = SentenceTransformer(modules=[encoder, Pooling(width, "mean"), Dense(width, 8)])
    model.save(str(tmp_path / "model"))
    modules = read_json(tmp_path / "model" / "modules.json", list)
    edit_json(tmp_path / "model" / modules[module]["path"] / "config.json", **changes)
    with pytest.raises(UserError, match="needs .* GiB for parameters"):
        load_encoder(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "[]"),
        ("tokenizer_config.json", '"x"'),
        ("tokenizer_config.json", '{"added_tokens_decoder": "x"}'),
    ],
)
def test_whatever_a_library_raises_for_a_broken_file_is_one_line(base, file, content):
    (base / file).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="base.*could not be"):
        build(make_recipe({"base_model": str(base)}))


def test_a_defect_of_the_package_itself_keeps_its_traceback():
    with pytest.raises(TypeError, match="NoneType"):
        run_once("a model", lambda: pool(None, None, "cls"))


def test_a_recipe_cannot_run_code(tmp_path, mark):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"name: !!python/object/apply:builtins.open ['{mark}', 'w']\n", encoding="utf-8")
    with pytest.raises(UserError, match="not valid YAML"):
        load_recipe(str(recipe))


@pytest.mark.parametrize("place", ["pytorch_model.bin", "../other/a.safetensors", "/tmp/a.safetensors", ["a"]])
@pytest.mark.parametrize("file", ["model.safetensors.index.json", "config.json"])
def test_weights_are_safetensors_of_the_repository_whatever_its_files_name(copy, foreign, base, mark, place, file):
    """`use_safetensors=True` looks at the name of an index, and not at what it names."""
    changes = {"transformers_weights": place}
    for directory in (copy, foreign, base):
        if "index" in file:
            names = load_file(directory / "model.safetensors")
            with_pickled_weights(directory, mark)
            (directory / file).write_text("{}", encoding="utf-8")
            changes = {"metadata": {}, "weight_map": dict.fromkeys(names, place)}
        edit_json(directory / file, **changes)
    refused = pytest.raises(UserError, match="is no safetensors file of the repository")
    with refused:
        load_encoder(str(copy))
    with refused:
        load_encoder(str(foreign))
    with refused:
        load_encoder(str(base), pooling="cls")
    with refused:
        translator(str(base), beams=1, max_length=8)


def test_weights_in_parts_are_loaded_and_all_of_them_are_in_the_checksum(base):
    tensors = load_file(base / "model.safetensors")
    (base / "model.safetensors").unlink()
    for part in ("a", "b"):
        (base / part).mkdir()
        save_file(
            {name: t + (part == "b") for name, t in tensors.items()}, base / part / "w.safetensors", {"format": "pt"}
        )
    sums, vectors = set(), []
    for part in ("a", "b"):
        index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, f"{part}/w.safetensors")}
        write_json(base / "model.safetensors.index.json", index)
        encode, receipt = load_encoder(str(base), pooling="cls")
        sums.add(receipt["model_sha256"])
        vectors.append(encode(["a cat"]))
    assert abs(vectors[0] - vectors[1]).max() > 0.01
    (base / "b" / "w.safetensors").write_bytes((base / "a" / "w.safetensors").read_bytes())
    sums.add(model_receipt(str(base))["model_sha256"])
    assert len(sums) == 3


def test_an_adapter_of_other_weights_is_refused(copy, base):
    for directory in (copy, base):
        (directory / "adapter_config.json").write_text('{"base_model_name_or_path": "other"}', encoding="utf-8")
        with pytest.raises(UserError, match="adapter_config.json names the model"):
            load_encoder(str(directory), pooling="cls" if directory == base else None)
