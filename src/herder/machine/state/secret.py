"""State store in a Secret: nothing is written to disk, and newer records are never overwritten."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping

from herder.api.machines.names import STATE_KEY
from herder.machine.state import archive
from herder.machine.state.kubernetes import Conflict, Secret, SecretClient
from herder.machine.state.saved_machine import by_machine
from herder.machine.state.store import IMAGE_PATH, RecordConflict


class SecretStore:
    def __init__(self, client: SecretClient, path: str = IMAGE_PATH) -> None:
        self._path = path
        self._client = client
        with contextlib.closing(client):
            self._seen = _archive(client.read())  # the last known archive, written or read by us
        self._files = archive.unpack(self._seen)

    def directory(self, name: str) -> str:
        """Return its existing directory, because a record names its own paths."""
        for path in self._files:
            if name in by_machine({path: b""}):
                return f"{path.partition('/machines/')[0]}/machines/{name}"
        return f"{self._path}/machines/{name}"

    def names(self) -> list[str]:
        return sorted(by_machine(self._files))

    def load(self, name: str) -> dict[str, bytes] | None:
        return by_machine(self._files).get(name)

    def save(self, name: str, files: Mapping[str, bytes]) -> None:
        directory = self.directory(name)
        self._put(name, {**self._without(name), **{f"{directory}/{path}": data for path, data in files.items()}})

    def remove(self, name: str) -> None:
        self._put(name, self._without(name))

    def _without(self, name: str) -> dict[str, bytes]:
        return {path: data for path, data in self._files.items() if name not in by_machine({path: b""})}

    def _put(self, name: str, files: dict[str, bytes]) -> None:
        wanted = archive.pack(files)
        if wanted != self._seen:
            with contextlib.closing(self._client):
                self._replace(name, wanted)
        self._seen, self._files = wanted, files

    def _replace(self, name: str, wanted: bytes) -> None:
        while True:
            secret = self._client.read()
            stored = _archive(secret)
            if stored == wanted:  # ours, whose response was lost
                return
            if stored != self._seen:
                raise RecordConflict(name)
            secret["data"] = {**(secret.get("data") or {}), STATE_KEY: base64.b64encode(wanted).decode()}
            with contextlib.suppress(Conflict):  # perhaps only its labels changed: read again
                self._client.replace(secret)
                return


def _archive(secret: Secret) -> bytes:
    return base64.b64decode((secret.get("data") or {}).get(STATE_KEY) or "")
