"""InMemoryCluster: its authority, its endpoint, the faults of its API, and its end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.names import MANAGED_BY, PAUSED
from herder.api.inmemory import names
from herder.api.inmemory.kinds import IN_MEMORY_CLUSTER
from herder.controllers.inmemory.cluster import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Create, Decision, EffectResult
from tests.support.views import NOW
from tests.unit.controllers.inmemory.stage import (
    EARLIER,
    cluster,
    condition,
    decide,
    flat,
    legacy,
    made,
    only_patch,
    patched,
    secret,
)

UID = "InMemoryCluster-c"
SERVE, STOP, AUTHORITY = (UID, "serve"), (UID, "stop"), (UID, "authority")
CA = secret("c-ca")
SERVED = {SERVE: EffectResult({"host": "127.0.0.1", "port": 4444, "fault": ""})}
ENDPOINT = {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": 4444}}


def infra(**more: Any) -> Object:
    given: Any = {"owner": cluster(), "controller": False, "finalizers": [names.CLUSTER_FINALIZER], "spec": {}}
    return made(IN_MEMORY_CLUSTER, "c", **(given | more))


def decided(*objects: Object, **more: Any) -> Decision:
    return decide(CONTROLLER, "c", *objects, **more)


def provisioned(**more: Any) -> Object:
    at = infra(spec=ENDPOINT, **more)
    plain = infra(spec=ENDPOINT)
    return {**at, "status": patched(plain, decided(plain, cluster(), CA, results=SERVED))["status"]}


def test_nothing_happens_before_the_core_has_made_it_a_clusters() -> None:
    decision = decided(infra(owner=None), cluster())
    assert (decision.writes, decision.effects) == ((), ())
    assert decision.wait is not None


def test_the_finalizer_comes_first() -> None:
    assert only_patch(decided(infra(finalizers=None), cluster())) == {
        "metadata": {"finalizers": [names.CLUSTER_FINALIZER]}
    }


def test_the_authority_is_made_outside_and_kept_in_a_secret() -> None:
    decision = decided(infra(), cluster())
    (effect,) = decision.effects
    assert (effect.performer, effect.key, effect.arguments) == ("certificate-authority", AUTHORITY, {"name": "c"})
    data = {"tls.crt": "Y3J0", "tls.key": "a2V5"}
    (create,) = flat(decided(infra(), cluster(), results={AUTHORITY: EffectResult(data)}))
    assert isinstance(create, Create)
    assert create.obj["metadata"]["name"] == "c-ca"
    assert create.obj["metadata"]["labels"] == {"cluster.x-k8s.io/cluster-name": "c"}
    assert create.obj["metadata"]["ownerReferences"][0]["kind"] == "Cluster"
    assert create.obj["type"] == "cluster.x-k8s.io/secret"
    assert create.obj["data"] == data


def test_an_authority_that_the_user_brings_is_taken() -> None:
    (effect,) = decided(infra(), cluster(), CA).effects
    assert effect.performer == "serve-workload"
    assert effect.key == SERVE
    assert effect.arguments == {"namespace": "ns", "cluster": "c", "port": 0, "fault": ""}


def test_the_endpoint_is_recorded_before_it_is_told() -> None:
    assert only_patch(decided(infra(), cluster(), CA, results=SERVED)) == {"spec": ENDPOINT}
    at = infra(spec=ENDPOINT)
    told = patched(at, decided(at, cluster(), CA, results=SERVED))
    assert told["status"]["initialization"] == {"provisioned": True}
    assert told["status"]["ready"] is True
    assert condition(told, "Ready") == ("True", "Ready", "")
    assert legacy(told, "Ready")["status"] == "True"
    assert decided(told, cluster(), CA, results=SERVED).writes == ()


def test_after_a_restart_it_is_served_where_it_was() -> None:
    (effect,) = decided(provisioned(), cluster(), CA).effects
    assert effect.arguments["port"] == 4444


def test_why_it_cannot_be_served_is_told() -> None:
    failed = {SERVE: EffectResult(error="OSError: port 4444 of 127.0.0.1: Address already in use", attempts=1)}
    at = infra(spec=ENDPOINT)
    decision = decided(at, cluster(), CA, results=failed)
    assert [effect.key for effect in decision.effects] == [SERVE]
    status, reason, message = condition(patched(at, decision), "Ready")
    assert (status, reason) == ("False", "ServingFailed")
    assert "port 4444" in message


def test_failure_domains_are_those_of_the_spec() -> None:
    domains = [{"name": "z1", "controlPlane": True}]
    at = infra(spec=ENDPOINT | {"failureDomains": domains})
    assert patched(at, decided(at, cluster(), CA, results=SERVED))["status"]["failureDomains"] == domains


def test_the_api_delay_counts_from_creation() -> None:
    slow = infra(annotations={names.API_DELAY: "100"})
    decision = decided(slow, cluster(), CA)
    assert decision.effects == ()
    assert decision.wake_at == EARLIER + timedelta(seconds=100)
    assert decided(slow, cluster(), CA, now=NOW + timedelta(seconds=40)).effects


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (names.FAIL, "NoNetwork", "NoNetwork"),
        (names.NEVER_READY, "true", "NeverReady"),
        (names.API_FAULT, "explode", "InvalidAnnotation"),
    ],
)
def test_trouble_that_is_asked_for_is_told(annotation: str, value: str, reason: str) -> None:
    bad = infra(annotations={annotation: value})
    decision = decided(bad, cluster(), CA, results=SERVED)
    assert decision.effects == ()
    told = patched(bad, decision)
    assert condition(told, "Ready")[:2] == ("False", reason)
    assert "initialization" not in told["status"]
    assert told["status"].get("failureReason") == ("NoNetwork" if annotation == names.FAIL else None)


def test_a_cluster_may_begin_with_a_fault() -> None:
    at = infra(spec=ENDPOINT, annotations={names.API_FAULT: "hang"})
    assert decided(at, cluster(), CA).effects[0].arguments["fault"] == "hang"
    served = {SERVE: EffectResult({"host": "127.0.0.1", "port": 4444, "fault": "hang"})}
    decision = decided(at, cluster(), CA, results=served)
    assert [effect.key for effect in decision.effects] == [SERVE]
    assert patched(at, decision)["status"]["apiFault"] == "hang"


def test_a_fault_that_is_asked_for_later_is_set_once_and_may_be_taken_back() -> None:
    faulty = provisioned(annotations={names.API_FAULT: "refuse"})
    _, effect = decided(faulty, cluster(), CA, results=SERVED).effects
    assert effect.performer == "set-workload-fault"
    assert effect.arguments == {"namespace": "ns", "cluster": "c", "fault": "refuse"}
    done = SERVED | {effect.key: EffectResult()}
    told = patched(faulty, decided(faulty, cluster(), CA, results=done))
    assert told["status"]["apiFault"] == "refuse"
    assert len(decided(told, cluster(), CA, results=done).effects) == 1
    healed = {**told, "metadata": {**told["metadata"], "annotations": {}, "resourceVersion": "8"}}
    _, back = decided(healed, cluster(), CA, results=done).effects
    assert back.arguments["fault"] == ""
    assert back.key != effect.key


def test_it_ends_with_its_api() -> None:
    going = infra(deleting=True)
    (effect,) = decided(going, cluster()).effects
    assert (effect.performer, effect.key, effect.arguments) == (
        "stop-workload",
        STOP,
        {"namespace": "ns", "cluster": "c"},
    )
    assert only_patch(decided(going, cluster(), results={STOP: EffectResult()})) == {"metadata": {"finalizers": []}}


def test_it_stays_for_as_long_as_its_annotation_says() -> None:
    stuck = infra(deleting=True, annotations={names.STUCK_DELETION: "true"})
    assert decided(stuck, cluster(), results={STOP: EffectResult()}).writes == ()


def test_what_somebody_else_manages_is_left_alone() -> None:
    assert decided(infra(annotations={MANAGED_BY: "me"}), cluster()) == Decision()


def test_while_paused_it_says_so_and_does_nothing() -> None:
    resting = infra(annotations={PAUSED: ""})
    decision = decided(resting, cluster(), CA)
    assert decision.effects == ()
    assert condition(patched(resting, decision), "Paused")[0] == "True"


@pytest.mark.parametrize("deleting", [False, True])
def test_the_api_of_another_cluster_is_neither_served_nor_stopped(deleting: bool) -> None:
    """Users choose the label and the owner of an InMemoryCluster; the Cluster says which one is its own."""
    named = cluster()
    named["spec"]["infrastructureRef"] = {"apiGroup": IN_MEMORY_CLUSTER.group, "kind": "InMemoryCluster", "name": "own"}
    assert decided(infra(deleting=deleting), named, CA).effects == ()
