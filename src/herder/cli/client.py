"""Connect to the manager's API for one command, and report errors."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from herder.app.paths import kubeconfig_path
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError

Answer = TypeVar("Answer")


def ask(
    kubeconfig: str | None,
    question: Callable[[Client, kubeconfigs.RestConfig], Awaitable[Answer]],
    place: Callable[[kubeconfigs.RestConfig], kubeconfigs.RestConfig] = lambda here: here,
) -> Answer:
    """Run `question` with a client. `place` can change the connection of the kubeconfig."""

    async def asked() -> Answer:
        from herder.engine.client.http import HttpTransport

        connection = place(kubeconfigs.load(kubeconfig_path(kubeconfig)))
        client = Client(HttpTransport(connection))
        try:
            return await question(client, connection)
        finally:
            await client.close()

    try:
        return asyncio.run(asked())
    except (StatusError, kubeconfigs.KubeconfigError, OSError) as error:
        raise click.ClickException(str(error)) from error


def password_from(given: bool) -> str:
    """Read from standard input or prompt; never from an argument, which other users can see."""
    if given:
        return sys.stdin.readline().rstrip("\n")
    return str(click.prompt("Password", hide_input=True))


password_option = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
