"""Shared options of cluster commands: which cluster, and whether to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import click

from herder.api.capi.kinds import NAMESPACE
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.management.names import DEFAULT_WORKSPACE
from herder.app.host.paths import kubeconfig_option, workspace_option
from herder.cli.client import INTERRUPTED, ask
from herder.cli.cluster.progress import GRANT_SECONDS, Say, wait_until_deleted, wait_until_ready
from herder.cli.get import print_data
from herder.cli.terminal import escaped
from herder.engine.client.client import Client
from herder.engine.meta.errors import Conflict, Forbidden, NotFound
from herder.engine.meta.kinds import Object

Command = TypeVar("Command", bound=Callable[..., Any])
TRIES = 5
READY, DELETED = "ready", "deleted"


timeout_option = click.option(
    "--timeout",
    default=3600.0,
    metavar="SECONDS",
    help="Maximum time to wait. After it, the operation continues in the background.  [default: 3600]",
)


def cluster_options(command: Command, metavar: str = "NAME") -> Command:
    options = (
        click.argument("name", metavar=metavar),
        workspace_option,
        click.option("--wait/--no-wait", default=True, help="Print progress and wait for completion.  [default: wait]"),
        timeout_option,
        kubeconfig_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


operation_options = partial(cluster_options, metavar="CLUSTER")
"""For commands whose resource is not the cluster itself."""

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "yaml"]),
    help="Print the Cluster object as json or yaml, and progress on standard error.",
)


def change(
    kubeconfig: str | None,
    namespace: str,
    name: str,
    act: Callable[[Client], Awaitable[object]],
    *,
    wait: bool,
    timeout: float,
    until: str = READY,
    created: bool = False,
    output: str | None = None,
) -> None:
    """Run `act`, then print progress until the cluster is ready or deleted.

    `created`: the user gets rights on the cluster a moment later. `output`: print the object at the end.
    """
    operation = Operation(namespace, name, until)

    async def changed(client: Client) -> None:
        operation.accept(await act(client))
        if wait:
            await operation.wait(client, timeout, partial(print_line, err=bool(output)), created=created)
        if output:
            print_data(await read_cluster(client, namespace, name, created=created), output)

    with operation.continues_in_background():
        ask(kubeconfig, lambda client, _here: changed(client))


@dataclass
class Operation:
    """A change of a cluster that the manager carries out, whether or not a command waits for it."""

    namespace: str
    name: str
    until: str  # READY or DELETED
    uid: str = ""  # of a deleted cluster, which its owners can no longer read
    is_accepted: bool = False

    def accept(self, answer: object) -> None:
        """Record the response of the API server to the change."""
        self.is_accepted = True
        if self.until == DELETED and isinstance(answer, dict):
            self.uid = str((answer.get("metadata") or {}).get("uid") or "")

    async def wait(self, client: Client, timeout: float, say: Say, *, created: bool = False) -> None:
        """Print progress until the cluster is ready or deleted."""
        async with time_limit(self.name, timeout, self._wait_command()):
            if self.until == DELETED:
                await wait_until_deleted(client, self.namespace, self.name, say, uid=self.uid)
            else:
                await wait_until_ready(client, self.namespace, self.name, say, created=created)

    def continues_in_background(self) -> AbstractContextManager[None]:
        return interruptible("The operation", lambda: self._wait_command() if self.is_accepted else "")

    def _wait_command(self) -> str:
        until = f" --for {self.until}" if self.until != READY else ""
        return wait_command(self.namespace, self.name) + until + (f" --uid {self.uid}" if self.uid else "")


def wait_command(namespace: str, name: str) -> str:
    """The command that waits until the cluster is ready, as shown to users."""
    return f"herder wait cluster {name}{namespace_flag(namespace)}"


def namespace_flag(namespace: str) -> str:
    """The flag that a shown command needs for a Cluster object in this namespace; empty in the default one."""
    return "" if namespace in ("", DEFAULT_WORKSPACE) else f" -n {namespace}"


@asynccontextmanager
async def time_limit(name: str, timeout: float, again: str) -> AsyncIterator[None]:
    """Limit the wait for a change of the cluster `name`; `again` is the command that waits for it again."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError:
        continues = f"the operation continues in the background; wait for it with: {again}"
        raise click.ClickException(f"cluster {name}: timed out after {timeout:g} s; {continues}") from None


@contextmanager
def interruptible(what: str, again: Callable[[], str]) -> Iterator[None]:
    """After Ctrl-C, say what continues in the manager, and the command that waits for it again; empty if nothing
    continues."""
    try:
        yield
    except click.exceptions.Exit as interrupted:
        if interrupted.exit_code == INTERRUPTED and (command := again()):
            click.echo(
                f"\nInterrupted. {what} continues in the manager. To wait for it again, run:\n  {command}", err=True
            )
        raise


async def read_cluster(client: Client, namespace: str, name: str, *, created: bool) -> Object:
    """The provisioning Cluster, without managedFields. Its creator may read it a moment after the creation."""
    deadline = asyncio.get_running_loop().time() + (GRANT_SECONDS if created else 0)
    while True:
        try:
            cluster = await client.get(PROVISIONING_CLUSTER.resource, name, namespace=namespace)
        except Forbidden:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.2)
            continue
        cluster["metadata"].pop("managedFields", None)
        return cluster


@contextmanager
def missing_namespace(namespace: str) -> Iterator[None]:
    """Explain the error about a namespace that does not exist. No command creates one: the name may be a typo."""
    try:
        yield
    except NotFound as error:
        if (error.details or {}).get("kind") != NAMESPACE.plural:
            raise
        create = f"check -n, or create it with: kubectl create namespace {namespace}"
        raise click.ClickException(f'namespace "{namespace}" not found; {create}') from None


async def edit(client: Client, namespace: str, name: str, mutate: Callable[[Object], None]) -> Object:
    """Update the provisioning Cluster; retries on conflict."""
    for attempt in range(TRIES):
        cluster = await existing_cluster(client, namespace, name)
        mutate(cluster)
        try:
            return await client.update(PROVISIONING_CLUSTER.resource, cluster)
        except Conflict:
            if attempt == TRIES - 1:
                raise
    raise AssertionError("unreachable")


async def existing_cluster(client: Client, namespace: str, name: str) -> Object:
    try:
        return await client.get(PROVISIONING_CLUSTER.resource, name, namespace=namespace)
    except NotFound:
        listing = f"herder get {PROVISIONING_CLUSTER.resource.group_resource} -A"
        raise click.ClickException(
            f"cluster {name} not found in namespace {namespace}; list all clusters with: {listing}"
        ) from None


def check_provisioned(name: str, cluster: Object, what: str) -> None:
    """Refuse imported clusters. `what` completes the advice, such as `scale it`."""
    if (cluster["spec"] or {}).get("rkeConfig") is None:
        raise click.ClickException(f"cluster {name} is imported; {what} with the tool that created it")


def print_line(line: str, err: bool = False) -> None:
    click.echo(escaped(line), err=err)
