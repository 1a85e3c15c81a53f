"""Admission rules of the Cluster API kinds, without an API server."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herder.api.capi.admission import RULES, needs_admission
from herder.engine.meta.kinds import Kind, Object
from tests.unit.api.capi.admission.cases import CASES, Case
from tests.unit.api.capi.admission.objects import MACHINE, VALID, changed


def defaults(kind: Kind, obj: Object, old: Object | None) -> Object:
    default = RULES[kind].default
    return default(obj, old) if default is not None else obj


@pytest.mark.parametrize("case", CASES, ids=str)
def test_admission_cases(case: Case) -> None:
    obj = defaults(case.kind, case.obj, case.old)
    if not case.fields:
        assert obj == (case.result or case.obj)
    assert tuple(dict.fromkeys(problem.field for problem in RULES[case.kind].validate(obj, case.old))) == case.fields


@pytest.mark.parametrize("case", CASES, ids=str)
def test_objects_are_never_changed_in_place(case: Case) -> None:
    obj, old = copy.deepcopy(case.obj), copy.deepcopy(case.old)
    RULES[case.kind].validate(defaults(case.kind, obj, old), old)
    assert (obj, old) == (case.obj, case.old)


@pytest.mark.parametrize("case", [case for case in CASES if not case.fields], ids=str)
def test_defaulting_returns_the_same_object_if_nothing_changes(case: Case) -> None:
    obj = defaults(case.kind, case.obj, case.old)
    assert defaults(case.kind, obj, case.old) is obj


@pytest.mark.parametrize("kind", VALID, ids=str)
def test_every_kind_has_a_rule_that_accepts_a_valid_object(kind: Kind) -> None:
    assert {case.kind for case in CASES} == set(RULES)
    assert RULES[kind].validate(VALID[kind], None) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"metadata.finalizers": ["a.example.com/b"]}, False),
        ({"metadata.ownerReferences": [{"uid": "u"}]}, False),
        ({"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"}, False),
        ({"status": {"phase": "Running"}}, False),
        ({"metadata.labels": {}}, True),
        ({"metadata.annotations": {"a": "b"}}, True),
        ({"spec.version": "v1.36.1"}, True),
    ],
)
def test_only_changes_of_spec_labels_and_annotations_need_admission(changes: dict[str, Any], expected: bool) -> None:
    assert needs_admission(changed(MACHINE, changes), MACHINE) is expected
    assert needs_admission(MACHINE, None)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_PATHS = (
    "spec", "spec.replicas", "spec.clusterName", "spec.selector", "spec.selector.matchLabels", "spec.template",
    "spec.template.metadata", "spec.template.spec", "spec.template.spec.version", "spec.rollout",
    "spec.rollout.strategy", "spec.rollout.strategy.type", "spec.deletion", "spec.checks", "spec.strategy",
    "metadata", "metadata.name", "metadata.labels", "metadata.annotations",
)  # fmt: skip


@given(st.sampled_from(list(VALID)), st.sampled_from(_PATHS), _JSON)
def test_defaulting_accepts_any_json_because_validation_comes_later(kind: Kind, path: str, value: Any) -> None:
    assert isinstance(defaults(kind, changed(VALID[kind], {path: value}), VALID[kind]), dict)
