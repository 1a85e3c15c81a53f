"""The `process` machine kind: machines without a kernel, disk or image of their own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pwd
from importlib import resources
from pathlib import Path
from typing import Any

from herder.machine.driver import State
from herder.machine.errors import MachineError, PreCreateFailed
from herder.machine.host.kinds import Ask, Place, Record, Report
from herder.machine.host.process import running
from herder.machine.host.process.addresses import Addresses
from herder.machine.host.process.programs import own_program
from herder.machine.host.process.sessions import PATH, AddressTaken, Inside, Listener
from herder.machine.host.records import delete_tree
from herder.machine.ssh.keys import new_key_pair

SSH_PORT = 2222
CONSOLE_BYTES = 4 * 1024 * 1024
LAUNCH_SECONDS = 60


class ProcessKind:
    name = "process"

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir.absolute()
        self._addresses = Addresses(self._state_dir / "addresses")
        self._listeners: dict[str, Listener] = {}
        self._owner = _owner()
        self._init = resources.files(__package__).joinpath("init.sh").read_text()
        self._user_namespace = True
        self._problem = ""

    async def prepare(self) -> None:
        """Find out what this host allows. Root can do without user namespaces; a machine's root is then an unprivileged
        user.
        """
        self._problem = await self._probe()
        if self._problem and self._owner is not None:
            self._user_namespace = False
            if not await self._probe():
                self._problem = ""

    @property
    def has_user_namespaces(self) -> bool:
        """Whether machines have user namespaces of their own; known after `prepare`."""
        return self._user_namespace

    async def _probe(self) -> str:
        """Boot a probe machine that runs nothing; return what prevents it."""
        scratch = self._state_dir / "probe"
        if scratch.exists():
            delete_tree(scratch)  # left over from a daemon that died
        scratch.mkdir(mode=0o700)
        try:
            seed = {"hostname": "probe", "address": "127.0.0.1", "name": "probe", "script": ""}
            await self._launch(scratch, {"probe": True, "hostname": "probe", "seed": seed, "memory": 0})
        except MachineError as error:
            return error.message
        finally:
            delete_tree(scratch)
        return ""

    def check(self, options: dict[str, Any]) -> None:
        if self._problem:
            raise PreCreateFailed(
                f"this host does not allow namespaces for machines: {self._problem}",
                "allow them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
                "kernel.apparmor_restrict_unprivileged_userns; Linux 5.12 or newer), or run herder as root",
            )
        for name in ("memory", "ssh_port"):
            value = options.get(name, 0)
            if not isinstance(value, int) or value < 0:
                raise PreCreateFailed(f"options.{name}: must be a number, not {value!r}")

    async def create(self, record: Record, ask: Ask, report: Report) -> Place:
        _check_script(ask.script)
        record.facts |= {"hostname": ask.hostname, "authorized_key": ask.authorized_key}
        if "host_key" not in record.facts:
            record.facts["host_key"], record.facts["host_key_public"] = (half.decode() for half in new_key_pair())
        self._serve_anywhere(record)
        seed = {
            "hostname": ask.hostname,
            "address": record.facts["address"],
            "name": record.name,
            "script": base64.b64encode(ask.script).decode(),
        }
        try:
            await self._boot(record, seed)
        except BaseException:
            self._close(record)
            raise
        report(f"Machine is running at {record.facts['address']}")
        return self._place(record)

    async def start(self, record: Record, _tell: Report) -> Place:
        await self._boot(record, None)
        if record.id not in self._listeners:
            self._serve(record, record.facts["address"])
        return self._place(record)

    async def stop(self, record: Record, *, grace: float) -> None:
        self._close(record)
        await running.end(record.directory, grace)

    def state(self, record: Record) -> State:
        return State.RUNNING if running.runs(record.directory) else State.STOPPED

    async def recover(self, record: Record) -> None:
        await self.start(record, lambda _line: None)

    async def remove(self, record: Record) -> None:
        self._close(record)
        await running.end(record.directory, 0)
        self._addresses.give_back(record)

    async def close(self) -> None:
        for listener in self._listeners.values():
            listener.close()

    def _serve_anywhere(self, record: Record) -> None:
        """Serve SSH at an address allocated to this machine; updates the record."""
        self._close(record)
        for address in self._addresses.claim(record):
            with contextlib.suppress(AddressTaken):
                self._serve(record, address)
                return

    def _serve(self, record: Record, address: str) -> None:
        inside = Inside(
            record.directory,
            self._environment(record),
            self._owner,
            self._user_namespace,
            memory=record.options.get("memory") or 0,
            host_key=record.facts["host_key"],
            authorized_key=record.facts["authorized_key"],
        )
        self._listeners[record.id] = Listener(inside, address, self._port(record))

    def _close(self, record: Record) -> None:
        listener = self._listeners.pop(record.id, None)
        if listener is not None:
            listener.close()

    async def _boot(self, record: Record, seed: dict[str, Any] | None) -> None:
        if running.runs(record.directory):
            return
        _rotate(record.directory / "console.log")
        await self._launch(
            record.directory,
            {
                "hostname": record.facts["hostname"],
                "seed": seed,
                "memory": record.options.get("memory") or 0,
                "environment": self._environment(record),
            },
        )

    async def _launch(self, directory: Path, wanted: dict[str, Any]) -> None:
        config = {
            "parent": os.getpid(),
            "directory": str(directory),
            "owner": self._owner,
            "user_namespace": self._user_namespace,
            "hidden": self._hidden(),
            "init": self._init,
            **wanted,
        }
        launcher = await asyncio.create_subprocess_exec(
            *own_program("launch"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"LANG": "C.UTF-8"},
            start_new_session=True,
        )
        try:
            out, err = await asyncio.wait_for(launcher.communicate(json.dumps(config).encode()), LAUNCH_SECONDS)
        except (TimeoutError, asyncio.CancelledError):
            launcher.kill()
            await launcher.wait()
            raise
        answer = json.loads(out) if out else {"error": err.decode(errors="replace").strip()[-500:] or "no answer"}
        if "error" in answer:
            raise MachineError(f"the machine failed to boot: {answer['error']}")

    def _environment(self, record: Record) -> dict[str, str]:
        return {
            "HERDER_ADDRESS": record.facts["address"],
            "HERDER_MACHINE": record.name,
            "HERDER_ZONE": str(record.options.get("zone") or ""),
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "LOGNAME": "root",
            "PATH": PATH,
            "USER": "root",
        }

    def _hidden(self) -> list[str]:
        """Host directories hidden from machines: keys of all machines and of the manager, and the home of the daemon's
        user.
        """
        state = os.path.realpath(self._state_dir)
        data = os.path.dirname(state) if os.path.basename(state) == "host" else state
        home = os.path.realpath(_home())
        return [data] if home == "/" else [data, home]

    def _port(self, record: Record) -> int:
        return int(record.options.get("ssh_port") or SSH_PORT)

    def _place(self, record: Record) -> Place:
        return Place(record.facts["address"], self._port(record), "root", record.facts["host_key_public"].strip())


def _owner() -> list[int] | None:
    """Return UID and GID of a machine's processes on the host, if we can choose."""
    nobody = pwd.getpwnam("nobody")
    chosen = [nobody.pw_uid, nobody.pw_gid]
    if os.geteuid() != 0 or not all(map(_is_mapped, ("uid", "gid"), chosen)):
        return None
    return chosen


def _home() -> str:
    """Return the home directory from the passwd database; "/" if there is no account."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir or "/"
    except KeyError:
        return "/"


def _is_mapped(kind: str, number: int) -> bool:
    """Whether the ID is mapped in our own user namespace."""
    ranges = (map(int, line.split()) for line in Path(f"/proc/self/{kind}_map").read_text().splitlines())
    return any(first <= number < first + count for first, _, count in ranges)


def _check_script(script: bytes) -> None:
    if script and not script.startswith(b"#!"):
        raise MachineError(
            "process machines support only scripts that start with #!",
            "use driver local for #cloud-config",
        )


def _rotate(console: Path) -> None:
    if console.exists() and console.stat().st_size > CONSOLE_BYTES:
        console.replace(console.with_suffix(".log.1"))
