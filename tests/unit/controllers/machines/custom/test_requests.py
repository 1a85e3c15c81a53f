"""Registration requests of machines become Machines, or get an annotation with the reason why not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import SECRET
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP
from herder.controllers.machines.custom import requests
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Create, Decision, Delete, EffectResult, Patch
from tests.support.builders import NOW, merge_objects, new_object, only_patch, reconcile, writes_of
from tests.unit.controllers.machines.custom.objects import (
    CLUSTER_ID,
    WORKSPACE,
    cluster,
    custom_machine,
    machine,
    management,
    provisioning,
)

MACHINE_ID = "a" * 63
NAME = names.custom_machine(MACHINE_ID)
CLAIMS = {"id": [MACHINE_ID], "role-worker": ["true"], "labels": ["colour=black"]}


def request(*, age: float = 0, namespace: str = CLUSTER_ID, **labels: str) -> Object:
    metadata = {"resourceVersion": "7", "creationTimestamp": timestamp(NOW - timedelta(seconds=age))}
    return new_object(SECRET, NAME, namespace, labels={names.REQUEST_FOR: CLUSTER_ID, **labels}, metadata=metadata)


def decide(*objects: Object, claims: object = CLAIMS, read: bool = True) -> Decision:
    results = {(names.READ_REQUEST, f"Secret-{NAME}", "7"): EffectResult(claims)} if read else {}
    defaults = [management(), provisioning(), cluster(), request()]
    return reconcile(requests.CONTROLLER, f"{CLUSTER_ID}/{NAME}", *merge_objects(defaults, objects), results=results)


def problem(decision: Decision) -> str:
    return str(only_patch(decision)["metadata"]["annotations"][names.REQUEST_PROBLEM])


def test_the_request_is_read_first() -> None:
    (effect,) = decide(read=False).effects
    assert (effect.performer, dict(effect.arguments)) == (
        "machine-request",
        {"namespace": CLUSTER_ID, "name": NAME},
    )


def test_a_machine_is_created_after_the_objects_it_references() -> None:
    created = writes_of(decide())
    assert all(isinstance(write, Create) for write in created)
    assert [write.kind.kind for write in created if isinstance(write, Create)] == [
        "RKEBootstrap",
        "CustomMachine",
        "Machine",
    ]


def test_objects_of_an_earlier_attempt_are_reused() -> None:
    existing = new_object(BOOTSTRAP, NAME, WORKSPACE)
    assert [write.kind.kind for write in writes_of(decide(existing)) if isinstance(write, Create)] == [
        "CustomMachine",
        "Machine",
    ]


@pytest.mark.parametrize(
    "existing", [machine(NAME), machine("pool-1-x", labels={names.MACHINE_ID: MACHINE_ID})], ids=["by name", "by id"]
)
def test_a_request_of_a_known_machine_gets_its_name(existing: Object) -> None:
    (write,) = writes_of(decide(existing))
    assert isinstance(write, Patch)
    assert write.patch["metadata"]["labels"] == {
        names.MACHINE_NAMESPACE: WORKSPACE,
        names.MACHINE_NAME: existing["metadata"]["name"],
    }


def test_no_machine_registers_in_the_next_cluster_of_the_same_name() -> None:
    """The management Cluster was created for an earlier cluster; this one names its own."""
    assert "imported" in problem(decide(provisioning(managed_as="c-m-another2")))


def test_a_machine_that_is_being_deleted_is_waited_for() -> None:
    decision = decide(machine(NAME, deleting=True))
    assert decision.wait is not None
    assert decision.wait.reason == "its Machine is being deleted"
    assert decision.writes == ()


@pytest.mark.parametrize(
    ("changed_object", "claims", "expected"),
    [
        (
            machine(NAME, cluster_name="pasture"),
            CLAIMS,
            "the machine belongs to another cluster: uninstall its agent first",
        ),
        (provisioning(imported=True), CLAIMS, "the cluster is imported: its nodes are not managed by Herder"),
        (management(created_for=f"{WORKSPACE}/other"), CLAIMS, "the cluster is imported"),
        (provisioning(deleting=True), CLAIMS, "the cluster is being deleted"),
        (cluster(deleting=True), CLAIMS, "the cluster is being deleted"),
        (custom_machine("other"), {**CLAIMS, "role-worker": ["false"]}, "no role given; pass --etcd"),
        (custom_machine("other"), {**CLAIMS, "labels": ["x"]}, '--label: "x": must be key=value'),
        (custom_machine("other"), {}, "CATTLE_ID: empty"),
        (custom_machine("other"), None, "CATTLE_ID: empty"),
    ],
)
def test_a_rejected_request_gets_the_reason(changed_object: Object, claims: object, expected: str) -> None:
    assert problem(decide(changed_object, claims=claims)).startswith(expected)


def test_registration_is_limited_to_the_maximum_number_of_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each machine has a dozen objects, and the owner of a registration token can invent any number of IDs."""
    monkeypatch.setattr(requests, "MAX_MACHINES", 2)
    assert len(writes_of(decide(machine("a"), machine("b", cluster_name="pasture")))) == 3
    assert problem(decide(machine("a"), machine("b"))).startswith("the cluster has 2 machines, the most")
    (known_machine,) = writes_of(decide(machine(NAME), machine("b")))
    assert isinstance(known_machine, Patch)
    assert "labels" in known_machine.patch["metadata"], "a known machine can register again"


def test_a_request_in_another_namespace_is_rejected() -> None:
    decision = reconcile(requests.CONTROLLER, f"{WORKSPACE}/{NAME}", management(), request(namespace=WORKSPACE))
    assert problem(decision) == "the cluster does not exist"


def test_a_request_waits_until_the_cluster_exists() -> None:
    decision = reconcile(requests.CONTROLLER, f"{CLUSTER_ID}/{NAME}", management(), provisioning(), request())
    assert decision.wait is not None
    assert "does not exist yet" in decision.wait.reason


@pytest.mark.parametrize(("age", "deleted"), [(0, False), (179, False), (180, True)])
def test_a_completed_request_is_deleted_after_a_while(age: float, deleted: bool) -> None:
    decision = decide(request(age=age, **{names.MACHINE_NAME: NAME}))
    assert any(isinstance(write, Delete) for write in writes_of(decision)) is deleted
    assert deleted or decision.wake_at == NOW + timedelta(seconds=180 - age)
