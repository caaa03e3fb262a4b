"""PrdSimCSE: prefixes, texts of the views, the share of sentences with prefixes, and the loss."""

import numpy as np
import pytest
import torch

from csezoo.modeling import PrdSimCSEConfig
from csezoo.modeling.methods.prdsimcse import NEGATIVE_PREFIXES, positive_prefix
from csezoo.modeling.objectives import prefix_contrastive
from csezoo.training.data.collation import tokenize
from csezoo.training.errors import UserError
from csezoo.training.loop.building import build
from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES, tiny_tokenizer
from tests.tiny import batch, training_model


@pytest.mark.parametrize(
    ("words", "times"), [(1, 0), (7, 0), (8, 1), (15, 1), (16, 2), (23, 2), (24, 3), (31, 3), (32, 4), (90, 4)]
)
@pytest.mark.parametrize("token", ["um", "[CLS]", "[MASK]"])
def test_level_prefix_grows_with_the_words_of_the_sentence(words, times, token):
    sentence = " ".join(["word"] * words)
    assert positive_prefix(sentence, f"level-{token}").split() == [token] * times
    assert positive_prefix(sentence, f"one-{token}") == token


def test_the_error_names_an_unknown_kind():
    with pytest.raises(ValueError, match="'two-um' must be one of level-um"):
        positive_prefix("a", "two-um")


def test_there_are_four_negative_prefixes():
    assert list(NEGATIVE_PREFIXES) == ["one-reversal", "prefix1", "prefix2", "prefix3"]
    assert NEGATIVE_PREFIXES["one-reversal"] == "reversal"
    assert len(NEGATIVE_PREFIXES["prefix3"].replace(",", " ,").split()) == 23, "words and commas"


LONG = "the small cat sees the house . the dog likes the river ."  # 13 words
SHORT = "the cat sees ."


def views(tokenizer, sentences=(LONG, SHORT), length=30, **changes):
    return tokenize({"0": list(sentences)}, tokenizer, length, PrdSimCSEConfig(**changes))


def test_a_sentence_has_three_views_without_prefix_positive_and_negative(kind):
    tokenizer = tiny_tokenizer(kind)
    made = views(tokenizer)
    alone = tokenizer([LONG, SHORT], add_special_tokens=False).input_ids
    assert made["0"] == alone
    together = tokenizer([f"um {LONG}", SHORT], add_special_tokens=False).input_ids
    assert made["1"] == together, "tokenised as one text would be"
    prefix = NEGATIVE_PREFIXES["prefix3"]
    assert made["2"] == tokenizer([f"{prefix} {LONG}", f"{prefix} {SHORT}"], add_special_tokens=False).input_ids


def test_prefixes_use_the_tokenizers_special_tokens(kind):
    tokenizer = tiny_tokenizer(kind)
    assert views(tokenizer, positive_prefix="one-[MASK]")["1"][1][0] == tokenizer.mask_token_id
    assert views(tokenizer, positive_prefix="level-[CLS]")["1"][0][0] == tokenizer.cls_token_id


def test_only_the_sentence_is_truncated_unless_prefixes_count(kind):
    tokenizer = tiny_tokenizer(kind)
    head = len(tokenizer(NEGATIVE_PREFIXES["prefix3"], add_special_tokens=False).input_ids)
    assert len(views(tokenizer, length=6)["2"][0]) == head + 6
    assert len(views(tokenizer, length=6, prefix_within_max_length=True)["2"][0]) == 6


def test_the_prompt_of_a_base_is_before_the_prefix_and_not_counted_by_it(kind):
    tokenizer, sentence = tiny_tokenizer(kind), "the cat sees the dog ."  # 6 words; 8 with the prompt
    made = tokenize({"0": [sentence, LONG]}, tokenizer, 30, PrdSimCSEConfig(), prompt="the river ")
    prefix = NEGATIVE_PREFIXES["prefix3"]

    def expected(before):
        return tokenizer(
            [f"{each}{text}" for each, text in zip(before, (sentence, LONG), strict=True)], add_special_tokens=False
        ).input_ids

    assert made["0"] == expected(["the river "] * 2)
    assert made["1"] == expected(["the river ", "the river um "])
    assert made["2"] == expected([f"the river {prefix} "] * 2)
    cut = tokenize({"0": [LONG]}, tokenizer, 6, PrdSimCSEConfig(), prompt="the river ")
    assert cut["2"][0] == made["2"][1][: len(cut["2"][0])]
    um = len(tokenizer.tokenize(" um"))
    assert len(cut["0"][0]) == 6 and len(cut["1"][0]) == 6 + um, "the length counts the prompt, not the prefix"


def test_longest_prefix_is_an_upper_bound(kind):
    tokenizer = tiny_tokenizer(kind)
    for changes in ({}, {"negative_prefix": "none"}, {"positive_prefix": "one-[MASK]", "negative_separator": ": "}):
        config = PrdSimCSEConfig(**changes)
        long = "word " * 40
        longest = max(
            len(ids) for ids in tokenizer([t[0].rstrip() for t in config.text_prefixes([long], tokenizer)]).input_ids
        )
        assert config.longest_prefix(tokenizer) >= longest - 2  # the two special tokens
    assert PrdSimCSEConfig(prefix_within_max_length=True).longest_prefix(tokenizer) == 0


def test_prefixes_must_fit_the_positions_too(bases):
    keys = {"method": "prdsimcse", "base_model": str(bases["bert"]), "max_length": 60}
    with pytest.raises(UserError, match=r"max_length: 60 needs \d+ positions, .* has 66; lower it"):
        build(make_recipe(keys))
    assert build(make_recipe({**keys, "prefix_within_max_length": True})).sentence_length == 58


def test_the_separator_is_between_negative_prefix_and_sentence(kind):
    tokenizer = tiny_tokenizer(kind)
    expected = tokenizer(f"reversal: {SHORT}", add_special_tokens=False).input_ids
    assert views(tokenizer, negative_prefix="one-reversal", negative_separator=": ")["2"][1] == expected


def test_a_negative_without_prefix_is_the_sentence_or_an_empty_text(kind):
    tokenizer, sentences = tiny_tokenizer(kind), [f"{SHORT} {number}" for number in range(20)]
    made = {
        reading: views(tokenizer, sentences, negative_prefix_share=0.5, negative_without_prefix=reading)
        for reading in ("sentence", "empty")
    }
    assert made["sentence"]["0"] == made["empty"]["0"] and made["sentence"]["1"] == made["empty"]["1"]
    without = [len(pieces) == 0 for pieces in made["empty"]["2"]]
    assert 0 < sum(without) < 20
    for empty, anchor, pieces, other in zip(
        without, made["sentence"]["0"], made["sentence"]["2"], made["empty"]["2"], strict=True
    ):
        assert (pieces == anchor) if empty else (pieces == other)


def test_levels_can_count_pieces():
    tokenizer = tiny_tokenizer("roberta")  # whose pieces are smaller than words
    sentence = "unbelievable"
    assert views(tokenizer, [sentence])["1"] == views(tokenizer, [sentence])["0"]
    pieces = views(tokenizer, [sentence], prefix_length_unit="pieces")
    assert 8 <= len(pieces["0"][0]) < 16
    assert pieces["1"] == tokenizer([f"um {sentence}"], add_special_tokens=False).input_ids
    six = views(tiny_tokenizer("bert"), ["the small cat sees the house"], prefix_length_unit="pieces")
    assert len(six["0"][0]) == 6 and six["1"] == six["0"], "special tokens do not count"


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_same_share_of_sentences_always_gets_the_prefix(share):
    tokenizer = tiny_tokenizer("bert")
    config = PrdSimCSEConfig(positive_prefix="one-um", positive_prefix_share=share, negative_prefix_share=1 - share)
    sentences = [f"{sentence} {number}" for number in range(20) for sentence in SENTENCES]
    _, positives, negatives = config.text_prefixes(sentences, tokenizer)
    assert np.mean([prefix == "um " for prefix in positives]) == pytest.approx(share, abs=0.04)
    assert np.mean([prefix == "" for prefix in negatives]) == pytest.approx(share, abs=0.04)
    assert config.text_prefixes(sentences[::-1], tokenizer)[1] == positives[::-1]


def test_without_prefixes_there_are_two_equal_views():
    made = views(tiny_tokenizer("bert"), negative_prefix="none", positive_prefix="none")
    assert list(made) == ["0", "1"] and made["0"] == made["1"]


@pytest.mark.parametrize("denominator", ["batch", "own", "all"])
def test_the_training_loss_uses_the_configured_denominator(denominator):
    output = training_model("prdsimcse", denominator=denominator, temperature=0.1)(**batch(views=3))
    expected = prefix_contrastive(*output.embeddings.unbind(1), temperature=0.1, denominator=denominator)
    torch.testing.assert_close(output.loss, expected)
