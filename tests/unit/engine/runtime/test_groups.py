"""Groups are computed from several objects, and recomputed only for what has changed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from random import Random

import pytest

from herder.engine.control.cache import Cache, Change, Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.groups import Grouping, Groups, StaleGroup
from herder.engine.runtime.handlers import Watches, named_by_label
from herder.engine.runtime.view import UndeclaredKind, View

SHEEP = Kind("", "v1", "ConfigMap", "configmaps")
BELL = Kind("", "v1", "Secret", "secrets")


def by_sound(view: View) -> tuple[str, str] | None:
    """Group a sheep by flock (the scope) and by the sound of its bell."""
    sheep, bell = view.get(SHEEP, view.name), view.get(BELL, view.name)
    assert sheep is not None
    flock = sheep["metadata"]["labels"].get("flock")
    return (flock, (bell or {}).get("data", {}).get("sound", "none")) if flock else None


SOUNDS = Grouping("sounds", SHEEP, by_sound, (Watches(BELL, named_by_label("sheep")),))


class GroupsHarness:
    def __init__(self, grouping: Grouping[str] = SOUNDS, *, strict: bool = False) -> None:
        self.caches = {kind: Cache(kind) for kind in (SHEEP, BELL)}
        self.grouped_keys: list[str] = []
        self.groups = Groups(grouping, self.caches, self._view, strict=strict)
        self._revision = 0

    def _view(self, key: Key) -> View:
        self.grouped_keys.append(key.name)
        defaults = {"results": {}, "observe": lambda _subscription: None, "setting": str, "seed": b"seed"}
        return View(key=key, now=datetime(2026, 1, 1, tzinfo=UTC), caches=self.caches, **defaults)  # type: ignore[arg-type]

    def put(self, kind: Kind, name: str, labels: dict[str, str], **content: object) -> None:
        self._revision += 1
        meta = {"name": name, "namespace": "hill", "labels": labels, "resourceVersion": str(self._revision)}
        self._notify(kind, self.caches[kind].upsert({"kind": kind.kind, "metadata": meta, **content}))

    def delete(self, kind: Kind, name: str) -> None:
        found = self.caches[kind].get(Key("hill", name))
        assert found is not None
        self._notify(kind, self.caches[kind].remove(found))

    def _notify(self, kind: Kind, change: Change | None) -> None:
        if change is not None:
            self.groups.changed(kind, change)

    def sheep(self, name: str, flock: str = "north") -> None:
        self.put(SHEEP, name, {"flock": flock} if flock else {})

    def bell(self, sheep: str, sound: str) -> None:
        self.put(BELL, sheep, {"sheep": sheep}, data={"sound": sound})

    def groups_in(self, flock: str = "north") -> dict[str, list[str]]:
        return {sound: sorted(key.name for key in who) for sound, who in self.groups.in_scope(flock).items()}


def test_a_group_depends_on_the_object_and_on_watched_objects() -> None:
    harness = GroupsHarness()
    harness.sheep("dolly")
    harness.sheep("shaun")
    assert harness.groups_in() == {"none": ["dolly", "shaun"]}
    harness.bell("shaun", "high")
    assert harness.groups_in() == {"none": ["dolly"], "high": ["shaun"]}
    harness.delete(BELL, "shaun")
    harness.delete(SHEEP, "dolly")
    assert harness.groups_in() == {"none": ["shaun"]}


def test_an_object_can_move_to_another_scope_or_leave_all_scopes() -> None:
    harness = GroupsHarness()
    harness.sheep("dolly", "north")
    assert harness.groups_in("north") == {"none": ["dolly"]}
    harness.sheep("dolly", "south")
    assert (harness.groups_in("north"), harness.groups_in("south")) == ({}, {"none": ["dolly"]})
    harness.sheep("dolly", "")
    assert harness.groups_in("south") == {}


def test_unchanged_objects_are_not_grouped_again() -> None:
    harness = GroupsHarness()
    for number in range(100):
        harness.sheep(f"s{number}")
    harness.groups_in()
    harness.grouped_keys.clear()
    harness.bell("s7", "high")
    harness.bell("s7", "low")
    harness.groups_in()
    harness.groups_in()
    assert harness.grouped_keys == ["s7"]


def test_objects_cached_before_the_groups_were_created_are_grouped() -> None:
    harness = GroupsHarness()
    harness.sheep("dolly")
    later = Groups(SOUNDS, harness.caches, harness._view, strict=False)
    assert list(later.in_scope("north")) == ["none"]


def test_an_object_that_cannot_be_grouped_raises_on_every_read() -> None:
    def fail_for_one(view: View) -> tuple[str, str] | None:
        if view.name == "grumpy":
            raise ValueError("not to be read")
        return "north", "none"

    harness = GroupsHarness(Grouping("grumpy", SHEEP, fail_for_one))
    harness.sheep("grumpy")
    for _ in range(2):
        with pytest.raises(ValueError, match="not to be read"):
            harness.groups_in()


def test_a_change_whose_handler_fails_regroups_all_objects() -> None:
    def fail_to_map(_bell: Object) -> Iterable[Key]:
        raise KeyError("sheep")

    harness = GroupsHarness(Grouping("sounds", SHEEP, by_sound, (Watches(BELL, fail_to_map),)))
    harness.sheep("dolly")
    harness.groups_in()
    harness.bell("dolly", "high")
    assert harness.groups_in() == {"high": ["dolly"]}


def test_a_strict_grouping_that_reads_unwatched_objects_raises_stale_group() -> None:
    harness = GroupsHarness(Grouping("deaf", SHEEP, by_sound), strict=True)
    harness.sheep("dolly")
    harness.groups_in()
    harness.bell("dolly", "high")
    with pytest.raises(StaleGroup, match="hill/dolly"):
        harness.groups_in()


@pytest.mark.parametrize("seed", range(10))
def test_incremental_groups_equal_recomputed_groups(seed: int) -> None:
    random, harness = Random(seed), GroupsHarness(strict=True)
    for _ in range(300):
        name = f"s{random.randrange(8)}"
        kind = random.choice((SHEEP, BELL))
        if random.random() < 0.3 and Key("hill", name) in harness.caches[kind]:
            harness.delete(kind, name)
        elif kind == SHEEP:
            harness.sheep(name, random.choice(("north", "south", "")))
        else:
            harness.bell(name, random.choice(("high", "low")))
        if random.random() < 0.3:
            harness.groups_in(random.choice(("north", "south")))


def test_undeclared_groups_cannot_be_read() -> None:
    with pytest.raises(UndeclaredKind, match="sounds"):
        GroupsHarness()._view(Key("hill", "dolly")).groups(SOUNDS, "north")
