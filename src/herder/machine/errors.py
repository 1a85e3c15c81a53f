"""What can go wrong with a machine. Every error says what to do about it, and decides the command's exit code."""

from __future__ import annotations

from herder.engine.meta.printable import printable


class MachineError(Exception):
    """`advice` is what a person can do: it is part of the text, because the text is all that reaches them.

    Messages quote machines, SSH servers and providers, so control characters are removed here once for all readers."""

    exit_code = 1

    def __init__(self, message: str, advice: str = "") -> None:
        message, advice = printable(message), printable(advice)
        super().__init__(f"{message}; {advice}" if advice else message)
        self.message = message
        self.advice = advice


class PreCreateFailed(MachineError):
    """Found out before anything was made."""

    exit_code = 3


class ServerGone(MachineError):
    """The provider does not have the machine any more."""

    exit_code = 4


class Unreachable(MachineError):
    """A host, a provider or a daemon does not answer."""
