"""`herder create cluster`: a cluster from a few words, and what becomes of it."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path

import click
import yaml

from herder.api.capi.kinds import NAMESPACE
from herder.api.machines.kinds import CONFIG_GROUP, driver_of
from herder.api.rke.sample import ROLE_FIELDS, Pool, cluster_objects, servers_and_workers
from herder.cli.cluster_options import change, cluster_options
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, NotFound
from herder.engine.meta.kinds import Kind, Object

DEFAULT_VERSION = "v1.36.3+herder1"
PATIENCE_SECONDS = 15.0
_POOL = re.compile(r"(?P<name>[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)=(?P<quantity>[0-9]{1,4}):(?P<roles>[a-z+]+)")


@click.group()
def command() -> None:
    """Make something new."""


@command.command()
@cluster_options
@click.option("--kubernetes", default=DEFAULT_VERSION, show_default=True, help="The version, with its distribution.")
@click.option("--driver", default="process", show_default=True, help="What makes its machines.")
@click.option("--servers", default=1, show_default=True, help="Machines for etcd and the control plane.")
@click.option("--workers", default=2, show_default=True, help="Machines for everything else.")
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="NAME=COUNT:ROLES",
    help="Instead of --servers and --workers: etcd, controlplane and worker, with + between. Repeatable.",
)
@click.option(
    "--machine-config",
    "settings",
    multiple=True,
    metavar="FIELD=VALUE",
    help="A field of the driver's machine config, for all pools. May be repeated.",
)
@click.option("--credential", default="", metavar="NAMESPACE:NAME", help="The cloud credential of the driver.")
@click.option(
    "--config",
    "configuration",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML: machineGlobalConfig.",
)
@click.option("--dry-run", is_flag=True, help="Print the objects instead of making them.")
def cluster(
    name: str,
    namespace: str,
    wait: bool,
    timeout: float,
    kubeconfig: str | None,
    kubernetes: str,
    driver: str,
    servers: int,
    workers: int,
    pools: tuple[str, ...],
    settings: tuple[str, ...],
    credential: str,
    configuration: Path | None,
    dry_run: bool,
) -> None:
    """Make the cluster NAME: its machines, Kubernetes on them, and a way in."""
    fields = dict(_setting(each) for each in settings)
    wanted = [_pool(each) for each in pools] or servers_and_workers(servers, workers)
    chosen = [Pool(pool.name, pool.quantity, pool.roles, fields) for pool in wanted]
    objects = cluster_objects(name, namespace, driver=driver, version=kubernetes, pools=chosen, credential=credential)
    if configuration is not None:
        objects[-1][1]["spec"]["rkeConfig"]["machineGlobalConfig"] = yaml.safe_load(configuration.read_text()) or {}
    if dry_run:
        click.echo(yaml.safe_dump_all([obj for _, obj in objects], sort_keys=False, explicit_start=True), nl=False)
        return
    change(kubeconfig, namespace, name, lambda client: _make(client, namespace, objects), wait=wait, timeout=timeout)
    click.echo(f"use it: herder kubeconfig {name} > {name}.yaml && kubectl --kubeconfig {name}.yaml get nodes")


async def _make(client: Client, namespace: str, objects: list[tuple[Kind, Object]]) -> None:
    with suppress(AlreadyExists):
        await client.create(
            NAMESPACE.resource, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        )
    *configs, (kind, cluster) = objects
    for each in {kind, *(config for config, _ in configs)}:
        await _served(client, each, namespace)
    for each, obj in configs:
        with suppress(AlreadyExists):  # of an attempt that did not get as far as the cluster
            await client.create(each.resource, obj, namespace=namespace)
    await client.create(kind.resource, cluster, namespace=namespace)


async def _served(client: Client, kind: Kind, namespace: str) -> None:
    """A manager that has just started, or a driver that was just switched on, brings its kinds a moment later."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                with suppress(NotFound):
                    await client.list(kind.resource, namespace=namespace, limit=1)
                    return
                await asyncio.sleep(0.1)
    except TimeoutError:
        driver = driver_of(kind.kind) if kind.group == CONFIG_GROUP else ""
        hint = f"is there an active NodeDriver {driver}?" if driver else "does the manager run with a gateway?"
        raise click.ClickException(f"the kind {kind.kind} of {kind.group} is not served: {hint}") from None


def _setting(text: str) -> tuple[str, str]:
    field, equals, value = text.partition("=")
    if not field or not equals:
        raise click.BadParameter(f"{text!r} must be FIELD=VALUE", param_hint="--machine-config")
    return field, value


def _pool(text: str) -> Pool:
    found = _POOL.fullmatch(text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} must be NAME=COUNT:ROLES, such as main=3:etcd+controlplane", param_hint="--pool"
        )
    roles = tuple(found["roles"].split("+"))
    for role in roles:
        if role not in ROLE_FIELDS:
            raise click.BadParameter(f"{text!r}: {role!r} is none of {', '.join(ROLE_FIELDS)}", param_hint="--pool")
    return Pool(found["name"], int(found["quantity"]), roles)
