"""Key file of a store whose keys another party manages.

`managed.keys` has one base64 key per line, the first of which encrypts; the line `local` stands for the keys that the
store has created itself. `compose` writes the key file from it before the store is opened. The former key file stays
until the store has been opened with the new one.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from herder.engine.store.errors import StoreError
from herder.engine.store.files import replace_durably, sync_directory

KEY_FILE, MANAGED, STATUS = "encryption.key", "managed.keys", "encryption.status"
LOCAL, FORMER = "local.key", "former.key"
OWN = b"local"


def compose(directory: Path) -> str:
    """Write the key file; returns the digest of `managed.keys`, and "" if it does not exist."""
    try:
        managed = (directory / MANAGED).read_bytes()
    except FileNotFoundError:
        return ""
    key_file, lines = directory / KEY_FILE, managed.split()
    if OWN in lines:
        lines = [key for line in lines for key in (_own_keys(directory) if line == OWN else [line])]
    if not lines:
        raise StoreError(f"{directory / MANAGED}: has no key")
    content = b"".join(line + b"\n" for line in dict.fromkeys(lines))
    former = key_file.read_bytes() if key_file.exists() else b""
    if former != content:
        if former and not (directory / FORMER).exists():
            replace_durably(directory / FORMER, former)
        replace_durably(key_file, content)
    return hashlib.sha256(managed).hexdigest()


def confirm(directory: Path) -> None:
    """Delete former keys: the store has been opened, so nothing in it needs them."""
    managed = (directory / MANAGED).read_bytes().split()
    for name in (FORMER, *(() if OWN in managed else (LOCAL,))):
        (directory / name).unlink(missing_ok=True)
    sync_directory(directory)


def write_status(directory: Path, *lines: str) -> None:
    replace_durably(directory / STATUS, "".join(f"{line}\n" for line in lines).encode())


def read_status(directory: Path) -> list[str]:
    try:
        return (directory / STATUS).read_text().splitlines()
    except FileNotFoundError:
        return []


def _own_keys(directory: Path) -> list[bytes]:
    """The keys that the store has created; the first time, they are the key file."""
    own, key_file = directory / LOCAL, directory / KEY_FILE
    if not own.exists() and key_file.exists():
        replace_durably(own, key_file.read_bytes())
    return own.read_bytes().split() if own.exists() else []
