"""InMemoryCluster: certificate authority, endpoint, injected API faults and deletion."""

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
from tests.support.builders import condition_fields, legacy_condition_of, only_patch, patched, writes_of
from tests.support.views import NOW
from tests.unit.controllers.inmemory.objects import A_MINUTE_AGO, cluster, member_object, reconcile_object, secret

UID = "InMemoryCluster-c"
SERVE, STOP, AUTHORITY = (UID, "serve"), (UID, "stop"), (UID, "authority")
CA = secret("c-ca")
SERVED = {SERVE: EffectResult({"host": "127.0.0.1", "port": 4444, "fault": ""})}
ENDPOINT = {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": 4444}}


def infra(**options: Any) -> Object:
    defaults: Any = {"owner": cluster(), "controller": False, "finalizers": [names.CLUSTER_FINALIZER], "spec": {}}
    return member_object(IN_MEMORY_CLUSTER, "c", **(defaults | options))


def reconcile(*objects: Object, **options: Any) -> Decision:
    return reconcile_object(CONTROLLER, "c", *objects, **options)


def provisioned(**options: Any) -> Object:
    infra_object = infra(spec=ENDPOINT, **options)
    infra_with_endpoint = infra(spec=ENDPOINT)
    return {
        **infra_object,
        "status": patched(infra_with_endpoint, reconcile(infra_with_endpoint, cluster(), CA, results=SERVED))["status"],
    }


def test_unowned_cluster_waits_for_its_owner_reference() -> None:
    decision = reconcile(infra(owner=None), cluster())
    assert (decision.writes, decision.effects) == ((), ())
    assert decision.wait is not None


def test_finalizer_is_the_first_write() -> None:
    assert only_patch(reconcile(infra(finalizers=None), cluster())) == {
        "metadata": {"finalizers": [names.CLUSTER_FINALIZER]}
    }


def test_ca_is_generated_by_an_effect_and_stored_in_a_secret() -> None:
    decision = reconcile(infra(), cluster())
    (effect,) = decision.effects
    assert (effect.performer, effect.key, effect.arguments) == ("certificate-authority", AUTHORITY, {"name": "c"})
    data = {"tls.crt": "Y3J0", "tls.key": "a2V5"}
    (create,) = writes_of(reconcile(infra(), cluster(), results={AUTHORITY: EffectResult(data)}))
    assert isinstance(create, Create)
    assert create.obj["metadata"]["name"] == "c-ca"
    assert create.obj["metadata"]["labels"] == {"cluster.x-k8s.io/cluster-name": "c"}
    assert create.obj["metadata"]["ownerReferences"][0]["kind"] == "Cluster"
    assert create.obj["type"] == "cluster.x-k8s.io/secret"
    assert create.obj["data"] == data


def test_user_provided_ca_is_used() -> None:
    (effect,) = reconcile(infra(), cluster(), CA).effects
    assert effect.performer == "serve-workload"
    assert effect.key == SERVE
    assert effect.arguments == {"namespace": "ns", "cluster": "c", "port": 0, "fault": ""}


def test_endpoint_is_written_to_the_spec_before_the_status() -> None:
    assert only_patch(reconcile(infra(), cluster(), CA, results=SERVED)) == {"spec": ENDPOINT}
    with_endpoint = infra(spec=ENDPOINT)
    updated = patched(with_endpoint, reconcile(with_endpoint, cluster(), CA, results=SERVED))
    assert updated["status"]["initialization"] == {"provisioned": True}
    assert updated["status"]["ready"] is True
    assert condition_fields(updated, "Ready") == ("True", "Ready", "")
    assert legacy_condition_of(updated, "Ready")["status"] == "True"
    assert reconcile(updated, cluster(), CA, results=SERVED).writes == ()


def test_port_is_reused_after_a_restart() -> None:
    (effect,) = reconcile(provisioned(), cluster(), CA).effects
    assert effect.arguments["port"] == 4444


def test_serving_failure_is_reported() -> None:
    failed = {SERVE: EffectResult(error="OSError: port 4444 of 127.0.0.1: Address already in use", attempts=1)}
    with_endpoint = infra(spec=ENDPOINT)
    decision = reconcile(with_endpoint, cluster(), CA, results=failed)
    assert [effect.key for effect in decision.effects] == [SERVE]
    status, reason, message = condition_fields(patched(with_endpoint, decision), "Ready")
    assert (status, reason) == ("False", "ServingFailed")
    assert "port 4444" in message


def test_failure_domains_are_copied_from_the_spec() -> None:
    domains = [{"name": "z1", "controlPlane": True}]
    with_endpoint = infra(spec=ENDPOINT | {"failureDomains": domains})
    assert (
        patched(with_endpoint, reconcile(with_endpoint, cluster(), CA, results=SERVED))["status"]["failureDomains"]
        == domains
    )


def test_the_api_delay_counts_from_creation() -> None:
    delayed = infra(annotations={names.API_DELAY: "100"})
    decision = reconcile(delayed, cluster(), CA)
    assert decision.effects == ()
    assert decision.wake_at == A_MINUTE_AGO + timedelta(seconds=100)
    assert reconcile(delayed, cluster(), CA, now=NOW + timedelta(seconds=40)).effects


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (names.FAIL, "NoNetwork", "NoNetwork"),
        (names.NEVER_READY, "true", "NeverReady"),
        (names.API_FAULT, "explode", "InvalidAnnotation"),
    ],
)
def test_injected_faults_are_reported_in_conditions(annotation: str, value: str, reason: str) -> None:
    faulty = infra(annotations={annotation: value})
    decision = reconcile(faulty, cluster(), CA, results=SERVED)
    assert decision.effects == ()
    updated = patched(faulty, decision)
    assert condition_fields(updated, "Ready")[:2] == ("False", reason)
    assert "initialization" not in updated["status"]
    assert updated["status"].get("failureReason") == ("NoNetwork" if annotation == names.FAIL else None)


def test_cluster_can_start_with_an_api_fault() -> None:
    with_endpoint = infra(spec=ENDPOINT, annotations={names.API_FAULT: "hang"})
    assert reconcile(with_endpoint, cluster(), CA).effects[0].arguments["fault"] == "hang"
    results = {SERVE: EffectResult({"host": "127.0.0.1", "port": 4444, "fault": "hang"})}
    decision = reconcile(with_endpoint, cluster(), CA, results=results)
    assert [effect.key for effect in decision.effects] == [SERVE]
    assert patched(with_endpoint, decision)["status"]["apiFault"] == "hang"


def test_api_fault_is_set_once_and_can_be_removed() -> None:
    faulty = provisioned(annotations={names.API_FAULT: "refuse"})
    _, effect = reconcile(faulty, cluster(), CA, results=SERVED).effects
    assert effect.performer == "set-workload-fault"
    assert effect.arguments == {"namespace": "ns", "cluster": "c", "fault": "refuse"}
    results = SERVED | {effect.key: EffectResult()}
    updated = patched(faulty, reconcile(faulty, cluster(), CA, results=results))
    assert updated["status"]["apiFault"] == "refuse"
    assert len(reconcile(updated, cluster(), CA, results=results).effects) == 1
    without_fault = {**updated, "metadata": {**updated["metadata"], "annotations": {}, "resourceVersion": "8"}}
    _, reset = reconcile(without_fault, cluster(), CA, results=results).effects
    assert reset.arguments["fault"] == ""
    assert reset.key != effect.key


def test_deletion_stops_the_api() -> None:
    deleting_infra = infra(deleting=True)
    (effect,) = reconcile(deleting_infra, cluster()).effects
    assert (effect.performer, effect.key, effect.arguments) == (
        "stop-workload",
        STOP,
        {"namespace": "ns", "cluster": "c"},
    )
    assert only_patch(reconcile(deleting_infra, cluster(), results={STOP: EffectResult()})) == {
        "metadata": {"finalizers": []}
    }


def test_stuck_deletion_annotation_blocks_deletion() -> None:
    stuck = infra(deleting=True, annotations={names.STUCK_DELETION: "true"})
    assert reconcile(stuck, cluster(), results={STOP: EffectResult()}).writes == ()


def test_externally_managed_cluster_is_ignored() -> None:
    assert reconcile(infra(annotations={MANAGED_BY: "me"}), cluster()) == Decision()


def test_paused_object_only_reports_its_pause() -> None:
    paused = infra(annotations={PAUSED: ""})
    decision = reconcile(paused, cluster(), CA)
    assert decision.effects == ()
    assert condition_fields(patched(paused, decision), "Paused")[0] == "True"


@pytest.mark.parametrize("deleting", [False, True])
def test_api_of_another_cluster_is_neither_served_nor_stopped(deleting: bool) -> None:
    """Users choose the label and owner of an InMemoryCluster; only the Cluster's infrastructureRef is trusted."""
    owner_cluster = cluster()
    owner_cluster["spec"]["infrastructureRef"] = {
        "apiGroup": IN_MEMORY_CLUSTER.group,
        "kind": "InMemoryCluster",
        "name": "own",
    }
    assert reconcile(infra(deleting=deleting), owner_cluster, CA).effects == ()
