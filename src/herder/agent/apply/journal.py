"""Journal of the last run on disk, written before a run starts and before its result is reported.

Records are appended to a preallocated file, each in its own blocks. So a record is a single disk write that needs no
free space, and a record truncated by a crash does not damage earlier ones.
"""

import binascii
import json
import os
from typing import Any, Dict, List, Optional

from herder.agent.apply import atomic_file
from herder.agent.core import outputs
from herder.agent.core.events import Evidence, Record, Result

NAME = "runs"
_BLOCK = 4096
_FILE_BLOCKS = 64
_HEADER = 17  # eight hex digits of length, eight of checksum, a space

_sync = getattr(os, "fdatasync", os.fsync)  # Windows has no fdatasync


class Journal:
    def __init__(self, directory: str) -> None:
        os.makedirs(directory, 0o700, exist_ok=True)
        self._path = os.path.join(directory, NAME)
        self._descriptor: Optional[int] = None
        self._free = 0  # offset of the next record, and size of the file
        self._size = 0

    def write(self, record: Record) -> None:
        """Append a record. Only results are durable: that a run started is recorded in the Secret too."""
        entry = _entry(json.dumps(_to_json(record)).encode())
        try:
            if self._descriptor is None or self._free + len(entry) > self._size:
                self._begin_anew(entry)
            else:
                self._append(self._descriptor, entry, record.result is not None)
        except OSError:
            self.close()  # its contents are unknown now
            raise
        self._free += len(entry)

    def read(self) -> Optional[Record]:
        """Return the last record; None if there is none or it is unreadable, then the Secret alone decides."""
        kept = _entries(atomic_file.read(self._path) or b"")
        try:
            return _from_json(json.loads(kept[-1].decode())) if kept else None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, descriptor: int, entry: bytes, durable: bool) -> None:
        os.lseek(descriptor, self._free, os.SEEK_SET)
        atomic_file.write_all(descriptor, entry)
        if durable:
            _sync(descriptor)

    def _begin_anew(self, entry: bytes) -> None:
        """Start a new file with this record; each process has its own, because data after the last record
        is undefined.
        """
        self.close()
        self._size = len(entry) + _FILE_BLOCKS * _BLOCK
        atomic_file.write(self._path, entry.ljust(self._size, b"\0"), durable=True)
        self._descriptor = atomic_file.open_for_writing(self._path, 0)
        self._free = 0


# --- file format -----------------------------------------------------------------------------------------------------


def _entry(content: bytes) -> bytes:
    entry = b"%08x%08x " % (len(content), binascii.crc32(content)) + content
    return entry.ljust(-(-len(entry) // _BLOCK) * _BLOCK, b"\0")


def _entries(kept: bytes) -> List[bytes]:
    """Return the entries up to the first incomplete one."""
    found: List[bytes] = []
    at = 0
    while True:
        content = _content(kept, at)
        if content is None:
            return found
        found.append(content)
        at += len(_entry(content))


def _content(kept: bytes, at: int) -> Optional[bytes]:
    begin = at + _HEADER
    try:
        length, check = int(kept[at : at + 8], 16), int(kept[at + 8 : begin], 16)
    except ValueError:
        return None
    content = kept[begin : begin + length]
    return content if len(content) == length and binascii.crc32(content) == check else None


# --- records as JSON ------------------------------------------------------------------------------------------------


def _to_json(record: Record) -> Dict[str, Any]:
    value: Dict[str, Any] = dict(record._asdict())
    if record.result is not None:
        result = record.result
        value["result"] = {
            "succeeded": result.succeeded,
            "at": result.at,
            "outputs": {name: outputs.to_base64(each) for name, each in result.outputs.items()},
            "periodic": outputs.to_base64(outputs.pack_periodic(result.periodic)),
            "evidence": dict(result.evidence._asdict()) if result.evidence else None,
        }
    return value


def _from_json(value: Dict[str, Any]) -> Record:
    result = value.pop("result")
    if result is not None:
        result = Result(
            succeeded=bool(result["succeeded"]),
            at=float(result["at"]),
            outputs={name: outputs.from_base64(each) for name, each in result["outputs"].items()},
            periodic=outputs.periodic_from(outputs.from_base64(result["periodic"])),
            evidence=Evidence(**result["evidence"]) if result["evidence"] else None,
        )
    return Record(result=result, **value)
