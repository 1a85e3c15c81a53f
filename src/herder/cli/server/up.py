"""`herder up`: API server, controllers and Job runner in one process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.app.paths import DEFAULT_LISTEN, data_dir_option, data_directory, split_listen
from herder.app.process import run_loop, stop_signal
from herder.app.settings import layers_from, settings_options
from herder.cli.examples import examples
from herder.cli.options import ALL_PODS, core_options, log_level_option, runner_pods_option

if TYPE_CHECKING:
    from herder.app.embedded import Serving


@click.command(
    epilog=examples(
        "herder up",
        "herder up --listen 0.0.0.0:7443 --advertise manager.example.com",
        "herder up --in-memory --data-dir /tmp/herder --set history-retention=1h",
    )
)
@data_dir_option
@click.option(
    "--listen",
    default=DEFAULT_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Bind address of the API server and the gateway. Port 0 selects a free port.",
)
@click.option(
    "--advertise",
    metavar="HOST",
    multiple=True,
    help="Host name or IP address of this server, added to its certificate as a SAN. "
    "The first one is used in the kubeconfig and as default of the setting server-url. Can be repeated.",
)
@core_options
@settings_options
@click.option("--example", is_flag=True, help="Also run the example controller for Flock objects.")
@click.option(
    "--gateway/--no-gateway",
    default=True,
    help="Provision and import clusters, accept cluster agents and let users log in.  [default: gateway]",
)
@click.option("--no-runner", is_flag=True, help="Do not run Jobs on this host.")
@runner_pods_option
@log_level_option
def command(
    data_dir: Path | None,
    listen: str,
    advertise: tuple[str, ...],
    capi_core: str,
    in_memory: bool,
    machines: bool | None,
    set_flags: tuple[str, ...],
    settings_file: Path | None,
    example: bool,
    gateway: bool,
    no_runner: bool,
    runner_pods: str,
    log_level: str,
) -> None:
    """Run the API server and all controllers in this process.

    The kubeconfig of the server is written to the data directory.
    """
    host, port = split_listen(listen)
    layers = layers_from(set_flags, settings_file)
    from herder.app.embedded import Serving
    from herder.app.log_format import configure
    from herder.engine.apiserver.pki import PkiError
    from herder.engine.meta.errors import StatusError
    from herder.engine.store import StoreError

    configure(level=log_level)
    serving = Serving(
        data_dir or data_directory(),
        host,
        port,
        advertise=advertise,
        layers=layers,
        core=capi_core,
        in_memory=in_memory,
        machines=machines is not False,
        example=example,
        gateway=gateway,
        runner=not no_runner,
        all_pods=runner_pods == ALL_PODS,
    )
    try:
        run_loop(_up(serving))
    except (PkiError, StoreError, StatusError, OSError) as error:
        raise click.ClickException(str(error)) from error


async def _up(serving: Serving) -> None:
    stop = stop_signal()
    await serving.start()
    try:
        click.echo(_welcome(serving.url, serving.kubeconfig))
        await serving.until(stop)
    finally:
        await serving.stop()
    click.echo("stopped")


def _welcome(url: str, kubeconfig: Path) -> str:
    return (
        f"Herder serves the Kubernetes API at {url}\n\n"
        f"  export KUBECONFIG={kubeconfig}\n"
        "  herder create cluster meadow    # create a cluster with machines on this host\n"
        "  kubectl get namespaces          # or: herder get namespaces\n"
        "  herder store backup FILE        # back up all data while the server runs\n\n"
        "Press Ctrl-C to stop. All acknowledged writes are on disk."
    )
