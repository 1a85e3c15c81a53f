"""The program of this agent: what it reports of itself, and the file that confirms it."""

import contextlib
import hashlib
import os
import sys

from herder import __version__
from herder.agent.apply import atomic_file
from herder.agent.core.protocol import Identity

CONFIRMED = "running-agent"
"""Name of the file in the state directory. It has the checksum of the agent that has reported itself last.

An installer that replaces the agent waits for it: without it, the new agent does not reach the manager.
"""


class Program:
    def __init__(self, state_directory: str) -> None:
        self._path = os.path.join(state_directory, CONFIRMED)
        self.identity = Identity(__version__, _checksum())
        self._is_confirmed = False

    def confirm(self) -> None:
        """Write the file once; called as soon as the Secret names this agent."""
        if not self._is_confirmed and self.identity.checksum:
            self._is_confirmed = True
            with contextlib.suppress(OSError):  # a full disk must not stop the agent
                atomic_file.write(self._path, self.identity.checksum.encode())


def _checksum() -> str:
    """Return the SHA-256 of the zipapp that runs; "" if the agent runs from a directory."""
    path = sys.argv[0]
    if not os.path.isfile(path) or not __file__.startswith(path + os.sep):
        return ""
    with open(path, "rb") as stream:
        return hashlib.sha256(stream.read()).hexdigest()
