"""A scripted kind of machine that records calls, to test the daemon itself.

The daemon runs in this process, and its clients in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from herder.machine.driver import State
from herder.machine.errors import MachineError, PreCreateFailed
from herder.machine.host.client import HostClient, HostedMachine
from herder.machine.host.daemon import Daemon
from herder.machine.host.kinds import Ask, Place, Record, Report
from herder.machine.host.machines import Machines

KEY = "ssh-ed25519 AAAA"
TOKEN = "0123456789abcdef"
PLACE = Place("127.99.0.1", 2222, "root", KEY)


class ScriptedKind:
    name = "process"

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.requests: list[Ask] = []
        self.running_creations = 0
        self.most_concurrent = 0
        self.resume = asyncio.Event()
        self.resume.set()
        self.creation_started = asyncio.Event()
        self.error: str = ""

    async def prepare(self) -> None:
        self.calls["prepare"] += 1

    def check(self, options: dict[str, Any]) -> None:
        if options.get("size") == "impossible":
            raise PreCreateFailed("options.size: no such size", "choose another")

    async def create(self, record: Record, ask: Ask, report: Report) -> Place:
        self.calls["create"] += 1
        self.requests.append(ask)
        self.running_creations += 1
        self.most_concurrent = max(self.running_creations, self.most_concurrent)
        self.creation_started.set()
        try:
            report("half way")
            await self.resume.wait()
        finally:
            self.running_creations -= 1
        if self.error:
            raise MachineError(self.error)
        return PLACE

    async def start(self, record: Record, report: Report) -> Place:
        self.calls["start"] += 1
        return PLACE

    async def stop(self, record: Record, *, grace: float) -> None:
        self.calls["stop" if grace else "kill"] += 1

    def state(self, record: Record) -> State:
        return State.RUNNING if record.wanted == "running" else State.STOPPED

    async def recover(self, record: Record) -> None:
        self.calls["recover"] += 1

    async def remove(self, record: Record) -> None:
        self.calls["remove"] += 1
        await self.resume.wait()
        if self.error:
            raise MachineError(self.error)

    async def close(self) -> None:
        self.calls["close"] += 1


class RunningDaemon:
    """A daemon that runs in this process."""

    def __init__(self, state_dir: Path, kind: ScriptedKind) -> None:
        self.state_dir = state_dir
        self.kind = kind
        self.client = HostClient.of(state_dir, timeout=0)

    def machine(self, name: str = "m1", *, scope: str = "fleet", token: str = TOKEN) -> HostedMachine:
        return self.client.machine("process", scope, name, token)

    async def create(self, machine: HostedMachine, report: Callable[[str], None] = lambda _line: None) -> Place:
        return await asyncio.to_thread(machine.create, {}, Ask("m1", KEY, b"#!/bin/sh\n"), report)


@contextlib.asynccontextmanager
async def daemon(state_dir: Path, kind: ScriptedKind, at_once: int = 4) -> AsyncIterator[RunningDaemon]:
    serving = asyncio.Event()
    served = Daemon(state_dir, Machines(state_dir, lambda _name, _dir: kind, at_once))
    running = asyncio.create_task(served.run(serving.set))
    ready = asyncio.create_task(serving.wait())
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    if running.done():
        running.result()
    try:
        yield RunningDaemon(state_dir, kind)
    finally:
        served.end()
        await running
