"""Which machines the limit of the upgrade strategy counts, for the plans of every distribution."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch, Ref
from tests.unit.api.guards.plan_writes import NEW, write
from tests.unit.api.guards.refusals import refusal
from tests.unit.api.guards.test_plans import BY_DISTRIBUTION, PLAN_A, with_cluster
from tests.unit.api.test_guards_by_distribution import Sample
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import (
    ETCD,
    NAMESPACE,
    PLANE,
    SERVER,
    WORKER,
    machine,
    plan_of,
    plan_secret,
)

WINDOWS = {names.OPERATING_SYSTEM: "windows"}


def plane(name: str, **more: Any) -> tuple[Object, ...]:
    return machine(name), plan_secret(name, (PLANE,), plan=plan_of(), **more)


def worker(name: str, **more: Any) -> tuple[Object, ...]:
    return machine(name), plan_secret(name, (WORKER,), plan=plan_of(), **more)


@BY_DISTRIBUTION
def test_messages_about_concurrency(sample: Sample) -> None:
    guard = f"limit-upgrade-concurrency: {PLAN_A}; "
    two = *sample.worker("a"), *sample.worker("b", unhealthy=True)
    expected = f"{guard}1 of 2 machines are down, upgradeStrategy.workerConcurrency allows 1"
    assert refusal(sample.new(), *two, cluster=sample.cluster) == expected
    control_plane = sample.control_plane(upgradeStrategy={"controlPlaneConcurrency": "2", "workerConcurrency": "1"})
    planes = *plane("a"), *plane("b", unhealthy=True), *plane("c", unhealthy=True)
    expected = f"{guard}2 of 3 machines are down, upgradeStrategy.controlPlaneConcurrency allows 2"
    assert refusal(sample.new(), *planes, cluster=with_cluster(control_plane)) == expected
    assert refusal(sample.new(), *planes[:4], cluster=with_cluster(control_plane)) == ""


@pytest.mark.parametrize(
    ("own", "other", "denied"),
    [
        (worker("a"), worker("b", unhealthy=True), True),
        (worker("a", labels=WINDOWS), worker("b", unhealthy=True), False),
        (worker("a"), worker("b", unhealthy=True, labels=WINDOWS), False),
        (worker("a", labels=WINDOWS), worker("b", unhealthy=True, labels=WINDOWS), True),
        (worker("a"), plane("b", unhealthy=True), False),
        (plane("a"), worker("b", unhealthy=True), False),
        (worker("a"), (machine("b"), plan_secret("b", (WORKER, PLANE), plan=plan_of(), unhealthy=True)), False),
        (worker("a"), (machine("b"), plan_secret("b", (WORKER, ETCD), plan=plan_of(), unhealthy=True)), False),
        (plane("a"), (machine("b"), plan_secret("b", SERVER, plan=plan_of(), unhealthy=True)), False),
        (plane("a"), (machine("b"), plan_secret("b", (PLANE, WORKER), plan=plan_of(), unhealthy=True)), True),
        (worker("a"), worker("b", annotations={names.DRAIN_OPTIONS: "{}"}), True),
        (worker("a"), (machine("b", deleting=True), worker("b", unhealthy=True)[1]), False),
        (worker("a"), worker("b", unhealthy=True, labels={names.CLUSTER_NAME: "another"}), False),
        (worker("a", annotations={names.DRAIN_OPTIONS: "{}"}), worker("b", unhealthy=True), False),
        (worker("a", unhealthy=True), worker("b", unhealthy=True), False),
        (worker("a", unhealthy=True), worker("b", annotations={names.DRAIN_OPTIONS: "{}"}), True),
    ],
)
def test_which_machines_share_a_limit(own: tuple[Object, ...], other: tuple[Object, ...], denied: bool) -> None:
    found = refusal(write("a", NEW), *own, *other)
    assert found.startswith("limit-upgrade-concurrency: " if denied else "")
    assert bool(found) is denied
    mark = {"metadata": {"annotations": {names.DRAIN_OPTIONS: "{}"}}}
    drain = Patch(Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE), mark, "drain it")
    assert bool(refusal(drain, *own, *other)) is denied, "a drain disrupts as a plan does"


@pytest.mark.parametrize(
    ("concurrency", "denied"), [("1", True), ("2", False), ("0", False), (None, True), ("-1", True)]
)
def test_limits_of_the_strategy(concurrency: str | None, denied: bool) -> None:
    for strategy in ({"workerConcurrency": concurrency}, *([None] if concurrency is None else [])):
        cluster = with_cluster(objects.control_plane(upgradeStrategy=strategy))
        assert bool(refusal(write("a", NEW), *worker("a"), *worker("b", unhealthy=True), cluster=cluster)) is denied
    assert refusal(write("a", NEW), *worker("a"), *worker("b")) == ""
