"""Annotations that configure the behavior of in-memory objects, and reports of invalid ones."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.api.inmemory import names
from herder.api.inmemory.behavior import Behavior, behavior_of, response_delay
from herder.engine.meta.kinds import Object


def annotated(uid: str = "1", **annotations: str) -> Object:
    return {"metadata": {"name": "m", "uid": uid, "annotations": annotations}}


@pytest.mark.parametrize(
    ("annotation", "value", "field", "expected"),
    [
        (names.API_DELAY, "2", "api_delay", timedelta(seconds=2)),
        (names.BOOTSTRAP_DELAY, "0.5", "bootstrap_delay", timedelta(seconds=0.5)),
        (names.START_DELAY, "10", "start_delay", timedelta(seconds=10)),
        (names.NODE_DELAY, "0", "node_delay", timedelta()),
        (names.FAIL, "QuotaExceeded", "fail", "QuotaExceeded"),
        (names.NEVER_READY, "true", "never_ready", True),
        (names.NEVER_READY, "false", "never_ready", False),
        (names.STUCK_DELETION, "true", "stuck_deletion", True),
        (names.NODE_READY, "False", "node_ready", "False"),
        (names.NODE_READY, "Unknown", "node_ready", "Unknown"),
        (names.NODE_READY, "Absent", "node_ready", "Absent"),
        (names.NODE_CONDITIONS, '{"DiskPressure": "True"}', "node_conditions", {"DiskPressure": "True"}),
        (names.API_FAULT, "refuse", "api_fault", "refuse"),
        (names.API_FAULT, "hang", "api_fault", "hang"),
        (names.API_FAULT, "slow=0.5", "api_fault", "slow=0.5"),
        (names.API_FAULT, "", "api_fault", ""),
    ],
)
def test_each_annotation_sets_one_field(annotation: str, value: str, field: str, expected: Any) -> None:
    behavior = behavior_of(annotated(**{annotation: value}))
    assert getattr(behavior, field) == expected
    assert behavior.problem == ""


def test_without_annotations_there_are_no_delays_or_faults() -> None:
    assert behavior_of({"metadata": {"name": "m", "uid": "1"}}) == Behavior()


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        *(
            (names.START_DELAY, value)
            for value in ("", "soon", "-1", "1s", "nan", "inf", "1e9", "2±", "2±200%", "99999999")
        ),
        *((flag, "yes") for flag in (names.NEVER_READY, names.STUCK_DELETION)),
        *((names.FAIL, value) for value in ("", "two words", "x" * 300)),
        *((names.NODE_READY, value) for value in ("", "true", "Maybe")),
        *((names.NODE_CONDITIONS, value) for value in ("", "{", "[]", '{"a": true}', '{"a": "Perhaps"}')),
        *((names.API_FAULT, value) for value in ("explode", "slow", "slow=", "slow=-1", "slow=inf", "slow=nan")),
    ],
)
def test_an_invalid_value_is_reported_and_ignored(annotation: str, value: str) -> None:
    behavior = behavior_of(annotated(**{annotation: value}))
    assert behavior.problem.startswith(f"annotation {annotation}: ")
    assert behavior == Behavior(problem=behavior.problem)


def test_a_long_invalid_value_is_truncated_in_the_report() -> None:
    assert len(behavior_of(annotated(**{names.FAIL: "x" * 10_000})).problem) < 400


def test_all_invalid_values_are_reported() -> None:
    behavior = behavior_of(annotated(**{names.START_DELAY: "soon", names.NODE_READY: "Maybe"}))
    assert names.START_DELAY in behavior.problem
    assert names.NODE_READY in behavior.problem


def test_jitter_differs_between_objects_and_is_stable_for_each() -> None:
    delays = [behavior_of(annotated(str(uid), **{names.START_DELAY: "10±20%"})).start_delay for uid in range(100)]
    again = [behavior_of(annotated(str(uid), **{names.START_DELAY: "10±20%"})).start_delay for uid in range(100)]
    assert delays == again
    assert len(set(delays)) > 90
    assert timedelta(seconds=8) <= min(delays) < timedelta(seconds=9)
    assert timedelta(seconds=11) < max(delays) <= timedelta(seconds=12)


@pytest.mark.parametrize(("fault", "seconds"), [("", 0.0), ("hang", 0.0), ("slow=0.5", 0.5), ("slow=3", 3.0)])
def test_response_delay_of_a_fault(fault: str, seconds: float) -> None:
    assert response_delay(fault) == seconds
