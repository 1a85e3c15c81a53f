"""Secrets that are synced into managed clusters, and when a new cluster has those that it requires before bootstrap."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.management import names, secret_sync
from herder.api.references.approvals import APPROVED
from herder.api.references.catalogue import sync_path
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.names import AUTHORIZED_CLUSTERS
from herder.controllers.provisioning.synced_secret import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Connect, Decision, EffectKey, EffectResult, Patch
from tests.support.builders import new_condition, new_object, reconcile
from tests.unit.controllers.provisioning.objects import (
    MANAGEMENT_NAME,
    new_management_cluster,
    new_provisioning_cluster,
)

KEY: EffectKey = (secret_sync.SYNC_SECRET, f"Cluster-{MANAGEMENT_NAME}", "Secret-a", "7")
PROVISIONING_CLUSTER = new_provisioning_cluster(clusterName=MANAGEMENT_NAME)
SYNCED: dict[EffectKey, EffectResult] = {KEY: EffectResult()}


def connected(**status: Any) -> Object:
    management = new_management_cluster(**status)
    management["metadata"]["annotations"][names.CONNECTED_SINCE] = "2026-01-01T11:00:00Z"
    return management


def secret(name: str = "a", *, namespace: str = "ws", clusters: str = "meadow", **options: str) -> Object:
    annotations = {
        AUTHORIZED_CLUSTERS: clusters,
        secret_sync.SYNC_BOOTSTRAP: "true",
        secret_sync.TARGET_NAMESPACE: "kube-system",
    }
    annotation_names = {
        "first": secret_sync.SYNC_BOOTSTRAP,
        "sync": secret_sync.SYNC,
        "to": secret_sync.TARGET_NAMESPACE,
    }
    annotation_names |= {"as_": secret_sync.TARGET_NAME}
    annotations |= {annotation_names[option]: value for option, value in options.items()}
    return new_object(SECRET, name, namespace, annotations=annotations, metadata={"resourceVersion": "7"})


def decide(*objects: Object, results: dict[EffectKey, EffectResult] | None = None) -> Decision:
    return reconcile(CONTROLLER, f"/{MANAGEMENT_NAME}", *objects, results=results)


def conditions(decision: Decision) -> list[Object]:
    (write,) = decision.writes
    assert isinstance(write, Patch)
    found: list[Object] = write.patch["status"]["conditions"]
    return found


def pre_bootstrapped(decision: Decision) -> tuple[str, str]:
    (condition,) = (each for each in conditions(decision) if each["type"] == secret_sync.PRE_BOOTSTRAPPED)
    return condition["status"], condition["message"]


def test_a_secret_is_synced_into_its_cluster_through_the_tunnel() -> None:
    decision = decide(connected(), PROVISIONING_CLUSTER, secret(as_="cpi"))
    (effect,) = decision.effects
    assert (effect.performer, effect.key) == (secret_sync.SYNC_SECRET, KEY)
    assert effect.arguments == {
        "cluster": MANAGEMENT_NAME,
        "source": {"namespace": "ws", "name": "a", "uid": "Secret-a"},
        "target": {"namespace": "kube-system", "name": "cpi"},
    }
    assert decision.observe == (Connect(MANAGEMENT_NAME),)
    assert pre_bootstrapped(decision) == ("Unknown", "waiting for Secret ws/a")


@pytest.mark.parametrize(
    "other",
    [
        secret(clusters="forest, hill"),
        secret(clusters=""),
        secret(namespace="elsewhere"),
        secret(first=""),
    ],
    ids=["for other clusters", "for no cluster", "in another workspace", "not marked"],
)
def test_other_secrets_are_not_synced(other: Object) -> None:
    assert decide(connected(), PROVISIONING_CLUSTER, other) == DONE


def test_no_secret_is_synced_into_a_cluster_that_only_claims_to_be_the_target() -> None:
    """Users who may edit a management Cluster could name any other cluster in it."""
    foreign = new_management_cluster(created_for="ws/forest")
    foreign["metadata"]["annotations"][names.CONNECTED_SINCE] = "2026-01-01T11:00:00Z"
    assert decide(foreign, PROVISIONING_CLUSTER, secret()) == DONE
    assert decide(connected(), new_provisioning_cluster(), secret()) == DONE


def test_the_condition_is_true_when_all_required_secrets_are_synced() -> None:
    objects = (connected(), PROVISIONING_CLUSTER, secret("a"), secret("b"))
    partly_synced = decide(*objects, results=SYNCED)
    assert [effect.key[2] for effect in partly_synced.effects] == ["Secret-b"]
    assert pre_bootstrapped(partly_synced) == ("Unknown", "waiting for Secret ws/b")
    fully_synced = decide(*objects, results=SYNCED | {(*KEY[:2], "Secret-b", "7"): EffectResult()})
    assert pre_bootstrapped(fully_synced) == ("True", "")
    assert (fully_synced.effects, fully_synced.observe) == ((), ())


def test_later_changes_are_synced_without_delaying_the_cluster() -> None:
    pre_bootstrapped_cluster = connected(conditions=[new_condition(secret_sync.PRE_BOOTSTRAPPED)])
    decision = decide(pre_bootstrapped_cluster, PROVISIONING_CLUSTER, secret())
    assert len(decision.effects) == 1
    assert decision.writes == ()


def test_a_secret_that_is_not_required_is_synced_but_not_awaited() -> None:
    decision = decide(connected(), PROVISIONING_CLUSTER, secret(first="", sync="true"))
    assert len(decision.effects) == 1
    assert decision.writes == ()


def test_nothing_is_synced_before_the_agent_connects() -> None:
    decision = decide(new_management_cluster(), PROVISIONING_CLUSTER, secret())
    assert (decision.effects, decision.observe) == ((), ())
    assert pre_bootstrapped(decision) == ("Unknown", "waiting for the cluster's agent: the cluster is being built")


def test_a_failed_sync_is_reported() -> None:
    failed = {KEY: EffectResult(error='NotFound: namespaces "kube-system" not found', attempts=1)}
    decision = decide(connected(), PROVISIONING_CLUSTER, secret(), results=failed)
    assert pre_bootstrapped(decision) == ("False", 'Secret ws/a: NotFound: namespaces "kube-system" not found')
    assert not secret_sync.refusal(new_management_cluster(conditions=conditions(decision)), None), "it is tried again"
    assert len(decision.effects) == 1


def test_a_target_namespace_other_than_kube_system_is_an_error() -> None:
    decision = decide(connected(), PROVISIONING_CLUSTER, secret(to="default"))
    problem = (
        f'Secret ws/a: annotation {secret_sync.TARGET_NAMESPACE}: "default" is not allowed; use kube-system, or remove'
    )
    assert pre_bootstrapped(decision) == ("False", f"{problem} the annotation")
    assert decision.effects == ()
    (effect,) = decide(connected(), PROVISIONING_CLUSTER, secret(to="")).effects
    assert effect.arguments["target"] == {"namespace": "ws", "name": "a"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ([{"name": "meadow", "uid": PROVISIONING_CLUSTER["metadata"]["uid"]}], ""),
        ([{"name": "meadow", "uid": "of-an-earlier-one"}], "was recreated"),
        ([{"name": "forest", "uid": PROVISIONING_CLUSTER["metadata"]["uid"]}], "is not approved"),
        ([], "is not approved"),
    ],
)
def test_a_secret_is_synced_only_as_approved(record: list[dict[str, str]], expected: str) -> None:
    base = {
        "path": sync_path("kube-system", "a"),
        "group": "provisioning.cattle.io",
        "resource": "clusters",
        "namespace": "ws",
    }
    approved = secret()
    approved["metadata"]["annotations"][APPROVED] = json.dumps([base | each for each in record])
    decision = decide(connected(), PROVISIONING_CLUSTER, approved)
    assert bool(decision.effects) is not bool(expected)
    assert expected in (decision.wait.reason if decision.wait else "")
    status, message = pre_bootstrapped(decision)
    assert status == ("False" if expected else "Unknown")
    command = 'kubectl -n ws annotate secret a herder.io/review-references="$(date)" --overwrite'
    assert message.endswith(f": {command}") is bool(expected)
    known = new_management_cluster(conditions=[*conditions(decision)])
    assert secret_sync.refusal(known, None) == (message if expected else "")
    initialized = {"initialization": {"controlPlaneInitialized": True}}
    assert not secret_sync.refusal(known, new_object(CONTROL_PLANE, "meadow", "ws", status=initialized))
