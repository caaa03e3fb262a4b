"""Files of sentence pairs: neighbours in running text, synonyms, and translations there and back again."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path
from random import Random

import pandas as pd
import pytest
import sentencepiece
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
)

from csezoo.training.cli.parser import main
from csezoo.training.data import translation
from csezoo.training.data.pairs import neighbours, read_thesaurus, with_synonyms, write_pairs
from csezoo.training.data.translation import round_trip
from csezoo.training.errors import UserError
from tests.conftest import SENTENCES, tiny_tokenizer
from tests.interpreters import CONTEXT
from tests.training.faults import KilledAtFile


def rows(path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_no_pair_crosses_a_blank_line():
    lines = ["One. Two! Three?", "Four is 3.5 long. 5 follows.", "", "  ", 'Six. "Seven." Eight.']
    texts = [["One.", "Two!", "Three?", "Four is 3.5 long.", "5 follows."], ["Six.", '"Seven."', "Eight."]]
    expected = [pair for text in texts for pair in zip(text, text[1:], strict=False)]
    assert list(neighbours(lines)) == expected
    assert list(neighbours(["a b. C", "d", "", "e"], split=False)) == [("a b. C", "d")]
    for text in ("Er schläft. Über Nacht.", "Он спит. Она читает.", "Vrai ? «Oui.»", "Er sagt: „Ja.“ „Nein.“"):
        assert len(list(neighbours([text]))) == 1, text


def test_the_command_writes_neighbours_and_never_over_a_file(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("A cat. A dog.\nA bird.\n\nAlone.\n", encoding="utf-8")
    target = tmp_path / "pairs.csv"
    main(["neighbours", str(tmp_path / "text.txt"), "--to", str(target)])
    assert rows(target) == [["text", "next"], ["A cat.", "A dog."], ["A dog.", "A bird."]]
    with pytest.raises(SystemExit):
        main(["neighbours", str(tmp_path / "text.txt"), "--to", str(target)])
    assert "exists; delete it" in capsys.readouterr().err


def test_wordnet_and_lists_of_synonyms_are_read(tmp_path):
    path = tmp_path / "data.adj"
    licence = "  1 This database is being provided to you, the LICENSEE, by\n  2 the authors, free\n00001 junk\n"
    path.write_text(
        licence + "00001 junk\n00001740 00 a 04 big 0 large(a) 1 huge_thing 0 vast 0 001 ! 0 | glad\nfine, nice\n"
    )
    assert read_thesaurus(path) == {
        "big": ["large", "huge thing", "vast"],
        "large": ["big", "huge thing", "vast"],
        "huge thing": ["big", "large", "vast"],
        "vast": ["big", "large", "huge thing"],
        "fine": ["nice"],
        "nice": ["fine"],
    }
    path.write_text("alone\n")
    with pytest.raises(UserError, match="has no synonyms"):
        read_thesaurus(path)


def test_a_line_that_only_begins_as_wordnet_does_is_a_list_of_synonyms(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("12345678 a b zz d, x\n", encoding="utf-8-sig")  # with a byte-order mark, which is no letter
    assert read_thesaurus(path) == {"12345678 a b zz d": ["x"], "x": ["12345678 a b zz d"]}


@pytest.mark.parametrize(("share", "changed"), [(0.1, 1), (0.5, 2), (1.0, 4)])
def test_a_share_of_the_words_is_replaced_by_their_synonyms(share, changed):
    synonyms = {word: [f"{word}1", f"{word}2"] for word in "abcd"}
    words, new = "A x b c y d".split(), with_synonyms("A x b c y d", synonyms, share, Random(0)).split()
    different = [(old, other) for old, other in zip(words, new, strict=True) if old != other]
    assert len(different) == changed
    assert all(other[:-1] == old and other[-1] in "12" for old, other in different)  # with its capital


@pytest.fixture(scope="module")
def translators(tmp_path_factory):
    """Two tiny sequence-to-sequence models with random weights."""
    names = []
    for seed in (0, 1):
        directory, tokenizer = tmp_path_factory.mktemp("translator"), tiny_tokenizer("bert")
        torch.manual_seed(seed)
        sizes = {"vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
        sizes |= {f"{part}_attention_heads": 2 for part in ("encoder", "decoder")}
        sizes |= {f"{part}_ffn_dim": 16 for part in ("encoder", "decoder")}
        ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0, "decoder_start_token_id": 2}
        model = BartForConditionalGeneration(BartConfig(**sizes, **ids, forced_eos_token_id=None, init_std=1.0))
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        names.append(str(directory))
    return names


@pytest.fixture
def command(translators, tmp_path):
    """The words of a command, without its file of pairs."""
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES[:7]) + "\n", encoding="utf-8")
    words = ["backtranslate", str(tmp_path / "text.txt"), "--forward", translators[0], "--back", translators[1]]
    return [*words, "--beams", "2", "--batch_size", "2", "--max_length", "12"]


def test_back_translation_continues_where_it_was_interrupted(command, tmp_path, monkeypatch):
    main([*command, "--to", str(tmp_path / "whole.csv")])
    whole = rows(tmp_path / "whole.csv")
    assert whole[0] == ["text", "back_translation"] and [first for first, _ in whole[1:]] == SENTENCES[:7]
    assert all(second and second != first and "[CLS]" not in second for first, second in whole[1:])
    interrupted = interrupt(command, tmp_path / "again.csv", monkeypatch)
    lines = interrupted.read_bytes().splitlines(keepends=True)
    # A row of its own, and half a row that ends within a character.
    interrupted.write_bytes(b"".join([*lines[:2], b'"kept","kept"\n', *lines[3:5], "é".encode()[:1]]))
    main([*command, "--to", str(tmp_path / "again.csv")])
    whole[2] = ["kept", "kept"]
    assert rows(tmp_path / "again.csv") == whole
    assert not interrupted.exists()


def test_back_translation_continues_with_another_batch_size_and_order_of_options(command, tmp_path, monkeypatch):
    interrupted = interrupt(command, tmp_path / "pairs.csv", monkeypatch)
    header, _, *others = interrupted.read_bytes().splitlines(keepends=True)
    interrupted.write_bytes(b"".join([header, b'"kept","kept"\n', *others]))
    name, text, *options = command
    main([name, "--to", str(tmp_path / "pairs.csv"), *options, "--batch_size", "3", text])
    assert [first for first, _ in rows(tmp_path / "pairs.csv")[1:]] == ["kept", *SENTENCES[1:7]]
    assert not interrupted.exists()


def other_sentences(command, translators):
    Path(command[1]).write_text("\n".join(SENTENCES[7:14]) + "\n", encoding="utf-8")
    return command


def another_model(command, translators):
    return [*command, "--back", translators[0]]


def changed_weights(command, translators):
    shutil.copy(Path(translators[1], "model.safetensors"), command[3])
    return command


@pytest.mark.parametrize("change", [other_sentences, another_model, changed_weights])
def test_other_pairs_are_not_continued(command, translators, tmp_path, monkeypatch, change):
    command[3] = str(shutil.copytree(translators[0], tmp_path / "model"))
    interrupt(command, tmp_path / "pairs.csv", monkeypatch)
    changed = change(command, translators)
    for name in ("pairs.csv", "alone.csv"):
        main([*changed, "--to", str(tmp_path / name)])
    assert rows(tmp_path / "pairs.csv") == rows(tmp_path / "alone.csv")


def interrupt(command, to, monkeypatch):
    """Stop a translation in its third batch, and return the file with the pairs so far."""
    calls = []

    def stopping(*steps):
        other = round_trip(*steps)

        def translate(batch):
            calls.append(batch)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return other(batch)

        return translate

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(translation, "round_trip", stopping)
        main([*command, "--to", str(to)])
    (partial,) = to.parent.glob(f"{to.name}.*.partial")
    return partial


def test_a_carriage_return_in_a_text_ends_no_row(tmp_path):
    pairs = [("one\rtwo", "three"), ('a "b", c', "d")]
    write_pairs(tmp_path / "pairs.csv", ("text", "next"), lambda done: [pairs[done:]])
    assert rows(tmp_path / "pairs.csv")[1:] == [list(pair) for pair in pairs]


def test_pairs_of_long_texts_are_continued(tmp_path):
    """`csv` reads cells of up to 131,072 characters, unless it is told otherwise."""
    pairs, asked = [("a", "b" * 200_000), ("c", "d"), ("e", "f")], []

    def batches(done):
        asked.append(done)
        for number, pair in enumerate(pairs[done:]):
            if len(asked) == 1 and number == 2:
                raise KeyboardInterrupt
            yield [pair]

    limit = csv.field_size_limit()
    with pytest.raises(KeyboardInterrupt):
        write_pairs(tmp_path / "pairs.csv", ("text", "next"), batches)
    assert write_pairs(tmp_path / "pairs.csv", ("text", "next"), batches) == 3 and asked == [0, 1]
    assert csv.field_size_limit() == limit, "the limit of other readers is unchanged"
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.csv"]
    assert pd.read_csv(tmp_path / "pairs.csv").values.tolist() == [list(pair) for pair in pairs]


def test_a_call_that_is_killed_while_it_continues_loses_no_pair(tmp_path):
    """Killed (SIGKILL) as it renames the file of the pairs so far, and then before its first batch."""
    pairs = [(f"text {number}", "other") for number in range(1000)]

    def stopped(done):
        yield pairs[done:]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pairs(tmp_path / "pairs.csv", ("text", "next"), stopped)
    (partial,) = tmp_path.glob("pairs.csv.*.partial")
    written = rows(partial)
    for number, change in enumerate((3, 99), start=1):
        process = CONTEXT.Process(target=_write_killed, args=(tmp_path, change))
        process.start()
        process.join(timeout=60)
        assert process.exitcode == -signal.SIGKILL
        assert rows(partial)[: len(written) - number] == written[:-number]
    done = []
    write_pairs(tmp_path / "pairs.csv", ("text", "next"), lambda count: [done.append(count) or pairs[count:]])
    assert done[0] == 998 and rows(tmp_path / "pairs.csv")[1:] == [list(pair) for pair in pairs]


def _write_killed(directory, change) -> None:
    KilledAtFile(directory, change).install()
    write_pairs(directory / "pairs.csv", ("text", "next"), lambda done: os.kill(os.getpid(), signal.SIGKILL))


def test_an_interrupted_call_leaves_no_lock(tmp_path):
    def stopped(done):
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        write_pairs(tmp_path / "pairs.csv", ("text", "next"), stopped)
    assert not list(tmp_path.glob(".*"))


def _write_when_told(to, started, go) -> None:
    def batches(done):
        started.set()
        go.wait(60)
        yield [("of the first", "process")]

    write_pairs(to, ("text", "next"), batches)


def test_a_second_process_that_writes_the_same_file_is_refused(tmp_path):
    to, started, go = tmp_path / "pairs.csv", CONTEXT.Event(), CONTEXT.Event()
    process = CONTEXT.Process(target=_write_when_told, args=(to, started, go))
    process.start()
    assert started.wait(60)
    with pytest.raises(UserError, match="pairs.csv: another process writes this file; wait for it, or give another"):
        write_pairs(to, ("text", "next"), lambda done: [[("of the second", "process")]])
    go.set()
    process.join(timeout=60)
    assert process.exitcode == 0 and rows(to) == [["text", "next"], ["of the first", "process"]]
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.csv"]


def refused(command, tmp_path, capsys) -> str:
    with pytest.raises(SystemExit):
        main([*command, "--to", str(tmp_path / "pairs.csv")])
    return capsys.readouterr().err


def test_a_language_that_a_model_lacks_is_named(command, tmp_path, capsys):
    """A word of the vocabulary is no language."""
    assert "has no 'the'" in refused([*command, "--languages", "the", "xx_XX"], tmp_path, capsys)


def test_m2m100_translates_into_the_language_and_not_from_the_word_that_is_its_code(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_prefix=str(tmp_path / "pieces"),
        vocab_size=36,
        user_defined_symbols=["en", "de"],
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "pieces.model"))
    names = ["<s>", "<pad>", "</s>", "<unk>", *map(pieces.id_to_piece, range(3, pieces.get_piece_size()))]
    vocabulary = tmp_path / "vocab.json"
    vocabulary.write_text(json.dumps({name: number for number, name in enumerate(names)}))
    tokenizer = M2M100Tokenizer(str(vocabulary), str(tmp_path / "pieces.model"))
    tokenizer.save_pretrained(tmp_path / "m2m100")
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 64}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    size = tokenizer.vocab_size + len(tokenizer.lang_code_to_id)
    model = M2M100ForConditionalGeneration(M2M100Config(vocab_size=size, **sizes)).eval()
    model.save_pretrained(tmp_path / "m2m100")
    options = {"beams": 1, "max_length": 8}
    translate = translation.translator(str(tmp_path / "m2m100"), **options, languages=("en", "de"))
    tokenizer.src_lang = "en"
    batch = tokenizer(SENTENCES[0], return_tensors="pt")
    german = tokenizer.get_lang_id("de")
    assert german != tokenizer.convert_tokens_to_ids("de")
    ids = model.generate(**batch, forced_bos_token_id=german, num_beams=1, max_new_tokens=8, do_sample=False)
    assert ids[0, 1] == german
    assert translate(SENTENCES[:1]) == tokenizer.batch_decode(ids[:, 2:], skip_special_tokens=True)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"max_position_embeddings": 66}, "has 66 positions; give --max_length 66 or less"),
        ({"decoder_layers": 20_000}, "its configuration has 20,000 layers; at most 1,000 are allowed"),
    ],
)
def test_a_translation_model_that_is_too_short_or_too_deep_is_refused(
    change, line, command, translators, tmp_path, capsys
):
    model = shutil.copytree(translators[0], tmp_path / "model")
    config = BartConfig.from_pretrained(model)
    config.update(change)
    if "decoder_layers" in change:
        config.save_pretrained(model)
    else:
        BartForConditionalGeneration(config).save_pretrained(model)
    assert line in refused([*command, "--forward", str(model), "--max_length", "128"], tmp_path, capsys)


def test_a_translation_model_that_does_not_load_is_named(command, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    line = refused([*command, "--forward", str(tmp_path / "empty")], tmp_path, capsys)
    assert "empty' could not be loaded as a sequence-to-sequence model" in line


def test_a_synonym_has_the_capital_of_its_word():
    assert with_synonyms("Cats", {"cats": ["felines"]}, 1.0, Random(0)) == "Felines"


def test_marks_around_a_word_stay_unless_the_thesaurus_has_them():
    synonyms = {"cat": ["pet"], "u.s.": ["states"]}
    assert with_synonyms('A "Cat", u.s. (cat). -', synonyms, 1.0, Random(0)) == 'A "Pet", states (pet). -'


def test_synonyms_are_the_same_in_every_call(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES[:5]) + "\n", encoding="utf-8")
    (tmp_path / "words.txt").write_text("small, little, tiny\nsees, looks at, watches\n", encoding="utf-8")
    for name in ("a", "b"):
        command = ["synonyms", str(tmp_path / "text.txt"), "--thesaurus", str(tmp_path / "words.txt")]
        main([*command, "--to", str(tmp_path / f"{name}.csv"), "--share", "1"])
    written = rows(tmp_path / "a.csv")
    assert written == rows(tmp_path / "b.csv") and written[0] == ["text", "synonyms"]
    assert all("small" not in second and "the cat" not in second.split("small") for _, second in written[1:])
