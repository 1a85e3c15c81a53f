"""Groups follow from several objects, and cost what has changed."""

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
    """A sheep belongs to its flock, and there to those whose bell sounds alike."""
    sheep, bell = view.get(SHEEP, view.name), view.get(BELL, view.name)
    assert sheep is not None
    flock = sheep["metadata"]["labels"].get("flock")
    return (flock, (bell or {}).get("data", {}).get("sound", "none")) if flock else None


SOUNDS = Grouping("sounds", SHEEP, by_sound, (Watches(BELL, named_by_label("sheep")),))


class Meadow:
    def __init__(self, grouping: Grouping[str] = SOUNDS, *, strict: bool = False) -> None:
        self.caches = {kind: Cache(kind) for kind in (SHEEP, BELL)}
        self.looked_at: list[str] = []
        self.groups = Groups(grouping, self.caches, self._view, strict=strict)
        self._revision = 0

    def _view(self, key: Key) -> View:
        self.looked_at.append(key.name)
        nobody = {"results": {}, "observe": lambda _subscription: None, "setting": str, "seed": b"seed"}
        return View(key=key, now=datetime(2026, 1, 1, tzinfo=UTC), caches=self.caches, **nobody)  # type: ignore[arg-type]

    def put(self, kind: Kind, name: str, labels: dict[str, str], **content: object) -> None:
        self._revision += 1
        meta = {"name": name, "namespace": "hill", "labels": labels, "resourceVersion": str(self._revision)}
        self._tell(kind, self.caches[kind].upsert({"kind": kind.kind, "metadata": meta, **content}))

    def take(self, kind: Kind, name: str) -> None:
        found = self.caches[kind].get(Key("hill", name))
        assert found is not None
        self._tell(kind, self.caches[kind].remove(found))

    def _tell(self, kind: Kind, change: Change | None) -> None:
        if change is not None:
            self.groups.changed(kind, change)

    def sheep(self, name: str, flock: str = "north") -> None:
        self.put(SHEEP, name, {"flock": flock} if flock else {})

    def bell(self, sheep: str, sound: str) -> None:
        self.put(BELL, sheep, {"sheep": sheep}, data={"sound": sound})

    def heard(self, flock: str = "north") -> dict[str, list[str]]:
        return {sound: sorted(key.name for key in who) for sound, who in self.groups.in_scope(flock).items()}


def test_a_group_follows_from_the_object_and_from_what_belongs_to_it() -> None:
    meadow = Meadow()
    meadow.sheep("dolly")
    meadow.sheep("shaun")
    assert meadow.heard() == {"none": ["dolly", "shaun"]}
    meadow.bell("shaun", "high")
    assert meadow.heard() == {"none": ["dolly"], "high": ["shaun"]}
    meadow.take(BELL, "shaun")
    meadow.take(SHEEP, "dolly")
    assert meadow.heard() == {"none": ["shaun"]}


def test_an_object_may_move_to_another_scope_or_out_of_all() -> None:
    meadow = Meadow()
    meadow.sheep("dolly", "north")
    assert meadow.heard("north") == {"none": ["dolly"]}
    meadow.sheep("dolly", "south")
    assert (meadow.heard("north"), meadow.heard("south")) == ({}, {"none": ["dolly"]})
    meadow.sheep("dolly", "")
    assert meadow.heard("south") == {}


def test_what_has_not_changed_is_not_looked_at() -> None:
    meadow = Meadow()
    for number in range(100):
        meadow.sheep(f"s{number}")
    meadow.heard()
    meadow.looked_at.clear()
    meadow.bell("s7", "high")
    meadow.bell("s7", "low")
    meadow.heard()
    meadow.heard()
    assert meadow.looked_at == ["s7"]


def test_what_was_there_before_the_groups_is_in_them() -> None:
    meadow = Meadow()
    meadow.sheep("dolly")
    later = Groups(SOUNDS, meadow.caches, meadow._view, strict=False)
    assert list(later.in_scope("north")) == ["none"]


def test_one_that_cannot_be_grouped_is_told_at_every_look_and_not_left_out() -> None:
    def grumpy(view: View) -> tuple[str, str] | None:
        if view.name == "grumpy":
            raise ValueError("not to be read")
        return "north", "none"

    meadow = Meadow(Grouping("grumpy", SHEEP, grumpy))
    meadow.sheep("grumpy")
    for _ in range(2):
        with pytest.raises(ValueError, match="not to be read"):
            meadow.heard()


def test_a_change_that_cannot_be_traced_may_be_anybodys() -> None:
    def nobody_knows(_bell: Object) -> Iterable[Key]:
        raise KeyError("sheep")

    meadow = Meadow(Grouping("sounds", SHEEP, by_sound, (Watches(BELL, nobody_knows),)))
    meadow.sheep("dolly")
    meadow.heard()
    meadow.bell("dolly", "high")
    assert meadow.heard() == {"high": ["dolly"]}


def test_strictly_a_grouping_that_reads_what_it_does_not_watch_is_found_out() -> None:
    meadow = Meadow(Grouping("deaf", SHEEP, by_sound), strict=True)
    meadow.sheep("dolly")
    meadow.heard()
    meadow.bell("dolly", "high")
    with pytest.raises(StaleGroup, match="hill/dolly"):
        meadow.heard()


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_groups_are_as_if_computed_at_once(seed: int) -> None:
    random, meadow = Random(seed), Meadow(strict=True)
    for _ in range(300):
        name = f"s{random.randrange(8)}"
        kind = random.choice((SHEEP, BELL))
        if random.random() < 0.3 and Key("hill", name) in meadow.caches[kind]:
            meadow.take(kind, name)
        elif kind == SHEEP:
            meadow.sheep(name, random.choice(("north", "south", "")))
        else:
            meadow.bell(name, random.choice(("high", "low")))
        if random.random() < 0.3:
            meadow.heard(random.choice(("north", "south")))


def test_groups_that_nobody_declared_are_not_there() -> None:
    with pytest.raises(UndeclaredKind, match="sounds"):
        Meadow()._view(Key("hill", "dolly")).groups(SOUNDS, "north")
