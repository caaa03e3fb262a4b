"""What a user can mend."""


class UserError(Exception):
    """An error a user caused and can mend: one line that names the value and the way out. Ends a command with 2."""


def one_line(error: BaseException) -> str:
    r"""A library's message on one line, cut where it goes on and on.

    Example:
        >>> one_line(ValueError("no such\n  thing"))
        'no such thing'
    """
    return " ".join(str(error).split())[:200]


class Terminated(SystemExit):
    """A signal asked the process to end (SIGTERM, SIGINT); its exit code is the shell's for that signal.

    Example:
        >>> Terminated(15).code
        143
    """

    def __init__(self, signal: int):
        super().__init__(128 + signal)
