"""`herder users`: users who can log in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from herder.api.management.kinds import USER
from herder.app.host.paths import kubeconfig_option
from herder.cli.auth.user_lookup import BINDINGS, is_of_user, user_named
from herder.cli.client import ask, password_from, password_option
from herder.cli.confirmation import confirm, yes_option
from herder.cli.examples import examples
from herder.cli.table import print_table
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.meta.kinds import Kind, Object

if TYPE_CHECKING:
    from herder.gateway.identity.users import Users


@click.group(
    epilog=examples(
        "herder users create dolly", "herder users password dolly", "herder users list", "herder users delete dolly"
    ),
)
def command() -> None:
    """Create, list and delete users and set their passwords."""


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

    A new user gets the global roles with newUserDefault. Grant more with: herder grant.
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
        await _users(client).set_password(await user_named(client, username), chosen)

    ask(kubeconfig, set_it)


@command.command("list", epilog=examples("herder users list"))
@kubeconfig_option
def listed(kubeconfig: str | None) -> None:
    """List users with their ID, user name, display name and state."""

    async def found(client: Client, _connection: RestConfig) -> list[Object]:
        return (await client.list_all(USER.resource)).items

    print_table(("ID", "USERNAME", "DISPLAY NAME", "STATE"), map(_row, ask(kubeconfig, found)))


def _row(user: Object) -> tuple[str, str, str, str]:
    state = "enabled" if user.get("enabled", True) else "disabled"
    return user["metadata"]["name"], user.get("username") or "-", user.get("displayName") or "-", state


@command.command("delete", epilog=examples("herder users delete dolly", "herder users delete dolly --yes"))
@click.argument("username")
@yes_option
@kubeconfig_option
def delete(username: str, yes: bool, kubeconfig: str | None) -> None:
    """Delete the user USERNAME (name or ID) with all tokens and role bindings.

    Clusters that the user created are kept.
    """
    confirm(f"Delete user {username} with all tokens and role bindings?", yes)

    async def deleted(client: Client, _connection: RestConfig) -> str:
        user = await user_named(client, username)
        name = user["metadata"]["name"]
        bindings = [(await _count_bindings(client, kind, name), each.noun) for kind, each in BINDINGS.items()]
        tokens = await _users(client).delete(name)
        counts = [(tokens, "token"), *bindings]
        parts = [f"{count} {noun}{'s' if count > 1 else ''}" for count, noun in counts if count]
        return f"user {username} deleted" + (f", with {_joined(parts)}" if parts else "")

    click.echo(ask(kubeconfig, deleted))


async def _count_bindings(client: Client, kind: Kind, user: str) -> int:
    listed = (await client.list_all(kind.resource)).items
    return sum(is_of_user(each, user) for each in listed)


def _joined(parts: list[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _users(client: Client) -> Users:
    from herder.gateway.identity.passwords import Passwords
    from herder.gateway.identity.users import Users

    return Users(client, os.urandom, Passwords(client, os.urandom))
