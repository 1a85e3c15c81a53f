"""`herder demo`: provision, edit and delete a cluster on this host."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.api.capi.kinds import MACHINE, NAMESPACE, NODE, SECRET
from herder.api.capi.names import kubeconfig_secret
from herder.api.machines.kinds import kinds_of
from herder.api.management.clusters import is_provisioned_here
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.management.names import DEFAULT_WORKSPACE
from herder.api.rke import names
from herder.api.rke.sample import cluster_objects
from herder.cli.cluster.options import edit
from herder.cli.cluster.progress import wait_until_deleted, wait_until_ready
from herder.cli.demo.installer import Installer, given, made
from herder.cli.demo.site import Site, local_site, process_site
from herder.cli.examples import examples
from herder.engine.meta.errors import AlreadyExists, NotFound, StatusError
from herder.engine.meta.kinds import Object

if TYPE_CHECKING:
    from herder.app.embedded import Serving
    from herder.engine.client.client import Client

NAME = "meadow"
LABEL = ("demo.herder.io/edited", "in-place")
WIDTH = 124  # terminal width that fits all output


@click.command(
    epilog=examples(
        "herder demo",
        "herder demo --once --workers 5",
        "sudo herder demo --driver local --kubernetes kubeadm",
    )
)
@click.option("--once", is_flag=True, help="Delete the cluster and exit at the end. Always on without a terminal.")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Number of workers. The demo cluster has one server.",
)
@click.option(
    "--driver",
    default="process",
    show_default=True,
    type=click.Choice(["process", "local"]),
    help="Node driver: process runs machines as processes of this host; local runs Debian machines in their own "
    "network and needs root.",
)
@click.option(
    "--kubernetes",
    default="embedded",
    show_default=True,
    type=click.Choice(["embedded", "kubeadm"]),
    help="Distribution: embedded starts in seconds and runs no pods; kubeadm is upstream Kubernetes and needs "
    "--driver local.",
)
@click.option(
    "--installer",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Installer archive written by `herder installer kubeadm --output`. Only for kubeadm.",
)
@click.option(
    "--programs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with the Kubernetes binaries to build an installer from. Only for kubeadm. Default: search PATH.",
)
def command(
    once: bool, workers: int, driver: str, kubernetes: str, installer: Path | None, programs: Path | None
) -> None:
    """Create a demo cluster on this host, change it in place and delete it."""
    from herder.app.host.log_format import configure
    from herder.app.host.process import run_loop

    if (driver == "local") != (kubernetes == "kubeadm"):
        raise click.UsageError("--driver local and --kubernetes kubeadm must be used together")
    if kubernetes == "embedded" and (installer or programs):
        raise click.UsageError("--installer and --programs require --kubernetes kubeadm")
    if installer and programs:
        raise click.UsageError("--installer and --programs are mutually exclusive")
    configure(level="error")
    interactive = not once and sys.stdin.isatty() and sys.stdout.isatty()
    with tempfile.TemporaryDirectory(prefix="herder-demo-") as directory:
        place = Path(directory)
        with _local_site(place, installer, programs) if driver == "local" else nullcontext(process_site()) as site:
            run_loop(_demo(place / "data", site, workers, interactive=interactive))


def _local_site(directory: Path, archive: Path | None, programs: Path | None) -> AbstractContextManager[Site]:
    def installer(place: Path) -> Installer:
        return given(archive) if archive else made(programs, place, _say)

    return local_site(directory, installer)


async def _demo(directory: Path, site: Site, workers: int, *, interactive: bool) -> None:
    from herder.app.embedded import Serving
    from herder.app.host.process import stop_signal
    from herder.engine.client import kubeconfig
    from herder.engine.client.client import Client
    from herder.engine.client.http import HttpTransport

    started = time.perf_counter()
    serving = Serving(
        directory,
        *site.listen,
        advertise=site.advertise,
        layers=site.layers,
        core="own",
        machines=True,
        gateway=True,
        runner=True,
    )
    await serving.start()
    client = Client(HttpTransport(kubeconfig.load(serving.kubeconfig)), field_manager="demo")
    try:
        _say(f"The manager and its Kubernetes API are up at {serving.url} after {time.perf_counter() - started:.2f} s")
        await _provision(client, site, workers)
        _say(f"The cluster is ready after {time.perf_counter() - started:.1f} s. Nodes, read through the agent tunnel:")
        await _show_nodes(client)
        await _edit_in_place(client)
        if interactive:
            await _wait_for_user(serving, site, stop_signal())
        await _remove_clusters(client)
        _say(f"The demo is done and cleaned up after {time.perf_counter() - started:.1f} s")
    finally:
        await client.close()
        await serving.stop()


async def _provision(client: Client, site: Site, workers: int) -> None:
    await _served(client, site.driver)
    _say(f"herder create cluster {NAME} --servers 1 --workers {workers}")
    with suppress(AlreadyExists):
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DEFAULT_WORKSPACE}}
        await client.create(NAMESPACE.resource, space)
    objects = cluster_objects(
        NAME, DEFAULT_WORKSPACE, driver=site.driver, version=site.version, pools=site.pools(workers)
    )
    objects[-1][1]["spec"]["rkeConfig"] |= site.config
    for kind, obj in objects:
        await client.create(kind.resource, obj, namespace=DEFAULT_WORKSPACE)
    await wait_until_ready(client, DEFAULT_WORKSPACE, NAME, _detail)


async def _served(client: Client, driver: str) -> None:
    """Wait until the CRDs of clusters and of the driver are served."""
    for kind in (PROVISIONING_CLUSTER, kinds_of(driver).config):
        for _ in range(1500):
            with suppress(NotFound):
                await client.list(kind.resource, namespace=DEFAULT_WORKSPACE)
                break
            await asyncio.sleep(0.02)
        else:
            raise click.ClickException(f"{kind.kind}: timed out waiting for the API server to serve this kind")


async def _show_nodes(client: Client) -> None:
    cluster = await _workload(client)
    try:
        nodes = (await cluster.list(NODE.resource)).items
    finally:
        await cluster.close()
    for node in nodes:
        ready = next((each["status"] for each in node["status"]["conditions"] if each["type"] == "Ready"), "Unknown")
        roles = sorted(key.partition("/")[2] for key in _labels(node) if key.startswith("node-role.kubernetes.io/"))
        reported = (
            node["metadata"]["name"],
            "Ready" if ready == "True" else "NotReady",
            ",".join(roles) or "<none>",
            node["status"]["nodeInfo"]["kubeletVersion"],
            next(each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP"),
        )
        _detail("  ".join(word.ljust(width) for word, width in zip(reported, (34, 9, 20, 18, 15), strict=True)))


async def _workload(client: Client) -> Client:
    """Client for the cluster from its kubeconfig, through gateway and tunnel."""
    import base64

    from herder.engine.client import kubeconfig
    from herder.engine.client.client import Client
    from herder.engine.client.http import HttpTransport

    secret = await client.get(SECRET.resource, kubeconfig_secret(NAME), namespace=DEFAULT_WORKSPACE)
    return Client(HttpTransport(kubeconfig.parse(base64.b64decode(secret["data"]["value"]).decode())))


async def _edit_in_place(client: Client) -> None:
    _say(f"Edit machineGlobalConfig: add the label {'='.join(LABEL)} to every node, without replacing machines")
    before = await _machine_uids(client)

    def add_label(cluster: Object) -> None:
        config = cluster["spec"]["rkeConfig"]
        config["machineGlobalConfig"] = {**(config.get("machineGlobalConfig") or {}), "node-label": ["=".join(LABEL)]}

    await edit(client, DEFAULT_WORKSPACE, NAME, add_label)
    await wait_until_ready(client, DEFAULT_WORKSPACE, NAME, _detail)
    await _labelled(client)
    same = await _machine_uids(client) == before
    _say(f"All {len(before)} nodes have the label; {'no machine was replaced' if same else 'machines were replaced'}")


async def _labelled(client: Client) -> None:
    cluster = await _workload(client)
    try:
        for _ in range(600):
            with suppress(StatusError, OSError):
                if all(LABEL in _labels(node).items() for node in (await cluster.list(NODE.resource)).items):
                    return
            await asyncio.sleep(0.05)
    finally:
        await cluster.close()
    raise click.ClickException(f"timed out waiting for the label {'='.join(LABEL)} on every node")


async def _machine_uids(client: Client) -> set[str]:
    labels = f"{names.CLUSTER_NAME}={NAME}"
    page = await client.list(MACHINE.resource, namespace=DEFAULT_WORKSPACE, labels=labels)
    return {each["metadata"]["uid"] for each in page.items}


async def _remove_clusters(client: Client) -> None:
    """Delete all provisioned clusters, including the user's own: their machines would outlive the manager."""
    for cluster in (await client.list(PROVISIONING_CLUSTER.resource)).items:
        if not is_provisioned_here(cluster):
            continue
        name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
        _say(f"herder delete cluster {name}")
        with suppress(NotFound):
            await client.delete(PROVISIONING_CLUSTER.resource, name, namespace=namespace)
        await wait_until_deleted(client, namespace, name, _detail)


async def _wait_for_user(serving: Serving, site: Site, stop: asyncio.Event) -> None:
    _say("The cluster is yours. Try these commands in another terminal:")
    for line in (
        f"export KUBECONFIG={serving.kubeconfig}",
        *_path_to_herder(),
        f"herder describe cluster {NAME}",
        f"herder kubeconfig {NAME} > {NAME}.yaml && kubectl --kubeconfig {NAME}.yaml get nodes",
        f"herder scale cluster {NAME} workers=3",
        *([f"herder upgrade cluster {NAME} v1.36.4+herder1"] if site.driver == "process" else []),
        f"kubectl -n {DEFAULT_WORKSPACE} edit clusters.provisioning.cattle.io {NAME}",
        f"herder delete cluster {NAME}",
    ):
        click.echo(f"    {line}")  # not truncated, because users copy it
    _say("Press Ctrl-C to delete the cluster and exit")
    await stop.wait()


def _path_to_herder() -> list[str]:
    """Export PATH if `herder` is not this installation, as with `make demo`."""
    own = Path(sys.executable).parent
    found = shutil.which("herder")
    return [] if found and Path(found).parent == own else [f"export PATH={own}:$PATH"]


def _labels(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _say(text: str) -> None:
    click.echo(click.style("» ", fg="green", bold=True) + text)


def _detail(text: str) -> None:
    line = text.strip()
    click.echo("    " + (line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"))
