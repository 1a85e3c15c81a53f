"""The archive of a support bundle: bounded, with the same layout for the same contents, and private to its owner."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = "herder-support"
MANIFEST = "manifest.json"
MAX_FILE = 8 << 20
MAX_TOTAL = 64 << 20


class Archive:
    """Files by name. What does not fit is left out, and the manifest says so."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._notes: dict[str, str] = {}
        self._size = 0

    def add(self, name: str, content: bytes, note: str = "") -> None:
        room = min(MAX_FILE, MAX_TOTAL - self._size)
        if len(content) > room:
            note = f"left out: {len(content)} bytes are too much"
            content = b""
        self._size += len(content)
        self._files[name] = content
        if note:
            self._notes[name] = note

    def add_document(self, name: str, document: Any, note: str = "") -> None:
        self.add(name, as_json(document), note)

    def write(self, path: Path, facts: dict[str, Any]) -> None:
        """Write the file at once, with mode 0600. A file of this name is replaced."""
        manifest = {**facts, "files": [self._entry(name) for name in sorted(self._files)]}
        descriptor, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # created with mode 0600
        try:
            with (
                os.fdopen(descriptor, "wb") as file,
                gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
            ):
                _add(tar, MANIFEST, as_json(manifest))
                for name in sorted(self._files):
                    _add(tar, name, self._files[name])
            Path(staged).replace(path)
        except BaseException:
            Path(staged).unlink(missing_ok=True)
            raise

    def _entry(self, name: str) -> dict[str, Any]:
        content = self._files[name]
        entry = {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        return entry | ({"note": self._notes[name]} if name in self._notes else {})


def as_json(document: Any) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True, default=str).encode() + b"\n"


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(f"{ROOT}/{name}")
    entry.size, entry.mode = len(content), 0o600
    tar.addfile(entry, io.BytesIO(content))
