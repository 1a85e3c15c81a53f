"""Allocate an address in 127.0.0.0/8 for each machine, claimed atomically by a symlink."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from herder.machine.errors import MachineError
from herder.machine.host.kinds import Record

TRIES = 64


class Addresses:
    """Claims in constant time.

    Daemons of other users choose other addresses with high probability; otherwise binding the SSH port fails.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._realm = str(directory)

    def claim(self, record: Record) -> Iterator[str]:
        """Yield claimed addresses, first the current one."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        had = record.facts.get("address")
        for address in (*([had] if had else []), *self._candidates(record)):
            record.facts["address"] = address
            record.save()  # recorded before it is claimed, so that it can be released
            if self._claimed(address, record.id):
                yield address
                self.give_back(record)
        raise MachineError("no free address in 127.64.0.0/10", "remove unused machines")

    def give_back(self, record: Record) -> None:
        link = self._directory / record.facts.get("address", "none")
        if link.is_symlink() and os.readlink(link) == record.id:
            link.unlink()

    def _claimed(self, address: str, owner: str) -> bool:
        link = self._directory / address
        try:
            os.symlink(owner, link)
        except FileExistsError:
            return os.readlink(link) == owner
        return True

    def _candidates(self, record: Record) -> Iterator[str]:
        for attempt in range(TRIES):
            seed = f"{self._realm}/{record.id}/{attempt}".encode()
            number = int.from_bytes(hashlib.sha256(seed).digest()[:4])
            yield f"127.{64 + number % 64}.{(number >> 6) % 256}.{1 + (number >> 14) % 254}"
