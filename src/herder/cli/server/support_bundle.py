"""`herder support-bundle`: write an archive with what a maintainer needs to help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.app.host.paths import data_dir_option, data_directory, kubeconfig_option
from herder.app.host.process import wall_clock
from herder.cli.client import ask
from herder.cli.examples import examples
from herder.cli.server.background import LOG
from herder.cli.terminal import escaped

if TYPE_CHECKING:
    from herder.app.support.bundle import Bundle
    from herder.engine.client.client import Client
    from herder.engine.client.kubeconfig import RestConfig


@click.command(
    epilog=examples(
        "herder support-bundle",
        "herder support-bundle -o /tmp/herder.tar.gz",
        "herder support-bundle --metrics-url http://10.0.0.5:8080/metrics",
        "herder support-bundle --namespace fleet-default",
    )
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write or replace. Default: herder-support-TIME.tar.gz in the current directory.",
)
@click.option("-n", "--namespace", metavar="NAME", default="", help="Skip objects of other namespaces. Default: none.")
@click.option("--metrics-url", metavar="URL", default="", help="Metrics of `herder run --metrics-listen`.")
@data_dir_option
@kubeconfig_option
def command(
    output: Path | None, namespace: str, metrics_url: str, data_dir: Path | None, kubeconfig: str | None
) -> None:
    """Collect versions, objects, Events, operations, metrics, the log and the checks of `herder doctor` in an archive.

    It never reads Secrets. It redacts fields and text that look like secrets, but it cannot recognize all: look at the
    archive before you send it. The file unread.json lists what your rights do not allow to read.
    """
    now = wall_clock()
    path = (output or Path(f"herder-support-{now:%Y%m%dT%H%M%SZ}.tar.gz")).absolute()
    if not path.parent.is_dir():
        raise click.ClickException(f"{path.parent}: no such directory; create it, or pass another file with --output")
    directory = (data_dir or data_directory()).absolute()

    async def collected(client: Client, connection: RestConfig) -> Bundle:
        from herder.app.support.bundle import Bundle, Sources

        is_here = _is_served_from(directory, connection.server)
        sources = Sources(
            client,
            connection.server,
            namespace=namespace,
            data_dir=directory if is_here else None,
            log=directory / LOG if is_here else None,
            metrics_url=metrics_url,
        )
        bundle = Bundle(sources)
        await bundle.collect()
        return bundle

    bundle = ask(kubeconfig, collected)
    try:
        bundle.archive.write(path, {"created": f"{now:%Y-%m-%dT%H:%M:%SZ}", "namespace": namespace or "all"})
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}; pass another file with --output") from error
    for each in bundle.unread:
        click.echo(escaped(f"not read: {each['what']}: {each['reason']}"), err=True)
    click.echo(f"{path}: {path.stat().st_size} bytes. Look at it before you send it: tar -tzf {path}")


def _is_served_from(directory: Path, server: str) -> bool:
    """Whether the embedded server of this directory is the one that the kubeconfig names."""
    from herder.engine.client import kubeconfig as kubeconfigs

    try:
        return kubeconfigs.load(directory / "kubeconfig").server == server
    except (kubeconfigs.KubeconfigError, OSError):
        return False
