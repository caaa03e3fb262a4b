"""`csezoo reproduce released`: released checkpoints are converted and compared with the scores of their authors."""

import pytest

from csezoo.training.files import read_json
from csezoo.training.recipes.released import released
from csezoo.training.reproducing.columns import Column
from csezoo.training.reproducing.manifests import load_item
from csezoo.training.reproducing.plan import plan
from csezoo.training.reproducing.pooling import pool
from csezoo.training.reproducing.profiles import Profile
from csezoo.training.reproducing.reports import describe
from csezoo.training.reproducing.runs import make
from tests.conftest import SENTENCES
from tests.training.converting.authors import write_checkpoint
from tests.training.senteval_files import write

DEV = Column("dev", "sts-dev")


def test_every_released_checkpoint_has_a_row_with_the_numbers_of_its_authors():
    item = load_item("released")
    assert {row.released for row in item.rows} == released().keys()
    for name, entry in released().items():
        row = next(row for row in item.rows if row.released == name)
        for suite in ("sts", "transfer"):
            tasks = [column.name for column in item.columns if column.suite == suite]
            scores = next((scores for scores in entry.scores if scores["suite"] == suite), {})
            printed = [*scores.get("values", [None] * 7), scores.get("average")]
            assert [row.values.get(task) for task in tasks] == printed, (name, suite)


@pytest.fixture
def data(tmp_path):
    """STS-B's dev pairs in SentEval's layout, in words that the tiny tokenizer knows."""
    pairs = [(SENTENCES[n % 50], SENTENCES[(7 * n + 1) % 50]) for n in range(1500)]
    lines = [f"genre\tfile\tyear\t{n}\t{n % 6}.0\t{first}\t{second}" for n, (first, second) in enumerate(pairs)]
    write(tmp_path / "senteval" / "STS" / "STSBenchmark" / "sts-dev.csv", lines)
    return str(tmp_path / "senteval")


@pytest.mark.parametrize(
    ("name", "kind", "rows"),
    [
        ("princeton-nlp/sup-simcse-bert-base-uncased", "simcse-sup", ["sup-simcse-bert-base-uncased"]),
        ("royokong/sup-PromptBERT", "promptbert-sup", ["sup-PromptBERT", "sup-PromptBERT, served for transfer"]),
    ],
)
def test_a_checkpoint_is_converted_once_in_each_serving_and_evaluated(name, kind, rows, tmp_path, data):
    checkpoint = write_checkpoint(tmp_path / "original", kind, "bert")
    profile = Profile(description="tiny", models={name: str(checkpoint.directory)})
    item = load_item("released")
    planned = plan(item, tmp_path / "out", rows=[f"*, {row}" for row in rows], profile=profile)
    runs = [run for row in planned for run in row.runs]
    assert f"convert and evaluate {checkpoint.directory}" in describe(item, planned)
    assert make(runs, [DEV], data=data) == {}
    receipts = [read_json(run.directory / "converted/conversion.json") for run in runs]
    assert [receipt["as"] for receipt in receipts] == [kind] * len(rows)
    assert len({receipt["serving"] for receipt in receipts}) == len(rows)
    values = [pool(row, [DEV], item.source, {}).cells["dev"].mean for row in planned]
    assert None not in values and len(set(values)) == len(rows)

    checkpoint.weights.unlink()  # what is converted and evaluated is not read again
    assert make(runs, [DEV], data=data) == {}
