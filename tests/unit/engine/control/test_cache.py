"""The cache follows the watch, knows its own writes, and never goes back."""

from __future__ import annotations

from typing import Any

import pytest

from herder.engine.control import cache as cache_module
from herder.engine.control.cache import Cache, Key, controller_uid
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.selectors import parse_label_selector

KIND = Kind("", "v1", "ConfigMap", "configmaps")


def thing(name: str, revision: int, *, uid: str = "", namespace: str = "ns", **metadata: Any) -> Object:
    meta = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "resourceVersion": str(revision)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta | metadata}


def owned(name: str, revision: int, owner: str) -> Object:
    return thing(name, revision, ownerReferences=[{"uid": owner, "kind": "X", "name": "x", "controller": True}])


def test_an_older_state_never_replaces_a_newer_one() -> None:
    cache = Cache(KIND)
    assert cache.upsert(thing("a", 5)) is not None
    assert cache.upsert(thing("a", 4)) is None
    assert cache.upsert(thing("a", 5)) is None
    assert cache.revision(Key("ns", "a")) == 5


def test_a_recreated_object_replaces_its_predecessor() -> None:
    cache = Cache(KIND)
    cache.upsert(thing("a", 5, uid="one"))
    change = cache.upsert(thing("a", 9, uid="two"))
    assert change is not None
    assert change.old is not None
    assert change.old["metadata"]["uid"] == "one"


def test_what_we_deleted_stays_gone_though_older_events_arrive() -> None:
    cache = Cache(KIND)
    cache.upsert(thing("a", 5))
    assert cache.forget(Key("ns", "a"), "uid-a") is not None
    assert cache.upsert(thing("a", 6)) is None, "an update on its way when we deleted it"
    assert cache.remove(thing("a", 7)) is None, "its DELETED event has nothing left to do"
    assert cache.upsert(thing("a", 8, uid="new")) is not None


def test_a_deletion_of_the_predecessor_does_not_remove_the_successor() -> None:
    cache = Cache(KIND)
    cache.upsert(thing("a", 9, uid="two"))
    assert cache.remove(thing("a", 7, uid="one")) is None
    assert cache.get(Key("ns", "a")) is not None


def test_a_fresh_list_yields_just_the_differences_and_keeps_later_writes() -> None:
    cache = Cache(KIND)
    for obj in (thing("same", 1), thing("changed", 2), thing("gone", 3), thing("ours", 50)):
        cache.upsert(obj)
    fresh = [thing("same", 1), thing("changed", 20), thing("new", 21)]
    changes = cache.replace([(obj, b"{}") for obj in fresh], 30)
    assert sorted(change.key.name for change in changes) == ["changed", "gone", "new"]
    assert Key("ns", "ours") in cache, "written by us after the list was made"


def test_indexes_follow_changes() -> None:
    cache = Cache(KIND, {"controller": controller_uid})
    cache.upsert(owned("a", 1, "owner-1"))
    cache.upsert(owned("b", 2, "owner-1"))
    cache.upsert(owned("b", 3, "owner-2"))
    assert [obj["metadata"]["name"] for obj in cache.select(index=("controller", "owner-1"))] == ["a"]
    assert [obj["metadata"]["name"] for obj in cache.select(index=("controller", "owner-2"))] == ["b"]
    cache.remove(owned("a", 4, "owner-1"))
    assert cache.select(index=("controller", "owner-1")) == []


def test_selection_is_in_name_order_by_namespace_and_labels() -> None:
    cache = Cache(KIND)
    for number, (namespace, name, labels) in enumerate(
        [("b", "z", {"x": "1"}), ("a", "y", {"x": "1"}), ("a", "c", {"x": "2"}), ("a", "b", {"x": "1"})], 1
    ):
        cache.upsert(thing(name, number, namespace=namespace, labels=labels))
    names = [obj["metadata"]["name"] for obj in cache.select(namespace="a", labels=parse_label_selector("x=1"))]
    assert names == ["b", "y"]
    assert [obj["metadata"]["name"] for obj in cache.select()] == ["b", "c", "y", "z"]


def test_the_answer_to_a_write_that_comes_after_the_deletion_does_not_revive_the_object() -> None:
    cache = Cache(KIND)
    cache.upsert(thing("a", 5))
    cache.remove(thing("a", 7))
    assert cache.upsert(thing("a", 6)) is None, "answered at 6, deleted at 7, and the event was quicker"
    assert len(cache) == 0


def test_an_object_that_matches_a_selector_again_comes_back() -> None:
    cache = Cache(KIND)
    cache.upsert(thing("a", 5))
    cache.remove(thing("a", 7))
    assert cache.upsert(thing("a", 9)) is not None


def test_a_late_event_of_the_predecessor_does_not_replace_the_successor() -> None:
    cache = Cache(KIND)
    cache.upsert(thing("a", 9, uid="two"))
    assert cache.upsert(thing("a", 6, uid="one")) is None
    found = cache.get(Key("ns", "a"))
    assert found is not None
    assert found["metadata"]["uid"] == "two"


def test_an_object_that_an_indexer_cannot_read_is_seen_all_the_same() -> None:
    cache = Cache(KIND, {"by-size": lambda obj: [str(obj["spec"]["size"])]})
    assert cache.upsert(thing("odd", 1)) is not None
    cache.upsert(thing("even", 2) | {"spec": {"size": 4}})
    assert [obj["metadata"]["name"] for obj in cache.select(index=("by-size", "4"))] == ["even"]
    assert len(cache) == 2


def test_decoded_objects_are_bounded_and_encoded_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_DECODED", 3)
    cache = Cache(KIND)
    for number in range(10):
        cache.upsert(thing(f"a{number}", number + 1))
    assert len(cache.select()) == 10
    assert len(cache.select()) == 10, "and again, decoded afresh where it must be"
