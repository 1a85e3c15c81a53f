"""Which evictions are allowed, and messages about others."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE, NODE, POD
from herder.api.guards.evictions import deny_unrequested_eviction
from herder.api.rke import names
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Delete, Effect, Ref
from tests.support.views import view_of
from tests.unit.api.guards.plan_writes import READER
from tests.unit.api.test_eviction_guards import eviction
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAMESPACE, machine, plan_secret

SECRET = names.plan_secret("a")
REQUESTED = plan_secret("a", annotations={names.DRAIN_OPTIONS: "{}"})
UNREQUESTED = "deny-unrequested-eviction: Pod default/p: eviction denied; no drain of its Node was requested"
PAUSED = "deny-unrequested-eviction: Pod default/p: eviction denied; its Machine is paused"


def refusal(
    action: Any, name: str, *existing: Object, cluster: Object | None = None, reader: Controller = READER
) -> str:
    view = view_of(reader, f"{NAMESPACE}/{name}", (cluster or objects.cluster(), *existing))
    found = deny_unrequested_eviction(action, view, [])
    return f"{found.guard}: {found.reason}" if found else ""


@pytest.mark.parametrize(
    ("uid", "name", "existing", "expected"),
    [
        ("Machine-a", "a", [machine("a", deleting=True)], ""),
        ("Machine-a", "a", [machine("a")], UNREQUESTED),
        ("Machine-b", "a", [machine("a", deleting=True)], UNREQUESTED),
        ("Machine-a", "b", [machine("a", deleting=True)], UNREQUESTED),
        (f"Secret-{SECRET}", SECRET, [machine("a"), REQUESTED], ""),
        (f"Secret-{SECRET}", SECRET, [REQUESTED], UNREQUESTED),
        (f"Secret-{SECRET}", SECRET, [machine("a"), plan_secret("a")], UNREQUESTED),
        (f"Secret-{SECRET}", SECRET, [machine("a", deleting=True), plan_secret("a")], UNREQUESTED),
        ("Secret-b", SECRET, [machine("a"), REQUESTED], UNREQUESTED),
        (
            f"Secret-{SECRET}",
            SECRET,
            [machine("a"), plan_secret("a", annotations={names.DRAIN_OPTIONS: "{}", names.DRAIN_DONE: "{}"})],
            UNREQUESTED,
        ),
        (
            f"Secret-{SECRET}",
            SECRET,
            [machine("a"), plan_secret("a", annotations={names.DRAIN_OPTIONS: "{}", names.DRAIN_DONE: "other"})],
            "",
        ),
        (
            f"Secret-{SECRET}",
            SECRET,
            [machine("a"), plan_secret("a", annotations={names.DRAIN_OPTIONS: "", names.DRAIN_DONE: "{}"})],
            UNREQUESTED,
        ),
    ],
)
def test_pods_are_evicted_for_the_object_of_the_decision(
    uid: str, name: str, existing: list[Object], expected: str
) -> None:
    assert refusal(eviction(uid), name, *existing) == expected


def test_a_secret_without_labels_has_no_machine() -> None:
    unlabelled = plan_secret("a", annotations={names.DRAIN_OPTIONS: "{}"})
    unlabelled["metadata"]["labels"] = None
    assert refusal(eviction(f"Secret-{SECRET}"), SECRET, machine("a"), unlabelled) == UNREQUESTED


def test_pods_of_paused_clusters_are_not_evicted() -> None:
    paused, deleting = objects.cluster(paused=True), machine("a", deleting=True)
    assert refusal(eviction("Machine-a"), "a", deleting, cluster=paused) == PAUSED
    assert refusal(eviction(f"Secret-{SECRET}"), SECRET, machine("a"), REQUESTED, cluster=paused) == PAUSED


def test_only_evictions_and_deletions_of_pods_are_checked() -> None:
    """Pods of the management cluster run machine programs, and are deleted with their Jobs."""
    pod, node = Ref(POD, "p", "default"), Ref(NODE, "p")
    assert refusal(Delete(pod, "uid", "drain", target="ns/c"), "a", machine("a")) == UNREQUESTED
    assert refusal(Delete(pod, "uid", "drain", target="ns/c"), "a", machine("a", deleting=True)) == ""
    allowed: list[Any] = [
        Delete(pod, "uid", "drain"),
        Delete(node, "uid", "drain", target="ns/c"),
        Effect("read-secret", ("Machine-a",), {"namespace": "default", "name": "p"}, "input"),
        Apply(POD, {"metadata": {"name": "p"}}, "a pod", target="ns/c"),
    ]
    assert [refusal(action, "a", machine("a")) for action in allowed] == [""] * len(allowed)


def test_kinds_that_are_not_watched_request_nothing() -> None:
    reader = Controller("reader", MACHINE, lambda _view: DONE)
    view = view_of(reader, f"{NAMESPACE}/a", [machine("a", deleting=True)])
    assert deny_unrequested_eviction(eviction("Machine-a"), view, []) is None
