"""A machine that somebody else made: there from the start, and given up where its cluster says when."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.api.capi.conditions import timestamp
from herder.controllers.machines.custom import machines
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Delete, Patch
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.views import NOW, view_of
from tests.unit.controllers.machines.custom.stage import (
    CLUSTER_ID,
    WORKSPACE,
    custom,
    machine,
    management,
    provisioning,
    rke_cluster,
)

GONE_SINCE = NOW - timedelta(minutes=10)
THERE = {"metadata": {"name": "sheep-1"}}


def without_node(reason: str = "NodeDeleted", status: str = "False", **meta: bool) -> Object:
    told = {"type": "NodeHealthy", "status": status, "reason": reason, "lastTransitionTime": timestamp(GONE_SINCE)}
    return machine(conditions=[told], nodeRef={"name": "sheep-1"}, **meta)  # type: ignore[arg-type]


def decide(*objects: Object, seen: Observed | Unreachable | None = None) -> Decision:
    return machines.reconcile(
        view_of(machines.CONTROLLER, f"{WORKSPACE}/custom-1", objects, observed=lambda _wish: seen)
    )


def test_it_is_ready_at_once() -> None:
    bare = custom()
    (write,) = decide({**bare, "status": {}}).writes
    assert isinstance(write, Patch)
    (condition,) = write.patch["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    assert "initialization" not in write.patch["status"]


def test_it_is_provisioned_once_its_node_told_what_it_is_called() -> None:
    (write,) = decide(custom(provider_id="k3s://sheep-1")).writes
    assert isinstance(write, Patch)
    assert write.patch["status"]["initialization"] == {"provisioned": True}
    assert write.patch["status"]["ready"] is True


def test_what_another_manager_left_lets_it_go() -> None:
    (write,) = decide(custom(going=True, finalizers=["wrangler.cattle.io/unmanaged-machine", "other"])).writes
    assert isinstance(write, Patch)
    assert write.patch == {"metadata": {"finalizers": ["other"]}}


# --- one whose Node is gone -------------------------------------------------------------------------------------------


def _settled(**options: str) -> Object:
    whole = custom(provider_id="k3s://sheep-1", **options)  # type: ignore[arg-type]
    return {**whole, "status": {**whole["status"], "ready": True, "initialization": {"provisioned": True}}}


def scene(after: str = "5m", whose: Object | None = None, connected: bool = True) -> list[Object]:
    return [_settled(), whose or without_node(), rke_cluster(after), provisioning(), management(connected=connected)]


def test_a_machine_whose_node_stays_away_is_given_up_when_the_cluster_itself_says_so() -> None:
    decision = decide(*scene(), seen=Observed((), NOW))
    (write,) = decision.writes
    assert isinstance(write, Delete)
    assert (write.ref.kind.kind, write.ref.name, write.uid) == ("Machine", "custom-1", "Machine-custom-1")
    (wish,) = decision.observe
    assert wish.cluster == CLUSTER_ID


@pytest.mark.parametrize(
    ("objects", "seen", "reason"),
    [
        (scene(), Observed((THERE,), NOW), "Node sheep-1 exists again"),
        (scene(), Unreachable("no route", NOW), "waiting for the cluster to confirm it"),
        (scene(), None, "waiting for the cluster to confirm it"),
        (scene(connected=False), Observed((), NOW), "waiting for the cluster agent to connect"),
        (scene("15m"), Observed((), NOW), "the Machine is deleted if it does not return"),
        (scene("soon"), Observed((), NOW), '"soon" must be a duration such as 15m'),
    ],
)
def test_otherwise_it_stays(objects: list[Object], seen: Observed | Unreachable | None, reason: str) -> None:
    decision = decide(*objects, seen=seen)
    assert decision.writes == ()
    assert decision.wait is not None
    assert reason in decision.wait.reason


def test_it_is_looked_at_again_when_the_time_is_over() -> None:
    assert decide(*scene("15m")).wake_at == GONE_SINCE + timedelta(minutes=15)


@pytest.mark.parametrize(
    "objects",
    [
        scene(""),
        scene(whose=without_node(status="True")),
        scene(whose=without_node(reason="NodeNotReady")),
        scene(whose=without_node(going=True)),
    ],
    ids=["not asked for", "healthy", "not ready", "going already"],
)
def test_nothing_is_given_up_unasked(objects: list[Object]) -> None:
    decision = decide(*objects, seen=Observed((), NOW))
    assert (decision.writes, decision.observe) == ((), ())
