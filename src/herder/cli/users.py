"""`herder users`: the people who may log in."""

from __future__ import annotations

import os

import click

from herder.api.management.kinds import USER
from herder.cli.asking import ask, password_from, password_option
from herder.cli.places import kubeconfig_option
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import Connection


@click.group()
def command() -> None:
    """Who may log in."""


@command.command("create")
@click.argument("username")
@click.option("--display-name", default="", help="As others see it; the username by default.")
@click.option("--must-change-password", is_flag=True, help="At the first login.")
@password_option
@kubeconfig_option
def create(
    username: str, display_name: str, must_change_password: bool, password_stdin: bool, kubeconfig: str | None
) -> None:
    """Create the user USERNAME. What the user may do, bindings say."""
    password = password_from(password_stdin)

    async def made(client: Client, _connection: Connection) -> str:
        from herder.gateway.identity.passwords import Passwords
        from herder.gateway.identity.users import Users

        users = Users(client, os.urandom, Passwords(client, os.urandom))
        user = await users.create(username, password, display_name=display_name, must_change=must_change_password)
        return str(user["metadata"]["name"])

    click.echo(ask(kubeconfig, made))


@command.command("list")
@kubeconfig_option
def listed(kubeconfig: str | None) -> None:
    """List them."""

    async def found(client: Client, _connection: Connection) -> list[tuple[str, str, str]]:
        users = (await client.list_all(USER.resource)).items
        return [
            (user["metadata"]["name"], user.get("username", ""), "" if user.get("enabled", True) else "disabled")
            for user in users
        ]

    for row in ask(kubeconfig, found):
        click.echo("  ".join(f"{cell:16}" for cell in row).rstrip())
