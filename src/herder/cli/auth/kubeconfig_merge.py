"""Merge entries into a kubeconfig file without losing others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from herder.app.host.private_files import locked, write_private

SECTIONS = ("clusters", "users", "contexts")


def own_kubeconfig(given: str | None) -> Path:
    """The file to update: the flag, the first of KUBECONFIG, or ~/.kube/config."""
    named = [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return Path(given or (named[0] if named else Path.home() / ".kube" / "config"))


def merge_into(target: Path, entries: dict[str, Any], *, use: bool, only_same_server: bool = False) -> bool:
    """Replace entries of the same names; returns whether the current context changed.

    It changes with `use`, or if there was none. `only_same_server` refuses to replace entries that point to another
    server.
    """
    import yaml

    with locked(target):
        known = _read(target)
        if only_same_server:
            _check_servers(target, known, entries)
        for section in SECTIONS:
            new = entries[section]
            names = {each["name"] for each in new}
            known[section] = [each for each in known.get(section) or [] if each.get("name") not in names] + new
        becomes_current = use or not known.get("current-context")
        if becomes_current:
            known["current-context"] = entries["current-context"]
        known |= {"apiVersion": "v1", "kind": "Config"}
        write_private(target, yaml.safe_dump(known, sort_keys=False))
    return becomes_current


def remove_token(target: Path, token: str) -> None:
    """Remove the users with this token, and the contexts of these users."""
    import yaml

    with locked(target):
        known = _read(target)
        users = {
            each.get("name") for each in known.get("users") or () if (each.get("user") or {}).get("token") == token
        }
        if not users:
            return
        gone = {
            each.get("name") for each in known.get("contexts") or () if (each.get("context") or {}).get("user") in users
        }
        known["users"] = [each for each in known["users"] if each.get("name") not in users]
        known["contexts"] = [each for each in known.get("contexts") or () if each.get("name") not in gone]
        if known.get("current-context") in gone:
            known["current-context"] = ""
        write_private(target, yaml.safe_dump(known, sort_keys=False))


def _check_servers(target: Path, known: dict[str, Any], entries: dict[str, Any]) -> None:
    """Users choose cluster names: none may replace the entry of another cluster or of the manager."""
    new, before = _servers(entries), _servers(known)
    for entry, server in new.items():
        if entry in before and before[entry] != server:
            section, name = entry
            raise click.ClickException(
                f"{section} {name} in {target} points to {before[entry] or 'no server'}, not to {server}; rename or "
                "delete it (kubectl config rename-context, delete-cluster), or omit --merge"
            )


def _servers(config: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Server of each cluster and context."""
    clusters = {
        each.get("name"): (each.get("cluster") or {}).get("server") or "" for each in config.get("clusters") or ()
    }
    contexts = {each.get("name"): (each.get("context") or {}).get("cluster") for each in config.get("contexts") or ()}
    led = {("context", str(name)): str(clusters.get(cluster, "")) for name, cluster in contexts.items()}
    return {("cluster", str(name)): str(server) for name, server in clusters.items()} | led


def _read(target: Path) -> dict[str, Any]:
    import yaml

    try:
        known = yaml.safe_load(target.read_text()) if target.exists() else None
    except (yaml.YAMLError, UnicodeDecodeError):  # The error does not quote the file, which contains secrets.
        known = "no YAML"
    known = {} if known is None else known
    if not isinstance(known, dict) or not all(_is_section(known.get(section)) for section in SECTIONS):
        raise click.ClickException(
            f"{target}: not a valid kubeconfig; it was not changed. Check it with: kubectl config view"
        )
    return known


def _is_section(section: object) -> bool:
    return section is None or (isinstance(section, list) and all(isinstance(each, dict) for each in section))
