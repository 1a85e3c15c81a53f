"""Snapshots of a real store of an embedded server, with a kill at every step of a restore."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from herder.engine.store import Cipher, Key, Put, Store
from tests.support.s3 import S3Server
from tests.support.snapshots import SnapshotProgram, small_disk

STEPS = ("begun", "fetched", "staging", "staged", "stopped", "replacing", "replaced", "started")


class Server:
    """The store of a server, in the layout of the embedded distribution."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "db" / "store"
        self.encryption_key = directory / "db" / "encryption.key"
        self.path.parent.mkdir()

    def open(self) -> Store:
        cipher = Cipher.load_or_create(self.encryption_key)
        return Store.open(self.path, clock=time.time, cipher=cipher, encrypted=lambda resource: resource == "secrets")

    async def put(self, value: str) -> None:
        store = self.open()
        await store.write(Put(KEY, lambda revision: value.encode()))
        await store.close()

    async def value(self) -> str:
        store = self.open()
        record = store.get(KEY)
        await store.close()
        assert record is not None
        return record.value.decode()

    def settings(self) -> dict[str, str]:
        return {"store": str(self.path)}


KEY = Key("secrets", "default", "kept")


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.fixture
def program(server: Server, tmp_path: Path) -> SnapshotProgram:
    return SnapshotProgram(tmp_path, distribution="embedded", embedded=server.settings())


async def test_a_running_server_is_saved_and_a_stopped_one_restored(program: SnapshotProgram, server: Server) -> None:
    await server.put("before")
    store = server.open()
    (saved,) = program.save()
    assert (saved["revision"], saved["version"]) == (1, "3")
    assert program.files() == {saved["name"], f".metadata/{saved['name']}"}
    assert f"store in {server.path} is in use by process {os.getpid()}" in program.fail("restore", saved["name"])
    await store.close()
    await server.put("after")
    assert program("check", saved["name"])["snapshots"] == [saved]
    program("restore", saved["name"])
    assert await server.value() == "before"
    assert (server.path / "before-restore" / "store.db").exists()


@pytest.mark.parametrize("step", STEPS)
async def test_a_restore_resumes_and_keeps_the_old_data(program: SnapshotProgram, server: Server, step: str) -> None:
    await server.put("before")
    (saved,) = program.save()
    await server.put("after")
    inode = (server.path / "store.db").stat().st_ino
    assert program.start("restore", saved["name"], kill=step).returncode == -9
    program("restore", saved["name"])
    assert (server.path / "before-restore" / "store.db").stat().st_ino == inode
    assert await server.value() == "before"
    assert not (program.snapshots / ".restore").exists()


async def test_damage_is_found(program: SnapshotProgram, server: Server) -> None:
    await server.put("before")
    (saved,) = program.save()
    path = program.snapshots / saved["name"]
    with path.open("r+b") as file:
        file.seek(4_096)
        file.write(b"damaged" * 100)
    assert "does not match its SHA-256" in program.fail("check", saved["name"])
    shutil.rmtree(program.snapshots / ".metadata")
    assert "the file is corrupt or too new" in program.fail("check", saved["name"])
    assert "the file is corrupt or too new" in program.fail("restore", saved["name"])
    assert await server.value() == "before"


async def test_a_newer_schema_is_refused(program: SnapshotProgram, server: Server) -> None:
    await server.put("before")
    (saved,) = program.save()
    with closing(sqlite3.connect(program.snapshots / saved["name"])) as database:
        database.execute("PRAGMA user_version = 99")
    shutil.rmtree(program.snapshots / ".metadata")
    assert "store has schema version 99" in program.fail("check", saved["name"])


async def test_a_new_node_needs_the_encryption_key(program: SnapshotProgram, server: Server, s3: S3Server) -> None:
    await server.put("before")
    program.configure(s3=s3.settings())
    name = program.save()[0]["name"]
    key = server.encryption_key.read_bytes()
    shutil.rmtree(server.path.parent)
    server.path.parent.mkdir()
    shutil.rmtree(program.snapshots)
    assert "needs the encryption key" in program.fail("check", name, "--s3")
    assert "needs the encryption key" in program.fail("restore", name, "--s3")
    server.encryption_key.write_bytes(key)
    server.encryption_key.chmod(0o600)
    program("restore", name, "--s3")
    assert await server.value() == "before"


async def test_a_server_without_a_store_is_named(program: SnapshotProgram, server: Server) -> None:
    assert f"{server.path} contains no store" in program.fail("save", "--name", "x")
    assert program.files() == set()


async def test_a_full_disk_is_named_and_leaves_nothing(program: SnapshotProgram, server: Server) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small file system")
    await server.put("x" * 100_000)
    program.snapshots.mkdir()
    with small_disk(program.snapshots):
        assert "the disk is full" in program.fail("save", "--name", "x")
        assert program.files() == set()
    assert await server.value() == "x" * 100_000
