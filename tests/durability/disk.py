"""What a disk may contain after power loss: everything that was synced, and a random part of the rest.

Works on a trace of `disk_trace.c`. Data of a file is safe once a sync of that file returned that began after the
write. Names (created, renamed, removed) are safe once the directory was synced likewise, or, for a new file, once the
file itself was. Each unsafe write may be lost, kept, or torn at sector boundaries.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SECTOR = 512


class Step(NamedTuple):
    """One disk operation: C create, W write, T truncate, S/E a sync begins/ends, R rename, U unlink."""

    kind: str
    path: str
    offset: int
    data: bytes


class File:
    """The content of one file, independent of its name."""

    def __init__(self, created: int) -> None:
        self.created = created
        self.steps: list[tuple[int, Step]] = []
        self.safe = 0
        """Steps before this number are on disk."""


def read_trace(path: Path) -> list[Step]:
    return list(_steps(path.read_bytes()))


def _steps(raw: bytes) -> Iterator[Step]:
    at = 0
    while at < len(raw):
        kind = chr(raw[at])
        (length,) = struct.unpack_from("<H", raw, at + 1)
        at += 3
        path = raw[at : at + length].decode()
        offset, size = struct.unpack_from("<qQ", raw, at + length)
        at += length + 16
        yield Step(kind, path, offset, raw[at : at + size])
        at += size


def after_power_loss(steps: list[Step], pick: random.Random | None) -> dict[str, bytes]:
    """The files on a disk after these steps. Without `pick`, only synced data; with it, a random part of the rest."""
    files: dict[str, File] = {}
    names: list[tuple[int, Step, File]] = []
    sync_began: dict[str, int] = {}
    names_safe: dict[str, int] = {}
    for number, step in enumerate(steps):
        if step.kind == "C":
            files[step.path] = File(number)
            names.append((number, step, files[step.path]))
        elif step.kind in "WT" and step.path in files:
            files[step.path].steps.append((number, step))
        elif step.kind == "S":
            sync_began[step.path] = number
        elif step.kind == "E":
            names_safe[step.path] = sync_began[step.path]
            if step.path in files:
                files[step.path].safe = sync_began[step.path]
        elif step.kind == "R":
            names.append((number, step, files[step.path]))
            files[step.data.decode()] = files.pop(step.path)
        elif step.kind == "U" and step.path in files:
            names.append((number, step, files.pop(step.path)))
    return {path: _content(file, pick) for path, file in _names(names, names_safe, pick).items()}


def _names(names: list[tuple[int, Step, File]], safe: dict[str, int], pick: random.Random | None) -> dict[str, File]:
    """Which names refer to which files. Unsynced changes of names survive in order, up to some point."""
    found: dict[str, File] = {}
    survives = pick is not None and pick.random() < 0.5
    for number, step, file in names:
        synced = number < safe.get(str(Path(step.path).parent), -1) or (step.kind == "C" and number < file.safe)
        if not synced:
            survives = survives and pick is not None and pick.random() < 0.7
            if not survives:
                continue
        if step.kind == "C":
            found[step.path] = file
        elif step.kind == "R":
            if found.pop(step.path, None) is not None:
                found[step.data.decode()] = file
        else:
            found.pop(step.path, None)
    return found


def _content(file: File, pick: random.Random | None) -> bytes:
    content = bytearray()
    kept = pick.choice([0.0, 0.5, 0.9, 1.0]) if pick is not None else 0.0
    for number, step in file.steps:
        if number < file.safe:
            _apply(content, step, None)
        elif pick is not None and pick.random() < kept:
            _apply(content, step, pick if pick.random() < 0.3 else None)
    return bytes(content)


def _apply(content: bytearray, step: Step, tear: random.Random | None) -> None:
    if step.kind == "T":
        del content[step.offset :]
        content.extend(bytes(max(0, step.offset - len(content))))
        return
    end = step.offset + len(step.data)
    content.extend(bytes(max(0, end - len(content))))
    for start in range(step.offset, end, SECTOR):
        if tear is None or tear.random() < 0.5:
            piece = step.data[start - step.offset : start - step.offset + SECTOR]
            content[start : start + len(piece)] = piece
