"""Creation of Machines, adoption, in-place propagation and deletion by MachineSets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_SET
from herder.api.references.approvals import APPROVED
from herder.controllers.capi.machineset.controller import CONTROLLER
from herder.controllers.capi.machineset.scope import BATCH
from herder.engine.runtime.decision import Apply, Delete
from tests.support.builders import condition_of, new_definition, object_reference, writes_of
from tests.unit.controllers.capi.fake_server import FakeServer
from tests.unit.controllers.capi.machineset.objects import LABELS, SET, machine, machine_set, ready_set, server_with
from tests.unit.controllers.capi.objects import (
    BOOTSTRAP,
    BOOTSTRAP_TEMPLATE,
    CONTROL_PLANE,
    INFRA,
    INFRA_TEMPLATE,
    provider_object,
)

# --- preparation -----------------------------------------------------------------------------------------------------


def test_standalone_set_is_prepared_in_one_write() -> None:
    server = server_with(machine_set())
    server.reconcile(CONTROLLER, SET)
    assert len(server.writes) == 1
    meta = server.get(MACHINE_SET, SET)["metadata"]
    assert meta["finalizers"] == ["cluster.x-k8s.io/machineset"]
    assert meta["labels"]["cluster.x-k8s.io/cluster-name"] == "herd"
    assert [(owner["kind"], owner.get("controller")) for owner in meta["ownerReferences"]] == [("Cluster", None)]


def test_set_of_a_deployment_is_not_owned_by_the_cluster() -> None:
    owned_set = machine_set()
    owned_set["metadata"]["labels"] = {"cluster.x-k8s.io/deployment-name": "deployment"}
    server = server_with(owned_set)
    server.reconcile(CONTROLLER, SET)
    assert "ownerReferences" not in server.get(MACHINE_SET, SET)["metadata"]


def test_templates_are_owned_by_the_cluster() -> None:
    server = server_with(ready_set())
    server.settle(CONTROLLER, SET)
    for kind, name in ((INFRA_TEMPLATE, "infra"), (BOOTSTRAP_TEMPLATE, "boot")):
        assert [owner["uid"] for owner in server.get(kind, name)["metadata"]["ownerReferences"]] == ["Cluster-herd"]


@pytest.mark.parametrize(
    ("cluster_spec", "annotations", "message"),
    [
        ({"paused": True}, {}, "Cluster spec.paused is set to true"),
        ({}, {"cluster.x-k8s.io/paused": ""}, "MachineSet has the cluster.x-k8s.io/paused annotation"),
    ],
)
def test_paused_set_only_reports_its_pause(
    cluster_spec: dict[str, Any], annotations: dict[str, str], message: str
) -> None:
    server = server_with(ready_set(annotations=annotations))
    server.change(server.get(CLUSTER, "herd"), {"spec": cluster_spec})
    server.settle(CONTROLLER, SET)
    assert len(server.writes) == 1
    condition = condition_of(server.get(MACHINE_SET, SET), "Paused")
    assert (condition["status"], condition["reason"], condition["message"]) == ("True", "Paused", message)


def test_set_waits_for_its_cluster() -> None:
    server = server_with(ready_set())
    server.remove(server.get(CLUSTER, "herd"))
    decision = server.reconcile(CONTROLLER, SET)
    assert not decision.writes
    assert decision.wait is not None
    assert decision.wait.reason == "Cluster herd does not exist"


# --- creation --------------------------------------------------------------------------------------------------------


def test_machines_are_created_first_and_own_their_objects() -> None:
    server = server_with(ready_set(2))
    server.reconcile(CONTROLLER, SET)
    machines = server.all(MACHINE)
    assert len(machines) == 2
    assert not server.all(INFRA)
    server.reconcile(CONTROLLER, SET)
    for each in machines:
        name = each["metadata"]["name"]
        assert each["metadata"]["finalizers"] == ["machine.cluster.x-k8s.io"]
        assert each["spec"]["infrastructureRef"] == {"apiGroup": INFRA.group, "kind": "TestMachine", "name": name}
        assert each["spec"]["bootstrap"]["configRef"]["name"] == name
        for kind in (INFRA, BOOTSTRAP):
            (owner,) = server.get(kind, name)["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["uid"], owner["controller"]) == ("Machine", each["metadata"]["uid"], True)


def test_clone_has_the_spec_of_its_template_and_names_it() -> None:
    server = server_with(ready_set(1))
    server.settle(CONTROLLER, SET)
    (clone,) = server.all(INFRA)
    assert clone["spec"] == {"size": 3}
    assert clone["metadata"]["labels"] == {
        "from": "template",
        "cluster.x-k8s.io/set-name": SET,
        **LABELS,
    }
    assert clone["metadata"]["annotations"] == {
        "cluster.x-k8s.io/cloned-from-name": "infra",
        "cluster.x-k8s.io/cloned-from-groupkind": f"TestMachineTemplate.{INFRA.group}",
    }


def test_clone_carries_only_the_approvals_of_its_template() -> None:
    """The author of a MachineSet or template chooses the annotations of the objects created from it."""
    base = {"resource": "secrets", "namespace": "default", "name": "cc", "uid": "1"}
    forged = json.dumps([base | {"path": "spec.common.cloudCredentialSecretName", "name": "theirs"}])
    set_object = ready_set(1)
    set_object["spec"]["template"]["metadata"]["annotations"] = {APPROVED: forged, "other": "kept"}
    server = server_with(set_object)
    entry = base | {"path": "spec.template.spec.common.cloudCredentialSecretName"}
    server.change(server.get(INFRA_TEMPLATE, "infra"), {"metadata": {"annotations": {APPROVED: json.dumps([entry])}}})
    server.settle(CONTROLLER, SET)
    (clone,), (each,) = server.all(INFRA), server.all(MACHINE)
    (approval,) = json.loads(clone["metadata"]["annotations"][APPROVED])
    assert approval == base | {"path": "spec.common.cloudCredentialSecretName"}
    assert APPROVED not in each["metadata"]["annotations"]
    assert each["metadata"]["annotations"]["other"] == "kept"


@pytest.mark.parametrize(("uid", "count"), [("", 1), ("of-another", 0)])
def test_no_machine_is_created_from_a_replaced_template(uid: str, count: int) -> None:
    group = INFRA_TEMPLATE.group
    infra = {"path": "spec.template.spec.infrastructureRef", "group": group, "resource": INFRA_TEMPLATE.plural}
    boot = {
        "path": "spec.template.spec.bootstrap.configRef",
        "group": BOOTSTRAP_TEMPLATE.group,
        "resource": BOOTSTRAP_TEMPLATE.plural,
    }
    set_object = ready_set(1)
    namespace = {"namespace": set_object["metadata"]["namespace"]}
    record = [infra | namespace | {"name": "infra", "uid": uid}, boot | namespace | {"name": "boot"}]
    set_object["metadata"]["annotations"] = {APPROVED: json.dumps(record)}
    server = server_with(set_object)
    server.settle(CONTROLLER, SET)
    assert len(server.all(MACHINE)) == count


def test_machine_is_created_in_three_writes() -> None:
    server = server_with(ready_set(10))
    server.settle(CONTROLLER, SET)
    applies = [write for write in server.writes if isinstance(write, Apply)]
    assert len(applies) == 30


def test_repeated_decisions_create_the_same_machines() -> None:
    server = server_with(ready_set(3))
    names = [
        [
            write.obj["metadata"]["name"]
            for write in writes_of(server.decide(CONTROLLER, SET))
            if isinstance(write, Apply)
        ]
        for _ in range(2)
    ]
    assert names[0] == names[1]
    assert len(set(names[0])) == 3


def test_machines_are_created_in_batches() -> None:
    server = server_with(ready_set(2 * BATCH + 7))
    for expected in (BATCH, 2 * BATCH, 2 * BATCH + 7, 2 * BATCH + 7):
        server.reconcile(CONTROLLER, SET)
        assert len(server.all(MACHINE)) == expected


def test_machine_names_follow_the_naming_template() -> None:
    server = server_with(ready_set(1, machineNaming={"template": "{{ .cluster.name }}-x-{{ .random }}"}))
    server.reconcile(CONTROLLER, SET)
    assert server.all(MACHINE)[0]["metadata"]["name"].startswith("herd-x-")


def test_missing_provider_objects_are_created() -> None:
    server = server_with(ready_set(1))
    server.settle(CONTROLLER, SET)
    (infra,) = server.all(INFRA)
    server.remove(infra)
    server.settle(CONTROLLER, SET)
    assert len(server.all(INFRA)) == 1


def test_provider_objects_of_provisioned_machines_are_not_recreated() -> None:
    server = server_with(ready_set(1))
    server.settle(CONTROLLER, SET)
    server.make_available(server.all(MACHINE))
    server.remove(server.all(INFRA)[0])
    server.settle(CONTROLLER, SET)
    assert not server.all(INFRA)


def test_no_machine_is_created_while_the_cluster_is_deleting() -> None:
    server = server_with(ready_set(3))
    server.change(server.get(CLUSTER, "herd"), {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    server.settle(CONTROLLER, SET)
    assert not server.all(MACHINE)
    assert _scale_up_blockers(server) == ["Cluster herd is being deleted"]


def test_no_provider_object_is_created_while_the_cluster_is_deleting() -> None:
    server = server_with(ready_set(3))
    server.reconcile(CONTROLLER, SET)
    server.change(server.get(CLUSTER, "herd"), {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    server.settle(CONTROLLER, SET)
    assert not server.all(INFRA)


def test_no_machine_is_created_while_creation_is_disabled() -> None:
    server = server_with(ready_set(3, annotations={"cluster.x-k8s.io/disable-machine-create": "true"}))
    server.settle(CONTROLLER, SET)
    assert not server.all(MACHINE)


def test_labelled_machines_of_other_controllers_block_creation() -> None:
    """A controller that keeps taking Machines from their set must not make it create Machines forever."""
    machines = [machine(f"m{number}", owner="another") for number in range(3)]
    for each in machines:
        each["metadata"]["labels"] = {**LABELS, "cluster.x-k8s.io/set-name": SET}
    server = server_with(ready_set(3), *machines)
    server.settle(CONTROLLER, SET)
    assert len(server.all(MACHINE)) == 3
    assert _scale_up_blockers(server) == [
        "3 Machines carry this MachineSet's label cluster.x-k8s.io/set-name, but it does not control them"
    ]


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ .nonsense }}-{{ .random }}", "spec.machineNaming.template: {{ .nonsense }} is not one of"),
        ("all-the-same", "spec.machineNaming.template: {{ .random }} is missing"),
    ],
)
def test_invalid_naming_templates_are_reported_with_their_field(template: str, cause: str) -> None:
    server = server_with(ready_set(2, machineNaming={"template": template}))
    server.settle(CONTROLLER, SET)
    assert not server.all(MACHINE)
    (blocker,) = _scale_up_blockers(server)
    assert blocker.startswith(cause)


def test_no_machine_is_created_without_the_kind_of_its_objects() -> None:
    server = server_with(ready_set(1))
    server.remove(new_definition(INFRA))
    server.settle(CONTROLLER, SET)
    assert not server.all(MACHINE)
    assert _scale_up_blockers(server) == [
        "the kind TestMachine, which TestMachineTemplate makes, is not defined for a known contract"
    ]


def _scale_up_blockers(server: FakeServer) -> list[str]:
    message: str = condition_of(server.get(MACHINE_SET, SET), "ScalingUp")["message"]
    first, *causes = message.split("\n* ")
    assert first.endswith("is blocked because:")
    return causes


@pytest.mark.parametrize(
    ("missing_kinds", "message", "legacy_reason"),
    [
        ([INFRA_TEMPLATE], "TestMachineTemplate does not exist", "InfrastructureTemplateCloningFailed"),
        (
            [INFRA_TEMPLATE, BOOTSTRAP_TEMPLATE],
            "TestConfigTemplate and TestMachineTemplate do not exist",
            "BootstrapTemplateCloningFailed",
        ),
    ],
)
def test_missing_templates_are_reported(missing_kinds: list[Any], message: str, legacy_reason: str) -> None:
    server = server_with(ready_set(2))
    for kind in missing_kinds:
        server.remove(server.all(kind)[0])
    decision = server.reconcile(CONTROLLER, SET)
    assert decision.wait is not None
    assert decision.wait.reason == message
    status = server.get(MACHINE_SET, SET)["status"]
    condition = condition_of(server.get(MACHINE_SET, SET), "ScalingUp")
    assert condition["message"] == f"Scaling up from 0 to 2 replicas is blocked because:\n* {message}"
    legacy_conditions = {each["type"]: each for each in status["deprecated"]["v1beta1"]["conditions"]}
    assert legacy_conditions["MachinesCreated"]["reason"] == legacy_reason


def test_definition_without_contract_label_is_reported() -> None:
    server = server_with(ready_set(1))
    server.change(new_definition(INFRA_TEMPLATE), {"metadata": {"labels": None}})
    server.reconcile(CONTROLLER, SET)
    condition = condition_of(server.get(MACHINE_SET, SET), "ScalingUp")
    assert "TestMachineTemplate: CustomResourceDefinition testmachinetemplates" in condition["message"]


def test_scale_up_waits_for_a_stable_control_plane() -> None:
    reference = object_reference(CONTROL_PLANE, "control")
    server = server_with(ready_set(1), provider_object(CONTROL_PLANE, "control", spec={"version": "v1.31.0"}))
    server.change(server.get(CLUSTER, "herd"), {"spec": {"controlPlaneRef": reference}})
    server.settle(CONTROLLER, SET)
    assert not server.all(MACHINE)
    server.change(server.get(CONTROL_PLANE, "control"), {"status": {"version": "v1.31.0"}})
    server.settle(CONTROLLER, SET)
    assert len(server.all(MACHINE)) == 1


# --- adoption --------------------------------------------------------------------------------------------------------


def test_selected_orphans_are_adopted_and_counted() -> None:
    server = server_with(ready_set(1), machine("orphan", owner=""))
    server.settle(CONTROLLER, SET)
    assert [each["metadata"]["name"] for each in server.all(MACHINE)] == ["orphan"]
    (owner,) = server.get(MACHINE, "orphan")["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("set-uid", True)


def test_machines_of_other_controllers_are_not_adopted() -> None:
    server = server_with(ready_set(0), machine("theirs", owner="another"))
    server.settle(CONTROLLER, SET)
    assert server.get(MACHINE, "theirs")["metadata"]["ownerReferences"][0]["uid"] == "another"


def test_machines_of_another_cluster_are_not_adopted() -> None:
    """The author of a MachineSet needs rights on its own Cluster only, so it must not adopt Machines of others."""
    set_object = ready_set(0, selector={"matchLabels": {"pool": "workers"}})
    set_object["metadata"]["labels"]["cluster.x-k8s.io/deployment-name"] = "any"  # keeps the selector unchanged
    foreign_machine = machine("theirs", owner="")
    foreign_machine["spec"]["clusterName"] = "other"
    server = server_with(set_object, foreign_machine)
    server.settle(CONTROLLER, SET)
    assert not server.get(MACHINE, "theirs")["metadata"].get("ownerReferences")
    assert "deletionTimestamp" not in server.get(MACHINE, "theirs")["metadata"]


@pytest.mark.parametrize("owner", ["set-uid", ""])
def test_machines_of_another_cluster_do_not_count(owner: str) -> None:
    """Users write owner references and labels: their Machines do not replace or block Machines of another Cluster."""
    foreign_machines = [machine(f"a{number}", owner=owner, Ready="True", Available="True") for number in range(3)]
    for each in foreign_machines:
        each["spec"]["clusterName"] = "other"
        each["metadata"]["labels"] = {"cluster.x-k8s.io/set-name": SET}
    server = server_with(ready_set(2), machine("mine", Ready="True", Available="True"), *foreign_machines)
    server.settle(CONTROLLER, SET)
    assert not any(isinstance(write, Delete) for write in server.writes)
    assert server.get(MACHINE_SET, SET)["status"]["replicas"] == 2


def test_adopted_machine_keeps_its_bootstrap() -> None:
    """Otherwise the author of a MachineSet could choose the bootstrap data of an existing Machine."""
    set_object = ready_set(1)
    set_object["spec"]["template"]["spec"] |= {"bootstrap": {"dataSecretName": "mine"}, "minReadySeconds": 1}
    orphan = machine("orphan", owner="")
    orphan["spec"] |= {"bootstrap": {"configRef": {"apiGroup": "b", "kind": "B", "name": "orphan"}}}
    server = server_with(set_object, orphan)
    server.settle(CONTROLLER, SET)
    assert server.get(MACHINE, "orphan")["metadata"]["ownerReferences"]
    assert server.get(MACHINE, "orphan")["spec"]["bootstrap"] == orphan["spec"]["bootstrap"]


# --- in-place propagation --------------------------------------------------------------------------------------------


def _settled(replicas: int = 2) -> FakeServer:
    server = server_with(ready_set(replicas))
    server.settle(CONTROLLER, SET)
    server.make_available(server.all(MACHINE))
    server.settle(CONTROLLER, SET)
    server.writes.clear()
    return server


def _edit_template(server: FakeServer, patch: dict[str, Any]) -> None:
    server.change(server.get(MACHINE_SET, SET), {"spec": {"template": patch}})
    server.settle(CONTROLLER, SET)


def test_up_to_date_machines_are_not_written() -> None:
    server = _settled()
    server.settle(CONTROLLER, SET)
    assert not server.writes


def test_labels_and_annotations_are_propagated_to_machines_and_their_objects() -> None:
    server = _settled()
    _edit_template(server, {"metadata": {"labels": {"new": "label"}, "annotations": {"new": "annotation"}}})
    for obj in (*server.all(MACHINE), *server.all(INFRA), *server.all(BOOTSTRAP)):
        assert obj["metadata"]["labels"]["new"] == "label"
        assert obj["metadata"]["annotations"]["new"] == "annotation"
    managers = {(write.kind, write.manager) for write in server.writes if isinstance(write, Apply)}
    assert managers == {
        (MACHINE, "capi-machineset"),
        (INFRA, "capi-machineset-metadata"),
        (BOOTSTRAP, "capi-machineset-metadata"),
    }


def test_labels_removed_from_the_template_are_removed_and_others_are_kept() -> None:
    server = _settled()
    for obj in (*server.all(MACHINE), *server.all(INFRA), *server.all(BOOTSTRAP)):
        server.change(obj, {"metadata": {"labels": {"mine": "kept"}}})
    _edit_template(server, {"metadata": {"labels": {"new": "label"}}})
    _edit_template(server, {"metadata": {"labels": {"new": None}}})
    for obj in (*server.all(MACHINE), *server.all(INFRA), *server.all(BOOTSTRAP)):
        assert "new" not in obj["metadata"]["labels"]
        assert obj["metadata"]["labels"]["mine"] == "kept"


def test_edited_labels_are_restored() -> None:
    server = _settled()
    server.change(server.all(MACHINE)[0], {"metadata": {"labels": {"pool": "elsewhere"}}})
    server.settle(CONTROLLER, SET)
    assert server.all(MACHINE)[0]["metadata"]["labels"]["pool"] == "workers"


def test_only_in_place_mutable_fields_are_propagated() -> None:
    server = _settled()
    _edit_template(
        server,
        {
            "spec": {
                "minReadySeconds": 7,
                "deletion": {"nodeDrainTimeoutSeconds": 60},
                "readinessGates": [{"conditionType": "Mine"}],
                "taints": [{"key": "a", "effect": "NoSchedule", "propagation": "Always"}],
                "version": "v1.99.0",
                "failureDomain": "elsewhere",
            }
        },
    )
    for each in server.all(MACHINE):
        assert each["spec"]["minReadySeconds"] == 7
        assert each["spec"]["deletion"]["nodeDrainTimeoutSeconds"] == 60
        assert each["spec"]["readinessGates"] == [{"conditionType": "Mine"}]
        assert each["spec"]["taints"][0]["key"] == "a"
        assert "version" not in each["spec"]
        assert "failureDomain" not in each["spec"]


def test_deleting_machines_receive_only_deletion_fields() -> None:
    server = _settled()
    first = server.all(MACHINE)[0]["metadata"]["name"]
    server.change(server.get(MACHINE, first), {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    _edit_template(
        server, {"metadata": {"labels": {"new": "label"}}, "spec": {"deletion": {"nodeDrainTimeoutSeconds": 1}}}
    )
    assert server.get(MACHINE, first)["spec"]["deletion"]["nodeDrainTimeoutSeconds"] == 1
    assert "new" not in server.get(MACHINE, first)["metadata"]["labels"]


def test_defaulted_fields_are_no_difference() -> None:
    server = _settled()
    for each in server.all(MACHINE):
        server.change(each, {"spec": {"deletion": {"nodeDeletionTimeoutSeconds": 10}}})
    server.settle(CONTROLLER, SET)
    assert not server.writes


# --- deletion --------------------------------------------------------------------------------------------------------


def test_surplus_machines_are_deleted_once() -> None:
    server = _settled(3)
    server.change(server.get(MACHINE_SET, SET), {"spec": {"replicas": 1}})
    server.settle(CONTROLLER, SET)
    assert sum("deletionTimestamp" in each["metadata"] for each in server.all(MACHINE)) == 2
    server.finish_deletions()
    server.settle(CONTROLLER, SET)
    assert len(server.all(MACHINE)) == 1
    assert server.get(MACHINE_SET, SET)["status"]["replicas"] == 1


def test_deleting_set_deletes_its_machines_and_waits_for_them() -> None:
    server = _settled(2)
    server.change(server.get(MACHINE_SET, SET), {"metadata": {"deletionTimestamp": "2026-01-01T12:00:00Z"}})
    server.settle(CONTROLLER, SET)
    condition = condition_of(server.get(MACHINE_SET, SET), "Deleting")
    assert (condition["status"], condition["message"]) == ("True", "Deleting 2 Machines")
    server.finish_deletions()
    server.settle(CONTROLLER, SET)
    assert not server.has(MACHINE_SET, SET)


def test_set_of_a_deleted_cluster_can_be_deleted() -> None:
    server = _settled(1)
    server.remove(server.get(CLUSTER, "herd"))
    server.change(server.get(MACHINE_SET, SET), {"metadata": {"deletionTimestamp": "2026-01-01T12:00:00Z"}})
    server.settle(CONTROLLER, SET)
    server.finish_deletions()
    server.settle(CONTROLLER, SET)
    assert not server.has(MACHINE_SET, SET)
