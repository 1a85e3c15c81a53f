"""`herder demo`: a cluster and machines from a few objects, on this host, in seconds, leaving nothing behind."""

from __future__ import annotations

import asyncio
import tempfile
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.api.capi.conditions import is_true
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, NODE
from herder.api.inmemory.kinds import IN_MEMORY_MACHINE_TEMPLATE
from herder.api.inmemory.manifest import in_memory_cluster, made, reference
from herder.api.inmemory.names import NODE_DELAY, START_DELAY
from herder.cli.demo_machines import (
    LOOK_AROUND,
    MACHINES,
    driver_ready,
    follow_creation,
    look_around,
    machine_objects,
)
from herder.engine.meta.errors import Invalid, NotFound
from herder.engine.meta.kinds import Kind, Object

if TYPE_CHECKING:
    from herder.engine.client.client import Client

NAME, NAMESPACE, WORKERS = "meadow", "default", 3
PHASES = ("Pending", "Provisioning", "Provisioned", "Running", "Deleting")
DELAYS = {START_DELAY: "0.6", NODE_DELAY: "0.4"}
WIDTH = 124  # of a terminal that all of it fits


@click.command()
def command() -> None:
    """Show it working: a cluster comes up, is changed machine by machine, gets machines of this host, and goes."""
    from herder.cli.logs import configure
    from herder.cli.process import run_loop

    configure(level="error")
    with tempfile.TemporaryDirectory(prefix="herder-demo-") as directory:
        run_loop(_demo(Path(directory)))


async def _demo(directory: Path) -> None:
    started = time.perf_counter()
    from herder.cli.serving import Serving
    from herder.engine.client import kubeconfig
    from herder.engine.client.client import Client
    from herder.engine.client.http import HttpTransport

    serving = Serving(directory, "127.0.0.1", 0, core="own", in_memory=True, machines=True, runner=True)
    await serving.start()
    client = Client(HttpTransport(kubeconfig.load(serving.kubeconfig)), field_manager="demo")
    try:
        _say(f"a Kubernetes API server at {serving.url}, ready after {time.perf_counter() - started:.2f} s")
        await _served(client)
        _say(f"apply a Cluster with one control plane machine and a MachineDeployment of {WORKERS}")
        for kind, obj in in_memory_cluster(NAME, workers=WORKERS, machine_annotations=DELAYS):
            await _create(client, kind, obj)
        await _follow(client)
        await _until_available(client)
        _say(f"herder describe cluster {NAME}")
        await _describe(serving.kubeconfig)
        _say("its own API answers, by the kubeconfig in its Secret: the nodes")
        await _nodes(client)
        _say("another machine template: machines are replaced one at a time, never fewer than asked for at work")
        await _change_template(client)
        await _follow(client)
        _say("ask for nonsense: refused, naming the field")
        await _refused(client)
        await _machines(client, serving.kubeconfig)
        _say("delete the Cluster: machines, nodes and everything else of it go in order")
        await client.delete(CLUSTER.resource, NAME, namespace=NAMESPACE)
        await _gone(client)
        _say(f"nothing is left, after {time.perf_counter() - started:.1f} s in all; next: herder up --in-memory")
    finally:
        await client.close()
        await serving.stop()


def _say(text: str) -> None:
    click.echo(click.style("» ", fg="green", bold=True) + text)


async def _served(client: Client) -> None:
    """Until our kinds are served."""
    for _ in range(1000):
        try:
            await client.list(IN_MEMORY_MACHINE_TEMPLATE.resource)
            return
        except NotFound:
            await asyncio.sleep(0.02)
    raise click.ClickException("our kinds were not served in time")


async def _create(client: Client, kind: Kind, obj: Object) -> None:
    obj["metadata"]["namespace"] = NAMESPACE
    await client.create(kind.resource, obj, namespace=NAMESPACE)


async def _follow(client: Client) -> None:
    """Print what becomes of the Machines until as many as wanted are current and available."""
    printing = asyncio.ensure_future(_print_phases(client))
    try:
        watch = client.watch(MACHINE_DEPLOYMENT.resource, namespace=NAMESPACE, initial_events=True)
        async for event in watch:
            if event.type != "BOOKMARK" and _is_current(event.object):
                return
    finally:
        printing.cancel()
        await asyncio.gather(printing, return_exceptions=True)


async def _print_phases(client: Client) -> None:
    phases: dict[str, str] = {}
    are_known, told = False, ""
    async for event in client.watch(MACHINE.resource, namespace=NAMESPACE, initial_events=True):
        if event.type == "BOOKMARK":  # those that were there before are known now, and told with what changes next
            are_known = True
            continue
        name = event.object["metadata"]["name"]
        phases[name] = (event.object.get("status") or {}).get("phase", "Pending")
        if event.type == "DELETED":
            del phases[name]
        line = "  ".join(
            f"{phase} {list(phases.values()).count(phase)}" for phase in PHASES if phase in phases.values()
        )
        if are_known and line != told:
            click.echo(f"    Machines: {line}")
            told = line


def _is_current(deployment: Object) -> bool:
    status = deployment.get("status") or {}
    counts = [status.get(count) for count in ("replicas", "availableReplicas", "upToDateReplicas")]
    return status.get("observedGeneration") == deployment["metadata"]["generation"] and counts == [WORKERS] * 3


async def _until_available(client: Client) -> None:
    async for event in client.watch(CLUSTER.resource, namespace=NAMESPACE, initial_events=True):
        if event.type != "BOOKMARK" and is_true(event.object, "Available"):
            return


async def _describe(kubeconfig: Path) -> None:
    from herder.cli.describe import show
    from herder.engine.client import kubeconfig as kubeconfigs

    for line in await show(kubeconfigs.load(kubeconfig), NAMESPACE, NAME):
        click.echo("    " + (line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"))


async def _nodes(client: Client) -> None:
    from herder.cli.clusters import connect

    workload = await connect(client, f"{NAMESPACE}/{NAME}")
    try:
        for node in (await workload.list(NODE.resource)).items:
            ready = next(each["status"] for each in node["status"]["conditions"] if each["type"] == "Ready")
            version = node["status"]["nodeInfo"]["kubeletVersion"]
            click.echo(f"    node/{node['metadata']['name']}: {'Ready' if ready == 'True' else 'NotReady'}, {version}")
    finally:
        await workload.close()


async def _machines(client: Client, kubeconfig: Path) -> None:
    _say(
        f"machines that are really there: {MACHINES} of driver `process`, files, processes and an address of their own"
    )
    await driver_ready(client)
    for kind, obj in machine_objects(NAME):
        await _create(client, kind, obj)
    machine = await follow_creation(client, NAMESPACE)
    if machine:
        _say(f"herder ssh {machine} -- '{LOOK_AROUND}'")
        await look_around(kubeconfig, machine)


async def _change_template(client: Client) -> None:
    template = {"template": {"metadata": {"annotations": DELAYS}, "spec": {"capacity": {"cpu": "8"}}}}
    await _create(client, *made(IN_MEMORY_MACHINE_TEMPLATE, f"{NAME}-larger", template))
    infrastructure = reference(IN_MEMORY_MACHINE_TEMPLATE, f"{NAME}-larger")
    patch = {"spec": {"template": {"spec": {"infrastructureRef": infrastructure}}}}
    await client.patch(MACHINE_DEPLOYMENT.resource, f"{NAME}-workers", patch, namespace=NAMESPACE)


async def _refused(client: Client) -> None:
    nonsense = {"maxSurge": 0, "maxUnavailable": 0}
    patch = {"spec": {"rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": nonsense}}}}
    try:
        await client.patch(MACHINE_DEPLOYMENT.resource, f"{NAME}-workers", patch, namespace=NAMESPACE)
    except Invalid as error:
        told = textwrap.wrap(f"{error.code} {error.reason}: {error.message}", WIDTH, subsequent_indent="  ")
        click.echo(textwrap.indent("\n".join(told), "    "))


async def _gone(client: Client) -> None:
    page = await client.list(CLUSTER.resource, namespace=NAMESPACE)
    if not page.items:
        return
    async for event in client.watch(CLUSTER.resource, namespace=NAMESPACE, resource_version=page.resource_version):
        if event.type == "DELETED":
            return
