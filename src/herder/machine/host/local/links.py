"""Configure network links and addresses with `ip`, in the namespaces of any process.

It imports little, because every supervisor loads it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

from herder.engine.runner.shim import kernel

_SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


class LinkError(OSError):
    pass


def apply(commands: Iterable[str], *, where: int = 0, spaces: Sequence[str] = ("net",)) -> None:
    """Run commands until the first failure, in the namespaces (`spaces`) of process `where`. Commands contain no
    untrusted text.
    """
    reading, writing = os.pipe()
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        _become_ip(reading, said, where, spaces)
    os.close(reading)
    os.close(said)
    with contextlib.suppress(BrokenPipeError):  # it ended early, and reports why
        os.write(writing, "".join(f"{command}\n" for command in commands).encode())
    os.close(writing)
    with os.fdopen(heard, "r", errors="replace") as pipe:
        words = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise LinkError(f"the network of a machine could not be set up: {' '.join(words.split())}")


def _become_ip(reading: int, said: int, where: int, spaces: Sequence[str]) -> None:
    try:
        os.dup2(reading, 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        for space in spaces if where else ():
            kernel.join_namespace(where, space)
        os.execvpe("ip", ["ip", "-batch", "-"], {"PATH": _SEARCHED})  # noqa: S606
    except OSError as error:
        os.write(2, f"ip: {error}".encode())
    finally:
        os._exit(1)
