"""The texts PrdSimCSE puts before a sentence."""

# Tables 3 and 9 of the paper.
NEGATIVE_PREFIXES = {
    "one-reversal": "reversal",
    "prefix1": "Sentence contradicts in time, place, people, number, emotion, type",
    "prefix2": ("Contradictory in time, location, individuals, quantity, emotion, and category within the sentence"),
    "prefix3": (
        "The expression in terms of time, location, persons, number, emotion, and type in the following sentence "
        "is contradictory"
    ),
}
POSITIVE_PREFIXES = ("level-um", "level-[CLS]", "level-[MASK]", "one-um", "one-[CLS]", "one-[MASK]")


def positive_prefix(sentence: str, kind: str = "level-um", *, length: int | None = None) -> str:
    """What keeps the meaning of a sentence when it stands before it (PrdSimCSE, table 8).

    Args:
        sentence: the text without prefix.
        kind: `one-…` repeats its token once, `level-…` once for every eight words, four times at most: sentences
            shorter than eight words get nothing. The token is `um`, `[CLS]` or `[MASK]` (BERT's names, for the
            corresponding special token of any tokenizer).
        length: of the sentence, in another unit than words between white space.

    Returns:
        The tokens separated by spaces, `""` for none.

    Example:
        >>> positive_prefix("A man is playing a guitar on the stage .")
        'um'
        >>> positive_prefix("A man sings .")
        ''
    """
    if kind not in POSITIVE_PREFIXES:
        raise ValueError(f"positive prefix {kind!r} is none of {', '.join(POSITIVE_PREFIXES)}")
    count, token = kind.split("-")
    length = len(sentence.split()) if length is None else length
    times = 1 if count == "one" else min(length // 8, 4)
    return " ".join([token] * times)
