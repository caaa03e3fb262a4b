"""What a user can mend."""


class UserError(Exception):
    """An error a user caused and can mend: one line that names the value and the way out. Ends a command with 2."""
