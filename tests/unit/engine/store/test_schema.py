"""Databases of other versions and of other programs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from herder.engine.store import SchemaTooNew, StoreError
from herder.engine.store.schema import VERSION, migrate

from .conftest import Opener, key, summarize, values

ROWS = [
    # revision, resource, namespace, name, created, previous, deleted, value
    (1, "pods", "default", "a", 1, 0, 0, b"a1"),
    (2, "pods", "default", "b", 2, 0, 0, b"b2"),
    (3, "pods", "default", "a", 1, 1, 0, b"a3"),
    (4, "pods", "default", "b", 2, 2, 1, b"b4"),
    (5, "pods", "default", "b", 5, 0, 0, b"b5"),
    (6, "nodes", "", "n", 6, 0, 0, b"n6"),
]


def version_1(directory: Path, *, up_to: int = 1) -> None:
    """Create a store as an older program left it; versions after 1 are migrated from version 1."""
    directory.mkdir()
    with closing(sqlite3.connect(directory / "store.db", isolation_level=None)) as connection:
        migrate(connection, up_to=1)
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", ROWS)
        migrate(connection, up_to=up_to)
    (directory / "high-water").write_text("6 exact\n")


@pytest.mark.parametrize("version", range(1, VERSION))
async def test_an_older_store_is_migrated_with_all_its_history(opener: Opener, version: int) -> None:
    version_1(opener.path, up_to=version)
    store = opener()
    assert (store.revision, store.compacted) == (6, 0)
    assert values(store.list("pods")) == ["a3", "b5"]
    assert values(store.list("nodes")) == ["n6"]
    assert values(await store.list_at("pods", "", 3)) == ["a3", "b2"]
    assert await store.get_at(key("b"), 4) is None
    assert [summarize(event) for event in await anext(store.watch("pods", since=0))] == [
        (1, "a1", "", False),
        (2, "b2", "", False),
        (3, "a3", "a1", False),
        (4, "b4", "b2", True),
        (5, "b5", "", False),
    ]
    record = store.get(key("a"))
    assert record is not None
    assert (record.revision, record.created) == (3, 1)
    await store.compact(6)
    assert values(store.list("pods")) == ["a3", "b5"]


async def test_a_migration_is_recorded_and_runs_once(opener: Opener) -> None:
    version_1(opener.path)
    await opener().close()
    await opener().close()
    with closing(sqlite3.connect(opener.path / "store.db")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)


async def test_a_failed_migration_leaves_the_old_version_unchanged(opener: Opener) -> None:
    version_1(opener.path)
    with closing(sqlite3.connect(opener.path / "store.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE revisions (in_the_way INTEGER)")
    with pytest.raises(sqlite3.OperationalError):
        opener()
    with closing(sqlite3.connect(opener.path / "store.db", isolation_level=None)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM log").fetchone() == (6,)
        connection.execute("DROP TABLE revisions")
    assert values(opener().list("pods")) == ["a3", "b5"]


async def test_a_newer_version_is_rejected_and_unchanged(opener: Opener) -> None:
    await opener().close()
    path = opener.path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew, match=f"schema version {VERSION + 1}, this program supports up to {VERSION}"):
        opener()
    assert path.read_bytes() == before


async def test_a_database_of_another_program_is_rejected(opener: Opener) -> None:
    opener.path.mkdir()
    with closing(sqlite3.connect(opener.path / "store.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (x)")
    with pytest.raises(StoreError, match="another program"):
        opener()


async def test_a_file_that_is_not_a_database_is_rejected(opener: Opener) -> None:
    opener.path.mkdir()
    (opener.path / "store.db").write_text("something else entirely, and long enough " * 50)
    with pytest.raises(StoreError, match="cannot be read as a store"):
        opener()
