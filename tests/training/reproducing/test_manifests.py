"""The manifests: one for every table and figure of the papers, each with the runs that it needs."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml

from csezoo.training.cards.published import published
from csezoo.training.errors import UserError
from csezoo.training.reproducing import manifests
from csezoo.training.reproducing.manifests import item_names, load_item
from csezoo.training.reproducing.plan import plan


@pytest.fixture(scope="module")
def planned():
    """Every item with its rows, resolved."""
    return {name: plan(load_item(name), Path("out"), rows=["*"]) for name in item_names()}


def test_every_table_and_figure_of_the_papers_has_a_manifest():
    papers = Counter(name.split("/")[0] for name in item_names() if name.split("/")[0] not in ("released", "zoo"))
    assert papers == {"diffaug": 12, "diffcse": 17, "l2pcsr": 7, "prdsimcse": 14, "sgopt": 16}
    assert item_names().index("diffcse/table-9") < item_names().index("diffcse/table-10")


def test_every_row_resolves_and_every_number_belongs_to_a_column(planned):
    for name, rows in planned.items():
        columns = {column.name for column in load_item(name).columns}
        for row in rows:
            assert {*row.row.values, *row.row.deviations} <= columns, (name, row.row.label)
            assert row.runs or row.row.quoted, (name, row.row.label)


def test_a_row_on_the_papers_material_is_not_marked_for_its_own_settings(planned):
    (without,) = [row for row in planned["l2pcsr/table-3"] if row.row.name == "without token mask"]
    assert without.reasons == []
    assert without.runs[0].command()[:2] == ["l2pcsr-bert-base-uncased", "--token_mask=false"]


def test_numbers_of_an_unchanged_recipe_come_from_the_zoo():
    (row,) = [row for row in load_item("sgopt/table-1").rows if row.label == "BERT-base, SG-OPT"]
    (paper,) = published("sgopt-bert-base-uncased")
    assert row.values["STS-B"] == paper.scores["STSBenchmark"]
    assert row.deviations["Avg."] == 0.25
    assert row.source == paper.source
    (changed,) = [row for row in load_item("sgopt/table-1").rows if row.label == "BERT-base, SG"]
    assert changed.values["Avg."] == 72.17  # not those of the recipe that it changes


def test_like_takes_over_a_row_and_the_numbers_of_common_columns():
    (theirs,) = [row for row in load_item("l2pcsr/table-1").rows if row.label == "BERT-base, CLS"]
    assert (theirs.untrained, theirs.pooling, theirs.values["Avg."]) == ("google-bert/bert-base-uncased", "cls", 31.40)
    assert theirs.source == "Kim et al. 2021 (SG-OPT), table 1"


def row_of(item, label):
    (row,) = [row for row in load_item(item).rows if row.label == label]
    return row


def test_numbers_that_are_quoted_from_one_run_are_not_counted_as_several():
    """More runs than a number is of would make its distance from a run look larger in standard deviations."""
    quoted = [
        *(
            ("diffaug/table-1", f"unsupervised, {name}")
            for name in ("BERT-flow", "ConSERT", "SimCSE", "PromptBERT", "DiffCSE")
        ),
        ("diffaug/table-2", "semi-supervised, PromptBERT joint, 0 %"),
        ("diffaug/table-7", "semi-supervised, PromptRoBERTa joint, 0 %"),
        ("sgopt/table-1", "SBERT-base, flow"),
        ("sgopt/table-1", "SBERT-large, flow"),
    ]
    assert {place: row_of(*place).runs for place in quoted} == dict.fromkeys(quoted, 1)
    assert row_of("diffaug/table-6", "ConSERT joint").runs == 3, "DiffAug, table 6, with deviations"
    assert row_of("sgopt/table-1", "BERT-base, flow").runs == row_of("l2pcsr/table-1", "BERT-base, SG-OPT").runs == 8


def test_the_rows_that_l2p_csr_quotes_from_simcse_are_test_accuracies():
    """Table 2 marks them; their TREC is a multiple of 0.2, as an accuracy on 500 questions is."""
    quoted = {"BERT-base": 87.6, "RoBERTa-base": 84.2, "RoBERTa-large": 89.2}
    for backbone, trec in quoted.items():
        values = row_of("l2pcsr/table-2", f"{backbone}, SimCSE").values
        assert values["TREC"] == trec and not [name for name in values if "dev" in name]
        assert trec * 5 == pytest.approx(round(trec * 5))
    values = row_of("l2pcsr/table-2", "BERT-large, SimCSE").values
    assert values["TREC dev."] == 83.82 and "TREC" not in values


GOOD = {"title": "t", "source": "s", "columns": ["dev"], "rows": [{"name": "a", "quoted": "why", "values": [1.0]}]}


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"colums": 1}, "unknown key 'colums'"),
        ({"columns": ["stss"]}, "columns 'stss' must be one of sts,"),
        ({"columns": [{"name": "c", "suite": "glu"}]}, "suite 'glu' must be one of"),
        ({"columns": [{"name": "c", "suite": "run", "task": "hours"}]}, "task 'hours' must be one of minutes"),
        ({"columns": ["sts", "transfer"]}, "two columns are called Avg."),
        ({"rows": [{"name": "a"}]}, "row a: give one of recipe, released, untrained, quoted"),
        ({"rows": [{"name": "a", "quoted": "b", "released": "c"}]}, "row a: give one of"),
        ({"rows": [{"name": "a", "quoted": "b", "values": [1, 2]}]}, "2 values for 1 columns"),
        ({"rows": [{"name": "a", "quoted": "b"}] * 2}, "two rows are called a"),
        ({"rows": [{"name": "a", "like": "diffcse/table-1 nothing"}]}, "diffcse/table-1 has 0 rows 'nothing'"),
        ({"figure": {"z": 1}}, "figure: unknown key 'z'"),
        ({"against": "b"}, "against 'b' must be one of a"),
        ({"against": "a"}, "add sts or sts-average to columns"),
    ],
)
def test_a_mistake_in_a_manifest_is_named(tmp_path, monkeypatch, changed, message):
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "table-1.yaml").write_text(yaml.safe_dump({**GOOD, **changed}), encoding="utf-8")
    shutil.copytree(manifests.ITEMS / "diffcse", tmp_path / "diffcse")
    monkeypatch.setattr(manifests, "ITEMS", tmp_path)
    manifests._read.cache_clear()
    with pytest.raises(UserError, match=message):
        load_item.__wrapped__("paper/table-1")
    manifests._read.cache_clear()


def test_an_unknown_item_is_an_error_with_the_near_one():
    with pytest.raises(UserError, match="did you mean diffaug/table-1"):
        load_item("diffaug/tabel-1")
