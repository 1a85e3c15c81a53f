"""What a kind of machine on this host must be able to do; the daemon does the rest (asking, recording, recovering).

Every act is idempotent: the daemon may die at any moment, and begins the act again when it is back. A machine outlives
the daemon: `recover` finds it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from herder.machine.driver import State

Report = Callable[[str], None]
"""A line of progress for whoever asked."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a machine is found."""

    address: str
    ssh_port: int
    ssh_user: str
    host_key: str  # the public half, as in a known_hosts line without the host


@dataclass
class Record:
    """What the daemon remembers of a machine, on disk before anything is made; `directory` is its own."""

    id: str  # unique on this host, safe as a file name, at most 40 characters: short hash and name
    scope: str
    name: str
    kind: str  # process, local
    token: str  # of the creation: asked again with the same token, it is the same machine
    directory: Path
    wanted: str = "running"  # running, stopped, removed: what recovery brings it to
    options: dict[str, Any] = field(default_factory=dict)  # as asked: image, cpus, memory, zone …
    facts: dict[str, Any] = field(default_factory=dict)  # the kind's own: addresses, process IDs, host key …
    place: Place | None = None  # the daemon's: where it was found last; None until its creation is complete
    save: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a creation brings along besides options: never written to the record, only into the machine itself."""

    hostname: str
    authorized_key: str  # the public SSH key that is let in
    script: bytes = b""  # run once, at the first boot
    user_data: bytes = b""  # `#cloud-config`, for kinds that have cloud-init


class MachineKind(Protocol):
    """A way to make machines of this host."""

    name: str

    async def prepare(self) -> None:
        """Before the first machine is made or recovered: what all machines share."""

    def check(self, options: dict[str, Any]) -> None:
        """Whether such a machine can be made here. Raises `PreCreateFailed` with what to do."""

    async def create(self, record: Record, ask: Ask, report: Report) -> Place:
        """Made and running, its SSH answering. It may be cancelled: then it is called again, or `remove` is."""

    async def start(self, record: Record, report: Report) -> Place: ...

    async def stop(self, record: Record, *, grace: float) -> None:
        """As a shutdown; the hard way when the grace (seconds, may be 0) is over."""

    def state(self, record: Record) -> State: ...

    async def recover(self, record: Record) -> None:
        """The daemon is back, and the machine should run: watch over it again if it does, start it if it does not."""

    async def remove(self, record: Record) -> None:
        """Nothing is left of it outside its directory, from whatever state; the daemon deletes the directory."""

    async def close(self) -> None:
        """The daemon ends; machines go on."""
