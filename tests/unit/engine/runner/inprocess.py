"""A complete embedded server and a runner in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from herder.engine.apiserver.build import assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.apiserver.pki import Pki
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.runner.jobs import JobController
from herder.engine.runner.runner import Runner
from herder.engine.wire import User

ADMIN = User("admin", groups=("system:masters", "system:authenticated"))


def wall_clock() -> datetime:
    return datetime.now(UTC)


class Served:
    def __init__(self, client: Client, pki: Pki) -> None:
        self.client = client
        self.pki = pki


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    pki = Pki.load_or_create(None, now=wall_clock())
    server = await assemble(None, clock=wall_clock, entropy=os.urandom, pki=pki)
    try:
        yield Served(Client(InProcess(server, ADMIN)), pki)
    finally:
        await server.stop()


async def until(
    served: Served,
    resource: GroupVersionResource,
    name: str,
    holds: Callable[[Object], Any],
    namespace: str = "default",
) -> Object:
    async with asyncio.timeout(30):
        while True:
            try:
                obj = await served.client.get(resource, name, namespace=namespace)
                if holds(obj):
                    return obj
            except NotFound:
                pass
            await asyncio.sleep(0.02)


async def gone(served: Served, resource: GroupVersionResource, name: str) -> None:
    async with asyncio.timeout(30):
        while (await served.client.list(resource, namespace="default", fields=f"metadata.name={name}")).items:
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(served: Served, work_dir: Path, **options: Any) -> AsyncIterator[Runner]:
    """Run a Job controller, and a runner that admits any pod, until the end of the block."""
    options.setdefault("commands", lambda _image: None)
    options.setdefault("all_pods", True)
    runner = Runner(
        served.client,
        work_dir=work_dir,
        clock=wall_clock,
        client_ca=served.pki.authority.certificate_pem,
        **options,
    )
    tasks = [
        asyncio.ensure_future(runner.run()),
        asyncio.ensure_future(JobController(served.client, clock=wall_clock).run()),
    ]
    try:
        async with asyncio.timeout(20):
            await runner.ready.wait()
        yield runner
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
