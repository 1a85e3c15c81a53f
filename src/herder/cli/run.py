"""`herder run`: the controllers on any Kubernetes cluster, one leader among the replicas."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import click

from herder.api.settings import Settings
from herder.cli import parts
from herder.cli.logs import configure
from herder.cli.places import data_dir_option, data_directory, kubeconfig_option, kubeconfig_path, split_listen
from herder.cli.process import run_loop, stop_signal, until_stopped, wall_clock
from herder.cli.settings import Layers, layers_from, settings_options
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, Forbidden, StatusError
from herder.engine.meta.kinds import GroupVersionResource


@click.command()
@kubeconfig_option
@click.option("--in-cluster", is_flag=True, help="Use the service account of the pod this runs in.")
@click.option("--namespace", default="herder-system", show_default=True, help="Where the leader's Lease lies.")
@click.option("--metrics-listen", metavar="HOST:PORT", help="Serve Prometheus metrics there.")
@settings_options
@click.option("--example", is_flag=True, help="Also run the example controller.")
@click.option("--runner", is_flag=True, help="Also be a node that runs Jobs as processes of this machine.")
@click.option("--runner-name", default="herder-runner", show_default=True, help="The name of that node.")
@data_dir_option
@click.option("--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning"]))
def command(
    kubeconfig: str | None,
    in_cluster: bool,
    namespace: str,
    metrics_listen: str | None,
    set_flags: tuple[str, ...],
    settings_file: Path | None,
    example: bool,
    runner: bool,
    runner_name: str,
    data_dir: Path | None,
    log_level: str,
) -> None:
    """Run the controllers on an existing Kubernetes cluster."""
    configure(level=log_level)
    listen = split_listen(metrics_listen, "--metrics-listen") if metrics_listen else None
    layers = layers_from(set_flags, settings_file)
    try:
        connection = kubeconfigs.in_cluster() if in_cluster else kubeconfigs.load(kubeconfig_path(kubeconfig))
        place = (data_dir or data_directory()) / "runner" if runner else None
        run_loop(_run(connection, namespace, listen, layers, example, place, runner_name))
    except (StatusError, kubeconfigs.KubeconfigError, OSError) as error:
        raise click.ClickException(str(error)) from error


async def _run(
    connection: kubeconfigs.Connection,
    namespace: str,
    listen: tuple[str, int] | None,
    layers: Layers,
    example: bool,
    runner_place: Path | None,
    runner_name: str,
) -> None:
    from herder.cli.install import install
    from herder.cli.metrics import process_metrics, serve
    from herder.engine.client.http import HttpTransport
    from herder.engine.runtime.beside import lead_beside
    from herder.engine.runtime.election import LeaderElection

    stop = stop_signal()
    client = Client(HttpTransport(connection))
    metrics = process_metrics()
    metrics.leader.labels(name="herder").set(0)
    identity = f"{socket.gethostname()}_{os.getpid()}_{os.urandom(4).hex()}"
    watched = parts.WatchedSettings(client)
    settings = parts.settings_from(layers, watched)
    manager = parts.make_manager(client, settings, example=example, metrics=metrics)

    async def lead() -> None:
        metrics.leader.labels(name="herder").set(1)
        try:
            await watched.ready()
            await manager.run()
        finally:
            metrics.leader.labels(name="herder").set(0)

    def election() -> LeaderElection:
        own = Client(HttpTransport(connection))
        return LeaderElection(own, name="herder-controllers", namespace=namespace, identity=identity, clock=wall_clock)

    installed = asyncio.Event()

    async def follow_settings() -> None:
        await installed.wait()
        await watched.run()

    async def work() -> None:
        await _make_namespace(client, namespace)
        await install(client, settings, example=example)
        installed.set()
        await lead_beside(election, lead, abort=manager.abort)

    serving = await serve(metrics.render, *listen) if listen else None
    leading = asyncio.ensure_future(work())
    beside = [asyncio.ensure_future(follow_settings())]
    if runner_place is not None:
        beside.append(asyncio.ensure_future(_be_a_node(connection, watched, settings, runner_place, runner_name)))
    try:
        await until_stopped(stop, leading, *beside)
        if not stop.is_set():
            raise click.ClickException("the lease was lost; another replica leads now")
    finally:
        for task in (leading, *beside):
            task.cancel()
        await asyncio.gather(leading, *beside, return_exceptions=True)
        if serving is not None:
            serving.close()
        await client.close()


async def _make_namespace(client: Client, name: str) -> None:
    """Where it may not be made but is there already, all is well; where it is not, writing the Lease will say so."""
    with contextlib.suppress(AlreadyExists, Forbidden):
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await client.create(GroupVersionResource("", "v1", "namespaces"), space)


async def _be_a_node(
    connection: kubeconfigs.Connection, watched: parts.WatchedSettings, settings: Settings, place: Path, name: str
) -> None:
    """Every replica may be one, leader or not; on a real cluster the Jobs' pods come from its controller-manager."""
    from herder.cli.node import make_runner
    from herder.engine.client.http import HttpTransport
    from herder.engine.runner.runner import RunnerError

    client = Client(HttpTransport(connection))
    try:
        await watched.ready()
        await make_runner(client, settings, work_dir=place, api_server=connection.server, name=name).run()
    except RunnerError as error:
        raise click.ClickException(str(error)) from error
    finally:
        await client.close()
