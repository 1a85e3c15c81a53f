"""`herder users`: users who can log in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from herder.api.management.kinds import USER
from herder.app.paths import kubeconfig_option
from herder.cli.client import ask, password_from, password_option
from herder.cli.examples import examples
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import RestConfig

if TYPE_CHECKING:
    from herder.gateway.identity.users import Users


@click.group(
    epilog=examples("herder users create dolly", "herder users password dolly", "herder users list"),
)
def command() -> None:
    """Create and list users and set their passwords."""


@command.command(
    "create",
    epilog=examples(
        'herder users create dolly --display-name "Dolly Sheep" --must-change-password',
        "herder users create ci --password-stdin < password",
    ),
)
@click.argument("username")
@click.option("--display-name", metavar="NAME", default="", help="Display name. Default: the user name.")
@click.option("--must-change-password", is_flag=True, help="Require a new password at the first login.")
@password_option
@kubeconfig_option
def create(
    username: str, display_name: str, must_change_password: bool, password_stdin: bool, kubeconfig: str | None
) -> None:
    """Create the user USERNAME and print its ID.

    A new user gets the global roles with newUserDefault. Grant more with role bindings.
    """
    password = password_from(password_stdin)

    async def made(client: Client, _connection: RestConfig) -> str:
        user = await _users(client).create(
            username, password, display_name=display_name, must_change=must_change_password
        )
        return str(user["metadata"]["name"])

    click.echo(ask(kubeconfig, made))


@command.command("password", epilog=examples("herder users password dolly"))
@click.argument("username")
@password_option
@kubeconfig_option
def password(username: str, password_stdin: bool, kubeconfig: str | None) -> None:
    """Set the password of the user USERNAME."""
    chosen = password_from(password_stdin)

    async def set_it(client: Client, _connection: RestConfig) -> None:
        known = (await client.list_all(USER.resource)).items
        user = next((one for one in known if one.get("username") == username), None)
        if user is None:
            raise click.ClickException(f'user "{username}" not found; list users with: herder users list')
        await _users(client).set_password(user, chosen)

    ask(kubeconfig, set_it)


@command.command("list", epilog=examples("herder users list"))
@kubeconfig_option
def listed(kubeconfig: str | None) -> None:
    """List users with their ID and user name."""

    async def found(client: Client, _connection: RestConfig) -> list[tuple[str, str, str]]:
        users = (await client.list_all(USER.resource)).items
        return [
            (user["metadata"]["name"], user.get("username", ""), "" if user.get("enabled", True) else "disabled")
            for user in users
        ]

    for row in ask(kubeconfig, found):
        click.echo("  ".join(f"{cell:16}" for cell in row).rstrip())


def _users(client: Client) -> Users:
    from herder.gateway.identity.passwords import Passwords
    from herder.gateway.identity.users import Users

    return Users(client, os.urandom, Passwords(client, os.urandom))
