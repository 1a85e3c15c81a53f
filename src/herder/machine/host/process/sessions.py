"""SSH server for machines, in the daemon: a session is a program inside the machine's namespaces.

asyncssh is imported on the first connection: a host may have hundreds of machines that nobody logs into.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import importlib
import json
import logging
import os
import socket
import struct
import termios
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herder.machine.errors import MachineError
from herder.machine.host.process.programs import own_program
from herder.machine.host.process.running import open_pidfd

if TYPE_CHECKING:
    import asyncssh

BACKLOG = 16
END_OF_INPUT = b"\x04"
PASSED_ON = ("TERM", "LANG")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

log = logging.getLogger(__name__)
logging.getLogger("asyncssh").setLevel(logging.WARNING)  # it would log the commands


class AddressTaken(MachineError):
    """The address is in use."""


@dataclass(frozen=True, slots=True)
class Inside:
    """What sessions need to know about a machine."""

    directory: Path
    environment: dict[str, str]
    owner: list[int] | None
    user_namespace: bool
    memory: int
    host_key: str = field(repr=False)
    authorized_key: str


class Listener:
    """Costs only a socket until a client connects."""

    def __init__(self, inside: Inside, address: str, port: int) -> None:
        self._inside = inside
        self._loop = asyncio.get_running_loop()
        self._visits: set[asyncio.Task[None]] = set()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.setblocking(False)
            self._socket.bind((address, port))
            self._socket.listen(BACKLOG)
        except OSError as error:
            self._socket.close()
            if error.errno == errno.EADDRINUSE:
                raise AddressTaken(f"something else serves at {address}:{port}") from None
            raise MachineError(
                f"cannot serve SSH at {address}:{port}: {error.strerror}", "set another --process-ssh-port"
            ) from None
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Disconnect clients; their programs in the machine keep running."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for visit in self._visits:
            visit.cancel()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._socket.accept()
            connection.setblocking(False)
            visit = self._loop.create_task(self._serve(connection))
            self._visits.add(visit)
            visit.add_done_callback(self._visits.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            ssh = await asyncio.to_thread(importlib.import_module, "asyncssh")
            served = await ssh.run_server(
                connection,
                server_host_keys=[ssh.import_private_key(self._inside.host_key)],
                authorized_client_keys=ssh.import_authorized_keys(self._inside.authorized_key),
                password_auth=False,
                kbdint_auth=False,
                gss_host=None,
                process_factory=lambda process: Session(self._inside, process).run(),
                encoding=None,
                line_editor=False,
                allow_pty=True,
                agent_forwarding=False,
                x11_forwarding=False,
            )
            try:
                await served.wait_closed()
            finally:
                served.abort()
        except Exception as error:
            connection.close()
            log.info("an SSH connection ended: %s", error)


class Session:
    def __init__(self, inside: Inside, process: asyncssh.SSHServerProcess[bytes]) -> None:
        self._inside = inside
        self._process = process

    async def run(self) -> None:
        try:
            await self._run()
        except ProcessLookupError:
            self._process.stderr.write(b"the machine does not run\n")
            self._process.exit(255)
        except (OSError, asyncio.IncompleteReadError) as error:
            log.warning("an SSH session failed: %s", error)
            self._process.exit(255)

    async def _run(self) -> None:
        terminal = self._process.get_terminal_type() is not None
        ours, theirs = socket.socketpair()
        pidfd = -1
        try:
            pidfd = open_pidfd(self._inside.directory)
            pipe = asyncio.subprocess.DEVNULL if terminal else asyncio.subprocess.PIPE
            program = await asyncio.create_subprocess_exec(
                *own_program("enter", str(theirs.fileno()), str(pidfd)),
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                pass_fds=(theirs.fileno(), pidfd),
                env={"LANG": "C.UTF-8"},
                start_new_session=True,
            )
            ours.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(ours, self._wanted(terminal))
            theirs.close()
            if terminal:
                await self._relay(await _received(ours))
            else:
                await self._pipe(program)
        finally:
            ours.close()
            theirs.close()
            if pidfd >= 0:
                os.close(pidfd)
        self._end(await program.wait())

    def _wanted(self, terminal: bool) -> bytes:
        process = self._process
        given = {name: value for name, value in process.env.items() if name in PASSED_ON or name.startswith("LC_")}
        environment = {**self._inside.environment, **given}
        if terminal:
            environment["TERM"] = process.get_terminal_type() or "dumb"
        config: dict[str, Any] = {
            "command": process.command,
            "subsystem": process.subsystem,
            "environment": environment,
            "owner": self._inside.owner,
            "user_namespace": self._inside.user_namespace,
            "memory": self._inside.memory,
            "size": list(process.get_terminal_size()) if terminal else None,
        }
        return json.dumps(config).encode() + b"\n"

    async def _pipe(self, program: asyncio.subprocess.Process) -> None:
        """Run until the program closes its output."""
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stderr is not None
        feeding = asyncio.create_task(self._feed(program.stdin))
        try:
            await asyncio.gather(
                _copy(program.stdout, self._process.stdout), _copy(program.stderr, self._process.stderr)
            )
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _feed(self, stdin: asyncio.StreamWriter) -> None:
        try:
            while data := await self._typed():
                stdin.write(data)
                await stdin.drain()
        finally:
            stdin.close()

    async def _relay(self, terminal: int) -> None:
        """Run until the last program closes the terminal, or the client disconnects, which hangs up."""
        showing = asyncio.create_task(self._show(terminal))
        gone = asyncio.create_task(self._process.wait_closed())
        tasks = {showing, gone, asyncio.create_task(self._type(terminal))}
        try:
            await asyncio.wait({showing, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            os.close(terminal)

    async def _show(self, terminal: int) -> None:
        while data := await _read(terminal):
            self._process.stdout.write(data)
            await self._process.stdout.drain()

    async def _type(self, terminal: int) -> None:
        while data := await self._typed(terminal):
            await _write(terminal, data)
        await _write(terminal, END_OF_INPUT)

    async def _typed(self, terminal: int | None = None) -> bytes:
        """Return the next input; b"" at its end."""
        import asyncssh

        while True:
            try:
                return await self._process.stdin.read(65536)
            except asyncssh.TerminalSizeChanged as change:
                if terminal is not None:
                    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", change.height, change.width, 0, 0))
            except (asyncssh.BreakReceived, asyncssh.SignalReceived):
                pass
            except asyncssh.Error:
                return b""

    def _end(self, status: int) -> None:
        if status < 0:
            self._process.exit_with_signal(_SIGNALS.get(-status, "KILL"))
        else:
            self._process.exit(status)


_SIGNALS = {1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 8: "FPE", 9: "KILL", 11: "SEGV", 13: "PIPE", 15: "TERM"}


async def _copy(source: asyncio.StreamReader, target: asyncssh.SSHWriter[bytes]) -> None:
    """Copy to the end even if the client disconnected: the program must not fail because of it."""
    while data := await source.read(65536):
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            target.write(data)
            await target.drain()


async def _received(ours: socket.socket) -> int:
    """Receive the terminal's descriptor; raise OSError if the peer ends without sending one."""
    await _ready(ours.fileno(), writing=False)
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        raise OSError(errno.EIO, "the machine has no terminal to give")
    os.set_blocking(descriptors[0], False)
    return descriptors[0]


async def _read(terminal: int) -> bytes:
    while True:
        try:
            return os.read(terminal, 65536)
        except BlockingIOError:
            await _ready(terminal, writing=False)
        except OSError:
            return b""  # closed by all processes


async def _write(terminal: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(terminal, data) :]
        except BlockingIOError:
            await _ready(terminal, writing=True)


async def _ready(descriptor: int, *, writing: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def report() -> None:
        if not ready.done():
            ready.set_result(None)

    (loop.add_writer if writing else loop.add_reader)(descriptor, report)
    try:
        await ready
    finally:
        (loop.remove_writer if writing else loop.remove_reader)(descriptor)
