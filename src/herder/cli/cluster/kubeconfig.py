"""`herder kubeconfig`: kubeconfig of a managed cluster, through the manager."""

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
from herder.api.management import clusters
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import PROVISIONING_CLUSTER_OF
from herder.app.host.paths import manager_kubeconfig_option
from herder.cli.auth.kubeconfig_merge import merge_into, own_kubeconfig
from herder.cli.auth.saved_logins import find
from herder.cli.client import current_context, find_manager, manager_extension
from herder.cli.cluster.lookup import ask_manager, cluster_named, manager_file
from herder.cli.cluster.options import namespace_flag, wait_command
from herder.cli.examples import examples
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import KubeconfigError, RestConfig, build, parse_untrusted
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from herder.engine.wire import Query


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

    async def config_of(client: Client, here: RestConfig) -> Object:
        found = await cluster_named(client, cluster)
        return _exec_kubeconfig(here, *found, user) if asks else await _with_token(client, *found)

    entries = ask_manager(kubeconfig, config_of)
    if not merge:
        click.echo(text(entries), nl=False)
        return
    target, context = own_kubeconfig(kubeconfig), entries["current-context"]
    manager, manager_context = find_manager(manager_file(kubeconfig))
    extension = manager_extension(manager, manager_context or current_context(manager))
    for each in entries["contexts"]:
        each["context"]["extensions"] = [extension]
    current = merge_into(target, entries, use=use, only_same_server=True)
    click.echo(f"Merged context {context} into {target}" + (" and made it the current context" if current else ""))


async def _with_token(client: Client, cluster: str, name: str) -> Object:
    """Kubeconfig issued by the manager, with a token for that cluster only.

    Callers who are not users of the manager, such as its administrator by certificate, get the cluster's own if they
    may read it.
    """
    response = await client.raw("POST", f"/v3/clusters/{cluster}", Query([("action", "generateKubeconfig")]))
    content = response.content()
    answer = json.loads(content) if content[:1] == b"{" else {}
    if "config" in answer:
        return _named_by_cluster(_with_own_command(yaml.safe_load(answer["config"])))
    with suppress(StatusError):
        return await _cluster_kubeconfig(client, cluster, name)
    problem = answer.get("message") or await _connection_problem(client, cluster, name)
    raise click.ClickException(problem or "not logged in to the manager; run: herder login URL")


async def _connection_problem(client: Client, cluster: str, name: str) -> str:
    """Why the cluster has no kubeconfig yet, and what to do; empty if another reason applies."""
    try:
        management = await client.get(MANAGEMENT_CLUSTER.resource, cluster)
    except StatusError:
        return ""
    if clusters.has_connected(management):
        return ""
    namespace, _, own = annotations_of(management).get(PROVISIONING_CLUSTER_OF, "").partition("/")
    if clusters.is_administrated(management):
        advice = f"wait for it with: {wait_command(namespace, own)}"
    else:
        where = namespace_flag(namespace or (management.get("spec") or {}).get("fleetWorkspaceName") or "")
        advice = f"print the command that connects it with: herder import {own or cluster}{where}"
    return f"cluster {name} has not connected yet, so it has no kubeconfig; {advice}"


def _with_own_command(config_of: Object) -> Object:
    """If the manager issues no tokens, use this command as the credential plugin."""
    for user in config_of["users"]:
        if "exec" in user["user"]:
            user["user"]["exec"]["command"] = _own_command()
    return config_of


def _named_by_cluster(config_of: Object) -> Object:
    """Make user names unique: the manager names users by their login, which may exist for another cluster."""
    context = config_of["current-context"]
    for each in config_of["users"]:
        each["name"] = f"{each['name']}@{context}"
    for each in config_of["contexts"]:
        each["context"]["user"] = f"{each['context']['user']}@{context}"
    return config_of


async def _cluster_kubeconfig(client: Client, cluster: str, name: str) -> Object:
    """The cluster's own kubeconfig Secret, under the usual entry names.

    Editors of the namespace can write the Secret, so only address and credentials are taken: no commands, files,
    proxies or other entries.
    """
    management = await client.get(MANAGEMENT_CLUSTER.resource, cluster)
    namespace, _, own = annotations_of(management).get(PROVISIONING_CLUSTER_OF, "").partition("/")
    secret = await client.get(SECRET.resource, kubeconfig_secret(own), namespace=namespace)
    try:
        found = parse_untrusted(base64.b64decode(secret["data"]["value"]).decode())
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


def _exec_kubeconfig(here: RestConfig, cluster: str, name: str, user: str) -> Object:
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
    """Name of this command if it is on PATH, else its path."""
    started = Path(sys.argv[0]).resolve()
    found = shutil.which("herder")
    return "herder" if found and Path(found).resolve() == started else str(started)
