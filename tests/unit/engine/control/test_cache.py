"""The cache applies watch events and its own writes, and goes back to an older revision only with another cluster."""

from __future__ import annotations

from typing import Any

import pytest

from herder.engine.control import cache as cache_module
from herder.engine.control.cache import Cache, Change, Key, controller_uid, encode
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.selectors import parse_label_selector

KIND = Kind("", "v1", "ConfigMap", "configmaps")


def config_map(name: str, revision: int, *, uid: str = "", namespace: str = "ns", **metadata: Any) -> Object:
    meta = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "resourceVersion": str(revision)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta | metadata}


def owned_config_map(name: str, revision: int, owner: str) -> Object:
    return config_map(name, revision, ownerReferences=[{"uid": owner, "kind": "X", "name": "x", "controller": True}])


def test_an_older_state_never_replaces_a_newer_one() -> None:
    cache = Cache(KIND)
    assert cache.upsert(config_map("a", 5)) is not None
    assert cache.upsert(config_map("a", 4)) is None
    assert cache.upsert(config_map("a", 5)) is None
    assert cache.revision(Key("ns", "a")) == 5


def test_a_recreated_object_replaces_its_predecessor() -> None:
    cache = Cache(KIND)
    cache.upsert(config_map("a", 5, uid="one"))
    change = cache.upsert(config_map("a", 9, uid="two"))
    assert change is not None
    assert change.old is not None
    assert change.old["metadata"]["uid"] == "one"


def test_a_deleted_object_stays_deleted_when_older_events_arrive() -> None:
    cache = Cache(KIND)
    cache.upsert(config_map("a", 5))
    assert cache.forget(Key("ns", "a"), "uid-a") is not None
    assert cache.upsert(config_map("a", 6)) is None, "an update on its way when we deleted it"
    assert cache.remove(config_map("a", 7)) is None, "its DELETED event has nothing left to do"
    assert cache.upsert(config_map("a", 8, uid="new")) is not None


def test_a_delete_event_of_an_old_uid_does_not_remove_the_recreated_object() -> None:
    cache = Cache(KIND)
    cache.upsert(config_map("a", 9, uid="two"))
    assert cache.remove(config_map("a", 7, uid="one")) is None
    assert cache.get(Key("ns", "a")) is not None


def test_a_relist_yields_only_differences_and_keeps_later_writes() -> None:
    cache = Cache(KIND)
    for obj in (config_map("same", 1), config_map("changed", 2), config_map("gone", 3), config_map("ours", 50)):
        cache.upsert(obj)
    fresh = [config_map("same", 1), config_map("changed", 20), config_map("new", 21)]
    changes = cache.replace([(obj, b"{}") for obj in fresh], 30)
    assert sorted(change.key.name for change in changes) == ["changed", "gone", "new"]
    assert Key("ns", "ours") in cache, "written by us after the list was made"


def test_indexes_follow_changes() -> None:
    cache = Cache(KIND, {"controller": controller_uid})
    cache.upsert(owned_config_map("a", 1, "owner-1"))
    cache.upsert(owned_config_map("b", 2, "owner-1"))
    cache.upsert(owned_config_map("b", 3, "owner-2"))
    assert [obj["metadata"]["name"] for obj in cache.select(index=("controller", "owner-1"))] == ["a"]
    assert [obj["metadata"]["name"] for obj in cache.select(index=("controller", "owner-2"))] == ["b"]
    cache.remove(owned_config_map("a", 4, "owner-1"))
    assert cache.select(index=("controller", "owner-1")) == []


def test_selection_is_in_name_order_by_namespace_and_labels() -> None:
    cache = Cache(KIND)
    for number, (namespace, name, labels) in enumerate(
        [("b", "z", {"x": "1"}), ("a", "y", {"x": "1"}), ("a", "c", {"x": "2"}), ("a", "b", {"x": "1"})], 1
    ):
        cache.upsert(config_map(name, number, namespace=namespace, labels=labels))
    names = [obj["metadata"]["name"] for obj in cache.select(namespace="a", labels=parse_label_selector("x=1"))]
    assert names == ["b", "y"]
    assert [obj["metadata"]["name"] for obj in cache.select()] == ["b", "c", "y", "z"]


def test_a_late_write_response_does_not_restore_a_deleted_object() -> None:
    cache = Cache(KIND)
    cache.upsert(config_map("a", 5))
    cache.remove(config_map("a", 7))
    assert cache.upsert(config_map("a", 6)) is None, "answered at 6, deleted at 7, and the event was quicker"
    assert len(cache) == 0


def test_an_object_that_matches_the_selector_again_is_cached_again() -> None:
    cache = Cache(KIND)
    cache.upsert(config_map("a", 5))
    cache.remove(config_map("a", 7))
    assert cache.upsert(config_map("a", 9)) is not None


async def test_a_list_of_another_cluster_brings_back_what_was_restored() -> None:
    """Restored objects have their old UIDs and resource versions."""
    cache = Cache(KIND)
    for obj in (config_map("deleted", 3), config_map("changed", 9), config_map("new", 8)):
        cache.upsert(obj)
    cache.remove(config_map("deleted", 7))
    restored = [config_map("deleted", 3), config_map("changed", 2)]
    changes: list[Change] = []
    await cache.replace_in_batches([(obj, encode(obj)) for obj in restored], changes.append)
    assert cache.select() == [config_map("changed", 2), config_map("deleted", 3)]
    assert sorted(change.key.name for change in changes) == ["changed", "deleted", "new"]
    assert cache.upsert(config_map("changed", 4)) is not None


def test_a_late_event_of_an_old_uid_does_not_replace_the_recreated_object() -> None:
    cache = Cache(KIND)
    cache.upsert(config_map("a", 9, uid="two"))
    assert cache.upsert(config_map("a", 6, uid="one")) is None
    found = cache.get(Key("ns", "a"))
    assert found is not None
    assert found["metadata"]["uid"] == "two"


def test_an_object_that_an_indexer_cannot_read_is_still_cached() -> None:
    cache = Cache(KIND, {"by-size": lambda obj: [str(obj["spec"]["size"])]})
    assert cache.upsert(config_map("odd", 1)) is not None
    cache.upsert(config_map("even", 2) | {"spec": {"size": 4}})
    assert [obj["metadata"]["name"] for obj in cache.select(index=("by-size", "4"))] == ["even"]
    assert len(cache) == 2


def test_decoded_objects_are_bounded_and_encoded_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_DECODED", 3)
    cache = Cache(KIND)
    for number in range(10):
        cache.upsert(config_map(f"a{number}", number + 1))
    assert len(cache.select()) == 10
    assert len(cache.select()) == 10, "and again, decoded afresh where it must be"
