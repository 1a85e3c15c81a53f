"""SSH access to a machine: credentials from its state Secret, and the host key pinned at first use.

Readers of the Secret may not be able to write it, so a host key that no driver recorded is stored for this user only.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.app.host.paths import search_namespaces
from herder.cli.client import connect
from herder.cli.machine.lookup import State, find_machine, read_state
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError

if TYPE_CHECKING:
    from herder.machine.state.saved_machine import SavedMachine


@dataclass(frozen=True, slots=True)
class MachineAccess:
    """Saved state of a machine, and where its host key is stored."""

    saved: SavedMachine
    host_key_file: Path

    def remember_host_key(self) -> None:
        from herder.machine.state.saved_machine import KNOWN_HOSTS

        self.host_key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.host_key_file.write_bytes(self.saved.files[KNOWN_HOSTS])


def load(name: str, namespace: str | None, kubeconfig: str | None) -> MachineAccess:
    """Read the state of the machine with the caller's rights."""
    from herder.machine.errors import MachineError
    from herder.machine.state.saved_machine import KNOWN_HOSTS, saved_machine

    try:
        connection = connect(kubeconfig)
        state = asyncio.run(_read(connection, search_namespaces(namespace, connection.namespace), name))
        saved = saved_machine(state.archive)
    except (StatusError, kubeconfigs.KubeconfigError, MachineError) as error:
        raise click.ClickException(str(error)) from error
    seen_before = _host_keys() / state.uid
    if KNOWN_HOSTS not in saved.files and seen_before.exists():
        saved.files[KNOWN_HOSTS] = seen_before.read_bytes()
    return MachineAccess(saved, seen_before)


def _host_keys() -> Path:
    """One file per machine, named after the UID of its state: consecutive machines may share an address."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "herder" / "host-keys"


async def _read(connection: kubeconfigs.RestConfig, namespaces: Sequence[str], name: str) -> State:
    from herder.engine.client.http import HttpTransport

    client = Client(HttpTransport(connection))
    try:
        return await read_state(client, await find_machine(client, namespaces, name))
    finally:
        await client.close()
