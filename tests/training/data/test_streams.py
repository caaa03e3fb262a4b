"""A stream continues from the position of a checkpoint, and processes can divide its shards."""

import itertools
import json
from dataclasses import asdict

import datasets
import pytest
import torch

from csezoo.training.data.streams import StreamedBatches, StreamPosition
from csezoo.training.data.texts import load_sentences
from csezoo.training.errors import UserError
from csezoo.training.recipes import make_recipe

SHARDS, ROWS = 3, 7


@pytest.fixture
def stream(tmp_path):
    """Three Parquet files of seven numbered rows each."""
    for shard in range(SHARDS):
        rows = [str(number) for number in range(ROWS * shard, ROWS * (shard + 1))]
        datasets.Dataset.from_dict({"0": rows}).to_parquet(tmp_path / f"{shard}.parquet")
    return datasets.load_dataset("parquet", data_files=f"{tmp_path}/*.parquet", split="train", streaming=True)


def batches(stream, start=0, **changes):
    def collate(rows, draws):
        return {"numbers": [int(row["0"]) for row in rows]}

    options = {"batch_size": 4, "seed": 1, "rank": 0, "world": 1, "shuffle_buffer": 8, "shards": SHARDS, **changes}
    return StreamedBatches(stream, collate, start=start, **options)


def first(stream, number):
    return [item["numbers"][: item["rows"]] for item in itertools.islice(stream, number)]


def as_saved(position):
    return StreamPosition(**json.loads(json.dumps(asdict(position))))


PER_EPOCH = -(-SHARDS * ROWS // 4)


@pytest.mark.parametrize("length_window", [0, 2])
@pytest.mark.parametrize("start", range(1, 2 * PER_EPOCH + 2))
def test_a_stream_continues_from_its_place(stream, start, length_window):
    expected = first(batches(stream, length_window=length_window), start + 8)[start:]
    stopped = batches(stream, length_window=length_window)
    first(stopped, start)
    position = as_saved(stopped.position)
    assert start - 2 * max(1, length_window) <= position.batch <= start
    assert first(batches(stream, start, position=position, length_window=length_window), 8) == expected


def test_what_comes_before_the_place_is_not_read(stream, tmp_path):
    """The files that a run has read can be gone when it resumes."""
    epoch = first(batches(stream), PER_EPOCH)
    stopped = batches(stream)
    first(stopped, 4)
    needed = {number // ROWS for batch in epoch[stopped.position.batch :] for number in batch}
    gone = set(range(SHARDS)) - needed
    assert len(gone) == stopped.position.shards == 1
    for shard in gone:
        (tmp_path / f"{shard}.parquet").unlink()
    assert first(batches(stream, 4, position=stopped.position), PER_EPOCH - 4) == epoch[4:]


def test_every_epoch_reads_the_shards_in_another_order(stream):
    made = first(batches(stream, shuffle_buffer=1), 4 * PER_EPOCH)
    epochs = [sum(made[n : n + PER_EPOCH], []) for n in range(0, len(made), PER_EPOCH)]
    assert all(sorted(epoch) == list(range(SHARDS * ROWS)) for epoch in epochs)
    assert len({tuple(dict.fromkeys(number // ROWS for number in epoch)) for epoch in epochs}) > 1


def test_the_first_rows_of_a_stream_are_limited(stream):
    numbers = sum(first(batches(stream.take(9), shards=1), 3), [])
    assert sorted(numbers) == list(range(9))


def test_a_process_reads_only_its_shards(stream):
    readers = [batches(stream, rank=rank, world=2, own_shards=True) for rank in range(2)]
    pairs = list(zip(*(first(reader, 9) for reader in readers), strict=True))
    assert [len(left) for left, _ in pairs[:3]] == [2, 2, 2], "half of a batch of four"
    shards = [{number // ROWS for batch in column for number in batch} for column in zip(*pairs, strict=True)]
    assert shards == [{0, 2}, {1}]
    assert sorted(sum((batch for _, batch in pairs[:4]), [])) == list(range(ROWS, 2 * ROWS))


def test_each_process_continues_in_its_own_shards(stream):
    for rank in range(2):
        own = {"rank": rank, "world": 2, "own_shards": True}
        stopped = batches(stream, **own)
        expected = first(batches(stream, **own), 11)[5:]
        first(stopped, 5)
        assert first(batches(stream, 5, position=as_saved(stopped.position), **own), 6) == expected


def test_shards_that_cannot_be_divided_are_refused(stream):
    with pytest.raises(UserError, match="stream_shards: the stream has 3 shards for 4 processes"):
        batches(stream, world=4, own_shards=True)
    for world in (1, 3):
        with pytest.raises(UserError, match=f"stream_shards: the run was started with 2 processes .* not {world}"):
            batches(stream, world=world, own_shards=True, position=StreamPosition(readers=2))


def test_a_batch_that_has_no_sentence_for_a_process_is_refused(stream):
    for rank in range(3):
        with pytest.raises(UserError, match="stream_shards: a batch of 2 has no sentence for each of 3 processes"):
            batches(stream, batch_size=2, rank=rank, world=3, own_shards=True)
        assert first(batches(stream, batch_size=3, rank=rank, world=3, own_shards=True), 1)


def test_blocks_do_not_draw_from_the_global_random_state(stream):
    state = torch.get_rng_state()
    first(batches(stream), 9)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_row_with_too_many_cells_is_refused_in_a_stream_too(tmp_path):
    torn = tmp_path / "torn.csv"
    torn.write_text("a,b\n" + "the small cat, it is said,sleeps\n" * 20, encoding="utf-8")
    keys = {"train_file": str(torn), "text_columns": ["a", "b"], "streaming": True, "max_steps": 1}
    (item,) = batches(load_sentences(make_recipe(keys)), shards=1)
    assert item["error"].startswith("the stream could not be read (") and "loss of data" in item["error"]
