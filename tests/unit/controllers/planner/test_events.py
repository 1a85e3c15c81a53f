"""Events of the planner's controllers: rollouts, failed plans, failed machines and removed etcd members."""

from __future__ import annotations

import pytest

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.node.plan_secret import encoded
from herder.controllers.planner.plan.secret import CONTROLLER as PLAN_SECRETS
from herder.engine.meta.kinds import Object
from tests.support.builders import events_of, new_condition, owner_reference, reconcile
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import (
    NAMESPACE,
    TOKENS,
    control_plane_conditions,
    machine_with_plan,
    plan_of,
    reconcile_planner,
)

EVIDENCE = '{"instruction":"install","exitCode":7,"error":"","tail":"no route for joined-with-this"}'


def owned_cluster() -> Object:
    """Cluster API's Cluster of a provisioning Cluster."""
    cluster = objects.cluster()
    cluster["metadata"]["ownerReferences"] = [owner_reference(PROVISIONING_CLUSTER, "demo")]
    return cluster


def plan_events(evidence: str = EVIDENCE, *conditions: Object) -> list[str]:
    data = {"serverToken": encoded("joined-with-this")}
    tokens = objects.secret(names.tokens_secret("demo"), type=names.TOKENS_SECRET_TYPE, data=data)
    plan = {"plan": plan_of().to_json().decode(), "plan-state": "failed", "failed-evidence": evidence}
    secret = objects.plan_secret("a", data=plan)
    machine = objects.machine("a")
    machine["status"]["conditions"] = [*conditions]
    context = (owned_cluster(), objects.control_plane(), objects.beacon(), tokens)
    return events_of(reconcile(PLAN_SECRETS, f"{NAMESPACE}/{secret['metadata']['name']}", secret, machine, *context))


def test_a_failed_plan_is_an_event_of_the_machine_and_its_cluster() -> None:
    why = 'plan of machine a failed (attempt 1): instruction "install" failed; exit code 7: no route for ***'
    assert plan_events() == [
        f"Warning PlanFailed {about}: {why}" for about in ("Machine a", "RKEControlPlane demo", "Cluster demo")
    ]


def test_a_failure_that_is_known_is_no_news() -> None:
    known = new_condition("PlanApplied", "False", "Error", message="attempt 1, the next at 2026-01-01T12:00:30Z")
    assert plan_events("", known) == []


def failed_machine(name: str) -> tuple[Object, Object]:
    machine, secret = machine_with_plan(name)
    message = f"failed creating server [ns/{name}]: CreateError: Running pre-create checks...\nquota of {name} exceeded"
    machine["status"]["conditions"] = [new_condition("InfrastructureReady", "False", "CreateError", message=message)]
    return machine, secret


def test_the_cluster_says_why_its_machines_cannot_be_created() -> None:
    context = (owned_cluster(), objects.control_plane(), objects.beacon(), TOKENS)
    decision = reconcile_planner(*failed_machine("a"), cluster_objects=context)
    why = "machine could not be created: quota of … exceeded"
    assert control_plane_conditions(decision)["Ready"] == ("Unknown", f"waiting for viable init node: {why}")
    assert events_of(decision) == [
        f"Warning MachineCreationFailed {about}: {why}" for about in ("RKEControlPlane demo", "Cluster demo")
    ]
    known = objects.control_plane({"conditions": [new_condition("Ready", "Unknown", message=f"waiting: {why}")]})
    again = reconcile_planner(*failed_machine("b"), cluster_objects=(owned_cluster(), known, objects.beacon(), TOKENS))
    assert events_of(again) == [], "its replacement fails for the same reason"


def test_the_cluster_says_why_a_pod_cannot_start() -> None:
    machine, secret = machine_with_plan("a")
    message = "creating server [ns/a] of kind (Amazonec2Machine): pod is waiting: 0/1 nodes are available"
    machine["status"]["conditions"] = [new_condition("InfrastructureReady", "Unknown", "Creating", message=message)]
    decision = reconcile_planner(machine, secret)
    why = "machine cannot be created: pod is waiting: 0/1 nodes are available"
    assert control_plane_conditions(decision)["Ready"] == ("Unknown", f"waiting for viable init node: {why}")


@pytest.mark.parametrize(
    ("applied", "reconciled", "expected"),
    [
        ("v1.32.1+k3s1", "True", "Normal UpgradeStarted {}: Upgrade from v1.32.1+k3s1 to v1.33.4+k3s1 has started"),
        ("v1.32.1+k3s1", "Unknown", ""),  # in progress
        ("v1.33.4+k3s1", "True", ""),
    ],
)
def test_the_start_of_an_upgrade_is_reported_once(applied: str, reconciled: str, expected: str) -> None:
    status = {"appliedSpec": {"kubernetesVersion": applied}, "conditions": [new_condition("Reconciled", reconciled)]}
    context = (owned_cluster(), objects.control_plane(status), objects.beacon(), TOKENS)
    found = events_of(reconcile_planner(*machine_with_plan(init=True, plan=plan_of()), cluster_objects=context))
    started = [each for each in found if "Upgrade" in each]
    assert started == (
        [expected.format(about) for about in ("RKEControlPlane demo", "Cluster demo")] if expected else []
    )


def test_an_invalid_spec_is_a_warning() -> None:
    context = (owned_cluster(), objects.control_plane(kubernetesVersion="v1.33.4+unknown"), objects.beacon())
    (event,) = events_of(reconcile_planner(cluster_objects=context))
    assert event.startswith("Warning PlanningFailed RKEControlPlane demo: ")


def test_tokens_in_reports_of_machines_are_redacted() -> None:
    token = "K10aaaaaaaa::server:bbbbbbbb"
    tokens = objects.secret(
        names.tokens_secret("demo"), type=names.TOKENS_SECRET_TYPE, data={"serverToken": encoded(token)}
    )
    errors = f'{{"k3s.service":"failed (failed), 3 restarts; last log lines: token {token} rejected"}}'
    context = (owned_cluster(), objects.control_plane(), objects.beacon(), tokens)
    machine = machine_with_plan(init=True, plan=plan_of(), unhealthy=True, data={"probe-errors": errors})
    decision = reconcile_planner(*machine, cluster_objects=context)
    assert token not in str(decision)
