"""`herder logout`: revoke the token of a login and remove it from this computer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import click

from herder.app.host.paths import manager_kubeconfig_option
from herder.cli.auth.kubeconfig_merge import own_kubeconfig, remove_token
from herder.cli.auth.saved_logins import Login, forget, logins_of, server_url
from herder.cli.examples import examples
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import RestConfig


@click.command(epilog=examples("herder logout", "herder logout https://manager.example.com:7443 -u dolly"))
@click.argument("url", required=False)
@click.option("-u", "--username", metavar="NAME", default="", help="User name. Default: all logins to the manager.")
@manager_kubeconfig_option
def command(url: str | None, username: str, kubeconfig: str | None) -> None:
    """Log out of the manager at URL: revoke the token and remove the saved login.

    Without URL, log out of the manager of the current context. Tokens of `herder token` and kubeconfigs stay valid.
    """
    target = own_kubeconfig(kubeconfig)
    server = server_url(url) if url else _current_server(target)
    found = [login for login in logins_of(server) if username in ("", login.user)]
    if not found:
        raise click.ClickException(f"not logged in to {server}" + (f" as {username}" if username else ""))
    for login in found:
        problem = asyncio.run(_revoke(login))
        forget(login)
        if target.exists():
            remove_token(target, login.token)
        click.echo(f"Logged out of {server} as {login.user}")
        if problem:
            click.echo(f"The token could not be revoked and stays valid until it expires: {problem}", err=True)


def _current_server(target: Path) -> str:
    try:
        return server_url(kubeconfigs.load(target).server)
    except kubeconfigs.KubeconfigError as error:
        raise click.ClickException(f"{error}; pass the URL of the manager") from None


async def _revoke(login: Login) -> str:
    """Why the token is still valid; empty if it is revoked."""
    from herder.engine.client.http import HttpTransport

    ca = login.certificates.encode() or None
    client = Client(HttpTransport(RestConfig(login.server, ca=ca, token=login.token)))
    try:
        response = await client.raw("POST", "/v1/logout")
    except OSError as error:
        return str(error)
    finally:
        with suppress(OSError):
            await client.close()
    done = response.status < HTTPStatus.BAD_REQUEST or response.status == HTTPStatus.UNAUTHORIZED
    return "" if done else f"HTTP status {response.status}"
