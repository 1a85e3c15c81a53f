"""The host daemon: a Unix socket, a credential per machine, and request dispatch."""

from __future__ import annotations

import asyncio
import fcntl
import hmac
import logging
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import herder
from herder.api.machines.hosts import machine_credential
from herder.machine.errors import MachineError, Unreachable
from herder.machine.host import places, protocol, sockets
from herder.machine.host.kinds import Report
from herder.machine.host.machines import Machines
from herder.machine.host.protocol import Request
from herder.machine.host.records import write_whole

REQUEST_SECONDS = 30  # for a client to send its request
KEY_BYTES = 32

log = logging.getLogger(__name__)


class AlreadyRunning(MachineError):
    """Another daemon uses the directory."""


class Daemon:
    def __init__(self, state_dir: Path, machines: Machines | None = None) -> None:
        self.state_dir = state_dir.absolute()
        self.machines = machines or Machines(self.state_dir)
        self._key = b""
        self._asked: set[asyncio.Task[Any]] = set()
        self._ending = asyncio.Event()

    async def run(self, serving: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or shutdown; `serving` is called once it accepts requests."""
        lock = self._take_directory()
        _allow_many_files()
        try:
            self._key = self._own_key()
            self.machines.recover()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.end)
            await self._serve(serving)
        finally:
            os.close(lock)

    def end(self) -> None:
        self._ending.set()

    async def _serve(self, serving: Callable[[], None]) -> None:
        api = self.state_dir / places.API
        api.mkdir(mode=0o755, exist_ok=True)
        api.chmod(0o755)  # independent of umask: Jobs of any user that mount it can see it
        # Any user may connect; the credential authorizes.
        listener = sockets.listening(places.socket_of(self.state_dir), 0o666)
        server = await asyncio.start_unix_server(self._answer, sock=listener, limit=protocol.LONGEST_REQUEST)
        log.info("serving machines of this host in %s", self.state_dir)
        serving()
        try:
            await self._ending.wait()
        finally:
            server.close()
            for asked in list(self._asked):
                asked.cancel()
            await asyncio.gather(*self._asked, return_exceptions=True)
            await self.machines.close()
        log.info("stopped; machines keep running")

    def _take_directory(self) -> int:
        self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.state_dir.chmod(0o700)
        lock = os.open(self.state_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise AlreadyRunning(f"another host daemon uses {self.state_dir}") from None
        return lock

    def _own_key(self) -> bytes:
        file = self.state_dir / places.KEY
        if not file.exists():
            write_whole(file, os.urandom(KEY_BYTES))
        return file.read_bytes()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._asked.add(task)

        def report(line: str) -> None:
            if not writer.is_closing():
                writer.write(protocol.answer(say=line))

        try:
            answer = await self._outcome(reader, report)
            if not writer.is_closing():
                writer.write(answer)
                await writer.drain()
        except ConnectionError:
            pass  # the client disconnected; the operation continues
        finally:
            self._asked.discard(task)
            writer.close()

    async def _outcome(self, reader: asyncio.StreamReader, report: Report) -> bytes:
        try:
            request = protocol.parse(await _line(reader))
            self._authorize(request)
            if request.verb in protocol.ON_MACHINES - {"remove"}:
                await self.machines.recovered(request)
            return protocol.answer(done=await self._verb(request.verb)(request, report))
        except MachineError as error:
            return protocol.error_answer(error)
        except asyncio.CancelledError:
            return protocol.error_answer(Unreachable("the host daemon is shutting down", "try again after its restart"))
        except ConnectionError:
            raise
        except Exception:
            log.exception("request failed")
            where = self.state_dir / places.LOG
            return protocol.error_answer(MachineError("internal error of the host daemon", f"see {where}"))

    def _authorize(self, request: Request) -> None:
        good = machine_credential(self._key, *request.subject)
        if not hmac.compare_digest(good.encode(), request.credential.encode()):
            raise MachineError(
                "the credential is not valid for this machine"
                if request.name
                else "only the owner of the daemon can do this",
                "Jobs use HERDER_HOST_CREDENTIAL; on a terminal, use the account that started the daemon",
            )

    def _verb(self, verb: str) -> Callable[[Request, Report], Awaitable[dict[str, Any]]]:
        own = {"version": self._version, "shutdown": self._shutdown}
        act: Callable[[Request, Report], Awaitable[dict[str, Any]]] = own.get(verb) or getattr(self.machines, verb)
        return act

    async def _version(self, _request: Request, _tell: Report) -> dict[str, Any]:
        return {"version": herder.__version__, "pid": os.getpid()}

    async def _shutdown(self, _request: Request, _tell: Report) -> dict[str, Any]:
        asyncio.get_running_loop().call_later(0.05, self.end)  # after the response
        return {}


def _allow_many_files() -> None:
    """Each machine may need a few open files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await asyncio.wait_for(reader.readline(), REQUEST_SECONDS)
    except TimeoutError:
        raise protocol.BadRequest(f"nothing was asked for {REQUEST_SECONDS} seconds") from None
    except ValueError:
        raise protocol.BadRequest(f"the request is longer than {protocol.LONGEST_REQUEST} bytes") from None
    if not line.endswith(b"\n"):
        raise protocol.BadRequest("the request is incomplete")
    return line
