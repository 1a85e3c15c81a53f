"""Node driver interface: one small class per provider, for one machine.

Drivers are synchronous: each runs in its own process, for one machine. Their state is in `machine.config`, the `Driver`
object of config.json, with the field names of the Go drivers (so that either program can take over the other's
machines); unknown fields are kept.

Creation must be idempotent: a driver records what it is going to create (a token, a chosen name) with `machine.save()`
*before* creating it, so that it can be found, completed or removed after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from herder.api.machines.drivers.flags import Flag, Value


class State(StrEnum):
    """Machine states as rancher-machine prints them."""

    NONE = ""
    RUNNING = "Running"
    PAUSED = "Paused"
    SAVED = "Saved"
    STOPPED = "Stopped"
    STOPPING = "Stopping"
    STARTING = "Starting"
    ERROR = "Error"
    TIMEOUT = "Timeout"
    NOT_FOUND = "Not Found"


@dataclass(frozen=True, slots=True)
class Reach:
    """SSH access to a machine.

    `host_keys` are known_hosts lines without the host; if there are none, the first key seen is stored in the machine's
    `known_hosts` and enforced from then on.
    """

    host: str
    port: int = 22
    user: str = "root"
    host_keys: tuple[str, ...] = ()


@dataclass
class Machine:
    """What a driver works with: the machine's name, its record, and how to save it."""

    name: str
    config: dict[str, Any]  # the `Driver` object of config.json
    files: MutableMapping[str, bytes]  # of the machine's directory: id_rsa, id_rsa.pub, known_hosts …
    save: Callable[[], None]  # persists config and files durably
    say: Callable[[str], None]  # prints a progress line for the user; never a secret
    directory: str = ""  # absolute path of the files in the archive
    scope: str = ""  # namespace of its state Secret; "" for a machine created by hand
    user_data: bytes = b""  # for drivers with a user-data flag: install script and the user's own data, merged
    script: bytes = b""  # the install script, for drivers that `seed` it
    hostname: str = ""
    sleep: Callable[[float], None] = field(default=lambda _seconds: None)


class Driver(Protocol):
    """A machine at a provider. Methods raise `MachineError` with advice."""

    name: ClassVar[str]
    flags: ClassVar[tuple[Flag, ...]]
    seeds: ClassVar[bool]
    """Whether the driver runs the install script itself, instead of using user data or SSH."""

    def __init__(self, machine: Machine) -> None: ...

    def configure(self, values: Mapping[str, Value]) -> None:
        """Store the flags' values (by full flag name, including defaults) in `machine.config`, and validate them."""

    def update_credentials(self, values: Mapping[str, Value]) -> None:
        """`--update-config`: store only credentials, from values that were explicitly given."""

    def check(self) -> None:
        """Pre-create check; raises `PreCreateFailed`."""

    def create(self) -> None:
        """Create the machine and wait until it runs; called again after a crash, complete it."""

    def address(self) -> str:
        """Return the current address; "" if there is none (yet)."""

    def state(self) -> State: ...

    def reach(self) -> Reach: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def restart(self) -> None: ...

    def kill(self) -> None:
        """Stop it without a clean shutdown."""

    def remove(self) -> None:
        """Delete everything that was created for it, from any intermediate state; missing resources are no error."""
