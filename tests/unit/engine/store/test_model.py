"""The store against a model, a dictionary and a list of events, through random lives with restarts and crashes."""

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


class Follower(NamedTuple):
    """A watch, and what it must have told."""

    watch: Watch
    wanted: tuple[str, str, str]
    since: int
    told: list[Change]


class StoreLife(RuleBasedStateMachine):
    inline = False

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.base = Path(tempfile.mkdtemp(prefix="herder-model-"))
        self.path = self.base / "0"
        self.history: list[Change] = []
        self.live: dict[Key, Change] = {}
        self.compacted = 0
        self.given_out = 0
        self.followers: list[Follower] = []

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()
        shutil.rmtree(self.base)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    @initialize()
    def open(self) -> None:
        self.store = Store.open(self.path, clock=lambda: 1_000.0, inline=self.inline)
        assert self.store.revision >= self.given_out
        self.given_out = self.store.revision
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

    def _write(self, asked: list[tuple[Key, str, int, bool]]) -> None:
        async def write() -> list[int]:
            return [record.revision for record in await self.store.write(*changes)]

        changes, fits = [], True
        for key, expected, size, delete in asked:
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
        assert revisions == list(range(self.given_out + 1, self.given_out + 1 + len(changes)))
        self.given_out = revisions[-1]
        for revision, (key, _, size, delete) in zip(revisions, asked, strict=True):
            before = self.live.pop(key, None)
            change = Change(revision, key, self._encoder(size)(revision), before.value if before else None, delete)
            self.history.append(change)
            if not delete:
                self.live[key] = change

    @staticmethod
    def _encoder(size: int) -> Any:
        return lambda revision: b"%d:%s" % (revision, b"x" * size)

    @invariant()
    def what_is_live_is_right(self) -> None:
        assert self.store.revision == self.given_out
        for resource in ("pods", "secrets"):
            wanted = sorted((key.path, change.value) for key, change in self.live.items() if key.resource == resource)
            assert [(record.key.path, record.value) for record in self.store.list(resource)] == wanted
            assert self.store.count(resource) == len(wanted)
            for namespace in ("a", "a-b"):
                part = [(path, value) for path, value in wanted if path.startswith(f"{namespace}/")]
                assert [(r.key.path, r.value) for r in self.store.list(resource, namespace)] == part

    @rule(key=KEYS, back=st.integers(-1, 30))
    def look_back_at_one(self, key: Key, back: int) -> None:
        revision = self.given_out - back
        if refusal := self._refusal(revision):
            with pytest.raises(refusal):
                self.run(self.store.get_at(key, revision))
            return
        record = self.run(self.store.get_at(key, revision))
        assert (record and record.value) == self._state(revision).get(key)

    @rule(resource=st.sampled_from(["pods", "secrets"]), namespace=st.sampled_from(["", "a"]), back=st.integers(-1, 30))
    def look_back_at_all(self, resource: str, namespace: str, back: int) -> None:
        revision = self.given_out - back
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
        return Compacted if revision < self.compacted else FutureRevision if revision > self.given_out else None

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
        since = max(0, self.given_out - back)
        wanted = (key.resource, key.namespace if scope != "all" else "", key.name if scope == "name" else "")
        if since < self.compacted:
            with pytest.raises(Compacted):
                self.store.watch(*wanted, since=since)
            return
        self.followers.append(Follower(self.store.watch(*wanted, since=since), wanted, since, []))

    @precondition(lambda self: self.followers)
    @rule(pick=st.randoms(use_true_random=False))
    def read_a_watch(self, pick: Any) -> None:
        follower = pick.choice(self.followers)
        try:
            self._read(follower)
        except Compacted:  # its start was taken away before it was read from disk
            assert follower.watch.progress() < self.compacted
            self.followers.remove(follower)

    def _read(self, follower: Follower) -> None:
        while batch := self.run(follower.watch.catch_up()):
            for event in batch:
                previous = event.previous.value if event.previous else None
                follower.told.append(
                    Change(event.revision, event.record.key, event.record.value, previous, event.deleted)
                )
        resource, namespace, name = follower.wanted
        assert follower.told == [
            change
            for change in self.history
            if change.revision > follower.since
            and change.key.resource == resource
            and namespace in ("", change.key.namespace)
            and name in ("", change.key.name)
        ]
        assert follower.watch.progress() == self.given_out

    @rule(back=st.integers(0, 15))
    def compact(self, back: int) -> None:
        self.run(self.store.compact(self.given_out - back))
        self.compacted = max(self.compacted, self.given_out - back)

    @rule()
    def restart(self) -> None:
        self._end()
        self.open()

    @rule()
    def crash(self) -> None:
        """Go on from what the files hold right now, as a killed process would have left them."""
        image = self._next_path()
        shutil.copytree(self.path, image)
        self._end()
        self.path = image
        self.open()

    @rule()
    def back_up_and_restore(self) -> None:
        backup = self._next_path()
        assert self.run(self.store.backup(backup)) == self.given_out
        self._end()
        restore(backup, self.path)
        self.compacted = self.given_out  # and beyond, as `open` finds
        before = self.given_out
        self.open()
        assert self.compacted == self.given_out > before

    def _end(self) -> None:
        self.run(self.store.close())
        self.followers.clear()

    def _next_path(self) -> Path:
        return self.base / str(len(list(self.base.iterdir())))


class InlineStoreLife(StoreLife):
    inline = True


@pytest.fixture(autouse=True)
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is kept in memory, so that short lives read from disk as well."""
    monkeypatch.setattr(hub, "RECENT_EVENTS", 6)
    monkeypatch.setattr(store_module, "SNAPSHOTS", 2)


SETTINGS = settings(
    max_examples=25, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("life", [StoreLife, InlineStoreLife])
def test_random_lives_agree_with_the_model(life: type[StoreLife]) -> None:
    run_state_machine_as_test(life, settings=SETTINGS)
