"""Shared options of cluster commands: which cluster, and whether to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.app.paths import kubeconfig_option, workspace_option
from herder.cli.client import ask
from herder.cli.cluster.progress import wait_until_deleted, wait_until_ready
from herder.cli.terminal import escaped
from herder.engine.client.client import Client
from herder.engine.meta.errors import Conflict
from herder.engine.meta.kinds import Object

Command = TypeVar("Command", bound=Callable[..., Any])
TRIES = 5


def cluster_options(command: Command) -> Command:
    options = (
        click.argument("name"),
        workspace_option,
        click.option("--wait/--no-wait", default=True, help="Print progress and wait for completion.  [default: wait]"),
        click.option(
            "--timeout",
            default=3600.0,
            metavar="SECONDS",
            help="Maximum time to wait. After it, the operation continues in the background.  [default: 3600]",
        ),
        kubeconfig_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


def change(
    kubeconfig: str | None,
    namespace: str,
    name: str,
    act: Callable[[Client], Awaitable[object]],
    *,
    wait: bool,
    timeout: float,
    gone: bool = False,
) -> None:
    """Run `act`, then print progress until the cluster is ready or deleted."""

    async def changed(client: Client) -> None:
        await act(client)
        if not wait:
            return
        try:
            async with asyncio.timeout(timeout):
                await (wait_until_deleted if gone else wait_until_ready)(client, namespace, name, _say)
        except TimeoutError:
            check = f"the operation continues in the background: herder describe cluster {name} -n {namespace}"
            raise click.ClickException(f"cluster {name}: timed out after {timeout:g} s; {check}") from None

    ask(kubeconfig, lambda client, _here: changed(client))


async def edit(client: Client, namespace: str, name: str, mutate: Callable[[Object], None]) -> Object:
    """Update the provisioning Cluster; retries on conflict."""
    for attempt in range(TRIES):
        cluster = await client.get(PROVISIONING_CLUSTER.resource, name, namespace=namespace)
        mutate(cluster)
        try:
            return await client.update(PROVISIONING_CLUSTER.resource, cluster)
        except Conflict:
            if attempt == TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _say(line: str) -> None:
    click.echo(escaped(line))
