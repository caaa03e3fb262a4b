"""The quickstart's tokenizer."""

from csezoo.training.quickstart.base import SPECIAL_TOKENS, make_tokenizer

SENTENCES = ["The chef chopped the onions.", "The chef sang."]


def test_the_most_frequent_words_come_first_and_equals_in_alphabetical_order():
    tokenizer = make_tokenizer(SENTENCES)
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert pieces[:11] == [*SPECIAL_TOKENS, "the", ".", "chef", "chopped", "onions", "sang"]


def test_a_word_that_was_not_counted_is_spelled():
    tokenizer = make_tokenizer(SENTENCES)
    assert tokenizer.tokenize("The song") == ["the", "s", "##o", "##n", "##g"]
    assert tokenizer.tokenize("ox") == ["[UNK]"], "x occurs nowhere"
