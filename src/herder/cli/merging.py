"""Puts an entry into a kubeconfig file that may hold others, and loses none of them."""

from __future__ import annotations

import base64
import os
import tempfile
from pathlib import Path
from typing import Any

import click


def merge_into(target: Path, name: str, server: str, certificates: bytes, token: str) -> None:
    """The entry becomes the current one. The file is replaced whole, or stays as it was."""
    import yaml

    try:
        known: dict[str, Any] = yaml.safe_load(target.read_text()) or {} if target.exists() else {}
    except yaml.YAMLError as error:
        raise click.ClickException(f"{target} is not a kubeconfig, and is left as it is: {error}") from error
    cluster: dict[str, Any] = {"server": server}
    if certificates:
        cluster["certificate-authority-data"] = base64.b64encode(certificates).decode()
    known |= {"apiVersion": "v1", "kind": "Config", "current-context": name}
    _put(known, "clusters", name, {"cluster": cluster})
    _put(known, "users", name, {"user": {"token": token}})
    _put(known, "contexts", name, {"context": {"cluster": name, "user": name}})
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, staged = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # for its owner alone
    with os.fdopen(descriptor, "w") as file:
        yaml.safe_dump(known, file, sort_keys=False)
    Path(staged).replace(target)


def _put(known: dict[str, Any], section: str, name: str, entry: dict[str, Any]) -> None:
    others = [each for each in known.get(section) or [] if each.get("name") != name]
    known[section] = [*others, {"name": name, **entry}]
