"""`herder kubeconfig`: the way into a managed cluster, through the manager, as whoever asks."""

from __future__ import annotations

import base64
import json
import shutil
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import click
import yaml

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import annotations_of, kubeconfig_secret
from herder.api.identity.kubeconfigs import Manager, cluster_entries, config, text
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import PROVISIONING_CLUSTER_OF
from herder.cli.examples import examples
from herder.cli.kept_logins import find
from herder.cli.managed import ask_manager, cluster_named
from herder.cli.merging import merge_into, own_kubeconfig
from herder.cli.places import manager_kubeconfig_option
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import Connection, KubeconfigError, build, parse_foreign
from herder.engine.client.wire import Query
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object


@click.command(
    epilog=examples(
        "herder kubeconfig meadow > meadow.yaml",
        "herder kubeconfig meadow --merge --use",
        "herder kubeconfig meadow --exec --merge",
    )
)
@click.argument("cluster")
@click.option(
    "--exec",
    "asks",
    is_flag=True,
    help="Omit the token; kubectl then gets the token of your login by running `herder token`.",
)
@click.option(
    "--user", metavar="NAME", default="", help="With --exec: user of the login, if several users are logged in."
)
@click.option(
    "--merge", is_flag=True, help="Merge it into your kubeconfig (--kubeconfig, $KUBECONFIG or ~/.kube/config)."
)
@click.option("--use", is_flag=True, help="With --merge: make it the current context.")
@manager_kubeconfig_option
def command(cluster: str, asks: bool, user: str, merge: bool, use: bool, kubeconfig: str | None) -> None:
    """Print the kubeconfig of the managed CLUSTER, or merge it into your own.

    CLUSTER is the name or the ID of the cluster.
    """
    if use and not merge:
        raise click.UsageError("--use requires --merge")
    if user and not asks:
        raise click.UsageError("--user requires --exec")

    async def made(client: Client, here: Connection) -> Object:
        found = await cluster_named(client, cluster)
        return _asking(here, *found, user) if asks else await _with_token(client, *found)

    entries = ask_manager(kubeconfig, made)
    if not merge:
        click.echo(text(entries), nl=False)
        return
    target, context = own_kubeconfig(kubeconfig), entries["current-context"]
    current = merge_into(target, entries, use=use, only_same_server=True)
    click.echo(f"Merged context {context} into {target}" + (" and made it the current context" if current else ""))


async def _with_token(client: Client, cluster: str, name: str) -> Object:
    """Made by the manager for one of its users, with a token that is good for that cluster alone. Who is none, such as
    its administrator by certificate, gets the cluster's own if it may be read."""
    response = await client.raw("POST", f"/v3/clusters/{cluster}", Query([("action", "generateKubeconfig")]))
    content = response.content()
    answer = json.loads(content) if content[:1] == b"{" else {}
    if "config" in answer:
        return _named_by_cluster(_asking_us(yaml.safe_load(answer["config"])))
    with suppress(StatusError):
        return await _own_of(client, cluster, name)
    raise click.ClickException(answer.get("message") or "not logged in to the manager; run: herder login URL")


def _asking_us(made: Object) -> Object:
    """Where the manager gives no tokens, kubectl is to ask a program for one: this one understands the same words."""
    for user in made["users"]:
        if "exec" in user["user"]:
            user["user"]["exec"]["command"] = _own_command()
    return made


def _named_by_cluster(made: Object) -> Object:
    """The manager names users by their login alone, which they may have elsewhere too, with another token."""
    context = made["current-context"]
    for each in made["users"]:
        each["name"] = f"{each['name']}@{context}"
    for each in made["contexts"]:
        each["context"]["user"] = f"{each['context']['user']}@{context}"
    return made


async def _own_of(client: Client, cluster: str, name: str) -> Object:
    """What other programs reach it with, under the names that the user's would have.

    Editors of the namespace can write the Secret, so kubectl gets an address and credentials of it and nothing else:
    no commands, files or proxies, and no further entries.
    """
    management = await client.get(MANAGEMENT_CLUSTER.resource, cluster)
    namespace, _, own = annotations_of(management).get(PROVISIONING_CLUSTER_OF, "").partition("/")
    secret = await client.get(SECRET.resource, kubeconfig_secret(own), namespace=namespace)
    try:
        found = parse_foreign(base64.b64decode(secret["data"]["value"]).decode())
    except (KubeconfigError, LookupError, ValueError) as error:
        raise click.ClickException(f"Secret {namespace}/{kubeconfig_secret(own)}: {error}") from None
    return build(
        server=found.server,
        ca=found.ca or b"",
        name=name,
        token=found.token,
        certificate=found.client_certificate or b"",
        key=found.client_key or b"",
    )


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
            "installHint": "This kubeconfig needs the herder command; install it and put it on PATH.",
        }
    }


def _own_command() -> str:
    """By its name where a shell finds it by that, else by where it is."""
    started = Path(sys.argv[0]).resolve()
    found = shutil.which("herder")
    return "herder" if found and Path(found).resolve() == started else str(started)
