"""A client that reads a Secret all the time while its keys are rotated."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CONNECTION = (
    *("refused", "EOF", "timeout", "timed out", "unavailable", "connect", "reset by peer", "broken pipe"),
    "did not answer in time",
    "error trying to reach service",
    *("is forbidden", "Unauthorized"),  # a kube-apiserver that has just started has not read roles and accounts yet
)
"""Parts of errors while the only API server restarts. None of them is about a Secret that cannot be decrypted."""


@contextmanager
def reading(command: Sequence[str | Path], value: str) -> Iterator[None]:
    """Run a command that prints the value of a Secret: each answer has it, or the API server is just being replaced."""
    ended, wrong, right = threading.Event(), list[str](), list[str]()

    def read() -> None:
        while not ended.wait(0.2):
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            if done.stdout == value:
                right.append(done.stdout)
            elif not any(each in done.stderr for each in CONNECTION):
                wrong.append(done.stdout + done.stderr)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()
    assert right
    assert not wrong, wrong[:5]
