"""Read SSH access of a saved machine from the state archive, without a driver."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from herder.machine.driver import Reach
from herder.machine.errors import MachineError
from herder.machine.state import archive, record

KNOWN_HOSTS = "known_hosts"
PRIVATE_KEY = "id_rsa"
DEFAULT_USER = "root"
DEFAULT_PORT = 22


@dataclass(frozen=True, slots=True)
class SavedMachine:
    name: str
    driver: str
    config: dict[str, Any]  # the `Driver` object of config.json
    files: MutableMapping[str, bytes]  # of the machine's directory, except config.json
    reach: Reach


def saved_machine(data: bytes, name: str = "") -> SavedMachine:
    """Return the machine in an archive; `name` is required if there are several."""
    machines = by_machine(archive.unpack(data))
    if not name and len(machines) == 1:
        (name,) = machines
    if name not in machines:
        what = f'no machine "{name}"' if name else f"{len(machines)} machines instead of one"
        raise MachineError(f"the machine state contains {what}", "it is empty until the creation of the machine starts")
    found = record.read(name, machines[name])
    return SavedMachine(found.name, found.driver, found.config, found.files, reach_of(found.config))


def by_machine(files: dict[str, bytes]) -> dict[str, dict[str, bytes]]:
    """Group files by machine name and path in its directory."""
    machines: dict[str, dict[str, bytes]] = {}
    for path, content in files.items():
        _, found, rest = path.partition("/machines/")
        name, slash, within = rest.partition("/")
        if found and slash:
            machines.setdefault(name, {})[within] = content
    return machines


def reach_of(config: dict[str, Any]) -> Reach:
    """Return the SSH access from the fields that all drivers have."""
    address = config.get("IPAddress") or config.get("IPv6Address") or ""
    port, user = _port(config), str(config.get("SSHUser") or DEFAULT_USER)
    key = config.get("HostKey")  # if the driver created the host key, or got it from the provider
    return Reach(str(address), port, user, (str(key),) if key else ())


def _port(config: Mapping[str, Any]) -> int:
    """Editors of the state Secret can write anything there."""
    try:
        port = int(config.get("SSHPort") or DEFAULT_PORT)
    except (OverflowError, TypeError, ValueError):
        port = 0
    if not 0 < port < 65536:
        raise MachineError(
            "the SSHPort in the machine state is not a port number", "restore the state Secret from a backup"
        )
    return port


def private_key(config: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """Return the key file that the record names, wherever its store was."""
    named = str(config.get("SSHKeyPath") or PRIVATE_KEY).rsplit("/", 1)[-1]
    return files.get(named) or files.get(PRIVATE_KEY) or b""
