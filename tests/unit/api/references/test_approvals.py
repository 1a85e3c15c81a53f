"""The record of approved references: which approvals a write keeps, and what they allow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herder.api.references.approvals import (
    APPROVED,
    REVIEW,
    compare,
    derived_record,
    problem,
    recorded,
    with_record,
    with_target_uids,
)
from herder.api.references.catalogue import READ, SECRETS, FieldReference, Target
from herder.engine.meta.kinds import Object

MINE, OTHER = Target(*SECRETS, "here", "mine"), Target(*SECRETS, "here", "other")


def reference(target: Target = MINE, path: str = "spec.a") -> FieldReference:
    return FieldReference(path, target, READ, path)


def entry(name: str = "mine", path: str = "spec.a", **fields: str) -> dict[str, str]:
    return {"path": path, "resource": "secrets", "namespace": "here", "name": name, **fields}


def obj(*entries: dict[str, str], **annotations: str) -> Object:
    return {"metadata": {"annotations": {APPROVED: json.dumps(entries), **annotations}}}


PLAIN: Object = {"metadata": {"annotations": {"a": "b"}}}


@pytest.mark.parametrize(
    ("stored", "uid", "expected"),
    [
        (PLAIN, "1", ""),
        (obj(entry(uid="1")), "1", ""),
        (obj(entry(uid="1")), "2", "was recreated"),
        (obj(entry()), "2", ""),
        (obj(entry(path="spec.b", uid="1")), "1", "is not approved"),
        (obj(entry("other", uid="1")), "1", "is not approved"),
        (obj(), "1", "is not approved"),
        ({"metadata": {"annotations": {APPROVED: "not JSON"}}}, "1", "is not approved"),
        ({"metadata": {"annotations": {APPROVED: '[{"path": 1}]'}}}, "1", "is not approved"),
        ({"metadata": {"annotations": {APPROVED: "[" * 100_000}}}, "1", "is not approved"),
    ],
)
def test_a_reference_is_resolved_only_as_approved(stored: Object, uid: str, expected: str) -> None:
    found = problem(stored, "spec.a", MINE, uid)
    assert (expected in found) if expected else not found


def test_unchanged_references_keep_their_approval_and_new_ones_are_reviewed() -> None:
    old = obj(entry(uid="1"), entry("other", uid="2", path="spec.gone"))
    change = compare(obj(), old, [reference(), reference(OTHER)], [reference(), reference(OTHER, "spec.gone")])
    assert [each.uid for each in change.kept] == ["1"]
    assert change.new == (reference(OTHER),)


def test_an_unapproved_reference_stays_unapproved_until_a_review() -> None:
    assert compare(obj(entry(uid="1")), obj(), [reference()], [reference()]) == ((), ())
    requested = obj(**{REVIEW: "now"})
    assert compare(requested, obj(), [reference()], [reference()]).new == (reference(),)


def test_references_older_than_the_record_are_kept() -> None:
    change = compare(PLAIN, PLAIN, [reference(), reference(OTHER)], [reference()])
    assert [(each.name, each.uid) for each in change.kept] == [("mine", "")]
    assert change.new == (reference(OTHER),)


def test_references_of_a_new_object_are_reviewed() -> None:
    assert compare(obj(entry(uid="1")), None, [reference()], []).new == (reference(),)


def test_the_record_is_replaced_and_removed() -> None:
    assert with_record(PLAIN, None) is PLAIN
    assert with_record(obj(entry()), None) == {"metadata": {}}
    assert recorded(with_record(PLAIN, ())) == ()


def test_derived_objects_keep_the_approved_targets() -> None:
    source = obj(entry(uid="1"), entry("other", path="spec.b", uid="2"))
    found: Any = derived_record(source, lambda each: "spec.template.a" if each.path == "spec.a" else None)
    assert json.loads(found[APPROVED]) == [entry(uid="1", path="spec.template.a")]
    assert derived_record(PLAIN, lambda each: each.path) == {}


def test_a_new_target_is_bound_once() -> None:
    found = with_target_uids(obj(entry(), entry("other", uid="2")), lambda target: "1" if target == MINE else "9")
    assert found is not None
    assert {each.name: each.uid for each in found} == {"mine": "1", "other": "2"}
    assert with_target_uids(obj(entry()), lambda _: "") is None
    assert with_target_uids(PLAIN, lambda _: "1") is None
