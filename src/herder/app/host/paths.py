"""Default paths, and the options by which commands find their API server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from herder.api.management.names import DEFAULT_WORKSPACE
from herder.machine.host.places import data_directory as data_directory

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT_LISTEN = "127.0.0.1:7443"


def kubeconfig_path(given: str | None) -> Path:
    """The flag, else the first file of KUBECONFIG, else the embedded server's, else the user's.

    If KUBECONFIG is set, only its files count: the embedded server's makes the user an administrator.
    """
    if given:
        return Path(given)
    named = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    for path in named or (data_directory() / "kubeconfig", Path.home() / ".kube" / "config"):
        if path.exists():
            return path
    if named:
        raise click.UsageError(f"KUBECONFIG: {named[0]} does not exist; correct the variable or pass --kubeconfig")
    raise click.UsageError("no kubeconfig found; start 'herder up', set KUBECONFIG or pass --kubeconfig")


def split_listen(value: str, option: str = "--listen") -> tuple[str, int]:
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter("must be HOST:PORT", param_hint=option)
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - an empty host asks for every address


def search_namespaces(namespace: str | None, own: str) -> tuple[str, ...]:
    """Namespaces to search: the given one, else the kubeconfig's and then the default workspace."""
    return (namespace,) if namespace else tuple(dict.fromkeys((own, DEFAULT_WORKSPACE)))


def namespace_option(what: str) -> Callable[[Command], Command]:
    """`what` is the object whose namespace the option selects."""
    text = f"Namespace of {what}. Default: the namespace of the kubeconfig, then {DEFAULT_WORKSPACE}."
    return click.option("-n", "--namespace", metavar="NAME", help=text)


workspace_option = click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    default=DEFAULT_WORKSPACE,
    show_default=True,
    help="Namespace of the Cluster object.",
)
"""For commands about one provisioning Cluster."""

kubeconfig_option = click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Kubeconfig of the management API server. "
    "Default: $KUBECONFIG, then the kubeconfig of `herder up`, then ~/.kube/config.",
)
# For commands that act as the logged-in user, whose entry `herder login` writes to the user's own kubeconfig.
manager_kubeconfig_option = click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Kubeconfig of the management API server. "
    "Default: $KUBECONFIG, then ~/.kube/config, then the kubeconfig of `herder up`.",
)
data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory. Default: $HERDER_DATA_DIR, /var/lib/herder for root, else ~/.local/share/herder.",
)
