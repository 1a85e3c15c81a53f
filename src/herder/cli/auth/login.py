"""`herder login`: log in with a password and add a context to the user's kubeconfig."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from http import HTTPStatus
from urllib.parse import urlsplit

import click

from herder.api.management.commands import ca_checksum
from herder.cli.auth.kubeconfig_merge import merge_into, own_kubeconfig
from herder.cli.auth.saved_logins import Login, keep
from herder.cli.client import password_from, password_option
from herder.cli.examples import examples
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import RestConfig, build
from herder.engine.meta.errors import StatusError


@click.command(
    epilog=examples(
        "herder login https://manager.example.com:7443 -u dolly",
        "herder login https://manager.example.com:7443 -u dolly --password-stdin --ca-checksum SHA256 < password",
    )
)
@click.argument("url")
@click.option("-u", "--username", metavar="NAME", prompt=True, help="User name. Default: prompt for it.")
@password_option
@click.option(
    "--ca-checksum",
    "checksum",
    metavar="SHA256",
    default="",
    help="SHA-256 of the manager's CA certificates, for a CA that this system does not trust.",
)
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig file to update. Default: $KUBECONFIG or ~/.kube/config.")
def command(url: str, username: str, password_stdin: bool, checksum: str, kubeconfig: str | None) -> None:
    """Log in to the manager at URL and add a context for it to your kubeconfig.

    kubectl and herder use the new context from then on.
    """
    if not url.startswith("https://"):
        raise click.BadParameter("must start with https://", param_hint="URL")
    server, password = url.rstrip("/"), password_from(password_stdin)
    try:
        certificates = asyncio.run(_trusted(server, checksum))
        login = asyncio.run(_log_in(server, certificates, username, password))
    except (StatusError, OSError) as error:
        raise click.ClickException(str(error)) from error
    name, target = f"herder-{urlsplit(server).hostname}", own_kubeconfig(kubeconfig)
    keep(login)
    merge_into(target, build(server=server, ca=certificates, name=name, token=login.token), use=True)
    click.echo(f"Logged in as {username}. The current context in {target} is now {name}")


async def _trusted(server: str, checksum: str) -> bytes:
    """The CA to trust: one with the given checksum, else the system's (b"")."""
    if not checksum:
        return b""
    shown = await _get(RestConfig(server, skip_tls_verify=True), "/cacerts")
    if not hmac.compare_digest(ca_checksum(shown), checksum.lower()):
        found = hashlib.sha256(shown.encode()).hexdigest()
        raise click.ClickException(
            f"--ca-checksum: the CA certificates of {server} have the checksum {found}; "
            "the connection may be intercepted"
        )
    return shown.encode()


async def _get(connection: RestConfig, path: str) -> str:
    from herder.engine.client.http import HttpTransport

    client = Client(HttpTransport(connection))
    try:
        return await client.text(path)
    finally:
        await client.close()


async def _log_in(server: str, certificates: bytes, username: str, password: str) -> Login:
    from herder.engine.client.http import HttpTransport

    client = Client(HttpTransport(RestConfig(server, ca=certificates or None)))
    body = {"type": "localProvider", "username": username, "password": password, "responseType": "json"}
    try:
        headers = {"content-type": "application/json"}
        response = await client.raw("POST", "/v1-public/login", body=json.dumps(body).encode(), headers=headers)
        answer = json.loads(response.content() or b"{}")
    finally:
        await client.close()
    if response.status == HTTPStatus.UNAUTHORIZED:
        raise click.ClickException(f"{server}: {answer.get('message')}; check the user name and the password")
    if response.status >= 400:
        raise click.ClickException(
            answer.get("message") or f"{server}: login failed with HTTP status {response.status}"
        )
    return Login(server, username, str(answer["token"]), str(answer.get("expiresAt") or ""), certificates.decode())
