"""`herder version`: versions of this command and of the manager."""

from __future__ import annotations

import json
from typing import Any

import click

from herder import __version__
from herder.api.settings import SERVER_VERSION, SETTING
from herder.app.host.paths import kubeconfig_option
from herder.cli.client import ask
from herder.cli.examples import examples
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError


@click.command(epilog=examples("herder version", "herder version --client", "herder version -o json"))
@click.option("--client", "client_only", is_flag=True, help="Print the version of this command only.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="Output format: json. Default: text.")
@kubeconfig_option
def command(client_only: bool, output: str | None, kubeconfig: str | None) -> None:
    """Print the versions of this command, of the manager and of its Kubernetes API."""
    found: dict[str, str] = {"client": __version__}
    problem = ""
    if not client_only:
        try:
            found |= ask(kubeconfig, lambda client, _here: _server(client))
        except (click.ClickException, click.UsageError) as error:
            problem = error.format_message()
    if output == "json":
        click.echo(json.dumps(found, indent=2))
    else:
        for name, version in found.items():
            click.echo(f"{name}: {version}")
    if problem:
        raise click.ClickException(f"the manager does not answer: {problem}")


async def _server(client: Client) -> dict[str, str]:
    kubernetes: dict[str, Any] = await client.document("/version")
    found = {"kubernetes API": str(kubernetes.get("gitVersion") or "unknown")}
    try:
        setting = await client.get(SETTING.resource, SERVER_VERSION)
    except StatusError:
        return found
    return {"manager": str(setting.get("default") or "unknown").removeprefix("v"), **found}
