"""Secrets for managed clusters: which are brought where, and when a new cluster has what it must have first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.management import names, secret_sync
from herder.api.references.approvals import APPROVED
from herder.api.references.catalogue import sync_path
from herder.api.rke.names import AUTHORIZED_CLUSTERS
from herder.controllers.provisioning.synced_secret import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Connect, Decision, EffectKey, EffectResult, Patch
from tests.support.views import view_of
from tests.unit.controllers.provisioning.test_deciding import CLUSTER, made, management, provisioning

KEY: EffectKey = (secret_sync.SYNC_SECRET, f"Cluster-{CLUSTER}", "Secret-a", "7")
OURS = provisioning(clusterName=CLUSTER)
BROUGHT: dict[EffectKey, EffectResult] = {KEY: EffectResult()}


def connected(**status: Any) -> Object:
    known = management(**status)
    known["metadata"]["annotations"][names.CONNECTED_SINCE] = "2026-01-01T11:00:00Z"
    return known


def secret(name: str = "a", *, namespace: str = "ws", clusters: str = "meadow", **marks: str) -> Object:
    given = {
        AUTHORIZED_CLUSTERS: clusters,
        secret_sync.SYNC_BOOTSTRAP: "true",
        secret_sync.TARGET_NAMESPACE: "kube-system",
    }
    words = {"first": secret_sync.SYNC_BOOTSTRAP, "sync": secret_sync.SYNC, "to": secret_sync.TARGET_NAMESPACE}
    words |= {"as_": secret_sync.TARGET_NAME}
    given |= {words[word]: value for word, value in marks.items()}
    return made(SECRET, name, namespace, meta={"annotations": given})


def decide(*objects: Object, results: dict[EffectKey, EffectResult] | None = None) -> Decision:
    return CONTROLLER.reconcile(view_of(CONTROLLER, f"/{CLUSTER}", objects, results=results))


def told(decision: Decision) -> tuple[str, str]:
    (write,) = decision.writes
    assert isinstance(write, Patch)
    (condition,) = (
        each for each in write.patch["status"]["conditions"] if each["type"] == secret_sync.PRE_BOOTSTRAPPED
    )
    return condition["status"], condition["message"]


def test_a_secret_is_brought_into_its_cluster_through_the_tunnel() -> None:
    decision = decide(connected(), OURS, secret(as_="cpi"))
    (effect,) = decision.effects
    assert (effect.performer, effect.key) == (secret_sync.SYNC_SECRET, KEY)
    assert effect.arguments == {
        "cluster": CLUSTER,
        "source": {"namespace": "ws", "name": "a", "uid": "Secret-a"},
        "target": {"namespace": "kube-system", "name": "cpi"},
    }
    assert decision.observe == (Connect(CLUSTER),)
    assert told(decision) == ("Unknown", "waiting for Secret ws/a")


@pytest.mark.parametrize(
    "other",
    [
        secret(clusters="forest, hill"),
        secret(clusters=""),
        secret(namespace="elsewhere"),
        secret(first=""),
    ],
    ids=["for others", "for nobody", "of another workspace", "not marked"],
)
def test_no_other_secret_is(other: Object) -> None:
    assert decide(connected(), OURS, other) == DONE


def test_a_cluster_gets_none_of_one_that_it_only_says_to_be() -> None:
    """Whoever may edit a management Cluster could name any other in it."""
    stranger = management(of="ws/forest")
    stranger["metadata"]["annotations"][names.CONNECTED_SINCE] = "2026-01-01T11:00:00Z"
    assert decide(stranger, OURS, secret()) == DONE
    assert decide(connected(), provisioning(), secret()) == DONE


def test_the_cluster_is_told_to_have_what_it_must_have_first_when_all_of_it_is_there() -> None:
    both = (connected(), OURS, secret("a"), secret("b"))
    one = decide(*both, results=BROUGHT)
    assert [effect.key[2] for effect in one.effects] == ["Secret-b"]
    assert told(one) == ("Unknown", "waiting for Secret ws/b")
    all_ = decide(*both, results=BROUGHT | {(*KEY[:2], "Secret-b", "7"): EffectResult()})
    assert told(all_) == ("True", "")
    assert (all_.effects, all_.observe) == ((), ())


def test_later_changes_are_followed_and_hold_nothing_up() -> None:
    known = connected(conditions=[{"type": secret_sync.PRE_BOOTSTRAPPED, "status": "True"}])
    decision = decide(known, OURS, secret())
    assert len(decision.effects) == 1
    assert decision.writes == ()


def test_one_that_need_not_be_there_first_is_brought_and_not_waited_for() -> None:
    decision = decide(connected(), OURS, secret(first="", sync="true"))
    assert len(decision.effects) == 1
    assert decision.writes == ()


def test_nothing_is_brought_before_the_agent_is_there() -> None:
    decision = decide(management(), OURS, secret())
    assert (decision.effects, decision.observe) == ((), ())
    assert told(decision) == ("Unknown", "waiting for the cluster's agent: the cluster is being built")


def test_what_goes_wrong_is_told() -> None:
    failed = {KEY: EffectResult(error='NotFound: namespaces "kube-system" not found', attempts=1)}
    decision = decide(connected(), OURS, secret(), results=failed)
    assert told(decision) == ("False", 'Secret ws/a: NotFound: namespaces "kube-system" not found')
    assert len(decision.effects) == 1


def test_another_namespace_than_kube_system_is_told_to_be_wrong() -> None:
    decision = decide(connected(), OURS, secret(to="default"))
    problem = (
        f'Secret ws/a: annotation {secret_sync.TARGET_NAMESPACE}: "default" is not allowed; use kube-system, or remove'
    )
    assert told(decision) == ("False", f"{problem} the annotation")
    assert decision.effects == ()
    (effect,) = decide(connected(), OURS, secret(to="")).effects
    assert effect.arguments["target"] == {"namespace": "ws", "name": "a"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ([{"name": "meadow", "uid": OURS["metadata"]["uid"]}], ""),
        ([{"name": "meadow", "uid": "of-an-earlier-one"}], "was recreated"),
        ([{"name": "forest", "uid": OURS["metadata"]["uid"]}], "is not approved"),
        ([], "is not approved"),
    ],
)
def test_a_secret_is_brought_only_as_approved(record: list[dict[str, str]], expected: str) -> None:
    base = {
        "path": sync_path("kube-system", "a"),
        "group": "provisioning.cattle.io",
        "resource": "clusters",
        "namespace": "ws",
    }
    given = secret()
    given["metadata"]["annotations"][APPROVED] = json.dumps([base | each for each in record])
    decision = decide(connected(), OURS, given)
    assert bool(decision.effects) is not bool(expected)
    assert expected in (decision.wait.reason if decision.wait else "")
    assert told(decision)[0] == ("False" if expected else "Unknown")
