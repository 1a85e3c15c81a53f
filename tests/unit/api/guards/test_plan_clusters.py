"""Guards of plans look at the cluster of the plan, whatever object the decision is about."""

from __future__ import annotations

import pytest

from herder.api.rke import names
from herder.engine.meta.kinds import Object
from tests.unit.api.guards.refusals import refusal
from tests.unit.api.guards.test_agents import RUN, agent, busy, control_plane, limited, written
from tests.unit.api.test_guards_by_distribution import SAMPLES
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAMESPACE, machine

KEYS = pytest.mark.parametrize("key", [f"{NAMESPACE}/x", "elsewhere/x", "x"])
SAMPLE = SAMPLES["k3s"]


@KEYS
def test_the_namespace_is_that_of_the_plan(key: str) -> None:
    new, server = SAMPLE.new(), SAMPLE.server("a")
    cluster, plane, beacon = SAMPLE.cluster

    def found(*existing: Object, of: tuple[Object, ...] = SAMPLE.cluster) -> str:
        return refusal(new, *existing, cluster=of, key=key).partition(":")[0]

    assert found(*server) == ""
    assert found(*server, of=(cluster, plane, objects.beacon("restore"))) == "require-beacon-ownership"
    assert found(*server, of=(objects.cluster(paused=True), plane, beacon)) == "deny-plan-while-paused"
    assert found(machine("a", deleting=True), server[1]) == "deny-plan-for-deleting-machine"
    lower = SAMPLE.write("a", SAMPLE.plan(release="v1.33.3", joins="https://10.0.0.1:6443"))
    assert refusal(lower, *server, cluster=SAMPLE.cluster, key=key).startswith("deny-downgrade: ")
    others = *SAMPLE.server("b"), *SAMPLE.server("c", unhealthy=True)
    assert found(*server, *others) == "keep-etcd-quorum-on-disruption"
    workers = *SAMPLE.worker("a"), *SAMPLE.worker("b", unhealthy=True)
    assert found(*workers) == "limit-upgrade-concurrency"
    two = cluster, SAMPLE.control_plane(upgradeStrategy={"workerConcurrency": "2"}), beacon
    assert found(*workers, of=two) == "", "the strategy of the cluster"
    assert found(*workers, of=(cluster, {**plane, "spec": None}, beacon)) == "limit-upgrade-concurrency"


def test_redeployments_are_checked_with_all_writes_of_plans() -> None:
    write = written(**{"probe-statuses": None})
    marks = {names.PLAN_TASK: RUN.mark, names.JOINED_TO: "https://10.0.0.1:6443"}
    write.patch["metadata"] = {"annotations": marks}
    cluster = (objects.cluster(), control_plane(), objects.beacon())
    assert refusal(write, *agent("a"), *agent("b"), cluster=cluster) == ""
    assert refusal(write, *agent("a"), *busy("b"), cluster=cluster) == limited("worker")
    assert refusal(write, *agent("a", version="1.2.0"), cluster=cluster).startswith("deny-agent-downgrade: ")
