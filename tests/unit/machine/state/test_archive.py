"""The archive in the state Secret, as the Go program writes and reads it."""

from __future__ import annotations

import base64
import gzip
import io
import tarfile
import tracemalloc

import pytest

from herder.api.machines.names import STATE_KEY
from herder.api.machines.state import Recorded, recorded
from herder.machine.errors import MachineError
from herder.machine.state import archive

HOME = "/home/machine/.docker/machine/machines"
FILES = {
    f"{HOME}/m1/config.json": b"{}",
    f"{HOME}/m1/id_rsa": b"key",
    f"{HOME}/m1/deep/er/file": b"",
    f"{HOME}/m2/config.json": b"{}",
}


def test_packed_files_are_unpacked_unchanged() -> None:
    assert archive.unpack(archive.pack(FILES)) == FILES


def test_entries_have_absolute_names_and_private_modes_directories_first() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive.pack(FILES))) as tar:
        found = [(entry.name, entry.mode, entry.isdir()) for entry in tar]
    assert found == [
        (f"{HOME}/m1", 0o700, True),
        (f"{HOME}/m1/config.json", 0o600, False),
        (f"{HOME}/m1/deep", 0o700, True),
        (f"{HOME}/m1/deep/er", 0o700, True),
        (f"{HOME}/m1/deep/er/file", 0o600, False),
        (f"{HOME}/m1/id_rsa", 0o600, False),
        (f"{HOME}/m2", 0o700, True),
        (f"{HOME}/m2/config.json", 0o600, False),
    ]


def test_archives_are_reproducible() -> None:
    assert archive.pack(FILES) == archive.pack(dict(reversed(FILES.items())))


def test_large_files_of_hypervisors_are_omitted() -> None:
    large = {f"{HOME}/m1/{name}": b"x" for name in ("boot2docker.iso", "disk.vmdk", "disk.img", "logs.tar.gz")}
    assert archive.unpack(archive.pack({**FILES, **large})) == FILES


def test_without_machines_the_archive_is_valid() -> None:
    assert archive.unpack(archive.pack({})) == {}
    assert archive.unpack(b"") == {}


def test_long_names_are_kept() -> None:
    files = {f"{HOME}/{'m' * 63}/{'f' * 120}": b"x"}
    assert archive.unpack(archive.pack(files)) == files


def test_names_with_path_traversal_are_contained() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("/home/machines/m1/../../../etc/passwd"))
        link = tarfile.TarInfo("/home/machines/m1/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert list(archive.unpack(buffer.getvalue())) == ["/etc/passwd"]  # only a name in memory, that of no machine


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"not gzip", id="not gzip"),
        pytest.param(gzip.compress(b"not a tar" * 100), id="not a tar"),
        pytest.param(archive.pack(FILES)[:-30], id="cut"),
        pytest.param(gzip.compress(bytes(archive.LARGEST + 1)), id="unpacks to far too much"),
    ],
)
def test_a_damaged_archive_is_rejected_with_the_reason(damaged: bytes) -> None:
    with pytest.raises(MachineError, match="state archive"):
        archive.unpack(damaged)


def sparse_archive(size: int) -> bytes:
    """Return an archive with one sparse entry of this size."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        entry = tarfile.TarInfo("/store/machines/m/config.json")
        entry.pax_headers = {
            "GNU.sparse.major": "0",
            "GNU.sparse.minor": "1",
            "GNU.sparse.name": entry.name,
            "GNU.sparse.size": str(size),
            "GNU.sparse.map": f"{size},0",
        }
        tar.addfile(entry, io.BytesIO())
    return gzip.compress(buffer.getvalue(), mtime=0)


def test_a_sparse_file_is_rejected() -> None:
    """An editor of the Secret could otherwise exhaust the memory of its readers."""
    tracemalloc.start()
    try:
        with pytest.raises(MachineError, match="sparse"):
            archive.unpack(sparse_archive(64 << 20))
        secret = {"data": {STATE_KEY: base64.b64encode(sparse_archive(64 << 20)).decode()}}
        assert recorded(secret) is Recorded.UNREADABLE
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
