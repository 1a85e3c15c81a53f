"""What a driver is: one small class for each provider, that knows one machine there.

Drivers are plain synchronous code: a driver runs in a process of its own, for one machine, and ends with it. What a
driver must remember is in `machine.config`, the `Driver` object of config.json, in the field names of the Go drivers
(so that either program takes over the other's machines); fields that a driver does not know are kept.

Creation must be idempotent: a driver writes down what it is going to make (a token, a name it chose) and calls
`machine.save()` *before* it makes it. Whoever finds the record after a crash can find the thing, finish or remove it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from herder.api.machines.flags import Flag, Value


class State(StrEnum):
    """As rancher-machine prints them."""

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
    """How to get into a machine by SSH. `host_keys` are lines as in a known_hosts file without the host; where there
    are none, the first key seen is kept in the machine's `known_hosts` and insisted on from then on."""

    host: str
    port: int = 22
    user: str = "root"
    host_keys: tuple[str, ...] = ()


@dataclass
class Machine:
    """A driver's workbench: the machine's name, what is remembered of it, and how to remember more."""

    name: str
    config: dict[str, Any]  # the `Driver` object of config.json
    files: MutableMapping[str, bytes]  # of the machine's own directory: id_rsa, id_rsa.pub, known_hosts …
    save: Callable[[], None]  # makes config and files durable; returns when they are
    say: Callable[[str], None]  # a line for the person who watches; never a secret
    directory: str = ""  # the absolute path that the files have in the archive
    scope: str = ""  # whose machine it is: the namespace of its state Secret; "" for one made by hand
    user_data: bytes = b""  # for drivers with a user-data flag: the install script and the user's own, made one
    script: bytes = b""  # the install script as it is, for drivers that `seed` it
    hostname: str = ""
    sleep: Callable[[float], None] = field(default=lambda _seconds: None)


class Driver(Protocol):
    """One machine at one provider. Raises `MachineError`s, which say what to do."""

    name: ClassVar[str]
    flags: ClassVar[tuple[Flag, ...]]
    seeds: ClassVar[bool]
    """Whether it takes the install script itself and runs it, rather than user data or an SSH upload."""

    def __init__(self, machine: Machine) -> None: ...

    def configure(self, values: Mapping[str, Value]) -> None:
        """Take the values of the flags (by full flag name, defaults filled in) into `machine.config`; check them."""

    def update_credentials(self, values: Mapping[str, Value]) -> None:
        """`--update-config`: take those alone that let us in, from values that were really given."""

    def check(self) -> None:
        """Whether it can work, as far as can be told before anything is made. Raises `PreCreateFailed`."""

    def create(self) -> None:
        """Make it and wait until it runs; called again after a crash, finish what was begun."""

    def address(self) -> str:
        """Where it is found now; "" where it has no address (yet)."""

    def state(self) -> State: ...

    def reach(self) -> Reach: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def restart(self) -> None: ...

    def kill(self) -> None:
        """Stop it the hard way."""

    def remove(self) -> None:
        """Everything that was made for it, from any half-made state. What is gone already is no error."""
