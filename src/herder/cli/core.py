"""Cluster API's core as a part of this process: whether ours runs here, and how it stands aside when another comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import click

from herder.api.capi.core import Mode, Verdict
from herder.api.capi.inventory import NAMESPACE
from herder.cli.capi_core import CoreChoice, enter_inventory, leave_inventory
from herder.cli.install import make_namespace
from herder.cli.process import until_stopped, wall_clock
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.manager import Manager

log = get_logger(__name__)


class Core:
    """`inside`: in the process of the embedded API server, where nobody else's core of ours may run."""

    def __init__(self, client: Client, mode: str, *, inside: bool = False) -> None:
        self._client = client
        self._inside = inside
        self._choice = CoreChoice(client, Mode(mode), clock=wall_clock, inside=inside)
        self._verdict = Verdict(False, "")

    @property
    def runs(self) -> bool:
        return self._verdict.run

    async def choose(self) -> bool:
        """Whether ours runs; refused with the reason where it was asked for and another is there."""
        self._verdict = await self._choice.look()
        if self._verdict.conflict:
            raise click.ClickException(self._verdict.reason)
        log.info("Cluster API core", runs=self._verdict.run, reason=self._verdict.reason)
        return self._verdict.run

    async def enter_inventory(self, *, in_memory: bool) -> None:
        if self.runs or in_memory:
            await make_namespace(self._client, NAMESPACE)
        await enter_inventory(self._client, core=self.runs, in_memory=in_memory, inside=self._inside)
        if self._inside and not self.runs:
            await leave_inventory(self._client)  # of a time when it ran here

    async def watch_for_another(self, manager: Manager, aside: Callable[[], None]) -> None:
        """For as long as ours runs: `aside` is called when it must not any more. It comes back with a restart."""
        halted = asyncio.Event()
        names = [running.controller.name for running in manager.running.values() if _is_of_the_core(running.controller)]

        def report(verdict: Verdict) -> None:
            if self._verdict.run and not verdict.run:
                log.warning("disabled the built-in Cluster API core", reason=verdict.reason)
                self._verdict = verdict
                manager.halt(names)
                aside()
                halted.set()

        following = asyncio.ensure_future(self._choice.follow(self._verdict, report))
        try:
            await until_stopped(halted, following)
        finally:
            following.cancel()
        await leave_inventory(self._client)


def _is_of_the_core(controller: Controller) -> bool:
    return str(controller.reconcile.__module__).startswith("herder.controllers.capi.")
