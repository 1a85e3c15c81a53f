"""A machine's request becomes a Machine, or words that say why not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import SECRET
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP
from herder.controllers.machines.custom import requests
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Create, Decision, Delete, EffectResult, Parallel, Patch, Write
from tests.support.views import NOW, view_of
from tests.unit.controllers.machines.custom.stage import (
    CLUSTER_ID,
    WORKSPACE,
    cluster,
    custom,
    machine,
    made,
    management,
    provisioning,
)

OWN = "a" * 63
NAME = names.custom_machine(OWN)
CLAIMS = {"id": [OWN], "role-worker": ["true"], "labels": ["colour=black"]}


def request(*, age: float = 0, namespace: str = CLUSTER_ID, **labels: str) -> Object:
    meta = {
        "labels": {names.REQUEST_FOR: CLUSTER_ID, **labels},
        "creationTimestamp": timestamp(NOW - timedelta(seconds=age)),
    }
    return made(SECRET, NAME, namespace, meta=meta)


def decide(*objects: Object, claims: object = CLAIMS, read: bool = True) -> Decision:
    results = {(names.READ_REQUEST, f"Secret-{NAME}", "7"): EffectResult(claims)} if read else {}
    usual = [management(), provisioning(), cluster(), request()]
    chosen = {(each["apiVersion"], each["kind"], each["metadata"]["name"]): each for each in (*usual, *objects)}
    return requests.reconcile(view_of(requests.CONTROLLER, f"{CLUSTER_ID}/{NAME}", chosen.values(), results=results))


def writes(decision: Decision) -> list[Write]:
    return [write for step in decision.writes for write in (step.writes if isinstance(step, Parallel) else (step,))]


def problem(decision: Decision) -> str:
    (write,) = writes(decision)
    assert isinstance(write, Patch)
    return str(write.patch["metadata"]["annotations"][names.REQUEST_PROBLEM])


def test_what_it_says_of_itself_is_read_first() -> None:
    (effect,) = decide(read=False).effects
    assert (effect.performer, dict(effect.arguments)) == (
        "machine-request",
        {"namespace": CLUSTER_ID, "name": NAME},
    )


def test_a_machine_is_made_with_all_that_belongs_to_it_and_the_machine_last() -> None:
    made_ = writes(decide())
    assert all(isinstance(write, Create) for write in made_)
    assert [write.kind.kind for write in made_ if isinstance(write, Create)] == [
        "RKEBootstrap",
        "CustomMachine",
        "Machine",
    ]


def test_what_is_left_of_a_broken_attempt_is_used() -> None:
    there = made(BOOTSTRAP, NAME)
    assert [write.kind.kind for write in writes(decide(there)) if isinstance(write, Create)] == [
        "CustomMachine",
        "Machine",
    ]


@pytest.mark.parametrize(
    "there", [machine(NAME), machine("pool-1-x", labels={names.MACHINE_ID: OWN})], ids=["by name", "by id"]
)
def test_a_machine_that_is_known_is_told_where_it_is(there: Object) -> None:
    (write,) = writes(decide(there))
    assert isinstance(write, Patch)
    assert write.patch["metadata"]["labels"] == {
        names.MACHINE_NAMESPACE: WORKSPACE,
        names.MACHINE_NAME: there["metadata"]["name"],
    }


def test_no_machine_is_taken_into_the_next_cluster_of_a_name() -> None:
    """The management Cluster was made for an earlier one; this one names its own."""
    assert "imported" in problem(decide(provisioning(managed_as="c-m-another2")))


def test_one_that_is_being_deleted_is_waited_for() -> None:
    decision = decide(machine(NAME, going=True))
    assert decision.wait is not None
    assert decision.wait.reason == "its Machine is being deleted"
    assert decision.writes == ()


@pytest.mark.parametrize(
    ("changed", "claims", "told"),
    [
        (machine(NAME, of="pasture"), CLAIMS, "the machine belongs to another cluster: uninstall its agent first"),
        (provisioning(imported=True), CLAIMS, "the cluster is imported: its nodes are not managed by Herder"),
        (management(of=f"{WORKSPACE}/other"), CLAIMS, "the cluster is imported"),
        (provisioning(going=True), CLAIMS, "the cluster is being deleted"),
        (cluster(going=True), CLAIMS, "the cluster is being deleted"),
        (custom("other"), {**CLAIMS, "role-worker": ["false"]}, "no role given; pass --etcd"),
        (custom("other"), {**CLAIMS, "labels": ["x"]}, '--label: "x": must be key=value'),
        (custom("other"), {}, "CATTLE_ID: empty"),
        (custom("other"), None, "CATTLE_ID: empty"),
    ],
)
def test_what_cannot_be_taken_in_is_told_why(changed: Object, claims: object, told: str) -> None:
    assert problem(decide(changed, claims=claims)).startswith(told)


def test_a_cluster_has_no_more_machines_by_registration_than_by_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a dozen objects. Whoever holds the registration token invents any number of IDs."""
    monkeypatch.setattr(requests, "MAX_MACHINES", 2)
    assert len(writes(decide(machine("a"), machine("b", of="pasture")))) == 3
    assert problem(decide(machine("a"), machine("b"))).startswith("the cluster has 2 machines, the most")
    (known,) = writes(decide(machine(NAME), machine("b")))
    assert isinstance(known, Patch)
    assert "labels" in known.patch["metadata"], "one that is known comes back"


def test_a_request_of_another_namespace_is_nobodys() -> None:
    view = view_of(requests.CONTROLLER, f"{WORKSPACE}/{NAME}", [management(), request(namespace=WORKSPACE)])
    assert problem(requests.reconcile(view)) == "the cluster does not exist"


def test_a_cluster_that_is_not_there_yet_is_waited_for() -> None:
    view = view_of(requests.CONTROLLER, f"{CLUSTER_ID}/{NAME}", [management(), provisioning(), request()])
    decision = requests.reconcile(view)
    assert decision.wait is not None
    assert "does not exist yet" in decision.wait.reason


@pytest.mark.parametrize(("age", "deleted"), [(0, False), (179, False), (180, True)])
def test_a_request_that_nobody_waits_for_is_deleted(age: float, deleted: bool) -> None:
    decision = decide(request(age=age, **{names.MACHINE_NAME: NAME}))
    assert any(isinstance(write, Delete) for write in writes(decision)) is deleted
    assert deleted or decision.wake_at == NOW + timedelta(seconds=180 - age)
