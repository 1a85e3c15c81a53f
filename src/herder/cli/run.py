"""`herder run`: the controllers on any Kubernetes cluster, one leader among the replicas."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.api.capi.inventory import NAMESPACE
from herder.api.settings import Settings
from herder.cli import parts
from herder.cli.core import Core
from herder.cli.core_options import ALL_PODS, core_options, log_level_option, runner_pods_option
from herder.cli.entrance import Entrance
from herder.cli.examples import examples
from herder.cli.logs import configure
from herder.cli.machines import keep_host, provide_host, provide_machines
from herder.cli.parts import Roles
from herder.cli.places import data_dir_option, data_directory, kubeconfig_option, kubeconfig_path, split_listen
from herder.cli.process import first_of, run_loop, stop_signal, tune_interpreter, until_stopped, wall_clock
from herder.cli.settings import Layers, layers_from, settings_options
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.control.supervision import supervised
from herder.engine.logs import get_logger
from herder.engine.meta.errors import StatusError
from herder.engine.runtime.manager import Manager
from herder.gateway.webhooks.configurations import Place, Service, Url

if TYPE_CHECKING:
    from herder.engine.control.metrics import Metrics
    from herder.workload.serving import Workloads

log = get_logger(__name__)

WEBHOOK_SERVICE = "herder-webhooks"
UNCHECKED_REFERENCES = (
    "webhooks are disabled: every author of Clusters, machines or annotated Secrets can use any Secret they reference"
)
UNREACHABLE_WEBHOOKS = (
    "the API server cannot reach the defaulting and validating webhooks; pass their address with "
    "--webhook-url https://HOST:PORT, or disable them with --no-webhooks"
)
UNGUARDED_DRIVERS = (
    "webhooks are disabled: a node driver can be deactivated or deleted while in use; its CRDs stay until their "
    "objects are deleted"
)


@dataclass(frozen=True, slots=True)
class Options:
    connection: kubeconfigs.Connection
    namespace: str
    data_dir: Path
    layers: Layers
    metrics: tuple[str, int] | None
    core: str
    in_memory: bool
    machines: bool | None  # None: unless another does
    example: bool
    webhooks: tuple[str, int] | None  # where they listen; None: the objects come with all defaults, and unchecked
    webhook_place: Place | None  # where the API server finds them
    runner: str  # the name of the node that this process is, if it is one
    all_pods: bool  # whether that node runs pods of everybody
    hidden: tuple[Path, ...]  # files that no pod of that node may see
    gateway: tuple[str, int] | None  # where agents and users come in
    gateway_names: tuple[str, ...]


@click.command(
    epilog=examples(
        "herder run --kubeconfig admin.yaml --webhook-url https://10.0.0.5:9443 \\",
        "    --gateway-listen 0.0.0.0:443 --gateway-name manager.example.com",
        "herder run --in-cluster --metrics-listen 0.0.0.0:8080    # in a pod",
        "herder run --no-webhooks --in-memory                     # for tests",
    )
)
@kubeconfig_option
@click.option("--in-cluster", is_flag=True, help="Connect with the service account of this pod.")
@click.option(
    "--namespace",
    metavar="NAME",
    default="herder-system",
    show_default=True,
    help="Leader election namespace, also of the webhook Service. "
    "If the built-in Cluster API core runs, the Lease is always in herder-system.",
)
@click.option("--metrics-listen", metavar="HOST:PORT", help="Serve Prometheus metrics at this address.")
@core_options
@click.option(
    "--webhook-listen",
    default="0.0.0.0:9443",
    show_default=True,
    metavar="HOST:PORT",
    help="Bind address of the admission webhooks.",
)
@click.option(
    "--webhook-url",
    metavar="URL",
    help=f"URL at which the API server reaches the webhooks. Default with --in-cluster: the Service {WEBHOOK_SERVICE}.",
)
@click.option(
    "--no-webhooks",
    is_flag=True,
    help="Disable defaulting and validating webhooks. References are then not checked: every author of Clusters, "
    "machines and annotated Secrets can use any Secret.",
)
@click.option(
    "--gateway-listen",
    metavar="HOST:PORT",
    help="Enable the gateway for managed clusters, agents and user logins, and bind it to this address.",
)
@click.option(
    "--gateway-name",
    metavar="HOST",
    multiple=True,
    help="Host name or IP address of the gateway, added to its certificate as a SAN. "
    "The first one is the default of the setting server-url. Can be repeated.",
)
@settings_options
@click.option("--example", is_flag=True, help="Also run the example controller for Flock objects.")
@click.option("--runner", is_flag=True, help="Also register this host as a node that runs Jobs as local processes.")
@click.option(
    "--runner-name", metavar="NAME", default="herder-runner", show_default=True, help="Node name of the runner."
)
@runner_pods_option
@data_dir_option
@log_level_option
def command(
    kubeconfig: str | None,
    in_cluster: bool,
    namespace: str,
    metrics_listen: str | None,
    capi_core: str,
    in_memory: bool,
    machines: bool | None,
    webhook_listen: str,
    webhook_url: str | None,
    no_webhooks: bool,
    gateway_listen: str | None,
    gateway_name: tuple[str, ...],
    set_flags: tuple[str, ...],
    settings_file: Path | None,
    example: bool,
    runner: bool,
    runner_name: str,
    runner_pods: str,
    data_dir: Path | None,
    log_level: str,
) -> None:
    """Run the controllers on an existing Kubernetes cluster.

    Replicas elect a leader; only the leader runs the controllers. Every replica serves webhooks and the gateway.
    """
    configure(level=log_level)
    metrics = split_listen(metrics_listen, "--metrics-listen") if metrics_listen else None
    layers = layers_from(set_flags, settings_file)
    try:
        options = Options(
            connection=kubeconfigs.in_cluster() if in_cluster else kubeconfigs.load(kubeconfig_path(kubeconfig)),
            hidden=() if in_cluster else (kubeconfig_path(kubeconfig),),
            namespace=namespace,
            data_dir=data_dir or data_directory(),
            layers=layers,
            metrics=metrics,
            core=capi_core,
            in_memory=in_memory,
            machines=machines,
            example=example,
            webhooks=None if no_webhooks else split_listen(webhook_listen, "--webhook-listen"),
            webhook_place=_webhook_place(webhook_url, namespace if in_cluster else ""),
            runner=runner_name if runner else "",
            all_pods=runner_pods == ALL_PODS,
            gateway=split_listen(gateway_listen, "--gateway-listen") if gateway_listen else None,
            gateway_names=gateway_name,
        )
        run_loop(_run(options))
    except (StatusError, kubeconfigs.KubeconfigError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _webhook_place(url: str | None, namespace: str) -> Place | None:
    if url is None:
        return Service(namespace, WEBHOOK_SERVICE) if namespace else None
    place = Url(url)
    try:
        place.names  # noqa: B018 - read for its check
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--webhook-url") from error
    return place


async def _run(options: Options) -> None:
    stop = stop_signal()
    client = Client(HttpTransport(options.connection))
    working = asyncio.ensure_future(_work(options, client))
    try:
        await until_stopped(stop, working)
    except ExceptionGroup as group:
        raise first_of(group) from group
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await client.close()


async def _work(options: Options, client: Client) -> None:
    """In the order things are needed: our kinds, our webhooks, and then, as the leader, the controllers."""
    from herder.cli.install import guard_plans, guard_roles, guard_tenancy, install, make_namespace
    from herder.cli.metrics import process_metrics

    core = Core(client, options.core)
    roles = Roles(
        core=await core.choose(),
        in_memory=options.in_memory,
        machines=await provide_machines(client, options.machines),
        gateway=options.gateway is not None,
        example=options.example,
    )
    if roles.core and options.webhooks is not None and options.webhook_place is None:
        raise click.UsageError(UNREACHABLE_WEBHOOKS)  # before anything is written
    await make_namespace(client, options.namespace)
    metrics = process_metrics()
    metrics.leader.labels(name="herder").set(0)
    watched = parts.WatchedSettings(client)
    entrance = Entrance(options.data_dir / "gateway", options.gateway, options.gateway_names)
    if roles.gateway:
        await entrance.prepare(client, options.connection)
    settings = parts.settings_from(options.layers, watched, entrance.found())
    await install(client, settings, roles)
    if roles.gateway:
        await guard_roles(client)
        await guard_tenancy(client)
        await guard_plans(client)
    await core.enter_inventory(in_memory=roles.in_memory)
    async with _metrics(options, metrics), _webhooks(options, client, roles) as unhook, asyncio.TaskGroup() as tasks:
        tasks.create_task(watched.run())
        await watched.ready()
        if options.runner:
            be_a_node = partial(_be_a_node, options, settings, roles)
            tasks.create_task(supervised(be_a_node, name="runner", ends_with=(click.ClickException,)))
            if roles.machines:
                tasks.create_task(supervised(partial(keep_host, options.data_dir), name="host-daemon"))
        workloads = _workloads(options, client) if roles.in_memory else None
        managed = None
        if roles.gateway:
            door = entrance.build(client, options.connection, settings)
            tasks.create_task(entrance.open(door))
            managed = door.client_of
        manager = parts.make_manager(client, settings, roles, workloads=workloads, managed=managed, metrics=metrics)
        if roles.core:
            tasks.create_task(supervised(partial(core.watch_for_another, manager, unhook), name="core-choice"))
        tune_interpreter()
        try:
            # Two of our cores would fight like any others: all of them want the same lease, whatever their namespace.
            place = NAMESPACE if roles.core else options.namespace
            await _lead(options.connection, place, manager, metrics.leader.labels(name="herder").set)
        finally:
            if workloads is not None:
                await workloads.close()
        raise click.ClickException("leader election lost; another replica is the leader now")


async def _lead(
    connection: kubeconfigs.Connection, namespace: str, manager: Manager, report: Callable[[float], None]
) -> None:
    """Until the lease is lost."""
    from herder.engine.runtime.election import LeaderElection
    from herder.engine.runtime.leader_thread import run_as_leader

    identity = f"{socket.gethostname()}_{os.getpid()}_{os.urandom(4).hex()}"

    def election() -> LeaderElection:
        own = Client(HttpTransport(connection))
        return LeaderElection(own, name="herder-controllers", namespace=namespace, identity=identity, clock=wall_clock)

    async def lead() -> None:
        report(1)
        try:
            await manager.run()
        finally:
            report(0)

    await run_as_leader(election, lead, abort=manager.abort)


@asynccontextmanager
async def _metrics(options: Options, metrics: Metrics) -> AsyncIterator[None]:
    from herder.cli.metrics import serve

    server = await serve(metrics.render, *options.metrics) if options.metrics else None
    try:
        yield
    finally:
        if server is not None:
            server.close()


@asynccontextmanager
async def _webhooks(options: Options, client: Client, roles: Roles) -> AsyncIterator[Callable[[], None]]:
    """Every replica answers, leader or not. What is handed over ends it for the core: nobody is to ask us any more."""
    from herder.gateway.webhooks import drivers, references
    from herder.gateway.webhooks.configurations import CLUSTER_API, CLUSTERS, MACHINES, Configuration
    from herder.gateway.webhooks.keeping import install, keep, remove
    from herder.gateway.webhooks.server import Answer, Webhooks

    chosen = ((CLUSTER_API, roles.core), (MACHINES, roles.machines), (CLUSTERS, roles.gateway))
    wanted: list[tuple[Configuration, ...]] = [configurations for configurations, has_role in chosen if has_role]
    place, namespace = options.webhook_place, options.namespace
    if options.webhooks is None or place is None or not wanted:
        if roles.machines:
            log.info(UNGUARDED_DRIVERS)
        log.warning(UNCHECKED_REFERENCES)
        yield lambda: None
        return
    manager = await references.own_user(client)
    wanted.append(references.configurations(manager))
    more: dict[str, Answer] = {
        drivers.PATH: partial(drivers.answer, client),
        references.PATH: references.ReferenceReviews(client, manager),
    }
    webhooks = Webhooks(clock=wall_clock, more=more)
    await webhooks.start(*options.webhooks)
    for each in wanted:
        await install(client, webhooks, place, each, clock=wall_clock, namespace=namespace)
    keeping = {
        each: asyncio.ensure_future(keep(client, webhooks, place, each, clock=wall_clock, namespace=namespace))
        for each in wanted
    }
    removing: list[asyncio.Future[None]] = []

    def unhook() -> None:
        keeping[CLUSTER_API].cancel()
        removing.append(asyncio.ensure_future(remove(client, CLUSTER_API)))

    try:
        yield unhook
    finally:
        for task in keeping.values():
            task.cancel()
        await asyncio.gather(*keeping.values(), *removing, return_exceptions=True)
        await webhooks.stop()


def _workloads(options: Options, client: Client) -> Workloads:
    from herder.workload.serving import Workloads

    return Workloads(client, clock=wall_clock, data_dir=options.data_dir / "workloads")


async def _be_a_node(options: Options, settings: Settings, roles: Roles) -> None:
    """Every replica may be one, leader or not; on a real cluster the Jobs' pods come from its controller-manager."""
    from herder.cli.node import make_runner
    from herder.engine.runner.runner import RunnerError

    client = Client(HttpTransport(options.connection))
    try:
        lent = await provide_host(client, options.data_dir, options.runner) if roles.machines else ()
        runner = make_runner(
            client,
            settings,
            work_dir=options.data_dir / "runner",
            api_server=options.connection.server,
            name=options.runner,
            hidden=(options.data_dir, *options.hidden),
            host_paths=lent,
            all_pods=options.all_pods,
        )
        await runner.run()
    except RunnerError as error:
        raise click.ClickException(str(error)) from error
    finally:
        await client.close()
