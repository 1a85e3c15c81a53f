"""`herder token`: tokens of one's own, for programs; and the plug-in by which kubectl asks for the one of a login."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TypeVar

import click

from herder.api.settings import seconds
from herder.cli.kept_logins import find, server_url
from herder.cli.managed import ask_manager, cluster_named
from herder.cli.places import kubeconfig_option
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import Connection
from herder.engine.meta.errors import Forbidden, NotFound
from herder.engine.meta.kinds import GroupVersionResource, Object

Answer = TypeVar("Answer")

TOKENS = GroupVersionResource("ext.cattle.io", "v1", "tokens")
EXEC_GROUP = "client.authentication.k8s.io"
EXEC_VERSIONS = (f"{EXEC_GROUP}/v1", f"{EXEC_GROUP}/v1beta1")
LOG_IN_FIRST = "log in at the manager first (herder login): tokens are of users"

_COLUMNS = ("NAME", "CLUSTER", "EXPIRES", "LAST USED", "DESCRIPTION")


@click.group(invoke_without_command=True)
@click.option("--server", help="The manager: what kubectl runs this with.")
@click.option("--user", default="", help="Who logged in there.")
@click.pass_context
def command(context: click.Context, server: str | None, user: str) -> None:
    """Tokens of your own. Without a word after it: a credential plug-in for kubectl, with the token of your login."""
    if context.invoked_subcommand is not None:
        if server or user:
            raise click.UsageError(f"--server and --user are for kubectl, not for {context.invoked_subcommand}")
        return
    if not server:
        raise click.UsageError("say create, list or revoke; --server URL is what kubectl runs this with")
    login = find(server_url(server), user, datetime.now(UTC))
    status = {"token": login.token} | ({"expirationTimestamp": login.expires} if login.expires else {})
    click.echo(json.dumps({"apiVersion": _asked_version(), "kind": "ExecCredential", "status": status}))


def _asked_version() -> str:
    """That of who runs us; the newest where nobody says."""
    try:
        asked = json.loads(os.environ.get("KUBERNETES_EXEC_INFO") or "{}").get("apiVersion", EXEC_VERSIONS[0])
    except (ValueError, AttributeError):
        asked = ""
    if asked not in EXEC_VERSIONS:
        raise click.ClickException(f"KUBERNETES_EXEC_INFO: apiVersion must be {' or '.join(EXEC_VERSIONS)}")
    return str(asked)


def _lifetime(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int:
    """In milliseconds."""
    try:
        return int(seconds(text) * 1000) if text else 0
    except ValueError:
        raise click.BadParameter("must be a duration such as 30m, 12h or 7d") from None


@command.command("create")
@click.option("--ttl", callback=_lifetime, help="How long it is good for, such as 12h or 7d; the manager may say less.")
@click.option("--cluster", default="", help="The only managed cluster that it is good for, by its name or its id.")
@click.option("--description", default="", help="What it is for.")
@kubeconfig_option
def create(ttl: int, cluster: str, description: str, kubeconfig: str | None) -> None:
    """Make a token and print it. It cannot be read again."""

    async def made(client: Client, _here: Connection) -> Object:
        spec: Object = {"ttl": ttl, "description": description}
        if cluster:
            spec["clusterName"], _ = await cluster_named(client, cluster)
        wanted = {"apiVersion": TOKENS.api_version, "kind": "Token", "spec": spec}
        return await _of_a_user(client.create(TOKENS, wanted))

    token = ask_manager(kubeconfig, made)
    click.echo(token["status"]["bearerToken"])
    expires = token["status"]["expiresAt"]
    click.echo(f"{token['metadata']['name']}, {f'good until {expires}' if expires else 'for ever'}", err=True)


@command.command("list")
@kubeconfig_option
def listed(kubeconfig: str | None) -> None:
    """List your tokens. What they are is not shown."""

    async def found(client: Client, _here: Connection) -> list[Object]:
        return (await _of_a_user(client.list(TOKENS))).items

    rows = [_COLUMNS, *(_row(token) for token in ask_manager(kubeconfig, found))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        click.echo("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@command.command("revoke")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@kubeconfig_option
def revoke(names: tuple[str, ...], kubeconfig: str | None) -> None:
    """End tokens: what was begun with one ends too."""

    async def ended(client: Client, _here: Connection) -> None:
        for name in names:
            await client.delete(TOKENS, name.removeprefix("ext/").partition(":")[0])
            click.echo(f"{name.partition(':')[0]} is revoked")

    ask_manager(kubeconfig, ended)


def _row(token: Object) -> tuple[str, ...]:
    spec, status = token["spec"], token["status"]
    cells = (spec.get("clusterName"), status.get("expiresAt"), status.get("lastUsedAt"), spec.get("description"))
    return (token["metadata"]["name"], *(cell or "-" for cell in cells))


async def _of_a_user(answer: Awaitable[Answer]) -> Answer:
    """The API server itself has no tokens: it is asked by those who did not log in."""
    try:
        return await answer
    except (Forbidden, NotFound):
        raise click.ClickException(LOG_IN_FIRST) from None
