"""`herder up`: API server, controllers and Job runner in one process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from herder.app.host.busy_port import explain_bind_error
from herder.app.host.notification import notify_ready, take_notification_socket
from herder.app.host.paths import DEFAULT_LISTEN, data_dir_option, data_directory, split_listen
from herder.app.host.process import run_loop, stop_signal
from herder.app.settings import layers_from, settings_options
from herder.cli.examples import examples
from herder.cli.options import ALL_PODS, LOG_LEVELS, core_options, runner_pods_option
from herder.cli.server import background
from herder.engine.client import kubeconfig as kubeconfigs
from herder.snapshots.config import DEFAULT_RETENTION

if TYPE_CHECKING:
    from herder.app.embedded import Serving
    from herder.app.store.backups import Schedule


@click.command(
    epilog=examples(
        "herder up",
        "herder up --detach",
        "herder up --systemd-unit --systemd-user herder | sudo tee /etc/systemd/system/herder.service",
        "herder up --listen 0.0.0.0:7443 --advertise manager.example.com",
        "herder up --backup-schedule '0 */6 * * *' --backup-s3-config s3.json",
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
@click.option(
    "--backup-schedule",
    metavar="CRON",
    help="Back up the store on this schedule: five fields or a descriptor, such as '0 */6 * * *' or @daily. Times are "
    "UTC unless it starts with TZ=.",
)
@click.option(
    "--backup-dir",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    help="Directory of scheduled backups. Default: backups in the data directory.",
)
@click.option(
    "--backup-retention",
    type=click.IntRange(0),
    default=DEFAULT_RETENTION,
    show_default=True,
    help="Number of scheduled backups to keep in the directory; 0 keeps all.",
)
@click.option(
    "--backup-s3-config",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    help="Upload scheduled backups to S3 too. JSON file with mode 0600, as of herder store backup --s3-config; its key "
    "retention is the number of backups to keep in S3.",
)
@click.option(
    "--observe-only",
    is_flag=True,
    help="Change nothing in existing clusters until `herder resume cluster`, as after a restore. For a data directory "
    "that was rolled back as a whole, such as by a snapshot of its disk.",
)
@click.option("--no-runner", is_flag=True, help="Do not run Jobs on this host.")
@runner_pods_option
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    help="Minimum level of log messages. Default: warning on a terminal, else info.",
)
@click.option(
    "--detach", is_flag=True, help="Run in the background, and return when the server is ready. Stop: herder down."
)
@click.option("--systemd-unit", is_flag=True, help="Print a systemd unit that runs this command, and exit.")
@click.option(
    "--systemd-user",
    metavar="NAME",
    help="With --systemd-unit: run the service of the system as this user, hardened. It can create process machines, "
    "but no local ones.",
)
@click.pass_context
def command(
    context: click.Context,
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
    backup_schedule: str | None,
    backup_dir: Path | None,
    backup_retention: int,
    backup_s3_config: Path | None,
    observe_only: bool,
    no_runner: bool,
    runner_pods: str,
    log_level: str | None,
    detach: bool,
    systemd_unit: bool,
    systemd_user: str | None,
) -> None:
    """Run the API server and all controllers in this process.

    The kubeconfig of the server is written to the data directory.
    """
    host, port = split_listen(listen)
    layers = layers_from(set_flags, settings_file)
    if systemd_user and not systemd_unit:
        raise click.UsageError("--systemd-user needs --systemd-unit")
    of_service = background.SYSTEM_DATA_DIRECTORY if systemd_user else data_directory()
    directory = (data_dir or of_service).absolute()
    backups = _schedule(directory, backup_schedule, backup_dir, backup_retention, backup_s3_config)
    if detach or systemd_unit:
        _run_elsewhere(context, directory, detach=detach)
        return
    from herder.app.embedded import Serving
    from herder.app.host.log_format import configure
    from herder.engine.apiserver.pki import PkiError
    from herder.engine.meta.errors import StatusError
    from herder.engine.store import StoreError, StoreLocked

    configure(level=log_level or ("warning" if sys.stderr.isatty() else "info"))
    serving = Serving(
        directory,
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
        backups=backups,
        observe_only=observe_only,
    )
    try:
        run_loop(_up(serving, take_notification_socket(), context.params))
    except OSError as error:
        raise click.ClickException(explain_bind_error(error, host, port)) from error
    except StoreLocked as error:
        hint = f"stop it with: herder down --data-dir {directory}, or pass another --data-dir"
        raise click.ClickException(f"{str(error).partition(';')[0]}; {hint}") from error
    except (PkiError, StoreError, StatusError) as error:
        raise click.ClickException(str(error)) from error


def _schedule(
    data_dir: Path, cron: str | None, directory: Path | None, retention: int, s3_config: Path | None
) -> Schedule | None:
    """Check the flags for scheduled backups, before anything starts."""
    if cron is None:
        if directory is not None or s3_config is not None:
            raise click.UsageError("--backup-dir and --backup-s3-config need --backup-schedule")
        return None
    from herder.api.cron import validate_schedule
    from herder.app.store.backups import Schedule, default_directory
    from herder.snapshots.config import load_s3
    from herder.snapshots.errors import SnapshotError

    if problem := validate_schedule(cron):
        raise click.BadParameter(problem, param_hint="--backup-schedule")
    try:
        s3 = load_s3(s3_config) if s3_config else None
    except SnapshotError as error:
        raise click.BadParameter(str(error), param_hint="--backup-s3-config") from None
    return Schedule(cron, (directory or default_directory(data_dir)).absolute(), retention, s3)


async def _up(serving: Serving, notification_socket: str, options: Mapping[str, Any]) -> None:
    stop = stop_signal()
    await serving.start()
    ready = asyncio.ensure_future(serving.ready())
    try:
        await serving.until(stop, ready)
        if not stop.is_set():
            click.echo(_welcome(serving.url, serving.kubeconfig, options))
            click.echo("Press Ctrl-C to stop. All acknowledged writes are on disk.")
            notify_ready(notification_socket)
            await serving.until(stop)
    finally:
        ready.cancel()
        await serving.stop()
    click.echo("stopped")


def _run_elsewhere(context: click.Context, directory: Path, *, detach: bool) -> None:
    """Start the server in the background, or print the unit of a service that runs it."""
    arguments = _same_arguments(context, directory)
    if not detach:
        user, (_, port) = context.params["systemd_user"] or "", split_listen(context.params["listen"])
        click.echo(background.systemd_unit(arguments, directory, user=user, port=port), nl=False)
        return
    pid = background.start_in_background(directory, arguments)
    kubeconfig = directory / "kubeconfig"
    click.echo(_welcome(kubeconfigs.load(kubeconfig).server, kubeconfig, context.params))
    place = "" if directory == data_directory() else f" --data-dir {directory}"
    click.echo(f"Process {pid}, log in {directory / background.LOG}. To stop it, run: herder down{place}")


def _same_arguments(context: click.Context, directory: Path) -> list[str]:
    """The flags of this call, for another process."""
    arguments = ["--data-dir", str(directory)]
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in ("data_dir", "detach", "systemd_unit", "systemd_user") or not isinstance(parameter, click.Option):
            continue
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        if parameter.is_flag:
            arguments.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            values = value if parameter.multiple else (value,)
            arguments += [word for each in values for word in (parameter.opts[0], str(each))]
    return arguments


def _welcome(url: str, kubeconfig: Path, options: Mapping[str, Any]) -> str:
    provisions = options["gateway"] and options["machines"] is not False and not options["no_runner"]
    create = "  herder create cluster meadow    # create a cluster with machines on this host\n" if provisions else ""
    return (
        f"Herder serves the Kubernetes API at {url}\n\n"
        f"  export KUBECONFIG={kubeconfig}\n"
        f"{create}"
        "  herder get clusters             # or: kubectl get clusters.provisioning.cattle.io -A\n"
        "  herder store backup FILE        # back up all data while the server runs\n"
    )
