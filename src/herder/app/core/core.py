"""Cluster API core in this process: whether ours runs, and how it is disabled when another core appears."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import click

from herder.api.capi.core import Mode, Verdict
from herder.api.capi.inventory import NAMESPACE
from herder.app.core.detection import CoreDetector, register_providers, unregister_core
from herder.app.host.process import until_stopped, wall_clock
from herder.app.install import ensure_namespace
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.manager import Manager

log = get_logger(__name__)


class Core:
    """`inside` is set in the process of the embedded API server, where no other core of ours may run."""

    def __init__(self, client: Client, mode: str, *, inside: bool = False) -> None:
        self._client = client
        self._inside = inside
        self._choice = CoreDetector(client, Mode(mode), clock=wall_clock, inside=inside)
        self._verdict = Verdict(False, "")

    @property
    def runs(self) -> bool:
        return self._verdict.run

    async def choose(self) -> bool:
        """Whether our core runs; fails if it was requested and another is installed."""
        self._verdict = await self._choice.look()
        if self._verdict.conflict:
            raise click.ClickException(self._verdict.reason)
        log.info("Cluster API core", runs=self._verdict.run, reason=self._verdict.reason)
        return self._verdict.run

    async def register_providers(self, *, in_memory: bool) -> None:
        if self.runs or in_memory:
            await ensure_namespace(self._client, NAMESPACE)
        await register_providers(self._client, core=self.runs, in_memory=in_memory, inside=self._inside)
        if self._inside and not self.runs:
            await unregister_core(self._client)  # left over from when it ran here

    async def watch_for_other_core(self, manager: Manager, on_disable: Callable[[], None]) -> None:
        """Call `on_disable` when another core appears; ours starts again only with a restart."""
        halted = asyncio.Event()
        names = [
            running.controller.name for running in manager.running.values() if _is_core_controller(running.controller)
        ]

        def report(verdict: Verdict) -> None:
            if self._verdict.run and not verdict.run:
                log.warning("disabled the built-in Cluster API core", reason=verdict.reason)
                self._verdict = verdict
                manager.halt(names)
                on_disable()
                halted.set()

        detection = asyncio.ensure_future(self._choice.follow(self._verdict, report))
        try:
            await until_stopped(halted, detection)
        finally:
            detection.cancel()
        await unregister_core(self._client)


def _is_core_controller(controller: Controller) -> bool:
    return str(controller.reconcile.__module__).startswith("herder.controllers.capi.")
