"""Where things lie on this machine, and how a command finds its API server."""

from __future__ import annotations

import os
from pathlib import Path

import click

from herder.machine.host.places import data_directory as data_directory

DEFAULT_LISTEN = "127.0.0.1:7443"


def kubeconfig_path(given: str | None) -> Path:
    """The first that is there: the flag, KUBECONFIG, the embedded server's own, the user's."""
    if given:
        return Path(given)
    candidates = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    candidates += [data_directory() / "kubeconfig", Path.home() / ".kube" / "config"]
    for path in candidates:
        if path.exists():
            return path
    raise click.UsageError("no kubeconfig found: start 'herder up', set KUBECONFIG or pass --kubeconfig")


def split_listen(value: str, option: str = "--listen") -> tuple[str, int]:
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter("must be HOST:PORT", param_hint=option)
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - an empty host asks for every address


kubeconfig_option = click.option("--kubeconfig", metavar="FILE", help="How to reach the API server.")
data_dir_option = click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Where the embedded server keeps its data."
)
