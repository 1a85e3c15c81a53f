"""`herder token`: the user's API tokens, and the credential plugin for kubectl."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TypeVar

import click

from herder.api.settings import parse_duration
from herder.app.host.paths import manager_kubeconfig_option
from herder.cli.auth.saved_logins import find, server_url
from herder.cli.cluster.lookup import ask_manager, cluster_named
from herder.cli.examples import examples
from herder.cli.table import print_table
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.meta.errors import Forbidden, NotFound
from herder.engine.meta.kinds import GroupVersionResource, Object

Answer = TypeVar("Answer")

TOKENS = GroupVersionResource("ext.cattle.io", "v1", "tokens")
EXEC_GROUP = "client.authentication.k8s.io"
EXEC_VERSIONS = (f"{EXEC_GROUP}/v1", f"{EXEC_GROUP}/v1beta1")
LOG_IN_FIRST = "only logged-in users have tokens; run: herder login URL"

_COLUMNS = ("NAME", "CLUSTER", "EXPIRES", "LAST USED", "DESCRIPTION")


@click.group(
    invoke_without_command=True,
    epilog=examples(
        "herder token create --ttl 12h --description ci",
        "herder token list",
        "herder token revoke token-abc12",
    ),
)
@click.option("--server", metavar="URL", help="URL of the manager. Only for kubectl.")
@click.option("--user", metavar="NAME", default="", help="User who is logged in to the manager. Only for kubectl.")
@click.pass_context
def command(context: click.Context, server: str | None, user: str) -> None:
    """Create, list and revoke your API tokens.

    Without a subcommand, this is the credential plugin that kubectl runs to get the token of your login.
    """
    if context.invoked_subcommand is not None:
        if server or user:
            raise click.UsageError(f"--server and --user cannot be used with {context.invoked_subcommand}")
        return
    if not server:
        raise click.UsageError("missing subcommand create, list or revoke; --server is only for kubectl")
    login = find(server_url(server), user, datetime.now(UTC))
    status = {"token": login.token} | ({"expirationTimestamp": login.expires} if login.expires else {})
    click.echo(json.dumps({"apiVersion": _requested_version(), "kind": "ExecCredential", "status": status}))


def _requested_version() -> str:
    """The ExecCredential version that kubectl requests; the newest by default."""
    try:
        asked = json.loads(os.environ.get("KUBERNETES_EXEC_INFO") or "{}").get("apiVersion", EXEC_VERSIONS[0])
    except (ValueError, AttributeError):
        asked = ""
    if asked not in EXEC_VERSIONS:
        raise click.ClickException(f"KUBERNETES_EXEC_INFO: apiVersion must be {' or '.join(EXEC_VERSIONS)}")
    return str(asked)


def _lifetime(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int:
    """Parse a duration to milliseconds."""
    try:
        return int(parse_duration(text) * 1000) if text else 0
    except ValueError:
        raise click.BadParameter("must be a duration such as 30m, 12h or 7d") from None


@command.command(
    "create",
    epilog=examples("herder token create --ttl 12h --description ci", "herder token create --cluster meadow"),
)
@click.option(
    "--ttl",
    metavar="DURATION",
    callback=_lifetime,
    help="Lifetime of the token, such as 12h or 7d. The manager can enforce a shorter one.",
)
@click.option("--cluster", metavar="CLUSTER", default="", help="Limit the token to this managed cluster (name or ID).")
@click.option("--description", metavar="TEXT", default="", help="Description of the token.")
@manager_kubeconfig_option
def create(ttl: int, cluster: str, description: str, kubeconfig: str | None) -> None:
    """Create a token and print it. It cannot be shown again."""

    async def made(client: Client, _here: RestConfig) -> Object:
        spec: Object = {"ttl": ttl, "description": description}
        if cluster:
            spec["clusterName"], _ = await cluster_named(client, cluster)
        wanted = {"apiVersion": TOKENS.api_version, "kind": "Token", "spec": spec}
        return await _of_a_user(client.create(TOKENS, wanted))

    token = ask_manager(kubeconfig, made)
    click.echo(token["status"]["bearerToken"])
    expires = token["status"]["expiresAt"]
    click.echo(f"{token['metadata']['name']} {f'expires at {expires}' if expires else 'does not expire'}", err=True)


@command.command("list", epilog=examples("herder token list"))
@manager_kubeconfig_option
def listed(kubeconfig: str | None) -> None:
    """List your tokens without their values."""

    async def found(client: Client, _here: RestConfig) -> list[Object]:
        return (await _of_a_user(client.list(TOKENS))).items

    print_table(_COLUMNS, map(_row, ask_manager(kubeconfig, found)))


@command.command("revoke", epilog=examples("herder token revoke token-abc12"))
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@manager_kubeconfig_option
def revoke(names: tuple[str, ...], kubeconfig: str | None) -> None:
    """Revoke tokens and close the connections that use them."""

    async def ended(client: Client, _here: RestConfig) -> None:
        for name in names:
            await client.delete(TOKENS, name.removeprefix("ext/").partition(":")[0])
            click.echo(f"{name.partition(':')[0]} revoked")

    ask_manager(kubeconfig, ended)


def _row(token: Object) -> tuple[str, ...]:
    spec, status = token["spec"], token["status"]
    cells = (spec.get("clusterName"), status.get("expiresAt"), status.get("lastUsedAt"), spec.get("description"))
    return (token["metadata"]["name"], *(cell or "-" for cell in cells))


async def _of_a_user(answer: Awaitable[Answer]) -> Answer:
    """The API server itself has no tokens: a request without login ends there."""
    try:
        return await answer
    except (Forbidden, NotFound):
        raise click.ClickException(LOG_IN_FIRST) from None
