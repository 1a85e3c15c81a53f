"""`herder run`: run the controllers on a Kubernetes cluster, with leader election."""

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
from herder.app.core.core import Core
from herder.app.gateway_listener import GatewayListener
from herder.app.host.log_format import configure
from herder.app.host.paths import data_dir_option, data_directory, kubeconfig_option, kubeconfig_path, split_listen
from herder.app.host.process import first_of, run_loop, stop_signal, tune_interpreter, until_stopped, wall_clock
from herder.app.machine_provider import maintain_host, provide_machines, publish_host
from herder.app.manager import Roles, WatchedSettings, create_manager, settings_from
from herder.app.settings import Layers, layers_from, settings_options
from herder.cli.examples import examples
from herder.cli.options import ALL_PODS, core_options, log_level_option, runner_pods_option
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.control.supervision import supervised
from herder.engine.logs import get_logger
from herder.engine.meta.errors import StatusError
from herder.engine.runtime.manager import Manager
from herder.gateway.webhooks.configurations import Service, Url, WebhookAddress

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
    """Parsed command line."""

    connection: kubeconfigs.RestConfig
    namespace: str
    data_dir: Path
    layers: Layers
    metrics: tuple[str, int] | None
    core: str
    in_memory: bool
    machines: bool | None  # None: unless another manager provides them
    example: bool
    webhooks: tuple[str, int] | None  # bind address; None disables defaulting and validation
    webhook_address: WebhookAddress | None  # how the API server reaches them
    runner: str  # node name of the runner; empty if disabled
    all_pods: bool  # whether the runner executes all pods
    hidden: tuple[Path, ...]  # files hidden from the runner's pods
    gateway: tuple[str, int] | None  # bind address of the gateway
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
            webhook_address=_webhook_address(webhook_url, namespace if in_cluster else ""),
            runner=runner_name if runner else "",
            all_pods=runner_pods == ALL_PODS,
            gateway=split_listen(gateway_listen, "--gateway-listen") if gateway_listen else None,
            gateway_names=gateway_name,
        )
        run_loop(_run(options))
    except (StatusError, kubeconfigs.KubeconfigError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _webhook_address(url: str | None, namespace: str) -> WebhookAddress | None:
    if url is None:
        return Service(namespace, WEBHOOK_SERVICE) if namespace else None
    address = Url(url)
    try:
        address.names  # noqa: B018 - read for its check
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--webhook-url") from error
    return address


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
    """Start in dependency order: CRDs, webhooks, then the controllers as the leader."""
    from herder.app.install import (
        ensure_namespace,
        install,
        install_plan_policy,
        install_role_policies,
        install_tenancy_policies,
    )
    from herder.app.metrics.server import add_manager_metrics, process_metrics

    core = Core(client, options.core)
    roles = Roles(
        core=await core.choose(),
        in_memory=options.in_memory,
        machines=await provide_machines(client, options.machines),
        gateway=options.gateway is not None,
        example=options.example,
    )
    if roles.core and options.webhooks is not None and options.webhook_address is None:
        raise click.UsageError(UNREACHABLE_WEBHOOKS)  # before anything is written
    await ensure_namespace(client, options.namespace)
    metrics = process_metrics()
    metrics.leader.labels(name="herder").set(0)
    watched = WatchedSettings(client)
    listener = GatewayListener(options.data_dir / "gateway", options.gateway, options.gateway_names)
    if roles.gateway:
        await listener.prepare(client, options.connection)
    settings = settings_from(options.layers, watched, listener.found())
    await install(client, settings, roles)
    if roles.gateway:
        await install_role_policies(client)
        await install_tenancy_policies(client)
        await install_plan_policy(client)
    await core.register_providers(in_memory=roles.in_memory)
    async with (
        _metrics(options, metrics),
        _webhooks(options, client, roles) as remove_core_webhooks,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(watched.run())
        await watched.ready()
        if options.runner:
            run_runner = partial(_run_runner, options, settings, roles)
            tasks.create_task(supervised(run_runner, name="runner", ends_with=(click.ClickException,)))
            if roles.machines:
                tasks.create_task(supervised(partial(maintain_host, options.data_dir), name="host-daemon"))
        workloads = _workloads(options, settings, client) if roles.in_memory else None
        managed = None
        if roles.gateway:
            gateway = listener.build(client, options.connection, settings)
            tasks.create_task(listener.open(gateway, metrics))
            managed = gateway.client_of
        manager = create_manager(client, settings, roles, workloads=workloads, managed=managed, metrics=metrics)
        add_manager_metrics(manager, settings.get)
        if roles.core:
            tasks.create_task(
                supervised(partial(core.watch_for_other_core, manager, remove_core_webhooks), name="core-choice")
            )
        tune_interpreter()
        try:
            # Two of our cores would conflict, so all use the same Lease, whatever their namespace.
            address = NAMESPACE if roles.core else options.namespace
            await _lead(options.connection, address, manager, metrics.leader.labels(name="herder").set)
        finally:
            if workloads is not None:
                await workloads.close()
        raise click.ClickException("leader election lost; another replica is the leader now")


async def _lead(
    connection: kubeconfigs.RestConfig, namespace: str, manager: Manager, report: Callable[[float], None]
) -> None:
    """Run the controllers until the Lease is lost."""
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
    from herder.app.metrics.server import serve

    server = await serve(metrics.render, *options.metrics) if options.metrics else None
    try:
        yield
    finally:
        if server is not None:
            server.close()


@asynccontextmanager
async def _webhooks(options: Options, client: Client, roles: Roles) -> AsyncIterator[Callable[[], None]]:
    """Serve webhooks on every replica. Yields the function that removes the webhooks of the Cluster API core."""
    from herder.gateway.webhooks import node_driver_review, reference_review
    from herder.gateway.webhooks.configurations import CLUSTER_API, CLUSTERS, MACHINES, Configuration
    from herder.gateway.webhooks.reconcile import install, keep, remove
    from herder.gateway.webhooks.secret_path import hidden, secret_part, with_hidden_paths
    from herder.gateway.webhooks.server import Answer, Webhooks

    chosen = ((CLUSTER_API, roles.core), (MACHINES, roles.machines), (CLUSTERS, roles.gateway))
    wanted: list[tuple[Configuration, ...]] = [configurations for configurations, has_role in chosen if has_role]
    address, namespace = options.webhook_address, options.namespace
    if options.webhooks is None or address is None or not wanted:
        if roles.machines:
            log.info(UNGUARDED_DRIVERS)
        log.warning(UNCHECKED_REFERENCES)
        yield lambda: None
        return
    manager = await reference_review.own_user(client)
    wanted.append(reference_review.configurations(manager))
    lookups: dict[str, Answer] = {
        node_driver_review.PATH: partial(node_driver_review.answer, client),
        reference_review.PATH: reference_review.ReferenceReviews(client, manager),
    }
    part = await secret_part(client, namespace, os.urandom)
    wanted = [with_hidden_paths(each, lookups, part) for each in wanted]
    more = {hidden(path, part): answer for path, answer in lookups.items()}
    webhooks = Webhooks(clock=wall_clock, extra=more)
    await webhooks.start(*options.webhooks)
    for each in wanted:
        await install(client, webhooks, address, each, clock=wall_clock, namespace=namespace)
    reconcilers = {
        each: asyncio.ensure_future(keep(client, webhooks, address, each, clock=wall_clock, namespace=namespace))
        for each in wanted
    }
    removing: list[asyncio.Future[None]] = []

    def remove_core_webhooks() -> None:
        reconcilers[CLUSTER_API].cancel()
        removing.append(asyncio.ensure_future(remove(client, CLUSTER_API)))

    try:
        yield remove_core_webhooks
    finally:
        for task in reconcilers.values():
            task.cancel()
        await asyncio.gather(*reconcilers.values(), *removing, return_exceptions=True)
        await webhooks.stop()


def _workloads(options: Options, settings: Settings, client: Client) -> Workloads:
    from herder.app.workload_clusters import may_dial
    from herder.workload.serving import Workloads

    directory = options.data_dir / "workloads"
    return Workloads(client, clock=wall_clock, data_dir=directory, may_dial=may_dial(settings.get))


async def _run_runner(options: Options, settings: Settings, roles: Roles) -> None:
    """Every replica can run Jobs; on a real cluster their pods come from kube-controller-manager."""
    from herder.app.runner import create_runner
    from herder.engine.runner.runner import RunnerError

    client = Client(HttpTransport(options.connection))
    try:
        host_paths = await publish_host(client, options.data_dir, options.runner) if roles.machines else ()
        runner = create_runner(
            client,
            settings,
            work_dir=options.data_dir / "runner",
            api_server=options.connection.server,
            name=options.runner,
            hidden=(options.data_dir, *options.hidden),
            host_paths=host_paths,
            all_pods=options.all_pods,
        )
        await runner.run()
    except RunnerError as error:
        raise click.ClickException(str(error)) from error
    finally:
        await client.close()
