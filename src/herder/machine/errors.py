"""Errors of machine operations; each has advice and an exit code."""

from __future__ import annotations

from herder.engine.meta.printable import printable


class MachineError(Exception):
    """An error with advice for the user.

    Messages quote machines, SSH servers and providers, so control characters are removed here.
    """

    exit_code = 1

    def __init__(self, message: str, advice: str = "") -> None:
        message, advice = printable(message), printable(advice)
        super().__init__(f"{message}; {advice}" if advice else message)
        self.message = message
        self.advice = advice


class PreCreateFailed(MachineError):
    """A check failed before anything was created."""

    exit_code = 3


class ServerGone(MachineError):
    """The machine no longer exists at the provider."""

    exit_code = 4


class Unreachable(MachineError):
    """A host, provider or daemon does not respond."""
