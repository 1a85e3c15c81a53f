"""Address allocation of the network shared by the machines of this host."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from herder.machine.errors import MachineError, PreCreateFailed

NETWORK_VARIABLE = "HERDER_LOCAL_NETWORK"
FORWARD_PORT = 2222  # SSH port of machines without an address of their own

_CANDIDATES = [
    ipaddress.IPv4Network((f"10.{second}.{third}.0", 20)) for second in range(64, 128) for third in range(0, 256, 16)
]


def short_hash(text: str, length: int = 8) -> str:
    """For link names, which have at most 15 characters."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def chosen_network(directory: Path) -> ipaddress.IPv4Network:
    """Choose a network that the host does not use, once; machines keep their addresses."""
    kept = directory / "network"
    if kept.exists():
        return ipaddress.IPv4Network(kept.read_text().strip())
    network = _asked_for() or _free_one(str(directory))
    kept.write_text(f"{network}\n")
    return network


def _asked_for() -> ipaddress.IPv4Network | None:
    text = os.environ.get(NETWORK_VARIABLE, "")
    if not text:
        return None
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise PreCreateFailed(f"{NETWORK_VARIABLE}={text}: {error}", "use a network such as 10.77.0.0/20") from None
    if network.prefixlen > 29:
        raise PreCreateFailed(f"{NETWORK_VARIABLE}={text} is too small", "use a network such as 10.77.0.0/20")
    return network


def _free_one(seed: str) -> ipaddress.IPv4Network:
    taken = [route for route in _routes() if route.prefixlen > 0]
    start = int(short_hash(seed), 16)
    for offset in range(len(_CANDIDATES)):
        candidate = _CANDIDATES[(start + offset) % len(_CANDIDATES)]
        if not any(candidate.overlaps(route) for route in taken):
            return candidate
    raise PreCreateFailed(
        "no free network between 10.64.0.0 and 10.127.255.255", f"set {NETWORK_VARIABLE} to a network"
    )


def _routes() -> list[ipaddress.IPv4Network]:
    listed = subprocess.run(["ip", "-json", "-4", "route"], capture_output=True, check=False).stdout
    found = []
    for route in json.loads(listed or b"[]"):
        with contextlib.suppress(ValueError):
            found.append(ipaddress.IPv4Network(route["dst"]))
    return found


class Addresses:
    """A symlink per address to the machine's ID; created atomically."""

    def __init__(self, directory: Path, network: ipaddress.IPv4Network, *, forwarded: bool) -> None:
        self.directory = directory
        self.network = network
        self.forwarded = forwarded  # whether machines are reached through loopback addresses
        directory.mkdir(exist_ok=True)

    @property
    def gateway(self) -> str:
        return str(self.network[1])

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(os.listdir(self.directory)))

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def take(self, id: str) -> str:
        """Return the machine's address; the search starts at a hash of its ID."""
        count = self.network.num_addresses - 3  # without network, gateway and broadcast addresses
        start = int(short_hash(id), 16)
        for offset in range(count):
            address = str(self.network[2 + (start + offset) % count])
            path = self.directory / address
            try:
                path.symlink_to(id)
            except FileExistsError:
                if os.readlink(path) != id:
                    continue
            else:
                if self.forwarded and not _can_listen(forward_address(address, self.network)):
                    path.unlink()
                    continue
            return address
        raise MachineError(f"no free address in {self.network}", f"remove machines, or set {NETWORK_VARIABLE}")

    def release(self, id: str) -> None:
        for address in self:
            path = self.directory / address
            with contextlib.suppress(OSError):
                if os.readlink(path) == id:
                    path.unlink()


def hardware_address(address: str) -> str:
    """Derive a stable MAC address, because neighbors cache it."""
    return "02:48:" + ":".join(f"{byte:02x}" for byte in ipaddress.IPv4Address(address).packed)


def forward_address(address: str, network: ipaddress.IPv4Network) -> str:
    """Return the loopback address for a machine; each daemon has a block of 127.128.0.0/9."""
    block = int(short_hash(str(network)), 16) % 128 + 128
    slot = int(ipaddress.IPv4Address(address)) - int(network.network_address)
    return f"127.{block}.{slot >> 8 & 255}.{slot & 255}"


def _can_listen(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((address, FORWARD_PORT))
        except OSError:
            return False
    return True
