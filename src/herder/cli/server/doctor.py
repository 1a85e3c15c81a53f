"""`herder doctor`: check a host or a cluster before Herder is installed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.api.capi.core import Mode
from herder.app.doctor.finding import Finding, Status, is_fit
from herder.app.host.paths import DEFAULT_LISTEN, data_dir_option, data_directory, split_listen
from herder.cli.examples import examples
from herder.cli.terminal import escaped
from herder.engine.client import kubeconfig as kubeconfigs

if TYPE_CHECKING:
    from herder.app.doctor.cluster import ClusterOptions
    from herder.engine.client.kubeconfig import RestConfig

_COLUMN = max(len(status.value) for status in Status)
_HOST_FLAGS = {"data_dir": "--data-dir", "listen": "--listen", "drivers": "--driver"}
_CLUSTER_FLAGS = {
    "capi_core": "--capi-core",
    "machines": "--machines",
    "gateway": "--gateway",
    "namespace": "--namespace",
    "webhook_url": "--webhook-url",
}


@click.command(
    epilog=examples(
        "herder doctor",
        "sudo herder doctor --driver process --driver local --listen 0.0.0.0:443",
        "herder doctor --kubeconfig admin.yaml --webhook-url https://10.0.0.5:9443",
        "herder doctor --kubeconfig admin.yaml -o json",
    )
)
@click.option("--kubeconfig", metavar="FILE", help="Check this cluster for `herder run`. Default: check this host.")
@click.option("--in-cluster", is_flag=True, help="Check the cluster of this pod, with its service account.")
@data_dir_option
@click.option(
    "--listen",
    default=DEFAULT_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Of a host: bind address of `herder up`.",
)
@click.option(
    "--driver",
    "drivers",
    multiple=True,
    type=click.Choice(["process", "local", "none"]),
    help="Of a host: node driver that must work; what others lack is a warning. Can be repeated.  [default: process]",
)
@click.option(
    "--capi-core",
    type=click.Choice([mode.value for mode in Mode]),
    default=Mode.AUTO.value,
    show_default=True,
    help="Of a cluster: as of `herder run`.",
)
@click.option("--machines/--no-machines", default=None, help="Of a cluster: as of `herder run`.")
@click.option(
    "--gateway/--no-gateway",
    default=True,
    help="Of a cluster: whether `herder run` is to have --gateway-listen.  [default: gateway]",
)
@click.option(
    "--namespace",
    metavar="NAME",
    default="herder-system",
    show_default=True,
    help="Of a cluster: leader election namespace.",
)
@click.option("--webhook-url", metavar="URL", help="Of a cluster: URL at which the API server reaches the webhooks.")
@click.option("-o", "--output", type=click.Choice(["json", "yaml"]), help="Output format: json or yaml. Default: text.")
@click.pass_context
def command(
    context: click.Context,
    kubeconfig: str | None,
    in_cluster: bool,
    data_dir: Path | None,
    listen: str,
    drivers: tuple[str, ...],
    capi_core: str,
    machines: bool | None,
    gateway: bool,
    namespace: str,
    webhook_url: str | None,
    output: str | None,
) -> None:
    """Check this host for `herder up`, or a cluster for `herder run`.

    Prints one line for each check, with advice. It changes nothing. The exit status is 1 if a requirement is missing.
    """
    if kubeconfig and in_cluster:
        raise click.UsageError("--kubeconfig and --in-cluster are mutually exclusive")
    if kubeconfig or in_cluster:
        from herder.app.doctor.cluster import ClusterOptions

        _refuse(context, _HOST_FLAGS, "a host; omit --kubeconfig and --in-cluster")
        options = ClusterOptions(
            namespace=namespace,
            core=capi_core,
            machines=machines,
            gateway=gateway,
            webhook_url=webhook_url or "",
            in_cluster=in_cluster,
        )
        findings = _of_cluster(kubeconfig, options)
    else:
        _refuse(context, _CLUSTER_FLAGS, "a cluster; pass --kubeconfig or --in-cluster")
        findings = _of_host((data_dir or data_directory()).absolute(), split_listen(listen), drivers or ("process",))
    _print(findings, output)
    if not is_fit(findings):
        raise click.exceptions.Exit(1)


def _refuse(context: click.Context, flags: dict[str, str], what: str) -> None:
    for name, flag in flags.items():
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{flag} is for {what}")


def _of_host(data_dir: Path, listen: tuple[str, int], drivers: Sequence[str]) -> list[Finding]:
    from herder.app.doctor.host import HostOptions, examine_host

    return asyncio.run(examine_host(HostOptions(data_dir, listen, frozenset(drivers) - {"none"})))


def _of_cluster(path: str | None, options: ClusterOptions) -> list[Finding]:
    from herder.app.doctor.cluster import examine_cluster
    from herder.engine.client.client import Client
    from herder.engine.client.http import HttpTransport

    async def examined(connection: RestConfig) -> list[Finding]:
        client = Client(HttpTransport(connection))
        try:
            return [finding async for finding in examine_cluster(client, options)]
        finally:
            await client.close()

    try:
        connection = kubeconfigs.load(Path(path)) if path else kubeconfigs.in_cluster()
    except (kubeconfigs.KubeconfigError, OSError) as error:
        raise click.ClickException(str(error)) from error
    return asyncio.run(examined(connection))


def _print(findings: Sequence[Finding], output: str | None) -> None:
    if output is None:
        for finding in findings:
            text = f"{finding.check}: {finding.message}{f'; {finding.advice}' if finding.advice else ''}"
            click.echo(f"{finding.status:<{_COLUMN}}   {escaped(' '.join(text.split()))}")
        return
    checks = [
        {"check": each.check, "status": each.status.value, "message": each.message, "advice": each.advice}
        for each in findings
    ]
    document = {"ok": is_fit(findings), "checks": checks}
    if output == "json":
        click.echo(json.dumps(document, indent=2))
    else:
        import yaml

        click.echo(yaml.safe_dump(document, sort_keys=False, width=10_000), nl=False)
