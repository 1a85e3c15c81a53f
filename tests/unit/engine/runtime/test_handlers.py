"""Event handlers map a change to the keys to reconcile."""

from __future__ import annotations

from herder.engine.control.cache import Cache, Change, Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.handlers import DynamicWatches, Indexed, Watches, changed

FIELD = Kind("farm.example", "v1", "Field", "fields")
SHEEP = Kind("farm.example", "v1", "Sheep", "sheep")


def sheep(name: str, field: str) -> Object:
    return {"metadata": {"name": name, "namespace": "farm", "resourceVersion": "1"}, "spec": {"field": field}}


def field(name: str, **spec: str) -> Object:
    return {"metadata": {"name": name, "namespace": "farm", "resourceVersion": "1"}, "spec": spec}


def sheep_cache() -> Cache:
    cache = Cache(SHEEP, {"field": lambda obj: [obj["spec"]["field"]]})
    for name, where in (("a", "north"), ("b", "south"), ("c", "north")):
        cache.upsert(sheep(name, where))
    return cache


BY_FIELD = Indexed("field", lambda obj: [obj["metadata"]["name"]])


def test_an_index_maps_a_change_to_the_affected_keys() -> None:
    change = Change(Key("farm", "north"), field("north", grass="long"), field("north", grass="short"))

    assert Watches(FIELD, BY_FIELD).affected(change, sheep_cache().indexed) == [Key("farm", "a"), Key("farm", "c")]
    assert DynamicWatches(BY_FIELD).affected(FIELD, change, sheep_cache().indexed) == [
        Key("farm", "a"),
        Key("farm", "c"),
    ]


def test_a_change_that_the_predicate_rejects_affects_no_keys() -> None:
    change = Change(Key("farm", "north"), field("north", grass="long"), field("north", grass="short"))

    assert Watches(FIELD, BY_FIELD, changed("spec.fence")).affected(change) == []
