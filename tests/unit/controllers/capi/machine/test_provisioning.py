"""From references to a running Machine: what is read of the providers' objects, and what is written where."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE, MACHINE_SET
from herder.api.capi.names import CLUSTER_NAME
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Wait
from tests.unit.controllers.capi.machine.stage import (
    CONFIG,
    CONTROL_PLANE,
    INFRA,
    Stage,
    cluster,
    config,
    infra,
    machine,
    node,
    owner,
    patches,
    provisioned,
    running,
)

SECRET_MADE: dict[str, Object] = {
    "v1beta1": {"ready": True, "dataSecretName": "ewe-data"},
    "v1beta2": {"initialization": {"dataSecretCreated": True}, "dataSecretName": "ewe-data"},
}
PROVISIONED: dict[str, Object] = {"v1beta1": {"ready": True}, "v1beta2": {"initialization": {"provisioned": True}}}
CONTRACTS = ("v1beta1", "v1beta2")


# --- the way ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contract", CONTRACTS)
def test_each_phase_follows_from_what_the_providers_tell(contract: str) -> None:
    other = "v1beta1" if contract == "v1beta2" else "v1beta2"
    stage = Stage(contract=contract)
    assert stage.status()["phase"] == "Pending"

    stage.objects[2] = config(status=SECRET_MADE[other])
    assert stage.status()["phase"] == "Pending"  # the other contract's words mean nothing
    stage.objects[2] = config(status=SECRET_MADE[contract])
    assert stage.status()["phase"] == "Provisioning"
    assert stage.machine["spec"]["bootstrap"]["dataSecretName"] == "ewe-data"
    assert stage.machine["status"]["initialization"] == {"bootstrapDataSecretCreated": True}

    stage.objects[1] = infra(spec={"providerID": "paddock://ewe"}, status=PROVISIONED[other])
    assert stage.status()["phase"] == "Provisioning"
    stage.objects[1] = infra(status=PROVISIONED[contract])
    assert stage.status()["phase"] == "Provisioning"  # a machine without an identity is not there yet
    stage.objects[1] = infra(spec={"providerID": "paddock://ewe"}, status=PROVISIONED[contract])
    assert stage.status()["phase"] == "Provisioned"
    assert stage.machine["spec"]["providerID"] == "paddock://ewe"
    assert stage.machine["status"]["initialization"]["infrastructureProvisioned"] is True

    stage.nodes = [node()]
    assert stage.status()["phase"] == "Running"
    assert stage.machine["status"]["nodeRef"] == {"name": "ewe-node"}
    assert stage.machine["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.0"


def test_the_time_of_the_last_phase_change_is_kept() -> None:
    stage = Stage()
    first = stage.status()["lastUpdated"]
    stage.now = stage.now.replace(hour=13)
    assert stage.status()["lastUpdated"] == first
    stage.objects[2] = config(status=SECRET_MADE["v1beta2"])
    assert stage.status()["lastUpdated"] == "2026-01-01T13:00:00Z"


def test_when_all_goes_quickly_few_writes_are_made() -> None:
    """Reports of progress wait a little, and are overtaken by what people wait for."""
    stage = Stage(nodes=None)
    writes = stage.settle(patiently=True)
    stage.objects[2] = config(status=SECRET_MADE["v1beta2"])
    writes += stage.settle(patiently=True)
    stage.objects[1] = provisioned()()
    writes += stage.settle(patiently=True)
    stage.nodes = [node(conditions={"Ready": ("False", "starting")})]
    writes += stage.settle(patiently=True)
    stage.nodes = [node(metadata=stage.nodes[0]["metadata"])]
    writes += stage.settle(patiently=True)

    assert [(write.target, write.subresource, *write.patch) for write in writes] == [
        ("", "", "spec"),  # the data Secret's name
        ("", "", "spec"),  # the provider ID
        ("farm/north", "", "metadata"),  # the Node's labels and annotations
        ("", "status", "status"),  # Running
        ("", "status", "status"),  # Ready and Available
    ]
    assert stage.condition("Available") == ("True", "Available", "")


@pytest.mark.parametrize(
    ("contract", "parts", "spec", "status"),
    [
        ("v1beta1", {"spec": {"failureDomain": "east"}}, "east", None),
        ("v1beta1", {"status": {"failureDomain": "east"}}, None, None),
        ("v1beta2", {"spec": {"failureDomain": "east"}}, None, None),
        ("v1beta2", {"status": {"failureDomain": "east"}}, None, "east"),
    ],
)
def test_the_failure_domain_goes_where_the_contract_says(
    contract: str, parts: Object, spec: str | None, status: str | None
) -> None:
    made = infra(
        spec={"providerID": "paddock://ewe"} | parts.get("spec", {}),
        status=PROVISIONED[contract] | parts.get("status", {}),
    )
    stage = Stage(objects=[cluster(), made, config()], contract=contract)

    assert stage.status().get("failureDomain") == status
    assert stage.machine["spec"].get("failureDomain") == spec


def test_addresses_are_copied_and_stay_while_the_provider_is_silent() -> None:
    addresses = [{"type": "InternalIP", "address": "10.0.0.1"}]
    stage = running()
    odd = [{"type": "Smell", "address": "hay"}, {"type": "InternalIP", "address": ""}, {}]
    stage.objects[1] = provisioned(addresses=[*addresses, *odd])()
    assert stage.status()["addresses"] == addresses
    stage.objects[1] = provisioned()()
    assert stage.status()["addresses"] == addresses


def test_bootstrap_data_that_the_user_brings_counts_as_made() -> None:
    stage = Stage(machine(spec={"bootstrap": {"dataSecretName": "mine"}}))

    assert stage.status()["phase"] == "Provisioning"
    assert stage.machine["spec"]["bootstrap"] == {"dataSecretName": "mine"}
    assert stage.condition("BootstrapConfigReady") == ("True", "DataSecretProvided", "")
    assert stage.legacy("BootstrapReady") == ("True", "", "", "")


def test_a_data_secret_without_a_name_is_waited_for() -> None:
    stage = Stage(objects=[cluster(), infra(), config(status={"initialization": {"dataSecretCreated": True}})])

    assert stage.status()["phase"] == "Pending"
    assert stage.decide().wait == Wait("PaddockConfig ewe has not reported status.dataSecretName yet")


def test_what_was_reached_once_is_not_taken_back() -> None:
    stage = running()
    stage.settle()
    stage.objects = [cluster(), infra(), config()]

    assert stage.status()["initialization"] == {"bootstrapDataSecretCreated": True, "infrastructureProvisioned": True}
    assert stage.machine["spec"]["providerID"] == "paddock://ewe"
    assert stage.status()["phase"] == "Running"


# --- owners and labels -----------------------------------------------------------------------------------------------


def test_objects_that_belong_to_the_machine_from_the_start_are_not_written() -> None:
    assert [write.ref.kind for write in Stage().settle()] == [MACHINE]


@pytest.mark.parametrize(
    ("owners", "after"),
    [
        ([], [owner(MACHINE, "ewe")]),
        ([owner(MACHINE_SET, "wool")], [owner(MACHINE, "ewe")]),
        ([owner(CONTROL_PLANE, "cp")], [owner(MACHINE, "ewe")]),
        ([owner(MACHINE_SET, "wool"), owner(MACHINE, "ewe")], [owner(MACHINE, "ewe")]),
        ([owner(MACHINE, "ewe") | {"uid": "before-the-backup"}], [owner(MACHINE, "ewe")]),
        (
            [owner(INFRA, "pool", controller=False)],
            [owner(INFRA, "pool", controller=False), owner(MACHINE, "ewe")],
        ),
    ],
)
def test_the_machine_takes_its_objects_over_from_who_made_them(owners: list[Object], after: list[Object]) -> None:
    of_control_plane = {"labels": {CLUSTER_NAME: "north", "cluster.x-k8s.io/control-plane": ""}}
    reference = {"apiGroup": CONTROL_PLANE.group, "kind": CONTROL_PLANE.kind, "name": "cp"}
    loose = {"ownerReferences": owners, "labels": {}}
    stage = Stage(
        machine(metadata=of_control_plane),
        [cluster(spec={"controlPlaneRef": reference}), infra(metadata=loose), config(metadata=loose)],
    )

    stage.settle()

    for obj in stage.objects[1:]:
        assert obj["metadata"]["ownerReferences"] == after
        assert obj["metadata"]["labels"][CLUSTER_NAME] == "north"


def test_an_object_that_another_machine_controls_is_left_to_it() -> None:
    stage = Stage(objects=[cluster(), infra(metadata={"ownerReferences": [owner(MACHINE, "ram")]}), config()])

    told = "PaddockMachine ewe is controlled by Machine ram"
    assert stage.condition("InfrastructureReady") == ("Unknown", "InternalError", told)
    assert stage.objects[1]["metadata"]["ownerReferences"] == [owner(MACHINE, "ram")]


@pytest.mark.parametrize(
    ("labels", "owners", "owned_by_cluster"),
    [
        ({}, [], True),
        ({"cluster.x-k8s.io/set-name": "wool"}, [], False),
        ({"cluster.x-k8s.io/pool-name": "pool"}, [], False),
        ({"cluster.x-k8s.io/control-plane-name": "cp"}, [], False),
        ({}, [owner(MACHINE_SET, "wool")], False),
    ],
)
def test_a_machine_that_stands_alone_belongs_to_its_cluster(
    labels: dict[str, str], owners: list[Object], owned_by_cluster: bool
) -> None:
    stage = Stage(machine(metadata={"labels": labels, "ownerReferences": owners}))

    stage.settle()

    kinds = [known["kind"] for known in stage.machine["metadata"]["ownerReferences"]]
    assert ("Cluster" in kinds) is owned_by_cluster
    assert stage.machine["metadata"]["labels"] == labels | {CLUSTER_NAME: "north"}


def test_the_finalizer_comes_first() -> None:
    stage = Stage(machine(metadata={"finalizers": ["somebody.else/s"]}))

    (write,) = patches(stage.decide())

    assert write.patch == {"metadata": {"finalizers": ["somebody.else/s", "machine.cluster.x-k8s.io"]}}
    assert write.resource_version


# --- what is missing -------------------------------------------------------------------------------------------------


def test_a_machine_waits_for_its_cluster() -> None:
    decision = Stage(objects=[]).decide()

    assert decision.wait is not None
    assert decision.wait.reason == "Cluster farm/north does not exist"
    assert decision.writes == ()


@pytest.mark.parametrize(
    ("present", "waits"),
    [
        ([], "PaddockConfig ewe does not exist"),
        ([config()], "PaddockConfig ewe has not reported status.dataSecretName yet"),
        ([config(status=SECRET_MADE["v1beta2"])], "PaddockMachine ewe does not exist"),
        ([config(status=SECRET_MADE["v1beta2"]), infra()], "PaddockMachine ewe is not provisioned"),
        (
            [config(status=SECRET_MADE["v1beta2"]), infra(status=PROVISIONED["v1beta2"])],
            "PaddockMachine ewe has not reported spec.providerID yet",
        ),
        (
            [config(status=SECRET_MADE["v1beta2"]), provisioned()()],
            "Waiting for a Node with spec.providerID paddock://ewe to exist",
        ),
    ],
)
def test_what_is_waited_for_is_named(present: list[Object], waits: str) -> None:
    stage = Stage(objects=[cluster(), *present])
    stage.settle()

    assert stage.decide().wait == Wait(waits)


def test_a_running_machine_waits_for_nothing() -> None:
    stage = running()
    stage.settle()
    assert stage.decide().wait is None


def test_a_kind_that_names_no_contract_is_told() -> None:
    told = Stage(contract="v1alpha9").condition("InfrastructureReady")

    assert told[:2] == ("Unknown", "InternalError")
    assert "paddockmachines.infrastructure.example has no version for a supported contract" in told[2]


# --- pause -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "annotations", "message"),
    [
        ({"paused": True}, {}, "Cluster spec.paused is set to true"),
        ({}, {"cluster.x-k8s.io/paused": ""}, "Machine has the cluster.x-k8s.io/paused annotation"),
        (
            {"paused": True},
            {"cluster.x-k8s.io/paused": "false"},
            "Cluster spec.paused is set to true, Machine has the cluster.x-k8s.io/paused annotation",
        ),
    ],
)
def test_a_paused_machine_says_so_and_does_nothing(spec: Object, annotations: dict[str, str], message: str) -> None:
    stage = running(machine=machine(metadata={"annotations": annotations}))
    stage.objects[0] = cluster(spec=spec)

    assert stage.condition("Paused") == ("True", "Paused", message)
    assert [known["type"] for known in stage.machine["status"]["conditions"]] == ["Paused"]
    assert "providerID" not in stage.machine["spec"]


def test_a_machine_that_is_resumed_goes_on() -> None:
    stage = running()
    stage.objects[0] = cluster(spec={"paused": True})
    stage.settle()
    stage.objects[0] = cluster()

    assert stage.condition("Paused") == ("False", "NotPaused", "")
    assert stage.status()["phase"] == "Running"


# --- failures and certificates ---------------------------------------------------------------------------------------


def test_a_providers_last_words_are_passed_on_and_stop_nothing() -> None:
    stage = running()
    stage.objects[1] = provisioned(failureReason="CreateError", failureMessage="no quota")()

    block = stage.status()["deprecated"]["v1beta1"]

    assert block["failureReason"] == "CreateError"
    assert block["failureMessage"] == (
        "Failure detected from referenced resource infrastructure.example/v1, Kind=PaddockMachine"
        ' with name "ewe": no quota'
    )
    assert stage.status()["phase"] == "Running"


def test_infrastructure_that_vanishes_under_a_running_machine_is_a_failure() -> None:
    stage = running()
    stage.settle()
    stage.objects = [known for known in stage.objects if known["kind"] != INFRA.kind]
    written = patches(stage.decide())
    assert [write.debounce for write in written] == [0.0]

    block = stage.status()["deprecated"]["v1beta1"]

    assert block["failureReason"] == "InvalidConfiguration"
    assert block["failureMessage"] == (
        "Machine infrastructure resource PaddockMachine farm/ewe has been deleted after provisioning was completed"
    )


@pytest.mark.parametrize(
    ("labels", "on_machine", "on_config", "told"),
    [
        ({}, "2027-01-01T00:00:00Z", None, None),
        (
            {"cluster.x-k8s.io/control-plane": ""},
            "2027-01-01T00:00:00Z",
            "2028-01-01T00:00:00Z",
            "2027-01-01T00:00:00Z",
        ),
        ({"cluster.x-k8s.io/control-plane": ""}, None, "2028-01-01T02:00:00+02:00", "2028-01-01T00:00:00Z"),
        ({"cluster.x-k8s.io/control-plane": ""}, "next year", None, None),
        ({"cluster.x-k8s.io/control-plane": ""}, None, None, None),
    ],
)
def test_when_the_certificates_of_a_control_plane_machine_expire(
    labels: dict[str, str], on_machine: str | None, on_config: str | None, told: str | None
) -> None:
    def annotated(written: str | None) -> dict[str, Any]:
        return {"machine.cluster.x-k8s.io/certificates-expiry": written} if written else {}

    stage = Stage(
        machine(metadata={"labels": labels, "annotations": annotated(on_machine)}),
        [cluster(), infra(), config(metadata={"annotations": annotated(on_config)})],
    )

    assert stage.status().get("certificatesExpiryDate") == told


def test_the_bootstrap_kind_is_read_only_where_it_is_named() -> None:
    stage = Stage(machine(spec={"bootstrap": {"dataSecretName": "mine"}}), [cluster(), provisioned()()], nodes=[node()])
    assert CONFIG.kind not in str(stage.machine["spec"])
    assert stage.status()["phase"] == "Running"
