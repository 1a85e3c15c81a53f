"""`herder kubeconfig`: the way into a managed cluster, through the manager, as whoever asks."""

from __future__ import annotations

import json
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from herder.api.identity.kubeconfigs import Manager, cluster_entries, config, text
from herder.cli.kept_logins import find
from herder.cli.managed import ask_manager, cluster_named
from herder.cli.merging import merge_into, own_kubeconfig
from herder.cli.places import kubeconfig_option
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import Connection
from herder.engine.client.wire import Query
from herder.engine.meta.kinds import Object


@click.command()
@click.argument("cluster")
@click.option("--exec", "asks", is_flag=True, help="Without a token: kubectl takes that of your login (herder login).")
@click.option("--user", default="", help="With --exec: whose login, where several are logged in.")
@click.option("--merge", is_flag=True, help="Put it into your kubeconfig (KUBECONFIG or ~/.kube/config).")
@click.option("--use", is_flag=True, help="With --merge: make it the current context.")
@kubeconfig_option
def command(cluster: str, asks: bool, user: str, merge: bool, use: bool, kubeconfig: str | None) -> None:
    """Print a kubeconfig for the managed CLUSTER, by its name or its id, or merge it into your own."""
    if use and not merge:
        raise click.UsageError("--use: needs --merge")
    if user and not asks:
        raise click.UsageError("--user: needs --exec")

    async def made(client: Client, here: Connection) -> Object:
        found = await cluster_named(client, cluster)
        return _asking(here, *found, user) if asks else await _with_token(client, found[0])

    entries = ask_manager(kubeconfig, made)
    if not merge:
        click.echo(text(entries), nl=False)
        return
    target, context = own_kubeconfig(kubeconfig), entries["current-context"]
    current = merge_into(target, entries, use=use)
    click.echo(f"context {context} in {target}" + (" is the current one" if current else ""))


async def _with_token(client: Client, cluster: str) -> Object:
    """Made by the manager, with a token that is good for that cluster alone."""
    import yaml

    response = await client.raw("POST", f"/v3/clusters/{cluster}", Query([("action", "generateKubeconfig")]))
    content = response.content()
    told = json.loads(content) if content[:1] == b"{" else {}
    if response.status >= 400 or "config" not in told:
        raise click.ClickException(
            told.get("message") or "log in at the manager first (herder login): only users get kubeconfigs"
        )
    made: Object = yaml.safe_load(told["config"])
    return made


def _asking(here: Connection, cluster: str, name: str, user: str) -> Object:
    login = find(here.server, user, datetime.now(UTC))
    manager = Manager(login.server, login.certificates)
    entries = cluster_entries(manager, {cluster: name}, f"{login.user}@{name}")
    return config(manager, entries, {f"{login.user}@{name}": _plugin(login.server, login.user)})


def _plugin(server: str, user: str) -> Object:
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": _own_command(),
            "args": ["token", f"--server={server}", f"--user={user}"],
            "interactiveMode": "Never",
            "installHint": "herder is not installed where this kubeconfig is used",
        }
    }


def _own_command() -> str:
    """By its name where a shell finds it by that, else by where it is."""
    started = Path(sys.argv[0]).resolve()
    found = shutil.which("herder")
    return "herder" if found and Path(found).resolve() == started else str(started)
