"""Provisioning of a Machine: what it copies from its provider objects, adoption, waits, pauses and failures."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE, MACHINE_SET
from herder.api.capi.names import CLUSTER_NAME
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Wait
from tests.support.builders import object_reference, owner_reference
from tests.unit.controllers.capi.machine.harness import MachineHarness, patches, running
from tests.unit.controllers.capi.machine.objects import (
    CONFIG,
    CONTROL_PLANE,
    INFRA,
    cluster,
    config,
    infra,
    machine,
    node,
    provisioned_infra,
)

BOOTSTRAPPED: dict[str, Object] = {
    "v1beta1": {"ready": True, "dataSecretName": "ewe-data"},
    "v1beta2": {"initialization": {"dataSecretCreated": True}, "dataSecretName": "ewe-data"},
}
PROVISIONED: dict[str, Object] = {"v1beta1": {"ready": True}, "v1beta2": {"initialization": {"provisioned": True}}}
CONTRACTS = ("v1beta1", "v1beta2")


# --- phases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contract", CONTRACTS)
def test_phases_follow_the_provider_status(contract: str) -> None:
    other = "v1beta1" if contract == "v1beta2" else "v1beta2"
    harness = MachineHarness(contract=contract)
    assert harness.status()["phase"] == "Pending"

    harness.objects[2] = config(status=BOOTSTRAPPED[other])
    assert harness.status()["phase"] == "Pending"  # fields of the other contract are ignored
    harness.objects[2] = config(status=BOOTSTRAPPED[contract])
    assert harness.status()["phase"] == "Provisioning"
    assert harness.machine["spec"]["bootstrap"]["dataSecretName"] == "ewe-data"
    assert harness.machine["status"]["initialization"] == {"bootstrapDataSecretCreated": True}

    harness.objects[1] = infra(spec={"providerID": "paddock://ewe"}, status=PROVISIONED[other])
    assert harness.status()["phase"] == "Provisioning"
    harness.objects[1] = infra(status=PROVISIONED[contract])
    assert harness.status()["phase"] == "Provisioning"  # infrastructure without a provider ID is not provisioned
    harness.objects[1] = infra(spec={"providerID": "paddock://ewe"}, status=PROVISIONED[contract])
    assert harness.status()["phase"] == "Provisioned"
    assert harness.machine["spec"]["providerID"] == "paddock://ewe"
    assert harness.machine["status"]["initialization"]["infrastructureProvisioned"] is True

    harness.nodes = [node()]
    assert harness.status()["phase"] == "Running"
    assert harness.machine["status"]["nodeRef"] == {"name": "ewe-node"}
    assert harness.machine["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.0"


def test_last_updated_is_the_time_of_the_last_phase_change() -> None:
    harness = MachineHarness()
    first = harness.status()["lastUpdated"]
    harness.now = harness.now.replace(hour=13)
    assert harness.status()["lastUpdated"] == first
    harness.objects[2] = config(status=BOOTSTRAPPED["v1beta2"])
    assert harness.status()["lastUpdated"] == "2026-01-01T13:00:00Z"


def test_quick_provisioning_needs_few_writes() -> None:
    """Progress reports are debounced, and are superseded by the changes that users wait for."""
    harness = MachineHarness(nodes=None)
    writes = harness.settle(skip_debounced=True)
    harness.objects[2] = config(status=BOOTSTRAPPED["v1beta2"])
    writes += harness.settle(skip_debounced=True)
    harness.objects[1] = provisioned_infra()
    writes += harness.settle(skip_debounced=True)
    harness.nodes = [node(conditions={"Ready": ("False", "starting")})]
    writes += harness.settle(skip_debounced=True)
    harness.nodes = [node(metadata=harness.nodes[0]["metadata"])]
    writes += harness.settle(skip_debounced=True)

    assert [(write.target, write.subresource, *write.patch) for write in writes] == [
        ("", "", "spec"),  # the name of the data Secret
        ("", "", "spec"),  # the provider ID
        ("farm/north", "", "metadata"),  # the Node's labels and annotations
        ("", "status", "status"),  # Running
        ("", "status", "status"),  # Ready and Available
    ]
    assert harness.condition("Available") == ("True", "Available", "")


@pytest.mark.parametrize(
    ("contract", "parts", "spec", "status"),
    [
        ("v1beta1", {"spec": {"failureDomain": "east"}}, "east", None),
        ("v1beta1", {"status": {"failureDomain": "east"}}, None, None),
        ("v1beta2", {"spec": {"failureDomain": "east"}}, None, None),
        ("v1beta2", {"status": {"failureDomain": "east"}}, None, "east"),
    ],
)
def test_failure_domain_follows_the_contract(
    contract: str, parts: Object, spec: str | None, status: str | None
) -> None:
    infra_object = infra(
        spec={"providerID": "paddock://ewe"} | parts.get("spec", {}),
        status=PROVISIONED[contract] | parts.get("status", {}),
    )
    harness = MachineHarness(objects=[cluster(), infra_object, config()], contract=contract)

    assert harness.status().get("failureDomain") == status
    assert harness.machine["spec"].get("failureDomain") == spec


def test_addresses_are_copied_and_kept() -> None:
    addresses = [{"type": "InternalIP", "address": "10.0.0.1"}]
    harness = running()
    invalid = [{"type": "Smell", "address": "hay"}, {"type": "InternalIP", "address": ""}, {}]
    harness.objects[1] = provisioned_infra(addresses=[*addresses, *invalid])
    assert harness.status()["addresses"] == addresses
    harness.objects[1] = provisioned_infra()
    assert harness.status()["addresses"] == addresses


def test_user_provided_bootstrap_data_counts_as_ready() -> None:
    harness = MachineHarness(machine(spec={"bootstrap": {"dataSecretName": "mine"}}))

    assert harness.status()["phase"] == "Provisioning"
    assert harness.machine["spec"]["bootstrap"] == {"dataSecretName": "mine"}
    assert harness.condition("BootstrapConfigReady") == ("True", "DataSecretProvided", "")
    assert harness.legacy_condition("BootstrapReady") == ("True", "", "", "")


def test_machine_waits_for_the_name_of_its_data_secret() -> None:
    harness = MachineHarness(
        objects=[cluster(), infra(), config(status={"initialization": {"dataSecretCreated": True}})]
    )

    assert harness.status()["phase"] == "Pending"
    assert harness.reconcile().wait == Wait("PaddockConfig ewe has not reported status.dataSecretName yet")


def test_initialization_is_not_reverted() -> None:
    harness = running()
    harness.settle()
    harness.objects = [cluster(), infra(), config()]

    assert harness.status()["initialization"] == {"bootstrapDataSecretCreated": True, "infrastructureProvisioned": True}
    assert harness.machine["spec"]["providerID"] == "paddock://ewe"
    assert harness.status()["phase"] == "Running"


# --- owners and labels -----------------------------------------------------------------------------------------------


def test_owned_objects_are_not_patched() -> None:
    assert [write.ref.kind for write in MachineHarness().settle()] == [MACHINE]


@pytest.mark.parametrize(
    ("owners", "after"),
    [
        ([], [owner_reference(MACHINE, "ewe")]),
        ([owner_reference(MACHINE_SET, "wool")], [owner_reference(MACHINE, "ewe")]),
        ([owner_reference(CONTROL_PLANE, "cp")], [owner_reference(MACHINE, "ewe")]),
        ([owner_reference(MACHINE_SET, "wool"), owner_reference(MACHINE, "ewe")], [owner_reference(MACHINE, "ewe")]),
        ([owner_reference(MACHINE, "ewe") | {"uid": "before-the-backup"}], [owner_reference(MACHINE, "ewe")]),
        (
            [owner_reference(INFRA, "pool", controller=False)],
            [owner_reference(INFRA, "pool", controller=False), owner_reference(MACHINE, "ewe")],
        ),
    ],
)
def test_machine_adopts_its_objects_from_their_creators(owners: list[Object], after: list[Object]) -> None:
    control_plane_metadata = {"labels": {CLUSTER_NAME: "north", "cluster.x-k8s.io/control-plane": ""}}
    reference = object_reference(CONTROL_PLANE, "cp")
    unadopted = {"ownerReferences": owners, "labels": {}}
    harness = MachineHarness(
        machine(metadata=control_plane_metadata),
        [cluster(spec={"controlPlaneRef": reference}), infra(metadata=unadopted), config(metadata=unadopted)],
    )

    harness.settle()

    for obj in harness.objects[1:]:
        assert obj["metadata"]["ownerReferences"] == after
        assert obj["metadata"]["labels"][CLUSTER_NAME] == "north"


def test_object_controlled_by_another_machine_is_not_adopted() -> None:
    harness = MachineHarness(
        objects=[cluster(), infra(metadata={"ownerReferences": [owner_reference(MACHINE, "ram")]}), config()]
    )

    message = "PaddockMachine ewe is controlled by Machine ram"
    assert harness.condition("InfrastructureReady") == ("Unknown", "InternalError", message)
    assert harness.objects[1]["metadata"]["ownerReferences"] == [owner_reference(MACHINE, "ram")]


@pytest.mark.parametrize(
    ("labels", "owners", "owned_by_cluster"),
    [
        ({}, [], True),
        ({"cluster.x-k8s.io/set-name": "wool"}, [], False),
        ({"cluster.x-k8s.io/pool-name": "pool"}, [], False),
        ({"cluster.x-k8s.io/control-plane-name": "cp"}, [], False),
        ({}, [owner_reference(MACHINE_SET, "wool")], False),
    ],
)
def test_standalone_machine_is_owned_by_its_cluster(
    labels: dict[str, str], owners: list[Object], owned_by_cluster: bool
) -> None:
    harness = MachineHarness(machine(metadata={"labels": labels, "ownerReferences": owners}))

    harness.settle()

    kinds = [known["kind"] for known in harness.machine["metadata"]["ownerReferences"]]
    assert ("Cluster" in kinds) is owned_by_cluster
    assert harness.machine["metadata"]["labels"] == labels | {CLUSTER_NAME: "north"}


def test_finalizer_is_the_first_write() -> None:
    harness = MachineHarness(machine(metadata={"finalizers": ["somebody.else/s"]}))

    (write,) = patches(harness.reconcile())

    assert write.patch == {"metadata": {"finalizers": ["somebody.else/s", "machine.cluster.x-k8s.io"]}}
    assert write.resource_version


# --- wait reasons ----------------------------------------------------------------------------------------------------


def test_machine_waits_for_its_cluster() -> None:
    decision = MachineHarness(objects=[]).reconcile()

    assert decision.wait is not None
    assert decision.wait.reason == "Cluster farm/north does not exist"
    assert decision.writes == ()


@pytest.mark.parametrize(
    ("present", "reason"),
    [
        ([], "PaddockConfig ewe does not exist"),
        ([config()], "PaddockConfig ewe has not reported status.dataSecretName yet"),
        ([config(status=BOOTSTRAPPED["v1beta2"])], "PaddockMachine ewe does not exist"),
        ([config(status=BOOTSTRAPPED["v1beta2"]), infra()], "PaddockMachine ewe is not provisioned"),
        (
            [config(status=BOOTSTRAPPED["v1beta2"]), infra(status=PROVISIONED["v1beta2"])],
            "PaddockMachine ewe has not reported spec.providerID yet",
        ),
        (
            [config(status=BOOTSTRAPPED["v1beta2"]), provisioned_infra()],
            "Waiting for a Node with spec.providerID paddock://ewe to exist",
        ),
    ],
)
def test_wait_reason_names_the_missing_object(present: list[Object], reason: str) -> None:
    harness = MachineHarness(objects=[cluster(), *present])
    harness.settle()

    assert harness.reconcile().wait == Wait(reason)


def test_running_machine_does_not_wait() -> None:
    harness = running()
    harness.settle()
    assert harness.reconcile().wait is None


def test_kind_without_a_supported_contract_is_reported() -> None:
    condition = MachineHarness(contract="v1alpha9").condition("InfrastructureReady")

    assert condition[:2] == ("Unknown", "InternalError")
    assert "paddockmachines.infrastructure.example has no version for a supported contract" in condition[2]


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
def test_paused_machine_only_reports_its_pause(spec: Object, annotations: dict[str, str], message: str) -> None:
    harness = running(machine=machine(metadata={"annotations": annotations}))
    harness.objects[0] = cluster(spec=spec)

    assert harness.condition("Paused") == ("True", "Paused", message)
    assert [known["type"] for known in harness.machine["status"]["conditions"]] == ["Paused"]
    assert "providerID" not in harness.machine["spec"]


def test_resumed_machine_is_provisioned() -> None:
    harness = running()
    harness.objects[0] = cluster(spec={"paused": True})
    harness.settle()
    harness.objects[0] = cluster()

    assert harness.condition("Paused") == ("False", "NotPaused", "")
    assert harness.status()["phase"] == "Running"


# --- failures and certificates ---------------------------------------------------------------------------------------


def test_terminal_failures_are_copied_without_stopping_provisioning() -> None:
    harness = running()
    harness.objects[1] = provisioned_infra(failureReason="CreateError", failureMessage="no quota")

    legacy_status = harness.status()["deprecated"]["v1beta1"]

    assert legacy_status["failureReason"] == "CreateError"
    assert legacy_status["failureMessage"] == (
        "Failure detected from referenced resource infrastructure.example/v1, Kind=PaddockMachine"
        ' with name "ewe": no quota'
    )
    assert harness.status()["phase"] == "Running"


def test_deleted_infrastructure_of_a_running_machine_is_a_failure() -> None:
    harness = running()
    harness.settle()
    harness.objects = [known for known in harness.objects if known["kind"] != INFRA.kind]
    written = patches(harness.reconcile())
    assert [write.debounce for write in written] == [0.0]

    legacy_status = harness.status()["deprecated"]["v1beta1"]

    assert legacy_status["failureReason"] == "InvalidConfiguration"
    assert legacy_status["failureMessage"] == (
        "Machine infrastructure resource PaddockMachine farm/ewe has been deleted after provisioning was completed"
    )


@pytest.mark.parametrize(
    ("labels", "on_machine", "on_config", "expected"),
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
def test_certificate_expiry_of_control_plane_machines(
    labels: dict[str, str], on_machine: str | None, on_config: str | None, expected: str | None
) -> None:
    def annotated(expiry: str | None) -> dict[str, Any]:
        return {"machine.cluster.x-k8s.io/certificates-expiry": expiry} if expiry else {}

    harness = MachineHarness(
        machine(metadata={"labels": labels, "annotations": annotated(on_machine)}),
        [cluster(), infra(), config(metadata={"annotations": annotated(on_config)})],
    )

    assert harness.status().get("certificatesExpiryDate") == expected


def test_bootstrap_object_is_read_only_if_referenced() -> None:
    harness = MachineHarness(
        machine(spec={"bootstrap": {"dataSecretName": "mine"}}), [cluster(), provisioned_infra()], nodes=[node()]
    )
    assert CONFIG.kind not in str(harness.machine["spec"])
    assert harness.status()["phase"] == "Running"
