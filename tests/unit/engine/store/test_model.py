"""The store agrees with a model (a dictionary and a list of events) over random histories with restarts and crashes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from herder.engine.store import (
    Compacted,
    Delete,
    FutureRevision,
    Key,
    Put,
    RevisionConflict,
    Store,
    Watch,
    hub,
    restore,
)
from herder.engine.store import store as store_module

Result = TypeVar("Result")

KEYS = st.builds(
    Key, st.sampled_from(["pods", "secrets"]), st.sampled_from(["", "a", "a-b"]), st.sampled_from(["x", "y", "x.y"])
)
EXPECTED = st.sampled_from(["any", "right", "absent", "wrong"])


class Change(NamedTuple):
    """One event of the model."""

    revision: int
    key: Key
    value: bytes
    previous: bytes | None
    deleted: bool


class WatchModel(NamedTuple):
    """A watch, and the events that it must have delivered."""

    watch: Watch
    wanted: tuple[str, str, str]
    since: int
    events: list[Change]


class StoreMachine(RuleBasedStateMachine):
    inline = False

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.base = Path(tempfile.mkdtemp(prefix="herder-model-"))
        self.path = self.base / "0"
        self.history: list[Change] = []
        self.live: dict[Key, Change] = {}
        self.compacted = 0
        self.last_revision = 0
        self.followers: list[WatchModel] = []

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()
        shutil.rmtree(self.base)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    @initialize()
    def open(self) -> None:
        self.store = Store.open(self.path, clock=lambda: 1_000.0, inline=self.inline)
        assert self.store.revision >= self.last_revision
        self.last_revision = self.store.revision
        self.compacted = max(self.compacted, self.store.compacted)
        assert self.store.compacted == self.compacted

    @rule(key=KEYS, expected=EXPECTED, size=st.integers(0, 50), delete=st.booleans())
    def change(self, key: Key, expected: str, size: int, delete: bool) -> None:
        self._write([(key, expected, size, delete)])

    @rule(
        changes=st.lists(
            st.tuples(KEYS, EXPECTED, st.integers(0, 9), st.booleans()),
            min_size=2,
            max_size=4,
            unique_by=lambda c: c[0],
        )
    )
    def change_together(self, changes: list[tuple[Key, str, int, bool]]) -> None:
        self._write(changes)

    def _write(self, requested: list[tuple[Key, str, int, bool]]) -> None:
        async def write() -> list[int]:
            return [record.revision for record in await self.store.write(*changes)]

        changes, fits = [], True
        for key, expected, size, delete in requested:
            current = self.live.get(key)
            at = current.revision if current else 0
            number = {"any": None, "right": at, "absent": 0, "wrong": at + 1}[expected]
            fits = fits and number in (None, at) and not (delete and not current)
            encode = self._encoder(size)
            changes.append(Delete(key, encode, number) if delete else Put(key, encode, number))
        if not fits:
            with pytest.raises(RevisionConflict):
                self.run(write())
            return
        revisions = self.run(write())
        assert revisions == list(range(self.last_revision + 1, self.last_revision + 1 + len(changes)))
        self.last_revision = revisions[-1]
        for revision, (key, _, size, delete) in zip(revisions, requested, strict=True):
            before = self.live.pop(key, None)
            change = Change(revision, key, self._encoder(size)(revision), before.value if before else None, delete)
            self.history.append(change)
            if not delete:
                self.live[key] = change

    @staticmethod
    def _encoder(size: int) -> Any:
        return lambda revision: b"%d:%s" % (revision, b"x" * size)

    @invariant()
    def live_objects_match(self) -> None:
        assert self.store.revision == self.last_revision
        for resource in ("pods", "secrets"):
            wanted = sorted((key.path, change.value) for key, change in self.live.items() if key.resource == resource)
            assert [(record.key.path, record.value) for record in self.store.list(resource)] == wanted
            assert self.store.count(resource) == len(wanted)
            for namespace in ("a", "a-b"):
                part = [(path, value) for path, value in wanted if path.startswith(f"{namespace}/")]
                assert [(r.key.path, r.value) for r in self.store.list(resource, namespace)] == part

    @rule(key=KEYS, back=st.integers(-1, 30))
    def get_at_old_revision(self, key: Key, back: int) -> None:
        revision = self.last_revision - back
        if refusal := self._refusal(revision):
            with pytest.raises(refusal):
                self.run(self.store.get_at(key, revision))
            return
        record = self.run(self.store.get_at(key, revision))
        assert (record and record.value) == self._state(revision).get(key)

    @rule(resource=st.sampled_from(["pods", "secrets"]), namespace=st.sampled_from(["", "a"]), back=st.integers(-1, 30))
    def list_at_old_revision(self, resource: str, namespace: str, back: int) -> None:
        revision = self.last_revision - back
        if refusal := self._refusal(revision):
            with pytest.raises(refusal):
                self.run(self.store.list_at(resource, namespace, revision))
            return
        records = self.run(self.store.list_at(resource, namespace, revision))
        state = {
            key.path: value
            for key, value in self._state(revision).items()
            if key.resource == resource and namespace in ("", key.namespace)
        }
        assert [(record.key.path, record.value) for record in records] == sorted(state.items())

    def _refusal(self, revision: int) -> type[Exception] | None:
        return Compacted if revision < self.compacted else FutureRevision if revision > self.last_revision else None

    def _state(self, revision: int) -> dict[Key, bytes]:
        state: dict[Key, bytes] = {}
        for change in self.history:
            if change.revision <= revision:
                state[change.key] = change.value
                if change.deleted:
                    del state[change.key]
        return state

    @rule(key=KEYS, scope=st.sampled_from(["all", "namespace", "name"]), back=st.integers(0, 30))
    def start_watching(self, key: Key, scope: str, back: int) -> None:
        since = max(0, self.last_revision - back)
        wanted = (key.resource, key.namespace if scope != "all" else "", key.name if scope == "name" else "")
        if since < self.compacted:
            with pytest.raises(Compacted):
                self.store.watch(*wanted, since=since)
            return
        self.followers.append(WatchModel(self.store.watch(*wanted, since=since), wanted, since, []))

    @precondition(lambda self: self.followers)
    @rule(pick=st.randoms(use_true_random=False))
    def read_a_watch(self, pick: Any) -> None:
        watcher = pick.choice(self.followers)
        try:
            self._read(watcher)
        except Compacted:  # its start was compacted before it was read from disk
            assert watcher.watch.progress() < self.compacted
            self.followers.remove(watcher)

    def _read(self, watcher: WatchModel) -> None:
        while batch := self.run(watcher.watch.catch_up()):
            for event in batch:
                previous = event.previous.value if event.previous else None
                watcher.events.append(
                    Change(event.revision, event.record.key, event.record.value, previous, event.deleted)
                )
        resource, namespace, name = watcher.wanted
        assert watcher.events == [
            change
            for change in self.history
            if change.revision > watcher.since
            and change.key.resource == resource
            and namespace in ("", change.key.namespace)
            and name in ("", change.key.name)
        ]
        assert watcher.watch.progress() == self.last_revision

    @rule(back=st.integers(0, 15))
    def compact(self, back: int) -> None:
        self.run(self.store.compact(self.last_revision - back))
        self.compacted = max(self.compacted, self.last_revision - back)

    @rule()
    def restart(self) -> None:
        self._end()
        self.open()

    @rule()
    def crash(self) -> None:
        """Reopen a copy of the current files, as a killed process would leave them."""
        image = self._next_path()
        shutil.copytree(self.path, image)
        self._end()
        self.path = image
        self.open()

    @rule()
    def back_up_and_restore(self) -> None:
        backup = self._next_path()
        assert self.run(self.store.backup(backup)) == self.last_revision
        self._end()
        restore(backup, self.path)
        self.compacted = self.last_revision  # `open` checks that it jumped further
        before = self.last_revision
        self.open()
        assert self.compacted == self.last_revision > before

    def _end(self) -> None:
        self.run(self.store.close())
        self.followers.clear()

    def _next_path(self) -> Path:
        return self.base / str(len(list(self.base.iterdir())))


class InlineStoreMachine(StoreMachine):
    inline = True


@pytest.fixture(autouse=True)
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep little in memory, so that short histories are read from disk as well."""
    monkeypatch.setattr(hub, "RECENT_EVENTS", 6)
    monkeypatch.setattr(store_module, "SNAPSHOTS", 2)


SETTINGS = settings(
    max_examples=25, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("machine", [StoreMachine, InlineStoreMachine])
def test_random_histories_agree_with_the_model(machine: type[StoreMachine]) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)
