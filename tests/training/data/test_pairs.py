"""Files of sentence pairs: neighbours in running text, synonyms, and translations there and back again."""

import csv
from random import Random

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration

from csezoo.training.cli.parser import main
from csezoo.training.data.pairs import neighbours, read_thesaurus, with_synonyms
from csezoo.training.errors import UserError
from tests.conftest import SENTENCES, tiny_tokenizer


def rows(path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_no_pair_crosses_a_blank_line():
    lines = ["One. Two! Three?", "Four is 3.5 long. 5 follows.", "", "  ", 'Six. "Seven." Eight.']
    texts = [["One.", "Two!", "Three?", "Four is 3.5 long.", "5 follows."], ["Six.", '"Seven."', "Eight."]]
    expected = [pair for text in texts for pair in zip(text, text[1:], strict=False)]
    assert list(neighbours(lines)) == expected
    assert list(neighbours(["a b. C", "d", "", "e"], split=False)) == [("a b. C", "d")]


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
    path.write_text("00001 junk\n00001740 00 a 04 big 0 large(a) 1 huge_thing 0 vast 0 001 ! 0 | glad\nfine, nice\n")
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


def test_back_translation_continues_where_it_was_interrupted(translators, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES[:7]) + "\n", encoding="utf-8")
    command = ["backtranslate", str(tmp_path / "text.txt"), "--forward", translators[0], "--back", translators[1]]
    command += ["--beams", "2", "--batch_size", "2", "--max_length", "12"]
    main([*command, "--to", str(tmp_path / "whole.csv")])
    whole = rows(tmp_path / "whole.csv")
    assert whole[0] == ["text", "back_translation"] and [first for first, _ in whole[1:]] == SENTENCES[:7]
    assert all(second and second != first and "[CLS]" not in second for first, second in whole[1:])
    lines = (tmp_path / "whole.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    marked = [*lines[:2], "kept,kept\n", *lines[3:5], lines[5][:9]]  # a row of its own, and half a row
    (tmp_path / "again.csv.partial").write_text("".join(marked), encoding="utf-8")
    main([*command, "--to", str(tmp_path / "again.csv")])
    whole[2] = ["kept", "kept"]
    assert rows(tmp_path / "again.csv") == whole
    assert not (tmp_path / "again.csv.partial").exists()


def test_a_language_that_a_model_lacks_is_named(translators, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("the cat\n", encoding="utf-8")
    command = ["backtranslate", str(tmp_path / "text.txt"), "--forward", translators[0], "--back", translators[1]]
    with pytest.raises(SystemExit):
        main([*command, "--languages", "the", "xx_XX", "--to", str(tmp_path / "pairs.csv")])
    assert "has no 'xx_XX'" in capsys.readouterr().err


def test_a_translation_model_that_does_not_load_is_named(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("the cat\n", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    command = ["backtranslate", str(tmp_path / "text.txt"), "--to", str(tmp_path / "pairs.csv")]
    with pytest.raises(SystemExit):
        main([*command, "--forward", str(tmp_path / "empty"), "--back", str(tmp_path / "empty")])
    assert "empty' could not be loaded as a sequence-to-sequence model" in capsys.readouterr().err


def test_a_synonym_has_the_capital_of_its_word():
    assert with_synonyms("Cats", {"cats": ["felines"]}, 1.0, Random(0)) == "Felines"


def test_synonyms_are_the_same_in_every_call(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES[:5]) + "\n", encoding="utf-8")
    (tmp_path / "words.txt").write_text("small, little, tiny\nsees, looks at, watches\n", encoding="utf-8")
    for name in ("a", "b"):
        command = ["synonyms", str(tmp_path / "text.txt"), "--thesaurus", str(tmp_path / "words.txt")]
        main([*command, "--to", str(tmp_path / f"{name}.csv"), "--share", "1"])
    written = rows(tmp_path / "a.csv")
    assert written == rows(tmp_path / "b.csv") and written[0] == ["text", "synonyms"]
    assert all("small" not in second and "the cat" not in second.split("small") for _, second in written[1:])
