"""Sizes are those of the saved weights, and times are measured for every model whose base is known."""

import shutil
from pathlib import Path

import pytest
import yaml

from csezoo.training.benchmarks import serving
from csezoo.training.cards.entries import entries
from csezoo.training.cards.serving import Shape, read_serving, shape_of
from csezoo.training.errors import UserError
from csezoo.training.files import write_json
from csezoo.training.recipes import load_recipe

CARDS = Path(__file__).parents[3] / "model_cards"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("simcse-bert-base-uncased", Shape("bert-base-uncased")),
        ("simcse-sup-roberta-large", Shape("roberta-large", projection="tanh")),
        ("diffaug-bert-base-uncased-semi", Shape("bert-base-uncased", prefix=16, template=7)),
        ("whitening-bert-base-uncased", Shape("bert-base-uncased", whitening=768)),
        ("contrastive-tension-bert-base-uncased", Shape("bert-base-uncased")),
        ("isbert-bert-base-uncased", Shape("")),  # its convolutions are not part of a shape
    ],
)
def test_the_shape_of_a_recipe_has_what_is_served(name, shape):
    recipe = load_recipe(name)
    found = shape_of(recipe.base_model, recipe.method, recipe.model, recipe.whitening)
    assert found._replace(template=shape.template, prefix=shape.prefix) == shape
    assert (found.template > 5) == (shape.template > 0) and (found.prefix > 0) == (shape.prefix > 0)


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        # BERT without its pooler of 768 * 769: 109,482,240 - 590,592.
        (Shape("bert-base-uncased"), 108_891_648),
        (Shape("bert-base-uncased", projection="tanh"), 108_891_648 + 768 * 769),
        (Shape("roberta-base"), 124_645_632 - 768 * 769),
        (Shape("bert-base-uncased", prefix=8), 108_891_648 + 12 * 2 * 12 * 16 * 64),
        # As the base is served, without its pooler of 384 * 385; of 6 layers, query and value get 2 * 384 * 8 each.
        (Shape("all-MiniLM-L6-v2", adapter=8), 22_713_216 - 384 * 385 + 6 * 2 * 2 * 384 * 8),
    ],
)
def test_the_size_is_that_of_the_published_models(shape, parameters):
    assert serving._size(shape, serving.BASES[shape.base]) == {"parameters": parameters, "bytes": 4 * parameters}


def test_every_model_of_a_known_base_gets_size_and_time(bases, tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "BASES", {})  # they would take minutes
    run = shutil.copytree(CARDS / "simcse-minilm", tmp_path / "cards" / "mine")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    (run / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "base_model": str(bases["bert"])}), encoding="utf-8")
    report = serving.benchmark_serving(str(tmp_path / "cards"), [str(bases["bert"])], repeats=1)
    ((name, measured),) = report["shapes"].items()
    assert measured["cpu_ms_per_sentence"] > 0 and report["protocol"]["threads"] == 1
    write_json(tmp_path / "cards" / "serving.json", report)
    first = entries(tmp_path / "cards")[0].model
    assert (first.name, first.bytes) == ("mine", measured["bytes"]) and name == first.base_model


def test_a_base_without_configuration_and_a_damaged_report_are_refused(tmp_path):
    with pytest.raises(UserError, match="bases: .* has no configuration that can be read"):
        serving.benchmark_serving(str(tmp_path), [str(tmp_path)])
    (tmp_path / "serving.json").write_text('{"shapes": []}', encoding="utf-8")
    with pytest.raises(UserError, match="is not a report of csezoo benchmark serving"):
        read_serving(tmp_path)
