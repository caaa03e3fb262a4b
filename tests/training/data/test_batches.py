"""Padded batches of views: shared among processes, and the same after a resume."""

import itertools

import datasets
import pytest
import torch

from csezoo.modeling import PrdSimCSEConfig, SimCSEConfig
from csezoo.training.data.batches import Batches, process_share, row_lengths
from csezoo.training.data.collation import ViewCollator, tokenize, tokenize_once
from csezoo.training.data.streams import StreamedBatches
from csezoo.training.data.texts import load_sentences
from csezoo.training.errors import UserError
from csezoo.training.loading.templates import template_token_ids
from csezoo.training.loading.tokenizers import load_tokenizer
from csezoo.training.recipes import load_recipe, make_recipe
from tests.conftest import tiny_tokenizer

CLS, SEP, PAD = 101, 102, 0
PLAIN = ([CLS], [SEP])
VIEWS = SimCSEConfig().view_columns


def rows(*views):
    """Tokenised sentences: `rows([[5], [6, 7]], …)` takes a list of sentences for each view."""
    return [{str(v): ids for v, ids in enumerate(sentence)} for sentence in zip(*views, strict=True)]


def test_one_column_gives_each_sentence_twice_padded_to_the_longest_row():
    batch = ViewCollator([PLAIN], PAD, VIEWS)(rows([[5, 6, 7], [8]]))
    one, two = [CLS, 5, 6, 7, SEP], [CLS, 8, SEP, PAD, PAD]
    assert batch["input_ids"].tolist() == [[one, one], [two, two]]  # (B, V, T)
    assert batch["attention_mask"].tolist() == [[[1] * 5] * 2, [[1, 1, 1, 0, 0]] * 2]


@pytest.mark.parametrize("views", [2, 3])
def test_every_column_is_a_view(views):
    columns = [[[5, 6], [7]], [[8], [9]], [[10, 11, 12], [13]]][:views]
    batch = ViewCollator([PLAIN], PAD, VIEWS)(rows(*columns))
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, views, {2: 4, 3: 5}[views])
    for b, v in itertools.product(range(2), range(views)):
        real = batch["attention_mask"][b, v].bool()
        assert batch["input_ids"][b, v][real].tolist() == [CLS, *columns[v][b], SEP]


def test_each_view_has_its_template_and_the_last_template_is_reused():
    templates = [([CLS, 1], [2, SEP]), ([CLS, 3], [SEP])]
    ids = ViewCollator(templates, PAD, VIEWS)(rows([[5]], [[6]], [[7]]))["input_ids"]
    assert ids.tolist() == [[[CLS, 1, 5, 2, SEP], [CLS, 3, 6, SEP, PAD], [CLS, 3, 7, SEP, PAD]]]


def test_published_templates_surround_the_sentence(kind):
    tokenizer = tiny_tokenizer(kind)
    name = {"bert": "promptbert-bert-base-uncased", "roberta": "promptbert-roberta-base"}[kind]
    prompts = load_recipe(name).model["prompts"]
    templates = [template_token_ids(tokenizer, prompt) for prompt in prompts]
    cut = tokenize({"0": ["the small cat sees the house ."]}, tokenizer, length=4)
    (views,) = ViewCollator(templates, tokenizer.pad_token_id, VIEWS)([{"0": cut["0"][0]}])["input_ids"]
    for ids, (before, after) in zip(views.tolist(), templates, strict=True):
        assert [i for i in ids if i != tokenizer.pad_token_id] == before + cut["0"][0] + after
        assert len(cut["0"][0]) == 4 and ids.count(tokenizer.mask_token_id) == 1


SENTENCES = 11
# Sentence n begins with the id 1000 + n and is longer than the one before it.
TABLE = datasets.Dataset.from_dict({"0": [[1000 + n] * (n + 1) for n in range(SENTENCES)]})


def batches(rank=0, world=1, seed=0, batch_size=4, length_window=0):
    collate = ViewCollator([PLAIN], PAD, VIEWS)
    share = {"seed": seed, "rank": rank, "world": world, "length_window": length_window}
    return Batches(TABLE, collate, batch_size=batch_size, **share)


def sentences(batch) -> list[int]:
    """The numbers of the sentences in a batch that count."""
    return [ids - 1000 for ids in batch["input_ids"][: batch["rows"], 0, 1].tolist()]


@pytest.mark.parametrize("length_window", [0, 2])
def test_every_epoch_has_every_sentence_once_in_another_order(length_window):
    share = batches(length_window=length_window)
    assert share.batches_per_epoch == 3
    epochs = [[n for i in range(3) for n in sentences(share[3 * epoch + i])] for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(SENTENCES)) != epoch
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert sorted(share[n]["rows"] for n in range(3)) == [3, 4, 4], "the smaller last batch is kept"
    another = batches(seed=1, length_window=length_window)
    assert [sentences(another[n]) for n in range(3)] != [sentences(share[n]) for n in range(3)]


def test_a_window_over_the_epoch_sorts_all_rows_and_shuffles_the_batches():
    share = batches(length_window=3)
    order = [[min(sentences(share[3 * epoch + n])) for n in range(3)] for epoch in range(8)]
    assert {tuple(sorted(firsts)) for firsts in order} == {(0, 4, 8)}
    assert len(set(map(tuple, order))) > 1, "longer batches do not always come last"


def test_rows_are_sorted_only_within_a_window():
    """Windows of one batch give the random batches, each sorted."""
    plain, windowed = batches(), batches(length_window=1)
    drawn = sorted(sorted(sentences(plain[n])) for n in range(3))
    assert sorted(sentences(windowed[n]) for n in range(3)) == drawn


def test_the_length_of_a_row_is_that_of_its_longest_view():
    views = {"0": [[1], [2] * 5, [3] * 2], "1": [[1] * 4, [2], [3] * 3]}
    assert row_lengths(datasets.Dataset.from_dict(views)).tolist() == [4, 5, 3]


def test_batches_of_similar_length_have_almost_no_padding(real_data):
    keys = {"train_file": str(real_data / "data/corpus/wiki_en_sentences.txt.gz"), "max_train_sentences": 20_000}
    tokenizer = load_tokenizer(str(real_data / "base/minilm-mlm"))
    rows = tokenize_once(load_sentences(make_recipe(keys)), tokenizer=tokenizer, length=30)
    collate = ViewCollator([PLAIN], PAD, VIEWS)

    def padding(length_window):
        options = {"batch_size": 64, "seed": 0, "rank": 0, "world": 1, "length_window": length_window}
        masks = [Batches(rows, collate, **options)[n]["attention_mask"] for n in range(100)]
        return 1 - sum(mask.sum() for mask in masks) / sum(mask.numel() for mask in masks)

    assert padding(50) < 0.03 < 0.2 < padding(0)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [4, 5, 10])
@pytest.mark.parametrize("length_window", [0, 2])
def test_the_shares_of_all_processes_make_the_batch_of_one_process(world, batch_size, length_window):
    whole = batches(batch_size=batch_size, length_window=length_window)
    shares = [batches(rank, world, batch_size=batch_size, length_window=length_window) for rank in range(world)]
    for number in range(2 * whole.batches_per_epoch):
        parts = [share[number] for share in shares]
        assert [n for part in parts for n in sentences(part)] == sentences(whole[number])
        sizes = [part["rows"] for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_a_process_without_a_share_gets_a_sentence_that_does_not_count():
    last = [batches(rank, 3, batch_size=10)[1] for rank in range(3)]  # 11 = 10 + 1
    assert [part["rows"] for part in last] == [1, 0, 0]
    assert {part["input_ids"].shape[:2] for part in last} == {(1, 2)}


@pytest.mark.parametrize(("batch_size", "expected"), [(1, 11), (5, 3), (10, 2), (11, 1), (12, 1)])
def test_an_epoch_has_a_batch_more_only_where_sentences_are_left_over(batch_size, expected):
    assert batches(batch_size=batch_size).batches_per_epoch == expected


@pytest.mark.parametrize("length_window", [0, 2])
def test_a_batch_depends_only_on_seed_and_number(length_window):
    share = batches(length_window=length_window)
    in_order = [sentences(share[n]) for n in range(9)]
    assert [sentences(share[n]) for n in (8, 0, 5, 5, 2)] == [in_order[n] for n in (8, 0, 5, 5, 2)]
    torch.manual_seed(123)
    again = batches(length_window=length_window)
    assert [sentences(again[n]) for n in range(9)] == in_order, "the global random state does not matter"


def streamed(start=0, rank=0, world=1, stream=None, length_window=0, shuffle_buffer=16):
    options = {"batch_size": 4, "seed": 0, "rank": rank, "world": world, "shuffle_buffer": shuffle_buffer}
    options["length_window"] = length_window
    stream = stream or TABLE.to_iterable_dataset()
    return StreamedBatches(stream, ViewCollator([PLAIN], PAD, VIEWS), start=start, **options)


def first(stream, n=8):
    return list(itertools.islice(stream, n))


@pytest.mark.parametrize("length_window", [0, 2])
def test_every_epoch_of_a_stream_has_every_sentence_once_in_another_order(length_window):
    six = first(streamed(length_window=length_window), 6)
    epochs = [[n for batch in six[i : i + 3] for n in sentences(batch)] for i in (0, 3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(SENTENCES)) != epoch
    assert epochs[0] != epochs[1]


def test_a_window_of_a_stream_is_cut_into_batches_of_similar_length():
    """A window over the complete epoch cuts the sorted sentences into batches."""
    epoch = [sentences(batch) for batch in first(streamed(length_window=3), 3)]
    assert sorted(epoch) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_a_window_of_a_stream_is_as_many_batches_as_it_says():
    plain, windowed = (first(streamed(length_window=window, shuffle_buffer=8), 3) for window in (0, 2))
    expected = sorted(n for batch in plain[:2] for n in sentences(batch))
    assert sorted(map(sorted, map(sentences, windowed[:2]))) == [expected[:4], expected[4:]]


def test_a_process_without_a_share_of_a_streamed_batch_gets_a_sentence_that_does_not_count():
    last = first(streamed(rank=3, world=4), 3)[2]  # 11 = 4 + 4 + 3
    assert last["rows"] == 0 and last["input_ids"].shape[:2] == (1, 2)


@pytest.mark.parametrize("world", [2, 3])
def test_the_shares_of_a_streamed_batch_make_the_batch(world):
    shares = [first(streamed(rank=rank, world=world)) for rank in range(world)]
    for *parts, whole in zip(*shares, first(streamed()), strict=True):
        assert [n for part in parts for n in sentences(part)] == sentences(whole)


def edited(make, rank=0, world=1, **options):
    """Batches in which the second view of each sentence ends with a random word piece."""

    def append_a_draw(views, draw):
        return [views[0], [*views[1], 2000 + draw.randrange(10**6)]]

    made = make(rank=rank, world=world, **options)
    made.collate = ViewCollator([PLAIN], PAD, VIEWS, append_a_draw)
    return made


def drawn(parts):
    """The random word piece of each sentence that counts."""
    return [row[row >= 2000].item() for part in parts for row in part["input_ids"][: part["rows"], 1]]


@pytest.mark.parametrize("make", [batches, streamed])
@pytest.mark.parametrize("world", [2, 3])
def test_edits_depend_only_on_seed_and_batch_number(make, world):
    torch.manual_seed(5)  # the global random state does not matter
    whole = list(itertools.islice(edited(make), 6))
    shares = [list(itertools.islice(edited(make, rank, world), 6)) for rank in range(world)]
    for one, *parts in zip(whole, *shares, strict=True):
        assert len(set(drawn([one]))) == len(drawn([one])) == one["rows"]
        assert drawn(parts) == drawn([one])
        assert not (one["input_ids"][:, 0] >= 2000).any(), "the other view is not edited"
    assert len({number for batch in whole for number in drawn([batch])}) == 22, "every batch has new edits"


def test_a_resumed_run_has_the_edits_of_the_uninterrupted_one():
    whole, later = edited(batches), edited(batches)
    assert drawn([later[7]]) == drawn(list(itertools.islice(whole, 8))[7:])
    assert drawn(first(edited(streamed, start=4), 2)) == drawn(first(edited(streamed), 6)[4:])


def test_without_random_generators_nothing_is_edited():
    assert not (edited(batches).collate(rows([[5]]))["input_ids"] >= 2000).any()


def test_a_method_with_texts_before_the_sentence_takes_one_column():
    tokenizer = tiny_tokenizer("bert")
    one = tokenize({"0": ["the cat"]}, tokenizer, 9, PrdSimCSEConfig())
    assert list(one) == ["0", "1", "2"]
    with pytest.raises(UserError, match="text_columns: prdsimcse"):
        tokenize({"0": ["the cat"], "1": ["the dog"]}, tokenizer, 9, PrdSimCSEConfig())


def test_a_streamed_batch_is_tokenised_when_it_is_collated():
    tokenizer = tiny_tokenizer("bert")
    collate = ViewCollator([PLAIN], PAD, VIEWS, tokenize=lambda columns: tokenize(columns, tokenizer, length=3))
    ids = collate([{"0": "the cat sees the house", "1": "dog"}])["input_ids"]
    cat, dog = (tokenizer(text, add_special_tokens=False).input_ids for text in ("the cat sees", "dog"))
    assert ids.tolist() == [[[CLS, *cat, SEP], [CLS, *dog, SEP, PAD, PAD]]]


def test_a_stream_without_sentences_is_refused(tmp_path):
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf-8")
    keys = {"train_file": str(tmp_path / "blank.txt"), "streaming": True, "max_steps": 1}
    (item,) = streamed(stream=load_sentences(make_recipe(keys)))
    assert item["error"].startswith("the stream has no sentences")


@pytest.mark.parametrize(("rows", "world"), [(0, 2), (1, 3), (5, 2), (7, 3), (8, 4)])
def test_shares_are_contiguous_and_differ_by_one_at_most(rows, world):
    shares = [process_share(list(range(rows)), rank, world) for rank in range(world)]
    assert sum(shares, []) == list(range(rows))
    assert sorted(map(len, shares), reverse=True) == list(map(len, shares))
    assert len(shares[0]) - len(shares[-1]) <= 1
