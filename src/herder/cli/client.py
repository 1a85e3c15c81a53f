"""Connect to the manager's API for one command, and report errors."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from herder.app.host.paths import kubeconfig_path
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.meta.errors import StatusError, Unauthorized

Answer = TypeVar("Answer")
INTERRUPTED = 130
"""Exit status after Ctrl-C, as of a shell."""
MANAGER_EXTENSION = "herder.io/manager"
"""Extension of a kubeconfig context that `herder kubeconfig --merge` writes: the context of the manager."""
_PROXY_PATH = "/k8s/clusters/"


def ask(
    kubeconfig: str | None,
    question: Callable[[Client, RestConfig], Awaitable[Answer]],
    place: Callable[[RestConfig], RestConfig] = lambda here: here,
) -> Answer:
    """Run `question` with a client. `place` can change the connection of the kubeconfig."""

    async def asked() -> Answer:
        from herder.engine.client.http import HttpTransport

        connection = place(connect(kubeconfig))
        client = Client(HttpTransport(connection))
        try:
            return await question(client, connection)
        finally:
            await client.close()

    try:
        return asyncio.run(asked())
    except Unauthorized as error:
        hint = "the token or certificate is invalid, expired or revoked; log in again with: herder login URL"
        raise click.ClickException(f"{error}; {hint}") from error
    except (StatusError, kubeconfigs.KubeconfigError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def connect(kubeconfig: str | None) -> RestConfig:
    """The connection to the manager, also if the current context is a cluster behind it."""
    path, context = find_manager(kubeconfig_path(kubeconfig))
    return kubeconfigs.load(path, context=context)


def find_manager(path: Path) -> tuple[Path, str]:
    """File and context of the manager, given a kubeconfig; an empty context stands for the current one."""
    import yaml

    try:
        config = yaml.safe_load(path.read_text())
        contexts = {each["name"]: each.get("context") or {} for each in config.get("contexts") or ()}
        servers = {each["name"]: (each.get("cluster") or {}).get("server", "") for each in config.get("clusters") or ()}
        current = contexts.get(config.get("current-context")) or {}
        return _recorded_manager(current, path, contexts) or (path, _manager_of(current, contexts, servers))
    except (OSError, yaml.YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError):
        return path, ""  # Loading the file reports the error.


def current_context(path: Path) -> str:
    import yaml

    return str((yaml.safe_load(path.read_text()) or {}).get("current-context") or "")


def manager_extension(path: Path, context: str) -> dict[str, Any]:
    """Extension for the context of a managed cluster, by which `find_manager` finds its manager."""
    return {"name": MANAGER_EXTENSION, "extension": {"file": str(path.resolve()), "context": context}}


def _recorded_manager(current: dict[str, Any], path: Path, contexts: dict[str, Any]) -> tuple[Path, str] | None:
    for each in current.get("extensions") or ():
        found = each.get("extension") or {} if each.get("name") == MANAGER_EXTENSION else {}
        context, file = str(found.get("context") or ""), Path(str(found.get("file") or path))
        if context in contexts:
            return path, context
        if context and file != path and file.exists():
            return file, context
    return None


def _manager_of(current: dict[str, Any], contexts: dict[str, Any], servers: dict[str, str]) -> str:
    """Another context with the URL of the manager, without the path of the cluster."""
    manager, is_cluster, _ = str(servers.get(current.get("cluster") or "", "")).partition(_PROXY_PATH)
    if not is_cluster:
        return ""
    same = (name for name, each in contexts.items() if str(servers.get(each.get("cluster"), "")).rstrip("/") == manager)
    return next(same, "")


def password_from(given: bool) -> str:
    """Read from standard input or prompt; never from an argument, which other users can see."""
    if given:
        return sys.stdin.readline().rstrip("\n")
    return str(click.prompt("Password", hide_input=True))


password_option = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
