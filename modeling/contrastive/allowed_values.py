"""What a value of a configuration may be: one of several choices, a number in an interval, or a prompt."""

SIZE = "[1, 10_000_000]"  # models larger than memory are refused before they are built
WEIGHT = "[0, 1_000_000]"


def check_value(key: str, value: object, allowed: str | tuple) -> None:
    """Refuse a value that is not allowed. nan is never allowed.

    Args:
        allowed: the choices, or an interval as in mathematics: `[0, 1)` is from 0 to below 1.

    Raises:
        ValueError: the value is not one of the choices, is outside the interval, or is not a number.

    Example:
        >>> check_value("dropout", 1.5, "[0, 1)")
        Traceback (most recent call last):
        ValueError: dropout: 1.5 must be at least 0 and below 1
    """
    if isinstance(allowed, tuple):
        if value not in allowed:
            raise ValueError(f"{key}: {value!r:.60} must be one of {', '.join(map(str, allowed))}")
        return
    least, most = (float(end) for end in allowed[1:-1].split(", "))
    inside = isinstance(value, int | float) and least <= value <= most
    if not inside or (value == least and allowed[0] == "(") or (value == most and allowed[-1] == ")"):
        raise ValueError(f"{key}: {value!s:.60} must be {in_words(allowed)}")


def in_words(interval: str) -> str:
    """Return an interval in words.

    Example:
        >>> in_words("(0, 1_000]")
        'above 0 and at most 1,000'
    """
    least, most = interval[1:-1].replace("_", ",").split(", ")
    above, below = "above" if interval[0] == "(" else "at least", "below" if interval[-1] == ")" else "at most"
    return f"{above} {least} and {below} {most}"


def check_prompt(prompt: str, pooling: str = "prompt") -> None:
    """Refuse a template without exactly one place for the sentence and, after it, one for the mask token.

    With the pooling `last` it has no mask token, and ends where the model would write on.
    """
    if pooling == "last":
        if prompt.count("{sentence}") != 1 or "{mask}" in prompt:
            raise ValueError(
                f"prompts: {prompt!r} must contain {{sentence}} once and no {{mask}}, because pooling: last reads the "
                "last token"
            )
        return
    if prompt.count("{sentence}") != 1 or prompt.count("{mask}") != 1:
        raise ValueError(f"prompts: {prompt!r} must contain {{sentence}} and {{mask}} once each")
    if prompt.index("{mask}") < prompt.index("{sentence}"):
        raise ValueError(f"prompts: {prompt!r} must have {{mask}} after {{sentence}}")


def check_named_prompts(prompts: object, default: str | None) -> None:
    """Refuse prompts that are not texts by name, that wait for values, or that lack the default one."""
    if not isinstance(prompts, dict):
        raise ValueError(f"named_prompts: {prompts!r:.60} must be texts by name")
    for name, text in prompts.items():
        if not (isinstance(name, str) and isinstance(text, str)):
            raise ValueError(f"named_prompts: {name!r:.60} is {text!r:.60}, which is no text")
        if "{" in text:
            raise ValueError(
                f"named_prompts: {name!r:.60} is {text!r:.60}, which depends on a task; give it filled in"
            )
    if default is not None and default not in list(prompts):  # a list has no hash
        known = ", ".join(prompts) or "there are none"
        raise ValueError(f"default_prompt_name: {default!r:.60} is none of named_prompts: {known}")
