"""What the documentation says of other people's clients is what was measured."""

from csezoo.training.files import read_json
from tests.foreign_clients.settings import settings
from tests.foreign_clients.table import COLUMNS, PAGE, RESULTS, filled


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


def test_the_page_has_the_tables_of_the_results():
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page) == page, "run python -m tests.foreign_clients --write"
