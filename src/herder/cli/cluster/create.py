"""`herder create cluster`: create a provisioning Cluster and its machine configs, and wait for it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import click
import yaml
from click.core import ParameterSource

from herder.api.machines.kinds import CONFIG_GROUP, driver_of
from herder.api.rke.sample import REPORT_ONLY, ROLE_FIELDS, Pool, cluster_objects, servers_and_workers
from herder.api.writes import owner_reference
from herder.cli.cluster.creator import creator_annotation
from herder.cli.cluster.options import (
    change,
    cluster_options,
    missing_namespace,
    namespace_flag,
    output_option,
    wait_command,
)
from herder.cli.examples import examples
from herder.cli.resources import ResourceGroup
from herder.engine.client.client import Client
from herder.engine.client.discovery import is_served
from herder.engine.client.kubeconfig import yaml_problem
from herder.engine.meta.errors import AlreadyExists, StatusError
from herder.engine.meta.kinds import Kind, Object

DEFAULT_VERSION = "v1.36.3+herder1"
SERVED_TIMEOUT_SECONDS = 15.0
EXPLICIT = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
COUNT = click.IntRange(min=0)
_POOL = re.compile(r"(?P<name>[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)=(?P<quantity>[0-9]{1,4}):(?P<roles>[a-z+]+)")


EXAMPLES = examples(
    "herder create cluster meadow",
    "herder create cluster meadow --servers 3 --workers 5 --kubernetes v1.36.3+k3s1 --driver amazonec2 \\",
    "    --credential fleet-default:aws --machine-config region=eu-central-1",
    "herder create cluster meadow --kubernetes v1.36.3+kubeadm1 --driver local \\",
    "    --pool main=3:etcd+controlplane --pool workers=10:worker",
    "herder create cluster meadow --servers 0 --workers 0    # then: herder register meadow --roles all",
    "herder create cluster meadow --dry-run > meadow.yaml",
)


@click.group(cls=ResourceGroup, epilog=examples("herder create cluster meadow --servers 1 --workers 2"))
def command() -> None:
    """Create a cluster and its machines."""


@command.command(epilog=EXAMPLES)
@cluster_options
@click.option(
    "--kubernetes",
    metavar="VERSION",
    default=DEFAULT_VERSION,
    show_default=True,
    help="Kubernetes version. The suffix selects the distribution, such as +k3s1.",
)
@click.option(
    "--driver", metavar="NAME", default="process", show_default=True, help="Node driver that creates the machines."
)
@click.option(
    "--servers",
    type=COUNT,
    default=1,
    show_default=True,
    help="Number of machines with the roles etcd and controlplane, and worker if --workers is 0.",
)
@click.option("--workers", type=COUNT, default=2, show_default=True, help="Number of machines with the role worker.")
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="NAME=COUNT:ROLES",
    help="Machine pool; ROLES are etcd, controlplane and worker, joined by +. Replaces --servers and --workers. "
    "Can be repeated.",
)
@click.option(
    "--machine-config",
    "settings",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Field of the driver's machine config in all pools. VALUE is a string, true, false or a list [a, b]. "
    "Can be repeated.",
)
@click.option(
    "--unhealthy-node-timeout",
    default=REPORT_ONLY,
    show_default=True,
    metavar="DURATION",
    help="Replace workers whose Node is lost or not ready for this long, such as 10m. 0s only reports them.",
)
@click.option("--credential", default="", metavar="NAMESPACE:NAME", help="Cloud credential Secret of the node driver.")
@click.option(
    "--config",
    "configuration",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file with the fields of machineGlobalConfig.",
)
@output_option
@click.option("--dry-run", is_flag=True, help="Print the objects as YAML without creating them.")
@click.pass_context
def cluster(
    context: click.Context,
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
    unhealthy_node_timeout: str,
    credential: str,
    configuration: Path | None,
    output: str | None,
    dry_run: bool,
) -> None:
    """Create the cluster NAME and its machines, and install Kubernetes on them.

    With --servers 0 --workers 0, the cluster has no machine pools: register existing machines with
    `herder register NAME`.
    """
    given = [option for option in ("servers", "workers") if context.get_parameter_source(option) in EXPLICIT]
    if pools and given:
        raise click.UsageError(f"--pool and --{given[0]} are mutually exclusive")
    fields = dict(_setting(each) for each in settings)
    wanted = [_pool(each) for each in pools] or servers_and_workers(servers, workers)
    _check_roles(wanted)
    chosen = [Pool(pool.name, pool.quantity, pool.roles, fields, unhealthy_node_timeout) for pool in wanted]
    objects = cluster_objects(name, namespace, driver=driver, version=kubernetes, pools=chosen, credential=credential)
    if configuration is not None:
        objects[-1][1]["spec"]["rkeConfig"]["machineGlobalConfig"] = _configuration(configuration)
    if dry_run:
        click.echo(yaml.safe_dump_all([obj for _, obj in objects], sort_keys=False, explicit_start=True), nl=False)
        return
    wait = wait and bool(chosen)
    change(
        kubeconfig,
        namespace,
        name,
        lambda client: _create(client, namespace, objects),
        wait=wait,
        timeout=timeout,
        created=True,
        output=output,
    )
    if output:
        return
    if not chosen:
        register = f"herder register {name}{namespace_flag(namespace)} --roles all"
        click.echo(f"cluster {name} has no machines; register one with: {register}")
        return
    if not wait:
        click.echo(f"To wait until it is ready, run: {wait_command(namespace, name)}")
    use = f"herder kubeconfig {name} > {name}.yaml && kubectl --kubeconfig {name}.yaml get nodes"
    click.echo(f"To use it{'' if wait else ' then'}, run: {use}")


async def _create(client: Client, namespace: str, objects: list[tuple[Kind, Object]]) -> None:
    *configs, (kind, cluster) = objects
    cluster = {**cluster, "metadata": {**cluster["metadata"], "annotations": await creator_annotation(client)}}
    for each in {kind, *(config for config, _ in configs)}:
        await _wait_until_served(client, each)
    # If it is refused, nothing has been created.
    with missing_namespace(namespace):
        await client.create(kind.resource, cluster, namespace=namespace, dry_run=True)
    for each, obj in configs:
        _check_fields(each, obj, await _store_config(client, each, obj, dry_run=True))
    stored: list[tuple[Kind, Object]] = []
    try:
        for each, obj in configs:
            stored.append((each, await _store_config(client, each, obj, dry_run=False)))
        created = await client.create(kind.resource, cluster, namespace=namespace)
    except StatusError as error:
        if error.code < HTTPStatus.INTERNAL_SERVER_ERROR:  # After other errors the Cluster may exist.
            await _delete_configs(client, stored)
        raise
    await _adopt_configs(client, stored, owner_reference(kind, created, controller=True))


async def _delete_configs(client: Client, configs: Sequence[tuple[Kind, Object]]) -> None:
    for kind, config in configs:
        meta = config["metadata"]
        with suppress(StatusError):  # The next attempt replaces it.
            await client.delete(kind.resource, meta["name"], namespace=meta["namespace"], uid=meta["uid"])


async def _adopt_configs(client: Client, configs: Sequence[tuple[Kind, Object]], owner: Object) -> None:
    """Make the Cluster own its configs at once: it may be deleted before the manager sees it."""
    for kind, config in configs:
        meta = config["metadata"]
        patch = {"metadata": {"uid": meta["uid"], "ownerReferences": [owner]}}
        with suppress(StatusError):  # The manager does it, too.
            await client.patch(kind.resource, meta["name"], patch, namespace=meta["namespace"])


async def _store_config(client: Client, kind: Kind, config: Object, *, dry_run: bool) -> Object:
    """Create a machine config, replacing one left by an earlier failed attempt.

    That one is deleted instead of updated: it may belong to another user, whose clusters may reference its UID.
    """
    name, namespace = config["metadata"]["name"], config["metadata"]["namespace"]
    try:
        return await client.create(kind.resource, config, namespace=namespace, dry_run=dry_run)
    except AlreadyExists:
        known = (await client.get(kind.resource, name, namespace=namespace))["metadata"]
    if known.get("ownerReferences"):
        owner = known["ownerReferences"][0]["name"]
        raise click.ClickException(
            f"{kind.kind} {name} already exists and belongs to cluster {owner}; choose another cluster or pool name"
        )
    if dry_run:
        return await client.update(kind.resource, {**config, "metadata": known}, dry_run=True)
    await client.delete(kind.resource, name, namespace=namespace, uid=known["uid"])
    return await client.create(kind.resource, config, namespace=namespace)


def _check_fields(kind: Kind, asked: Object, stored: Object) -> None:
    """The API server drops unknown fields silently."""
    for field in asked.keys() - stored.keys():
        known = ", ".join(sorted(stored.keys() - {"apiVersion", "kind", "metadata", "common"}))
        raise click.BadParameter(
            f"{kind.kind} has no field {field}; its fields are: {known}", param_hint="--machine-config"
        )


async def _wait_until_served(client: Client, kind: Kind) -> None:
    """CRDs appear shortly after the manager starts or a driver is activated."""
    try:
        async with asyncio.timeout(SERVED_TIMEOUT_SECONDS):
            while True:
                if await is_served(client, kind.resource):
                    return
                await asyncio.sleep(0.1)
    except TimeoutError:
        driver = driver_of(kind.kind) if kind.group == CONFIG_GROUP else ""
        hint = (
            f"activate the NodeDriver {driver} (list them with: herder get nodedrivers)"
            if driver
            else "run the manager with a gateway"
        )
        raise click.ClickException(f"the API server does not serve {kind.kind} ({kind.group}); {hint}") from None


def _check_roles(pools: Sequence[Pool]) -> None:
    covered = {role for pool in pools if pool.quantity for role in pool.roles}
    missing = [role for role in ROLE_FIELDS if role not in covered]
    if pools and missing:
        raise click.UsageError(
            f"no machine has the role {' or '.join(missing)}; assign {', '.join(ROLE_FIELDS)} to at least one machine "
            "each, or pass --servers 0 --workers 0 to register existing machines later"
        )


def _configuration(file: Path) -> dict[str, object]:
    try:
        content = yaml.safe_load(file.read_text()) or {}
    except yaml.YAMLError as error:
        raise click.BadParameter(f"{file}: invalid YAML: {yaml_problem(error)}", param_hint="--config") from None
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{file}: invalid YAML: {error}", param_hint="--config") from None
    if not isinstance(content, dict):
        raise click.BadParameter(f"{file} must be a YAML mapping of machineGlobalConfig fields", param_hint="--config")
    return content


def _setting(text: str) -> tuple[str, object]:
    """Driver fields are strings (also numbers), booleans, or lists of strings."""
    field, equals, value = text.partition("=")
    if not field or not equals:
        raise click.BadParameter(f"{text!r} is not FIELD=VALUE", param_hint="--machine-config")
    if value in ("true", "false"):
        return field, value == "true"
    if value.startswith("[") and value.endswith("]"):
        return field, [each.strip() for each in value[1:-1].split(",") if each.strip()]
    return field, value


def _pool(text: str) -> Pool:
    found = _POOL.fullmatch(text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is not NAME=COUNT:ROLES, such as main=3:etcd+controlplane", param_hint="--pool"
        )
    roles = tuple(found["roles"].split("+"))
    for role in roles:
        if role not in ROLE_FIELDS:
            raise click.BadParameter(
                f"{text!r}: unknown role {role!r}; use {', '.join(ROLE_FIELDS)}", param_hint="--pool"
            )
    return Pool(found["name"], int(found["quantity"]), roles)
