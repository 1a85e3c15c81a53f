"""`herder register`: print the command that registers an existing machine in a cluster."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from urllib.parse import urlsplit

import click

from herder.api.capi.kinds import SECRET
from herder.api.management.commands import TOKEN_PLACEHOLDER, pinned_command
from herder.api.management.kinds import PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.names import DEFAULT_TOKEN
from herder.api.management.reachability import server_url_problem
from herder.api.management.registration import read_tokens
from herder.api.rke.node.requests import BadClaim, parse_request
from herder.app.host.paths import kubeconfig_option, workspace_option
from herder.cli.client import ask
from herder.cli.cluster.owned import registration_of
from herder.cli.examples import examples
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound
from herder.engine.meta.kinds import Object

ROLES = ("etcd", "controlplane", "worker")
CHOOSE = f"The machine needs roles: append {', '.join(f'--{role}' for role in ROLES)} or --all-roles to the command."


@click.command(
    epilog=examples(
        "herder register meadow --roles all",
        "herder register meadow --roles worker --label zone=a --taint dedicated=gpu:NoSchedule",
    )
)
@click.argument("cluster")
@workspace_option
@click.option("--roles", metavar="ROLE,…", help=f"Roles of the machine: {', '.join(ROLES)}, or all.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the Node. Can be repeated.")
@click.option(
    "--taint", "taints", multiple=True, metavar="KEY=VALUE:EFFECT", help="Taint of the Node. Can be repeated."
)
@click.option(
    "--node-name", metavar="NAME", default="", help="Name of the Node. Default: the host name of the machine."
)
@click.option(
    "--address", metavar="ADDRESS", default="", help="External IP address of the machine, or a network interface."
)
@click.option(
    "--internal-address",
    metavar="ADDRESS",
    default="",
    help="Internal IP address for traffic between nodes, or a network interface.",
)
@click.option("--windows", is_flag=True, help="Print the command for a Windows machine, which can only be a worker.")
@click.option(
    "--insecure", is_flag=True, help="Download the install script without verifying the manager's TLS certificate."
)
@kubeconfig_option
def command(
    cluster: str,
    namespace: str,
    roles: str | None,
    labels: tuple[str, ...],
    taints: tuple[str, ...],
    node_name: str,
    address: str,
    internal_address: str,
    windows: bool,
    insecure: bool,
    kubeconfig: str | None,
) -> None:
    """Print the command that registers an existing machine as a node of CLUSTER.

    Run the printed command on the machine, as a user with sudo rights.
    """
    chosen = _roles(roles)
    _check(labels, taints, node_name)
    status, token = ask(kubeconfig, lambda client, _here: _registration(client, namespace, cluster))
    if windows:
        flags = [*_repeated("-Label", labels), *_repeated("-Taint", taints)]
        flags += _given({"-NodeName": node_name, "-Address": address, "-InternalAddress": internal_address})
        name = "insecureWindowsNodeCommand" if insecure else "windowsNodeCommand"
    else:
        flags = [*(f"--{role}" for role in chosen), *_repeated("--label", labels), *_repeated("--taint", taints)]
        flags += _given({"--node-name": node_name, "--address": address, "--internal-address": internal_address})
        name = "insecureNodeCommand" if insecure else "nodeCommand"
    base = str(status[name]) if insecure or windows else pinned_command(str(status[name]))
    click.echo(" ".join([base.replace(TOKEN_PLACEHOLDER, token), *map(shlex.quote, flags)]))
    if not chosen and not windows:
        click.echo(f"\n{CHOOSE}", err=True)
    click.echo("\nThe command contains the cluster's registration token; treat it as a password.", err=True)
    warn_if_unreachable(_server_of(base), "machines other than the manager's host")


def warn_if_unreachable(url: str, clients: str) -> None:
    """Warn before the user runs a command that cannot work elsewhere. It may still work on the manager's own host."""
    parts = urlsplit(url)
    if problem := server_url_problem(f"{parts.scheme}://{parts.netloc}", clients):
        click.echo(f"\nWarning: {problem}", err=True)


def _server_of(node_command: str) -> str:
    found = re.search(r"https://[^/\s]+", node_command)
    return found[0] if found else ""


def _roles(text: str | None) -> list[str]:
    wanted = [part.strip() for part in (text or "").split(",") if part.strip()]
    if wanted == ["all"]:
        return list(ROLES)
    for role in wanted:
        if role not in ROLES:
            raise click.BadParameter(f'unknown role "{role}"; use {", ".join(ROLES)} or all', param_hint="--roles")
    return wanted


def _check(labels: Sequence[str], taints: Sequence[str], node_name: str) -> None:
    """Validate as the manager will, before the user runs the command on the machine."""
    try:
        parse_request({"id": ["any"], "labels": labels, "taints": taints, "node-name": [node_name]})
    except BadClaim as problem:
        raise click.UsageError(str(problem)) from None


def _repeated(flag: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]


def _given(values: dict[str, str]) -> list[str]:
    return [word for flag, value in values.items() if value for word in (flag, value)]


async def _registration(client: Client, namespace: str, name: str) -> tuple[Object, str]:
    """Status of the registration token, and the token; the API refuses it to those who may not read it."""
    cluster = await client.get(PROVISIONING_CLUSTER.resource, name, namespace=namespace)
    if (cluster.get("spec") or {}).get("rkeConfig") is None:
        raise click.ClickException(f"cluster {name} is imported; add nodes with the tool that created it")
    id_ = (cluster.get("status") or {}).get("clusterName")
    if not id_:
        raise click.ClickException(f"cluster {name} is not ready for registration yet; try again in a moment")
    status, token = await registration(client, id_)
    if not status.get("nodeCommand") or not token:
        hint = "try again in a moment, and check the setting server-url"
        raise click.ClickException(f"cluster {name} has no registration command yet; {hint}")
    return status, token


async def registration(client: Client, cluster: str) -> tuple[Object, str]:
    """Status of the cluster's registration token, and the token; empty if it is not issued yet."""
    try:
        found = await client.get(REGISTRATION_TOKEN.resource, DEFAULT_TOKEN, namespace=cluster)
    except NotFound:
        return {}, ""
    except Forbidden:
        return await registration_of(client, cluster)  # for owners of the cluster
    status = found.get("status") or {}
    secret = str(status.get("tokenSecretName") or "")
    return status, await _registration_token(client, cluster, secret) if secret else ""


async def _registration_token(client: Client, namespace: str, secret_name: str) -> str:
    """The token, which becomes part of a command: only one that the manager could have issued."""
    tokens = read_tokens(await client.get(SECRET.resource, secret_name, namespace=namespace))
    if tokens is None:
        raise click.ClickException(
            f"Secret {namespace}/{secret_name}: holds no valid registration token; delete it, and a new one is issued"
        )
    return tokens.token
