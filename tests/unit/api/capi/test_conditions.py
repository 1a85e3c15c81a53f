"""Condition lists, and conditions that are computed from others. Users and clusterctl read the messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from herder.api.capi.conditions import (
    Condition,
    Priority,
    Reasons,
    aggregate,
    condition,
    find,
    find_legacy,
    is_false,
    is_true,
    is_unknown,
    legacy,
    legacy_aggregate,
    legacy_mirror,
    legacy_summary,
    merged,
    merged_legacy,
    mirror,
    paused_condition,
    summary,
)
from herder.api.capi.kinds import MACHINE
from herder.engine.meta.kinds import Object
from tests.support.builders import new_object

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEFORE, AT = "2026-01-01T11:00:00Z", "2026-01-01T12:00:00Z"
REASONS = Reasons("Bad", "Unclear", "Good")
NONE = condition("Result", "True", "NoObjects")


def with_conditions(
    *conditions: Condition, name: str = "x", kind: str = "Machine", control_plane: bool = False
) -> Object:
    labels = {"cluster.x-k8s.io/control-plane": ""} if control_plane else {}
    return {"kind": kind, "metadata": {"name": name, "labels": labels}, "status": {"conditions": list(conditions)}}


def ready(name: str, status: str = "False", message: str = "broken", **more: Any) -> Object:
    return with_conditions(condition("Ready", status, "R", message), name=name, **more)


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "answers"),
    [("True", (True, False, False)), ("False", (False, True, False)), ("Unknown", (False, False, True))],
)
def test_a_condition_is_true_false_or_unknown(status: str, answers: tuple[bool, bool, bool]) -> None:
    obj = with_conditions(condition("Ready", status, "R"))
    assert (is_true(obj, "Ready"), is_false(obj, "Ready"), is_unknown(obj, "Ready")) == answers


@pytest.mark.parametrize("obj", [None, {"metadata": {}}, {"status": {"conditions": None}}, with_conditions()])
def test_an_absent_condition_is_neither_true_false_nor_unknown(obj: Object | None) -> None:
    assert find(obj, "Ready") is None
    assert not any(predicate(obj, "Ready") for predicate in (is_true, is_false, is_unknown))


# --- merging lists --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old_status", "transition_time", "since"),
    [
        pytest.param(None, None, AT, id="new: now"),
        pytest.param(None, BEFORE, BEFORE, id="new and mirrored: the source's time"),
        pytest.param("True", None, BEFORE, id="same status: kept"),
        pytest.param("True", AT, BEFORE, id="same status and mirrored: kept"),
        pytest.param("False", None, AT, id="another status: now"),
        pytest.param("False", "2026-01-01T11:30:00Z", "2026-01-01T11:30:00Z", id="another and mirrored: the source's"),
    ],
)
def test_last_transition_time_changes_only_with_the_status(
    old_status: str | None, transition_time: str | None, since: str
) -> None:
    old = [condition("Ready", old_status, "Old") | {"lastTransitionTime": BEFORE}] if old_status else []
    new = condition("Ready", "True", "New", "said") | (
        {"lastTransitionTime": transition_time} if transition_time else {}
    )
    assert merged(old, [new], NOW, generation=3) == [
        condition("Ready", "True", "New", "said", generation=3) | {"lastTransitionTime": since}
    ]


def test_merging_keeps_foreign_conditions_and_removes_dropped_ones() -> None:
    theirs = condition("Reconciled", "True", "Theirs") | {"lastTransitionTime": BEFORE}
    ours = condition("Ready", "True", "Ours") | {"lastTransitionTime": BEFORE}
    assert merged([ours, theirs], [], NOW, drop=["Ready"]) == [theirs]


def test_conditions_are_sorted_for_readers() -> None:
    types = [
        "Deleting",
        "Zed",
        "Paused",
        "ScalingUp",
        "MachinesReady",
        "Ready",
        "Abc",
        "InfrastructureReady",
        "Available",
    ]
    listed = merged([], [condition(type_, "True", "R") for type_ in types], NOW)
    assert [known["type"] for known in listed] == [
        *("Available", "Ready", "InfrastructureReady", "ScalingUp", "MachinesReady"),
        *("Abc", "Zed", "Paused", "Deleting"),
    ]


def test_a_condition_has_a_message_even_if_empty() -> None:
    assert condition("Ready", "True", "R") == {"type": "Ready", "status": "True", "reason": "R", "message": ""}


# --- mirrors --------------------------------------------------------------------------------------------------------

FALLBACK = condition("Ready", "False", "NotReady", "not yet")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({}, {**FALLBACK, "type": "InfrastructureReady"}, id="absent"),
        pytest.param(
            {"conditions": [condition("Ready", "True", "Fine", "all well") | {"lastTransitionTime": BEFORE}]},
            condition("InfrastructureReady", "True", "Fine", "all well") | {"lastTransitionTime": BEFORE},
            id="as it is, with its time",
        ),
        pytest.param(
            {"conditions": [{"type": "Ready", "status": "True"}]},
            condition("InfrastructureReady", "True", "Ready"),
            id="true without a reason, as in v1beta1",
        ),
        pytest.param(
            {"conditions": [{"type": "Ready", "status": "Unknown"}]},
            condition("InfrastructureReady", "Unknown", "NoReasonReported"),
            id="not true without a reason",
        ),
        pytest.param(
            {
                "conditions": [{"type": "Ready", "status": "True"}],
                "v1beta2": {"conditions": [condition("Ready", "False", "Newer", "counts")]},
            },
            condition("InfrastructureReady", "False", "Newer", "counts"),
            id="v1beta1 providers that have both",
        ),
        pytest.param(
            {"conditions": [{"type": "Ready", "status": "Maybe"}]},
            condition(
                "InfrastructureReady",
                "Unknown",
                "InvalidConditionReported",
                "status for the Ready condition must be one of True, False, Unknown",
            ),
            id="no status at all",
        ),
        pytest.param(
            {"conditions": [{"type": "Other"}]},
            condition(
                "InfrastructureReady",
                "Unknown",
                "InvalidConditionReported",
                "status must be set for the Other condition",
            ),
            id="another condition malformed",
        ),
        pytest.param(
            {"conditions": [{"status": "True"}]},
            condition(
                "InfrastructureReady", "Unknown", "InvalidConditionReported", "type must be set for all conditions"
            ),
            id="no type",
        ),
    ],
)
def test_a_mirror_shows_a_providers_condition(status: Object, expected: Condition) -> None:
    source = {"metadata": {"name": "x"}, "status": status}
    assert mirror(source, "Ready", "InfrastructureReady", fallback=FALLBACK, reason_if_true="Ready") == expected


# --- summaries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "status", "reason", "message"),
    [
        pytest.param([("A", "True", ""), ("B", "True", "")], "True", "Good", "", id="all is well"),
        pytest.param([("A", "True", "fine"), ("B", "True", "")], "True", "Good", "* A: fine", id="information"),
        pytest.param(
            [("A", "True", "fine"), ("B", "False", "bad")], "False", "Bad", "* B: bad", id="issues before information"
        ),
        pytest.param(
            [("A", "Unknown", "?"), ("B", "False", "bad")],
            "False",
            "Bad",
            "* A: ?\n* B: bad",
            id="unknown conditions are listed too",
        ),
        pytest.param([("A", "Unknown", "?"), ("B", "True", "")], "Unknown", "Unclear", "* A: ?", id="unknown"),
        pytest.param([("A", "False", ""), ("B", "True", "")], "False", "Bad", "* A: R", id="no message: the reason"),
        pytest.param(
            [("A", "True", ""), ("B", "True", ""), ("Not", "True", "n")], "False", "Bad", "* Not: n", id="negative"
        ),
        pytest.param(
            [("A", "True", ""), ("B", "True", ""), ("Not", "False", "")], "True", "Good", "", id="negative, good"
        ),
        pytest.param([("B", "True", "")], "Unknown", "Unclear", "* A: Condition not yet reported", id="missing"),
        pytest.param(
            [("A", "False", "one\ntwo"), ("B", "True", "")], "False", "Bad", "* A:\n  * one\n  * two", id="lines"
        ),
        pytest.param(
            [("A", "False", "* one\n* two"), ("B", "True", "")], "False", "Bad", "* A:\n  * one\n  * two", id="bullets"
        ),
        pytest.param(
            [("A", "False", "head\n* one"), ("B", "True", "")], "False", "Bad", "* A:\n  * head\n    * one", id="both"
        ),
        pytest.param(
            [("Other", "False", ""), ("A", "True", ""), ("B", "True", "")],
            "True",
            "Good",
            "",
            id="other types are ignored",
        ),
    ],
)
def test_summary_of_conditions(parts: list[tuple[str, str, str]], status: str, reason: str, message: str) -> None:
    conditions = [condition(type_, state, "R", text) for type_, state, text in parts]
    result = summary(
        "Result", conditions, types=["A", "B", "Not"], reasons=REASONS, negative=["Not"], ignore_if_missing=["Not"]
    )
    assert result == condition("Result", status, reason, message)


def test_a_summary_accepts_a_custom_priority_and_transform() -> None:
    parts = [condition("A", "False", "Gone", "went"), condition("B", "Unknown", "R", "who knows")]
    result = summary(
        "Result",
        parts,
        types=["A", "B"],
        reasons=REASONS,
        priority=lambda part: Priority.INFO if part["reason"] == "Gone" else Priority.UNKNOWN,
        transform=lambda bullets: [bullet.upper() for bullet in bullets],
    )
    assert result == condition("Result", "Unknown", "Unclear", "* B: WHO KNOWS")


# --- aggregates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "status", "reason", "message"),
    [
        pytest.param([], "True", "NoObjects", "", id="none"),
        pytest.param([ready("a", "True", "")], "True", "Good", "", id="all is well"),
        pytest.param([ready("a"), ready("b", "True", "")], "False", "Bad", "* Machine a: broken", id="one"),
        pytest.param(
            [ready("b"), ready("a")], "False", "Bad", "* Machines a, b: broken", id="several with the same message"
        ),
        pytest.param(
            [ready(name) for name in "edcba"], "False", "Bad", "* Machines a, b, c, ... (2 more): broken", id="many"
        ),
        pytest.param(
            [ready("a"), ready("z", control_plane=True)],
            "False",
            "Bad",
            "* Machines z, a: broken",
            id="control plane first",
        ),
        pytest.param(
            [with_conditions(name="a")],
            "Unknown",
            "Unclear",
            "* Machine a: Condition Ready not yet reported",
            id="missing",
        ),
        pytest.param(
            [ready("a", "Unknown", "?"), ready("b", message="x"), ready("c", message="x"), ready("d", message="y")],
            "False",
            "Bad",
            "* Machines b, c: x\n* Machine d: y\n* Machine a: ?",
            id="issues, then unknown; most frequent message first",
        ),
        pytest.param(
            [ready(name, message=name) for name in "abcde"] + [ready("u", "Unknown", "?")],
            "False",
            "Bad",
            "* Machine a: a\n* Machine b: b\n* Machine c: c\nAnd 2 Machines with other issues\n"
            "And 1 Machine with status unknown",
            id="at most three messages",
        ),
        pytest.param(
            [ready(name, "True", name) for name in "abcd"],
            "True",
            "Good",
            "* Machine a: a\n* Machine b: b\n* Machine c: c\nAnd 1 Machine with additional info",
            id="information",
        ),
        pytest.param(
            [ready("d", kind="MachineDeployment"), ready("s", kind="MachineSet")],
            "False",
            "Bad",
            "* MachineDeployment d: broken\n* MachineSet s: broken",
            id="by kind",
        ),
        pytest.param(
            [ready("a", message="* Node:\n  * bad")], "False", "Bad", "* Machine a:\n  * Node:\n    * bad", id="nested"
        ),
    ],
)
def test_aggregate_of_conditions(objects: list[Object], status: str, reason: str, message: str) -> None:
    result = aggregate("Result", objects, "Ready", reasons=REASONS, none=NONE)
    assert result == condition("Result", status, reason, message)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [(["False", "False"], "False"), (["False", "True"], "True"), (["False", "Unknown"], "Unknown")],
)
def test_an_aggregate_of_a_negative_condition_is_negative_too(statuses: list[str], expected: str) -> None:
    objects = [ready(f"m{number}", status, "") for number, status in enumerate(statuses)]
    assert aggregate("Result", objects, "Ready", reasons=REASONS, none=NONE, negative=True)["status"] == expected


# --- v1beta1 conditions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "since"),
    [
        pytest.param(legacy("Ready", "False", "Why", "Info", "m"), BEFORE, id="the same"),
        pytest.param(legacy("Ready", "False", "Why", "Info", "other"), AT, id="another message"),
        pytest.param(legacy("Ready", "False", "Why", "Error", "m"), AT, id="another severity"),
        pytest.param(legacy("Ready", "True"), AT, id="another status"),
        pytest.param(legacy("Ready", "True") | {"lastTransitionTime": BEFORE}, AT, id="mirrored, but changed here now"),
    ],
)
def test_any_change_of_a_legacy_condition_is_a_transition(new: Condition, since: str) -> None:
    old = legacy("Ready", "False", "Why", "Info", "m") | {"lastTransitionTime": BEFORE}
    assert merged_legacy([old], [new], NOW) == [{**new, "lastTransitionTime": since}]


def test_legacy_conditions_are_sorted_with_ready_first() -> None:
    listed = merged_legacy([], [legacy("A", "True"), legacy("Ready", "True"), legacy("B", "True")], NOW)
    assert [known["type"] for known in listed] == ["Ready", "A", "B"]


def test_a_legacy_condition_has_no_empty_fields() -> None:
    assert legacy("Ready", "True") == {"type": "Ready", "status": "True"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(None, legacy("Target", "False", "Waiting", "Info"), id="absent"),
        pytest.param(
            {"status": {"conditions": [legacy("Ready", "False", "R", "Warning", "m")]}},
            legacy("Target", "False", "R", "Warning", "m"),
            id="of a v1beta1 provider",
        ),
        pytest.param(
            {"status": {"conditions": [condition("Ready", "False", "R", "m")]}},
            legacy("Target", "False", "R", "Info", "m"),
            id="of a v1beta2 provider, which knows no severity",
        ),
        pytest.param(
            {
                "status": {
                    "conditions": [condition("Ready", "True", "R")],
                    "deprecated": {"v1beta1": {"conditions": [legacy("Ready", "False", "Old", "Error", "m")]}},
                }
            },
            legacy("Target", "False", "Old", "Error", "m"),
            id="of a provider with both lists",
        ),
    ],
)
def test_a_legacy_mirror(source: Object | None, expected: Condition) -> None:
    assert legacy_mirror(source, "Target", fallback=legacy("Target", "False", "Waiting", "Info")) == expected


@pytest.mark.parametrize(
    ("conditions", "counted", "expected"),
    [
        pytest.param([], (), None, id="nothing"),
        pytest.param([legacy("A", "True"), legacy("B", "True")], (), legacy("Ready", "True"), id="all is well"),
        pytest.param(
            [legacy("A", "False", "Ra", "Info", "a"), legacy("B", "False", "Rb", "Error", "b")],
            (),
            legacy("Ready", "False", "Rb", "Error", "b"),
            id="the most severe",
        ),
        pytest.param(
            [legacy("B", "False", "Rb", "Info", "b"), legacy("A", "False", "Ra", "Info", "a")],
            (),
            legacy("Ready", "False", "Ra", "Info", "a"),
            id="the first type of equals",
        ),
        pytest.param(
            [legacy("A", "True"), legacy("B", "Unknown", "R")], (), legacy("Ready", "True"), id="unknown is last"
        ),
        pytest.param(
            [legacy("A", "True"), legacy("B", "False", "Rb", "Info", "b")],
            ("A", "B"),
            legacy("Ready", "False", "Rb", "Info", "1 of 2 completed"),
            id="steps are counted",
        ),
        pytest.param(
            [legacy("A", "True"), legacy("C", "False", "Rc", "Error", "c")],
            ("A", "B"),
            legacy("Ready", "False", "Rc", "Error", "c"),
            id="steps are not counted if another condition is false",
        ),
    ],
)
def test_a_legacy_summary(conditions: list[Condition], counted: tuple[str, ...], expected: Condition | None) -> None:
    assert legacy_summary(conditions, ["A", "B", "C"], counted=counted) == expected


def test_a_legacy_aggregate_names_the_worst_condition_and_counts_true_ones() -> None:
    def machine(name: str, *conditions: Condition) -> Object:
        status = {"deprecated": {"v1beta1": {"conditions": list(conditions)}}}
        return new_object(MACHINE, name, status=status)

    objects = [
        machine("c", legacy("Ready", "False", "Broken", "Error")),
        machine("b", legacy("Ready", "False", "Broken", "Error")),
        machine("a", legacy("Ready", "True")),
        machine("d"),
    ]
    expected = legacy("MachinesReady", "False", "Broken @ Machine/b", "Error", "1 of 4 completed")
    assert legacy_aggregate("MachinesReady", objects) == expected
    assert legacy_aggregate("MachinesReady", [machine("d")]) is None
    assert find_legacy(objects[2], "Ready") == legacy("Ready", "True")


# --- paused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster_paused", "annotated", "expected"),
    [
        (False, False, condition("Paused", "False", "NotPaused")),
        (True, False, condition("Paused", "True", "Paused", "Cluster spec.paused is set to true")),
        (False, True, condition("Paused", "True", "Paused", "Machine has the cluster.x-k8s.io/paused annotation")),
        (
            True,
            True,
            condition(
                "Paused",
                "True",
                "Paused",
                "Cluster spec.paused is set to true, Machine has the cluster.x-k8s.io/paused annotation",
            ),
        ),
    ],
)
def test_the_paused_condition_names_the_cause(cluster_paused: bool, annotated: bool, expected: Condition) -> None:
    annotations = {"cluster.x-k8s.io/paused": ""} if annotated else {}
    obj = {"kind": "Machine", "metadata": {"name": "m", "annotations": annotations}}
    assert paused_condition({"spec": {"paused": cluster_paused}}, obj) == expected
