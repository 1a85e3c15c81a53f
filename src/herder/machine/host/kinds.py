"""Interface of machine kinds of this host; the daemon does the rest (requests, records, recovery).

Every operation is idempotent: the daemon may die at any time, and restarts it. Machines outlive the daemon, and
`recover` finds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from herder.machine.driver import State

Report = Callable[[str], None]
"""Reports a line of progress to the client."""


@dataclass(frozen=True, slots=True)
class Place:
    """Address and SSH access of a machine."""

    address: str
    ssh_port: int
    ssh_user: str
    host_key: str  # public key, as in known_hosts without the host


@dataclass
class Record:
    """The daemon's record of a machine, on disk before anything is created; `directory` is its own."""

    id: str  # unique on this host, safe as a file name, at most 40 characters: short hash and name
    scope: str
    name: str
    kind: str  # process, local
    token: str  # of the creation: repeating it with the same token refers to the same machine
    directory: Path
    wanted: str = "running"  # desired state for recovery: running, stopped or removed
    options: dict[str, Any] = field(default_factory=dict)  # as requested: image, cpus, memory, zone …
    facts: dict[str, Any] = field(default_factory=dict)  # data of the kind: addresses, process IDs, host key …
    place: Place | None = None  # set by the daemon; None until the creation is complete
    save: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Ask:
    """Inputs of a creation besides options; written only into the machine, never to the record."""

    hostname: str
    authorized_key: str  # authorized SSH public key
    script: bytes = b""  # run once, at first boot
    user_data: bytes = b""  # `#cloud-config`, for kinds with cloud-init


class MachineKind(Protocol):
    """A kind of machine of this host."""

    name: str

    async def prepare(self) -> None:
        """Set up what all machines share, before the first is created or recovered."""

    def check(self, options: dict[str, Any]) -> None:
        """Pre-create check; raises `PreCreateFailed`."""

    async def create(self, record: Record, ask: Ask, report: Report) -> Place:
        """Create and start the machine, until its SSH server responds. If cancelled, it is called again, or `remove`
        is.
        """

    async def start(self, record: Record, report: Report) -> Place: ...

    async def stop(self, record: Record, *, grace: float) -> None:
        """Shut down; kill after the grace period (seconds, may be 0)."""

    def state(self, record: Record) -> State: ...

    async def recover(self, record: Record) -> None:
        """After a restart of the daemon: watch the machine if it runs, start it if not."""

    async def remove(self, record: Record) -> None:
        """Remove everything outside of its directory, from any state; the daemon deletes the directory."""

    async def close(self) -> None:
        """The daemon stops; machines keep running."""
