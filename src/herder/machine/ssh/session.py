"""Interactive SSH session: a shell, or one command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

import asyncssh

from herder.machine.errors import Unreachable
from herder.machine.ssh.client import connection_to
from herder.machine.ssh.hosts import HostKeys
from herder.machine.state.saved_machine import SavedMachine, private_key

Remember = Callable[[], None]
"""Persists `files` of the saved machine after a first host key."""


def interactive(
    saved: SavedMachine,
    command: Sequence[str] | None = None,
    *,
    remember: Remember | None = None,
    accept_new_host_key: bool = False,
) -> int:
    """Run with our terminal, if there is one; return the exit status of the command, 255 for none.

    As with ssh, the arguments are joined and interpreted by the remote shell.
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
                encoding=None,
            )
            with _raw_terminal(process) if terminal else contextlib.nullcontext():
                _feed(process)
                await asyncio.gather(_show(process.stdout, sys.stdout), _show(process.stderr, sys.stderr))
                done = await process.wait()
        except (asyncssh.Error, OSError) as error:
            raise Unreachable(f"lost the connection to {saved.name}: {error}", "check that it is running") from error
    if done.exit_signal:
        return 255
    return done.returncode if done.returncode is not None else 255


def _feed(process: asyncssh.SSHClientProcess[bytes]) -> None:
    """Forward stdin of any file type, from a thread, which may block until we exit."""
    loop = asyncio.get_running_loop()

    async def give(chunk: bytes) -> None:
        if chunk:
            process.stdin.write(chunk)
            await process.stdin.drain()
        else:
            process.stdin.write_eof()

    def read() -> None:
        with contextlib.suppress(OSError, RuntimeError, asyncssh.Error):  # the machine has closed it
            while True:
                chunk = os.read(sys.stdin.fileno(), 1 << 16)
                asyncio.run_coroutine_threadsafe(give(chunk), loop).result()
                if not chunk:
                    return

    threading.Thread(target=read, daemon=True).start()


async def _show(stream: asyncssh.SSHReader[bytes], target: TextIO) -> None:
    while chunk := await stream.read(1 << 16):
        target.buffer.write(chunk)
        target.buffer.flush()


@contextlib.contextmanager
def _raw_terminal(process: asyncssh.SSHClientProcess[bytes]) -> Iterator[None]:
    """Raw mode: forward keys and window size changes."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, lambda: process.change_terminal_size(*shutil.get_terminal_size()))
    tty.setraw(keyboard, termios.TCSADRAIN)  # keep what was typed while connecting
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        loop.remove_signal_handler(signal.SIGWINCH)
