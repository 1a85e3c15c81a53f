"""The part of `herder demo` with machines that are really there: directories and processes of this host."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.api.capi.kinds import MACHINE_DEPLOYMENT
from herder.api.inmemory.kinds import IN_MEMORY_BOOTSTRAP_TEMPLATE
from herder.api.inmemory.manifest import made, reference
from herder.api.machines.kinds import kinds_of
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object

if TYPE_CHECKING:
    from herder.engine.client.client import Client

PROCESS = kinds_of("process")
MACHINES = 2
LOOK_AROUND = "hostname; ls -d /run/cluster-api/*; ps -e --no-headers -o pid,comm"


def machine_objects(cluster: str) -> list[tuple[Kind, Object]]:
    """A template of the driver `process`, and a MachineDeployment over it."""
    name = f"{cluster}-herd"
    labels = {"pool": name}
    spec: Object = {
        "clusterName": cluster,
        "bootstrap": {"configRef": reference(IN_MEMORY_BOOTSTRAP_TEMPLATE, cluster)},
        "infrastructureRef": reference(PROCESS.template, name),
    }
    deployment = {
        "clusterName": cluster,
        "replicas": MACHINES,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }
    return [
        made(PROCESS.template, name, {"template": {"spec": {}}}),
        made(MACHINE_DEPLOYMENT, name, deployment),
    ]


async def driver_ready(client: Client) -> None:
    """Until the driver has become kinds."""
    while True:
        try:
            await client.list(PROCESS.template.resource)
            return
        except NotFound:
            await asyncio.sleep(0.02)


async def follow_creation(client: Client, namespace: str) -> str:
    """Print what becomes of each machine; the name of one that can be entered, "" where none could be made."""
    told: dict[str, str] = {}
    async for event in client.watch(PROCESS.machine.resource, namespace=namespace, initial_events=True):
        if event.type == "BOOKMARK":
            continue
        name, state = str(event.object["metadata"]["name"]), _state(event.object)
        if told.get(name) != state and state:
            click.echo(f"    {name}: {state}")
            told[name] = state
        if list(told.values()).count("created") == MACHINES:
            return name
        if state.startswith("failed"):
            return ""
    return ""


def _state(machine: Object) -> str:
    status = machine.get("status") or {}
    created: Object = next((each for each in status.get("conditions") or () if each["type"] == "CreateJob"), {})
    if created.get("status") == "True":
        return "created"
    if created.get("status") == "False":
        return f"failed: {status.get('failureMessage') or created.get('message')}"
    return "a Job creates it" if created else ""


async def look_around(kubeconfig: Path, machine: str) -> None:
    """`herder ssh`, as a person would type it."""
    command = [sys.executable, "-m", "herder.cli", "ssh", machine, "--", LOOK_AROUND]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    for line in (done.stdout + done.stderr).splitlines():
        click.echo(f"    {line}")
