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
from tests.support.cloud.s3 import S3Server
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


RUN_STEPS = ("begun", "fetched", "staging", "staged", "stopped", "replacing", "replaced", "restored")
"""Steps of a restore that an operation runs."""


@pytest.mark.parametrize("step", ["", *RUN_STEPS])
async def test_a_restore_of_an_operation_is_undone_at_any_step(
    program: SnapshotProgram, server: Server, step: str
) -> None:
    """Also one that has completed: the operation may have failed before it was reported."""
    await server.put("before")
    (saved,) = program.save()
    await server.put("after")
    inode = (server.path / "store.db").stat().st_ino
    done = program.start("restore", saved["name"], "--run=run-1", kill=step)
    assert done.returncode == (-9 if step else 0), done.stderr
    program("undo")
    program("undo")
    assert (server.path / "store.db").stat().st_ino == inode
    assert await server.value() == "after"
    assert not (program.snapshots / ".restore").exists()


@pytest.mark.parametrize("kill", ["undoing", "undone"])
async def test_an_undo_is_repeated_after_a_kill(program: SnapshotProgram, server: Server, kill: str) -> None:
    await server.put("before")
    (saved,) = program.save()
    store = server.open()  # a server that is killed leaves a log beside its database
    await store.write(Put(KEY, lambda revision: b"after"))
    for name in ("store.db", "store.db-wal"):
        shutil.copy(server.path / name, server.path.parent / name)
    await store.close()
    for name in ("store.db", "store.db-wal"):
        shutil.move(server.path.parent / name, server.path / name)
    program("restore", saved["name"], "--run=run-1")
    assert program.start("undo", kill=kill).returncode == -9
    program("undo")
    assert await server.value() == "after"


async def test_an_undo_needs_a_stopped_server(program: SnapshotProgram, server: Server) -> None:
    await server.put("before")
    (saved,) = program.save()
    await server.put("after")
    program("restore", saved["name"], "--run=run-1")
    store = server.open()
    assert "is in use by process" in program.fail("undo")
    await store.close()
    program("undo")
    assert await server.value() == "after"


async def test_a_restore_runs_once_in_each_operation_and_is_committed(program: SnapshotProgram, server: Server) -> None:
    await server.put("before")
    (saved,) = program.save()
    await server.put("after")
    arguments = ("restore", saved["name"], "--run=run-1")
    program(*arguments)
    (program.snapshots / saved["name"]).unlink()  # a second restore would fail, and put the data of the first one back
    program(*arguments)
    assert "no restore of this operation has completed here" in program.fail("commit", "--run=run-2")
    program("commit", "--run=run-1")
    program("commit", "--run=run-1")
    program("undo")
    assert await server.value() == "before"


@pytest.mark.parametrize(("accepted", "kept"), [("", "third"), ("run-0", "third"), ("run-1", "first")])
async def test_the_next_operation_knows_which_data_the_cluster_has(
    program: SnapshotProgram, server: Server, accepted: str, kept: str
) -> None:
    await server.put("first")
    (first,) = program.save()
    await server.put("second")
    (second,) = program.save()
    await server.put("third")
    program("restore", first["name"], "--run=run-1")
    program("check", second["name"])
    program("restore", second["name"], "--run=run-2", f"--accepted={accepted}")
    program("undo", "--accepted=run-1")
    assert await server.value() == kept
    program("restore", second["name"], "--run=run-3")
    program("undo", "--accepted=run-3")
    assert await server.value() == "second"


async def test_a_new_server_has_no_data_after_an_undo(program: SnapshotProgram, server: Server) -> None:
    await server.put("before")
    (saved,) = program.save()
    shutil.rmtree(server.path)
    program("restore", saved["name"], "--run=run-1")
    program("undo")
    program("undo")
    assert not (server.path / "store.db").exists()


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
