"""`herder demo`: the engine at work, on this machine, in a few seconds, leaving nothing behind."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.api.example import CONFIG_MAP, FLOCK
from herder.engine.meta.errors import Invalid, NotFound
from herder.engine.meta.kinds import Object

if TYPE_CHECKING:
    from herder.cli.serving import Serving
    from herder.engine.client.client import Client


@click.command()
def command() -> None:
    """Show it working: an API server, a controller, a rolling change, a clean end."""
    from herder.cli.logs import configure
    from herder.cli.process import run_loop

    configure(level="warning")
    with tempfile.TemporaryDirectory(prefix="herder-demo-") as directory:
        run_loop(_demo(Path(directory)))


async def _demo(directory: Path) -> None:
    started = time.perf_counter()
    from herder.cli.serving import Serving
    from herder.engine.client import kubeconfig
    from herder.engine.client.client import Client
    from herder.engine.client.http import HttpTransport

    serving = Serving(directory, "127.0.0.1", 0, example=True)
    await serving.start()
    client = Client(HttpTransport(kubeconfig.load(serving.kubeconfig)), field_manager="demo")
    try:
        _say(f"a Kubernetes API server at {serving.url}, ready after {time.perf_counter() - started:.2f} s")
        await _settled(serving)
        _say("create a Flock of 4: its controller keeps 4 ConfigMaps that all carry one message")
        flock: Object = {
            "apiVersion": FLOCK.api_version,
            "kind": FLOCK.kind,
            "metadata": {"name": "sheep", "namespace": "default"},
            "spec": {"size": 4, "message": "hello", "pauseSeconds": 1},
        }
        await client.create(FLOCK.resource, flock, namespace="default")
        await _follow(client)
        _say("change the message: one member at a time, with a pause after each")
        await client.patch(FLOCK.resource, "sheep", {"spec": {"message": "good morning"}}, namespace="default")
        await _follow(client)
        members = await client.list(CONFIG_MAP.resource, namespace="default", labels="examples.herder.io/flock=sheep")
        for member in members.items:
            click.echo(f"    configmap/{member['metadata']['name']}: {member['data']['message']}")
        _say("ask for too many: the API server refuses, naming the field")
        await _refused(client)
        _say("delete it: members go last to first, then the Flock itself")
        await client.delete(FLOCK.resource, "sheep", namespace="default")
        await _gone(client)
        _say(f"done after {time.perf_counter() - started:.1f} s; next: herder up")
    finally:
        await client.close()
        await serving.stop()


def _say(text: str) -> None:
    click.echo(click.style("» ", fg="green", bold=True) + text)


async def _settled(serving: Serving) -> None:
    """Until the example's kind is served."""
    for _ in range(500):
        try:
            await serving.client.list(FLOCK.resource)
            return
        except NotFound:
            await asyncio.sleep(0.02)
    raise click.ClickException("the example's kind was not served in time")


async def _follow(client: Client) -> None:
    """Print each step until the Flock is ready at its newest generation."""
    told = ""
    async for event in client.watch(FLOCK.resource, namespace="default", initial_events=True):
        if event.type == "BOOKMARK":
            continue
        status = event.object.get("status") or {}
        current = status.get("observedGeneration") == event.object["metadata"]["generation"]
        line = (
            f"{status.get('phase', 'New'):<9}members {status.get('members', 0)}  up to date {status.get('upToDate', 0)}"
        )
        if status.get("waitingFor"):
            line += f"  ({status['waitingFor']})"
        if line != told and current:
            click.echo(f"    {line}")
            told = line
        if current and status.get("phase") == "Ready":
            return


async def _refused(client: Client) -> None:
    try:
        await client.patch(FLOCK.resource, "sheep", {"spec": {"size": 1000}}, namespace="default")
    except Invalid as error:
        click.echo(f"    {error.code} {error.reason}: {error.message}")


async def _gone(client: Client) -> None:
    page = await client.list(FLOCK.resource, namespace="default")
    if not page.items:
        return
    events = client.watch(FLOCK.resource, namespace="default", resource_version=page.resource_version)
    async for event in events:
        if event.type == "DELETED":
            return
