"""Views are read-only, contain only declared kinds and generate stable names; handlers find the affected keys."""

from __future__ import annotations

from typing import Any

import pytest

from herder.engine.control.cache import Cache, Change, Key, controller_uid
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import DONE, Decision, Wait
from herder.engine.runtime.handlers import Watches, changed, itself, named_by_label, owner
from herder.engine.runtime.view import UndeclaredKind, View, ViewChanged
from tests.unit.engine.runtime.envtest import CONFIG_MAP, SECRET, START, new_object

OWNER = Kind("example.com", "v1", "Owner", "owners")
OWNER_BETA = Kind("example.com", "v1beta1", "Owner", "owners")


def view(*, seed: bytes = b"seed", key: Key = Key("default", "x"), strict: bool = False) -> View:  # noqa: B008
    cache = Cache(CONFIG_MAP, {"controller": controller_uid})
    mine = {"ownerReferences": [{"uid": "u", "kind": "Owner", "name": "o", "controller": True}]}
    for number, name in enumerate(("b", "a"), 1):
        cache.upsert(new_object(name, metadata={"resourceVersion": str(number), "labels": {"n": name}, **mine}))
    cache.upsert(new_object("a", metadata={"namespace": "other", "resourceVersion": "9"}))
    return View(
        key=key,
        now=START,
        caches={CONFIG_MAP: cache},
        results={},
        observe=lambda _subscription: None,
        setting={"s": "1"}.__getitem__,
        seed=seed,
        strict=strict,
    )


def names(objects: list[Object]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


def test_objects_are_read_by_name_namespace_labels_and_owner() -> None:
    seen = view()
    found = seen.get(CONFIG_MAP, "a")
    assert found is not None
    assert found["metadata"]["namespace"] == "default"
    assert seen.get(CONFIG_MAP, "a", "other") is not None
    assert seen.get(CONFIG_MAP, "c") is None
    assert names(seen.select(CONFIG_MAP, namespace="default")) == ["a", "b"]
    assert names(seen.select(CONFIG_MAP, labels="n in (b, c)")) == ["b"]
    assert names(seen.owned(CONFIG_MAP, "u")) == ["a", "b"]
    assert seen.setting("s") == "1"


def test_an_undeclared_kind_cannot_be_read() -> None:
    with pytest.raises(UndeclaredKind, match=r"Secret\.v1"):
        view().get(SECRET, "a")


def test_a_strict_view_detects_modified_objects() -> None:
    seen = view(strict=True)
    found = seen.get(CONFIG_MAP, "a")
    assert found is not None
    seen.check_unchanged()
    found["metadata"]["labels"]["n"] = "changed"
    with pytest.raises(ViewChanged, match="ConfigMap a was modified in place"):
        seen.check_unchanged()


def test_unique_names_are_stable_and_differ_by_purpose_object_and_seed() -> None:
    unique_name = view().unique("machine")
    assert unique_name == view().unique("machine")
    others = [view().unique("node"), view(key=Key("default", "y")).unique("machine"), view(seed=b"2").unique("machine")]
    assert unique_name not in others
    assert len(view().unique("machine", 12)) == 12


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ({"apiVersion": "example.com/v1", "kind": "Owner", "controller": True}, True),
        ({"apiVersion": "example.com/v1beta1", "kind": "Owner", "controller": True}, True),
        ({"apiVersion": "example.com/v1", "kind": "Owner"}, False),
        ({"apiVersion": "other.com/v1", "kind": "Owner", "controller": True}, False),
        ({"apiVersion": "example.com/v1", "kind": "Other", "controller": True}, False),
    ],
)
def test_owners_are_found_in_any_version(reference: dict[str, Any], found: bool) -> None:
    obj = new_object("a", metadata={"ownerReferences": [{"name": "o", "uid": "u", **reference}]})
    assert list(owner(OWNER)(obj)) == ([Key("default", "o")] if found else [])


def test_changes_of_other_fields_trigger_no_reconcile() -> None:
    watch = Watches(CONFIG_MAP, itself, changed("data.x", "metadata.deletionTimestamp"))
    old, new = new_object("a", data={"x": "1"}), new_object("a", data={"x": "1", "y": "2"})
    key = Key("default", "a")
    assert watch.affected(Change(key, old, new)) == []
    assert watch.affected(Change(key, old, new_object("a", data={"x": "2"}))) == [key]
    assert watch.affected(Change(key, old, new_object("a"))) == [key]
    assert watch.affected(Change(key, None, new)) == watch.affected(Change(key, new, None)) == [key]
    assert Watches(CONFIG_MAP).affected(Change(key, None, new)) == []


def test_a_changed_label_triggers_both_the_old_and_the_new_key() -> None:
    old, new = (new_object("a", metadata={"labels": {"for": name}}) for name in ("x", "y"))
    watch = Watches(CONFIG_MAP, named_by_label("for"))
    assert watch.affected(Change(Key("default", "a"), old, new)) == [Key("default", "x"), Key("default", "y")]


def test_decisions_can_be_added() -> None:
    first, second = Decision(wait=Wait("one"), wake_at=START), Decision(wait=Wait("two"))
    assert (DONE + first + second).wait == Wait("one")
    assert (second + first).wake_at == START
