"""MachineSets over several passes: they make Machines, complete them, follow their template, and go."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_SET
from herder.api.references.approvals import APPROVED
from herder.controllers.capi.machineset.controller import CONTROLLER
from herder.controllers.capi.machineset.scope import BATCH
from herder.engine.runtime.decision import Apply
from tests.unit.controllers.capi.machineset.sets import LABELS, SET, machine, machine_set, ready_set, world
from tests.unit.controllers.capi.world import (
    BOOT,
    BOOT_TEMPLATE,
    CONTROL,
    INFRA,
    INFRA_TEMPLATE,
    World,
    condition_of,
    definition,
    made,
    written,
)

# --- before anything else -------------------------------------------------------------------------------------------


def test_one_write_prepares_a_set_that_stands_alone() -> None:
    w = world(machine_set())
    w.reconcile(CONTROLLER, SET)
    assert len(w.writes) == 1
    meta = w.get(MACHINE_SET, SET)["metadata"]
    assert meta["finalizers"] == ["cluster.x-k8s.io/machineset"]
    assert meta["labels"]["cluster.x-k8s.io/cluster-name"] == "herd"
    assert [(owner["kind"], owner.get("controller")) for owner in meta["ownerReferences"]] == [("Cluster", None)]


def test_a_set_of_a_deployment_is_not_owned_by_the_cluster() -> None:
    child = machine_set()
    child["metadata"]["labels"] = {"cluster.x-k8s.io/deployment-name": "deployment"}
    w = world(child)
    w.reconcile(CONTROLLER, SET)
    assert "ownerReferences" not in w.get(MACHINE_SET, SET)["metadata"]


def test_templates_belong_to_the_cluster() -> None:
    w = world(ready_set())
    w.settle(CONTROLLER, SET)
    for kind, name in ((INFRA_TEMPLATE, "infra"), (BOOT_TEMPLATE, "boot")):
        assert [owner["uid"] for owner in w.get(kind, name)["metadata"]["ownerReferences"]] == ["Cluster-herd"]


@pytest.mark.parametrize(
    ("cluster_spec", "annotations", "message"),
    [
        ({"paused": True}, {}, "Cluster spec.paused is set to true"),
        ({}, {"cluster.x-k8s.io/paused": ""}, "MachineSet has the cluster.x-k8s.io/paused annotation"),
    ],
)
def test_a_paused_set_only_tells_that_it_is_paused(
    cluster_spec: dict[str, Any], annotations: dict[str, str], message: str
) -> None:
    w = world(ready_set(annotations=annotations))
    w.change(w.get(CLUSTER, "herd"), {"spec": cluster_spec})
    w.settle(CONTROLLER, SET)
    assert len(w.writes) == 1
    told = condition_of(w.get(MACHINE_SET, SET), "Paused")
    assert (told["status"], told["reason"], told["message"]) == ("True", "Paused", message)


def test_without_its_cluster_it_waits() -> None:
    w = world(ready_set())
    w.remove(w.get(CLUSTER, "herd"))
    decision = w.reconcile(CONTROLLER, SET)
    assert not decision.writes
    assert decision.wait is not None
    assert decision.wait.reason == "Cluster herd does not exist"


# --- making Machines ------------------------------------------------------------------------------------------------


def test_machines_come_first_and_own_their_objects_from_the_start() -> None:
    w = world(ready_set(2))
    w.reconcile(CONTROLLER, SET)
    machines = w.all(MACHINE)
    assert len(machines) == 2
    assert not w.all(INFRA)
    w.reconcile(CONTROLLER, SET)
    for each in machines:
        name = each["metadata"]["name"]
        assert each["metadata"]["finalizers"] == ["machine.cluster.x-k8s.io"]
        assert each["spec"]["infrastructureRef"] == {"apiGroup": INFRA.group, "kind": "TestMachine", "name": name}
        assert each["spec"]["bootstrap"]["configRef"]["name"] == name
        for kind in (INFRA, BOOT):
            (owner,) = w.get(kind, name)["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["uid"], owner["controller"]) == ("Machine", each["metadata"]["uid"], True)


def test_a_clone_has_the_templates_spec_and_says_where_it_is_from() -> None:
    w = world(ready_set(1))
    w.settle(CONTROLLER, SET)
    (clone,) = w.all(INFRA)
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


def test_a_clone_carries_the_approvals_of_its_template_and_no_others() -> None:
    """Whoever writes a MachineSet or a template writes the annotations of what is made from them."""
    base = {"resource": "secrets", "namespace": "default", "name": "cc", "uid": "1"}
    forged = json.dumps([base | {"path": "spec.common.cloudCredentialSecretName", "name": "theirs"}])
    given = ready_set(1)
    given["spec"]["template"]["metadata"]["annotations"] = {APPROVED: forged, "other": "kept"}
    w = world(given)
    entry = base | {"path": "spec.template.spec.common.cloudCredentialSecretName"}
    w.change(w.get(INFRA_TEMPLATE, "infra"), {"metadata": {"annotations": {APPROVED: json.dumps([entry])}}})
    w.settle(CONTROLLER, SET)
    (clone,), (each,) = w.all(INFRA), w.all(MACHINE)
    (carried,) = json.loads(clone["metadata"]["annotations"][APPROVED])
    assert carried == base | {"path": "spec.common.cloudCredentialSecretName"}
    assert APPROVED not in each["metadata"]["annotations"]
    assert each["metadata"]["annotations"]["other"] == "kept"


@pytest.mark.parametrize(("uid", "count"), [("", 1), ("of-another", 0)])
def test_no_machine_is_made_from_a_template_that_replaced_the_approved_one(uid: str, count: int) -> None:
    group = INFRA_TEMPLATE.group
    infra = {"path": "spec.template.spec.infrastructureRef", "group": group, "resource": INFRA_TEMPLATE.plural}
    boot = {
        "path": "spec.template.spec.bootstrap.configRef",
        "group": BOOT_TEMPLATE.group,
        "resource": BOOT_TEMPLATE.plural,
    }
    given = ready_set(1)
    place = {"namespace": given["metadata"]["namespace"]}
    record = [infra | place | {"name": "infra", "uid": uid}, boot | place | {"name": "boot"}]
    given["metadata"]["annotations"] = {APPROVED: json.dumps(record)}
    w = world(given)
    w.settle(CONTROLLER, SET)
    assert len(w.all(MACHINE)) == count


def test_three_writes_make_a_machine() -> None:
    w = world(ready_set(10))
    w.settle(CONTROLLER, SET)
    per_machine = [write for write in w.writes if isinstance(write, Apply)]
    assert len(per_machine) == 30


def test_decided_twice_on_the_same_view_the_same_machines_come_out() -> None:
    w = world(ready_set(3))
    names = [
        [write.obj["metadata"]["name"] for write in written(w.decide(CONTROLLER, SET)) if isinstance(write, Apply)]
        for _ in range(2)
    ]
    assert names[0] == names[1]
    assert len(set(names[0])) == 3


def test_many_machines_are_made_in_batches_and_never_more_than_wanted() -> None:
    w = world(ready_set(2 * BATCH + 7))
    for expected in (BATCH, 2 * BATCH, 2 * BATCH + 7, 2 * BATCH + 7):
        w.reconcile(CONTROLLER, SET)
        assert len(w.all(MACHINE)) == expected


def test_names_follow_the_template() -> None:
    w = world(ready_set(1, machineNaming={"template": "{{ .cluster.name }}-x-{{ .random }}"}))
    w.reconcile(CONTROLLER, SET)
    assert w.all(MACHINE)[0]["metadata"]["name"].startswith("herd-x-")


def test_a_machine_that_was_left_without_its_objects_is_completed() -> None:
    w = world(ready_set(1))
    w.settle(CONTROLLER, SET)
    (infra,) = w.all(INFRA)
    w.remove(infra)
    w.settle(CONTROLLER, SET)
    assert len(w.all(INFRA)) == 1


def test_what_a_provisioned_machine_loses_is_not_made_again() -> None:
    w = world(ready_set(1))
    w.settle(CONTROLLER, SET)
    w.make_available(w.all(MACHINE))
    w.remove(w.all(INFRA)[0])
    w.settle(CONTROLLER, SET)
    assert not w.all(INFRA)


def test_nothing_is_made_in_a_cluster_that_goes() -> None:
    w = world(ready_set(3))
    w.change(w.get(CLUSTER, "herd"), {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    w.settle(CONTROLLER, SET)
    assert not w.all(MACHINE)
    assert _blocked(w) == ["Cluster herd is being deleted"]


def test_nor_are_the_objects_of_machines_that_lack_them() -> None:
    w = world(ready_set(3))
    w.reconcile(CONTROLLER, SET)
    w.change(w.get(CLUSTER, "herd"), {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    w.settle(CONTROLLER, SET)
    assert not w.all(INFRA)


def test_nothing_is_made_where_creation_is_disabled() -> None:
    w = world(ready_set(3, annotations={"cluster.x-k8s.io/disable-machine-create": "true"}))
    w.settle(CONTROLLER, SET)
    assert not w.all(MACHINE)


def test_machines_with_the_sets_label_count_even_if_another_controls_them() -> None:
    """Whatever takes Machines away from their set, it must not be made to create without end."""
    strayed = [machine(f"m{number}", owner="another") for number in range(3)]
    for each in strayed:
        each["metadata"]["labels"] = {**LABELS, "cluster.x-k8s.io/set-name": SET}
    w = world(ready_set(3), *strayed)
    w.settle(CONTROLLER, SET)
    assert len(w.all(MACHINE)) == 3
    assert _blocked(w) == [
        "3 Machines carry this MachineSet's label cluster.x-k8s.io/set-name, but it does not control them"
    ]


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ .nonsense }}-{{ .random }}", "spec.machineNaming.template: {{ .nonsense }} is not one of"),
        ("all-the-same", "spec.machineNaming.template: {{ .random }} is missing"),
    ],
)
def test_names_that_cannot_be_made_are_told_with_their_field(template: str, cause: str) -> None:
    w = world(ready_set(2, machineNaming={"template": template}))
    w.settle(CONTROLLER, SET)
    assert not w.all(MACHINE)
    (told,) = _blocked(w)
    assert told.startswith(cause)


def test_no_machines_are_made_whose_objects_could_not_be() -> None:
    w = world(ready_set(1))
    w.remove(definition(INFRA))
    w.settle(CONTROLLER, SET)
    assert not w.all(MACHINE)
    assert _blocked(w) == ["the kind TestMachine, which TestMachineTemplate makes, is not defined for a known contract"]


def _blocked(w: World) -> list[str]:
    message: str = condition_of(w.get(MACHINE_SET, SET), "ScalingUp")["message"]
    first, *causes = message.split("\n* ")
    assert first.endswith("is blocked because:")
    return causes


@pytest.mark.parametrize(
    ("gone", "message", "legacy_reason"),
    [
        ([INFRA_TEMPLATE], "TestMachineTemplate does not exist", "InfrastructureTemplateCloningFailed"),
        (
            [INFRA_TEMPLATE, BOOT_TEMPLATE],
            "TestConfigTemplate and TestMachineTemplate do not exist",
            "BootstrapTemplateCloningFailed",
        ),
    ],
)
def test_missing_templates_are_named(gone: list[Any], message: str, legacy_reason: str) -> None:
    w = world(ready_set(2))
    for kind in gone:
        w.remove(w.all(kind)[0])
    decision = w.reconcile(CONTROLLER, SET)
    assert decision.wait is not None
    assert decision.wait.reason == message
    status = w.get(MACHINE_SET, SET)["status"]
    told = condition_of(w.get(MACHINE_SET, SET), "ScalingUp")
    assert told["message"] == f"Scaling up from 0 to 2 replicas is blocked because:\n* {message}"
    legacies = {each["type"]: each for each in status["deprecated"]["v1beta1"]["conditions"]}
    assert legacies["MachinesCreated"]["reason"] == legacy_reason


def test_a_definition_without_the_contracts_label_is_told() -> None:
    w = world(ready_set(1))
    w.change(definition(INFRA_TEMPLATE), {"metadata": {"labels": None}})
    w.reconcile(CONTROLLER, SET)
    told = condition_of(w.get(MACHINE_SET, SET), "ScalingUp")
    assert "TestMachineTemplate: CustomResourceDefinition testmachinetemplates" in told["message"]


def test_scale_up_waits_for_an_unstable_control_plane() -> None:
    reference = {"apiGroup": CONTROL.group, "kind": CONTROL.kind, "name": "control"}
    w = world(ready_set(1), made(CONTROL, "control", spec={"version": "v1.31.0"}))
    w.change(w.get(CLUSTER, "herd"), {"spec": {"controlPlaneRef": reference}})
    w.settle(CONTROLLER, SET)
    assert not w.all(MACHINE)
    w.change(w.get(CONTROL, "control"), {"status": {"version": "v1.31.0"}})
    w.settle(CONTROLLER, SET)
    assert len(w.all(MACHINE)) == 1


# --- adopting -------------------------------------------------------------------------------------------------------


def test_orphans_that_the_selector_finds_are_adopted_and_count() -> None:
    w = world(ready_set(1), machine("orphan", owner=""))
    w.settle(CONTROLLER, SET)
    assert [each["metadata"]["name"] for each in w.all(MACHINE)] == ["orphan"]
    (owner,) = w.get(MACHINE, "orphan")["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("set-uid", True)


def test_machines_of_others_are_left_alone() -> None:
    w = world(ready_set(0), machine("theirs", owner="another"))
    w.settle(CONTROLLER, SET)
    assert w.get(MACHINE, "theirs")["metadata"]["ownerReferences"][0]["uid"] == "another"


def test_machines_of_another_cluster_are_left_alone() -> None:
    """The author of a MachineSet needs rights on its own Cluster only."""
    given = ready_set(0, selector={"matchLabels": {"pool": "workers"}})
    given["metadata"]["labels"]["cluster.x-k8s.io/deployment-name"] = "any"  # so that the selector stays as it is
    theirs = machine("theirs", owner="")
    theirs["spec"]["clusterName"] = "other"
    w = world(given, theirs)
    w.settle(CONTROLLER, SET)
    assert not w.get(MACHINE, "theirs")["metadata"].get("ownerReferences")
    assert "deletionTimestamp" not in w.get(MACHINE, "theirs")["metadata"]


def test_an_adopted_machine_keeps_its_bootstrap() -> None:
    """Otherwise whoever creates a MachineSet would choose what an existing machine runs."""
    given = ready_set(1)
    given["spec"]["template"]["spec"] |= {"bootstrap": {"dataSecretName": "mine"}, "minReadySeconds": 1}
    orphan = machine("orphan", owner="")
    orphan["spec"] |= {"bootstrap": {"configRef": {"apiGroup": "b", "kind": "B", "name": "orphan"}}}
    w = world(given, orphan)
    w.settle(CONTROLLER, SET)
    assert w.get(MACHINE, "orphan")["metadata"]["ownerReferences"]
    assert w.get(MACHINE, "orphan")["spec"]["bootstrap"] == orphan["spec"]["bootstrap"]


# --- following the template -----------------------------------------------------------------------------------------


def _settled(replicas: int = 2) -> World:
    w = world(ready_set(replicas))
    w.settle(CONTROLLER, SET)
    w.make_available(w.all(MACHINE))
    w.settle(CONTROLLER, SET)
    w.writes.clear()
    return w


def _template(w: World, patch: dict[str, Any]) -> None:
    w.change(w.get(MACHINE_SET, SET), {"spec": {"template": patch}})
    w.settle(CONTROLLER, SET)


def test_what_is_in_step_is_not_written() -> None:
    w = _settled()
    w.settle(CONTROLLER, SET)
    assert not w.writes


def test_labels_and_annotations_reach_machines_and_their_objects() -> None:
    w = _settled()
    _template(w, {"metadata": {"labels": {"new": "label"}, "annotations": {"new": "annotation"}}})
    for obj in (*w.all(MACHINE), *w.all(INFRA), *w.all(BOOT)):
        assert obj["metadata"]["labels"]["new"] == "label"
        assert obj["metadata"]["annotations"]["new"] == "annotation"
    managers = {(write.kind, write.manager) for write in w.writes if isinstance(write, Apply)}
    assert managers == {
        (MACHINE, "capi-machineset"),
        (INFRA, "capi-machineset-metadata"),
        (BOOT, "capi-machineset-metadata"),
    }


def test_labels_that_the_template_drops_are_dropped_and_others_stay() -> None:
    w = _settled()
    for obj in (*w.all(MACHINE), *w.all(INFRA), *w.all(BOOT)):
        w.change(obj, {"metadata": {"labels": {"mine": "kept"}}})
    _template(w, {"metadata": {"labels": {"new": "label"}}})
    _template(w, {"metadata": {"labels": {"new": None}}})
    for obj in (*w.all(MACHINE), *w.all(INFRA), *w.all(BOOT)):
        assert "new" not in obj["metadata"]["labels"]
        assert obj["metadata"]["labels"]["mine"] == "kept"


def test_an_edited_label_is_set_right_again() -> None:
    w = _settled()
    w.change(w.all(MACHINE)[0], {"metadata": {"labels": {"pool": "elsewhere"}}})
    w.settle(CONTROLLER, SET)
    assert w.all(MACHINE)[0]["metadata"]["labels"]["pool"] == "workers"


def test_fields_that_need_no_new_machine_follow_and_others_do_not() -> None:
    w = _settled()
    _template(
        w,
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
    for each in w.all(MACHINE):
        assert each["spec"]["minReadySeconds"] == 7
        assert each["spec"]["deletion"]["nodeDrainTimeoutSeconds"] == 60
        assert each["spec"]["readinessGates"] == [{"conditionType": "Mine"}]
        assert each["spec"]["taints"][0]["key"] == "a"
        assert "version" not in each["spec"]
        assert "failureDomain" not in each["spec"]


def test_a_machine_that_goes_follows_only_what_matters_for_that() -> None:
    w = _settled()
    first = w.all(MACHINE)[0]["metadata"]["name"]
    w.change(w.get(MACHINE, first), {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    _template(w, {"metadata": {"labels": {"new": "label"}}, "spec": {"deletion": {"nodeDrainTimeoutSeconds": 1}}})
    assert w.get(MACHINE, first)["spec"]["deletion"]["nodeDrainTimeoutSeconds"] == 1
    assert "new" not in w.get(MACHINE, first)["metadata"]["labels"]


def test_the_default_that_admission_fills_in_is_no_difference() -> None:
    w = _settled()
    for each in w.all(MACHINE):
        w.change(each, {"spec": {"deletion": {"nodeDeletionTimeoutSeconds": 10}}})
    w.settle(CONTROLLER, SET)
    assert not w.writes


# --- going ----------------------------------------------------------------------------------------------------------


def test_too_many_machines_are_deleted_once() -> None:
    w = _settled(3)
    w.change(w.get(MACHINE_SET, SET), {"spec": {"replicas": 1}})
    w.settle(CONTROLLER, SET)
    assert sum("deletionTimestamp" in each["metadata"] for each in w.all(MACHINE)) == 2
    w.finish_deletions()
    w.settle(CONTROLLER, SET)
    assert len(w.all(MACHINE)) == 1
    assert w.get(MACHINE_SET, SET)["status"]["replicas"] == 1


def test_a_set_that_goes_deletes_its_machines_and_waits_for_them() -> None:
    w = _settled(2)
    w.change(w.get(MACHINE_SET, SET), {"metadata": {"deletionTimestamp": "2026-01-01T12:00:00Z"}})
    w.settle(CONTROLLER, SET)
    told = condition_of(w.get(MACHINE_SET, SET), "Deleting")
    assert (told["status"], told["message"]) == ("True", "Deleting 2 Machines")
    w.finish_deletions()
    w.settle(CONTROLLER, SET)
    assert not w.has(MACHINE_SET, SET)


def test_a_set_goes_even_when_its_cluster_is_gone() -> None:
    w = _settled(1)
    w.remove(w.get(CLUSTER, "herd"))
    w.change(w.get(MACHINE_SET, SET), {"metadata": {"deletionTimestamp": "2026-01-01T12:00:00Z"}})
    w.settle(CONTROLLER, SET)
    w.finish_deletions()
    w.settle(CONTROLLER, SET)
    assert not w.has(MACHINE_SET, SET)
