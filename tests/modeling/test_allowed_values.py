"""A configuration refuses values that are not allowed, also those of a published checkpoint."""

import math

import pytest

from csezoo.modeling import METHODS
from csezoo.modeling.contrastive.allowed_values import check_value

ALLOWED = [
    (name, key, allowed)
    for name, (config, *_) in METHODS.items()
    for cls in config.__mro__
    for key, allowed in vars(cls).get("allowed", {}).items()
]


@pytest.mark.parametrize(("name", "key", "allowed"), ALLOWED)
def test_the_error_names_key_and_value_of_a_value_that_is_not_allowed(name, key, allowed):
    wrong = [math.nan, math.inf, -math.inf, 10**12, "1"] if isinstance(allowed, str) else ["other", 1, []]
    for value in wrong:
        with pytest.raises(ValueError) as error:
            METHODS[name][0](**{key: value})
        assert str(error.value).startswith(
            f"{key}: {value}" if isinstance(allowed, str) else f"{key}: {value!r} must be one of "
        )
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "key", "allowed"), ALLOWED)
def test_only_keys_with_default_none_accept_none(name, key, allowed):
    config = METHODS[name][0]
    if getattr(config(), key) is None:
        assert getattr(config(**{key: None}), key) is None
    else:
        with pytest.raises(ValueError, match=f"^{key}: None "):
            config(**{key: None})


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1]", [0, 0.5, 1, True], [-1e-9, 1 + 1e-9, math.nan, math.inf]),
        ("(0, 1)", [1e-300, 1 - 1e-9], [0, 1, -0.0]),
        ("[-1_000, 1_000]", [-1000, 1000], [1001, -(10**400), 10**400]),
    ],
)
def test_an_interval_includes_its_ends_only_with_square_brackets(interval, inside, outside):
    for value in inside:
        check_value("key", value, interval)
    for value in outside:
        with pytest.raises(ValueError, match="^key: "):
            check_value("key", value, interval)
