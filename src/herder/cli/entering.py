"""How a person gets into a machine: what its state Secret says, and the host key that this person saw there first.

Whoever may read the Secret may not therefore write it: a host key that no driver told us is kept for this user alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.cli.finding import State, find_machine, read_state
from herder.cli.places import kubeconfig_path, looked_in
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError

if TYPE_CHECKING:
    from herder.machine.state.reading import SavedMachine


@dataclass(frozen=True, slots=True)
class Entry:
    saved: SavedMachine
    host_key_file: Path

    def remember_host_key(self) -> None:
        from herder.machine.state.reading import KNOWN_HOSTS

        self.host_key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.host_key_file.write_bytes(self.saved.files[KNOWN_HOSTS])


def load(name: str, namespace: str | None, kubeconfig: str | None) -> Entry:
    """What is saved of the machine, as far as the caller may know it."""
    from herder.machine.errors import MachineError
    from herder.machine.state.reading import KNOWN_HOSTS, saved_machine

    try:
        connection = kubeconfigs.load(kubeconfig_path(kubeconfig))
        state = asyncio.run(_read(connection, looked_in(namespace, connection.namespace), name))
        saved = saved_machine(state.archive)
    except (StatusError, kubeconfigs.KubeconfigError, MachineError) as error:
        raise click.ClickException(str(error)) from error
    seen_before = _host_keys() / state.uid
    if KNOWN_HOSTS not in saved.files and seen_before.exists():
        saved.files[KNOWN_HOSTS] = seen_before.read_bytes()
    return Entry(saved, seen_before)


def _host_keys() -> Path:
    """One file for each machine, named after its state: machines that follow one another may share an address."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "herder" / "host-keys"


async def _read(connection: kubeconfigs.Connection, namespaces: Sequence[str], name: str) -> State:
    from herder.engine.client.http import HttpTransport

    client = Client(HttpTransport(connection))
    try:
        return await read_state(client, await find_machine(client, namespaces, name))
    finally:
        await client.close()
