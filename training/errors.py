"""Errors the user can fix, and signals that end the process."""


class UserError(Exception):
    """An error the user can fix: one line that names the value and the way out. The command exits with status 2."""


class OutOfTimeError(UserError):
    """A step took too long and cannot be stopped. The command ends the process without waiting for it."""


def one_line(error: BaseException) -> str:
    r"""Return a library's message on one line, cut to 200 characters.

    Example:
        >>> one_line(ValueError("no such\n  thing"))
        'no such thing'
    """
    return " ".join(str(error).split())[:200]


class Terminated(SystemExit):
    """The exit of a process that a signal (SIGTERM, SIGINT) asked to end, with the shell's status 128 + signal.

    Example:
        >>> Terminated(15).code
        143
    """

    def __init__(self, signal: int):
        super().__init__(128 + signal)
