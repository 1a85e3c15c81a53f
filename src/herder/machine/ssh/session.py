"""A person at work in a machine: a shell or one command, and files copied in and out."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence

import asyncssh

from herder.machine.errors import MachineError, Unreachable
from herder.machine.ssh.client import connection_to
from herder.machine.ssh.hosts import HostKeys
from herder.machine.state.reading import SavedMachine, private_key

Remember = Callable[[], None]
"""Makes `files` of the saved machine durable: a host key was seen for the first time."""


def interactive(
    saved: SavedMachine,
    command: Sequence[str] | None = None,
    *,
    remember: Remember | None = None,
    accept_new_host_key: bool = False,
) -> int:
    """Our terminal becomes the machine's, where there is one. The exit status is that of the command, 255 for none.

    As with ssh, the words of a command are joined and read by the machine's shell.
    """
    hosts = HostKeys(saved.reach, saved.files, remember=remember, accept_new=accept_new_host_key)
    return asyncio.run(_interactive(saved, " ".join(command) if command else None, hosts))


async def _interactive(saved: SavedMachine, command: str | None, hosts: HostKeys) -> int:
    terminal = sys.stdin.isatty() and command is None
    async with connection_to(saved.reach, private_key(saved.config, saved.files), hosts) as connection:
        try:
            process = await connection.create_process(
                command,
                term_type=os.environ.get("TERM", "xterm") if terminal else None,
                term_size=shutil.get_terminal_size() if terminal else (80, 24),
                stdin=sys.stdin.fileno(),
                stdout=sys.stdout.fileno(),
                stderr=sys.stderr.fileno(),
                encoding=None,
            )
            with _raw_terminal(process) if terminal else contextlib.nullcontext():
                done = await process.wait()
        except (asyncssh.Error, OSError) as error:
            raise Unreachable(f"the connection to {saved.name} broke: {error}", "see that it runs") from error
    if done.exit_signal:
        return 255
    return done.returncode if done.returncode is not None else 255


@contextlib.contextmanager
def _raw_terminal(process: asyncssh.SSHClientProcess[bytes]) -> Iterator[None]:
    """Keys go to the machine as they are pressed, and it learns of a new window size."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, lambda: process.change_terminal_size(*shutil.get_terminal_size()))
    tty.setraw(keyboard)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        loop.remove_signal_handler(signal.SIGWINCH)


def copy(
    source: str,
    target: str,
    find: Callable[[str], SavedMachine],
    *,
    recursive: bool = False,
    remember: Callable[[SavedMachine], None] | None = None,
) -> None:
    """Between `[user@]machine:path` and a path here, or two machines; `find` gives a machine by its name."""
    ends = [_end(place, find) for place in (source, target)]
    if not any(machine for machine, _ in ends):
        raise MachineError(f"neither {source} nor {target} is on a machine", "name one as machine:path")
    asyncio.run(_copy(ends, recursive, remember))


async def _copy(
    ends: list[tuple[SavedMachine | None, str]],
    recursive: bool,
    remember: Callable[[SavedMachine], None] | None,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        places: list[str | tuple[asyncssh.SSHClientConnection, str]] = []
        for machine, path in ends:
            if machine is None:
                places.append(path)
                continue
            keep = (lambda found=machine: remember(found)) if remember is not None else None
            hosts = HostKeys(machine.reach, machine.files, remember=keep)
            opened = connection_to(machine.reach, private_key(machine.config, machine.files), hosts)
            places.append((await stack.enter_async_context(opened), path or "."))
        try:
            await asyncssh.scp(*places, recurse=recursive, preserve=False)
        except (asyncssh.Error, OSError) as error:
            raise MachineError(f"the copy failed: {error}") from error


def _end(place: str, find: Callable[[str], SavedMachine]) -> tuple[SavedMachine | None, str]:
    head, colon, path = place.partition(":")
    if not colon or "/" in head:
        return None, place
    user, at, name = head.rpartition("@")
    if name == "localhost":
        return None, path
    machine = find(name)
    if at:
        machine = dataclasses.replace(machine, reach=dataclasses.replace(machine.reach, user=user))
    return machine, path
