"""What a card says of other people's clients is what was measured, for its own combination of settings."""

import pytest

from csezoo.training.files import read_json
from csezoo.training.publishing.clients import filled, works_with
from csezoo.training.publishing.clients.table import COLUMNS, RESULTS
from tests.foreign_clients.settings import settings
from tests.training.publishing.test_export import config_of


def card(name: str, forms: set[str], kind: str = "bert") -> str:
    return "\n".join(works_with(config_of(name, kind), forms))


def test_every_client_is_right_on_a_setting_or_there_is_a_reason():
    results = read_json(RESULTS)
    names = {client["name"] for client in results["clients"]}
    for cell in results["cells"]:
        for client, outcome in cell["clients"].items():
            assert client in names
            assert outcome.get("because") or outcome == {} or outcome["largest"] <= 1e-5, (cell["settings"], client)


def test_every_pooling_and_layer_was_tried_and_has_a_column():
    keys = ("pooling", "projection", "whitened", "own_code")
    tried = {tuple(cell[key] for key in keys) for cell in read_json(RESULTS)["cells"]}
    assert {tuple(getattr(setting, key) for key in keys) for setting in settings()} <= tried
    with_column = {pooling for poolings in COLUMNS.values() for pooling in poolings}
    assert {pooling for pooling, *_, own_code in tried if not own_code} == with_column


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_card_names_the_clients_of_its_files(kind):
    plain, both = card("max", {"plain"}, kind), card("max", {"plain", "onnx"}, kind)
    assert "fastembed" not in plain and "fastembed" in both
    assert "Works with sentence-transformers 6" in plain
    failing = plain[plain.index("Not with") :]
    reason = {"bert": "it takes the mean of the last layer", "roberta": "it does not know RoBERTa"}[kind]
    assert f"because {reason}" in failing[failing.index("embed-anything") :]


def test_a_client_that_was_only_read_is_marked():
    assert "vLLM (*by reading*)" in card("max", {"plain"})


def test_a_combination_that_was_not_tried_has_no_list():
    config = config_of("max", "bert")
    config.backbone_config.model_type = "electra"
    assert works_with(config, {"plain"}) == [
        "Other clients were not tried with this combination of backbone, pooling and layers."
    ]


def test_the_page_has_the_tables_of_the_results(request):
    page = (request.config.rootpath / "docs" / "clients.md").read_text(encoding="utf-8")
    assert filled(page) == page, "run python -m csezoo.training.publishing.clients docs/clients.md"
