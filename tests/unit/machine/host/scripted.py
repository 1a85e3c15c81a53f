"""A kind of machine that does what a test tells it to, and remembers what it was asked: the daemon's own part is tested
with it. And the daemon in this process, with clients in threads of their own."""

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


class Scripted:
    name = "process"

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.asks: list[Ask] = []
        self.making = 0
        self.most_at_once = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.began = asyncio.Event()
        self.fails: str = ""

    async def prepare(self) -> None:
        self.asked["prepare"] += 1

    def check(self, options: dict[str, Any]) -> None:
        if options.get("size") == "impossible":
            raise PreCreateFailed("options.size: no such size", "choose another")

    async def create(self, record: Record, ask: Ask, report: Report) -> Place:
        self.asked["create"] += 1
        self.asks.append(ask)
        self.making += 1
        self.most_at_once = max(self.making, self.most_at_once)
        self.began.set()
        try:
            report("half way")
            await self.go_on.wait()
        finally:
            self.making -= 1
        if self.fails:
            raise MachineError(self.fails)
        return PLACE

    async def start(self, record: Record, report: Report) -> Place:
        self.asked["start"] += 1
        return PLACE

    async def stop(self, record: Record, *, grace: float) -> None:
        self.asked["stop" if grace else "kill"] += 1

    def state(self, record: Record) -> State:
        return State.RUNNING if record.wanted == "running" else State.STOPPED

    async def recover(self, record: Record) -> None:
        self.asked["recover"] += 1

    async def remove(self, record: Record) -> None:
        self.asked["remove"] += 1
        await self.go_on.wait()
        if self.fails:
            raise MachineError(self.fails)

    async def close(self) -> None:
        self.asked["close"] += 1


class Here:
    """A daemon that runs in this process."""

    def __init__(self, state_dir: Path, kind: Scripted) -> None:
        self.state_dir = state_dir
        self.kind = kind
        self.client = HostClient.of(state_dir, patience=0)

    def machine(self, name: str = "m1", *, scope: str = "fleet", token: str = TOKEN) -> HostedMachine:
        return self.client.machine("process", scope, name, token)

    async def create(self, machine: HostedMachine, say: Callable[[str], None] = lambda _line: None) -> Place:
        return await asyncio.to_thread(machine.create, {}, Ask("m1", KEY, b"#!/bin/sh\n"), say)


@contextlib.asynccontextmanager
async def daemon(state_dir: Path, kind: Scripted, at_once: int = 4) -> AsyncIterator[Here]:
    serving = asyncio.Event()
    served = Daemon(state_dir, Machines(state_dir, lambda _name, _dir: kind, at_once))
    running = asyncio.create_task(served.run(serving.set))
    ready = asyncio.create_task(serving.wait())
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    if running.done():
        running.result()
    try:
        yield Here(state_dir, kind)
    finally:
        served.end()
        await running
