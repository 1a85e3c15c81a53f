"""What a distribution implements: a consistent copy of its data, its verification, and its replacement."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

from herder.snapshots.config import Config


class Content(NamedTuple):
    """Facts about the data in a snapshot."""

    revision: int
    version: str


class Data(Protocol):
    def size(self) -> int:
        """Return the most bytes that a copy of the data can have now; 0 if it cannot be known."""

    def save(self, target: Path) -> None:
        """Write a consistent copy of the running server's data to a new file."""

    def verify(self, file: Path) -> Content:
        """Read a whole snapshot. Raise SnapshotError if it is corrupt or too new for this server."""

    # --- restore, in this order; every step can be repeated ---------------------------------------------------------

    def stage(self, file: Path, identity: str, revision: int) -> dict[str, Any]:
        """Prepare the new data beside the old data. Return what `replace` needs to know after a crash."""

    def stop(self) -> None:
        """Stop what uses the data, or raise SnapshotError if it runs."""

    def replace(self, file: Path, identity: str, staged: dict[str, Any]) -> None:
        """Put the staged data in place and keep the old data beside it."""

    def start(self) -> None:
        """Start what `stop` has stopped, and wait until it works."""

    def probe(self) -> None:
        """Check that the new data works, and leave what uses it stopped."""

    def undo(self, identity: str, staged: dict[str, Any]) -> None:
        """Put the old data back in place. What uses it is stopped afterwards, unless nothing had been replaced."""

    def resume(self) -> None:
        """Start what `stop` has stopped, without waiting for it."""

    def clean(self, identity: str) -> None:
        """Remove what a finished restore does not need."""

    # --- the server, before and after a restore; every step can be repeated -----------------------------------------

    def stop_server(self) -> None:
        """Stop the server, such that it stays stopped when the machine restarts."""

    def start_server(self) -> None:
        """Start what `stop_server` has stopped."""

    def drop(self) -> None:
        """Remove the data of a stopped server, so that it can join a restored cluster."""


def data_of(config: Config) -> Data:
    if config.etcd is not None:
        from herder.snapshots.stores.etcd import EtcdData

        return EtcdData(config.etcd)
    from herder.snapshots.stores.embedded import StoreData

    assert config.store is not None
    return StoreData(config.store)
