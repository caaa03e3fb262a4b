"""What a user reads when something is refused."""

import pytest

from csezoo.training.errors import UserError


def refusal(call, *arguments, **keys) -> str:
    """Return the line with which a call is refused."""
    with pytest.raises(UserError) as error:
        call(*arguments, **keys)
    assert "\n" not in str(error.value)
    return str(error.value)
