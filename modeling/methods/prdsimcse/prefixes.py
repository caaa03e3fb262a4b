"""The text prefixes of PrdSimCSE."""

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
    """Return a prefix that keeps the meaning of a sentence (PrdSimCSE, table 8).

    Args:
        sentence: the text without prefix.
        kind: `one-…` has one token, `level-…` one for every eight words and at most four, so that sentences of fewer
            than eight words have no prefix. The token is `um`, `[CLS]` or `[MASK]` (BERT's names for the special
            tokens of any tokenizer).
        length: of the sentence; by default the number of words between white space.

    Returns:
        The tokens separated by spaces, `""` for none.

    Raises:
        ValueError: the kind is unknown.

    Example:
        >>> positive_prefix("A man is playing a guitar on the stage .")
        'um'
        >>> positive_prefix("A man sings .")
        ''
    """
    if kind not in POSITIVE_PREFIXES:
        raise ValueError(f"positive_prefix: {kind!r} must be one of {', '.join(POSITIVE_PREFIXES)}")
    count, token = kind.split("-")
    length = len(sentence.split()) if length is None else length
    times = 1 if count == "one" else min(length // 8, 4)
    return " ".join([token] * times)
