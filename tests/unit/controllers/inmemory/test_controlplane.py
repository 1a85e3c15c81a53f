"""InMemoryControlPlane: kubeconfig, Machines and their objects, status and deletion."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import CERTIFICATE_RENEWAL, PAUSED
from herder.api.inmemory import names
from herder.api.inmemory.kinds import (
    IN_MEMORY_BOOTSTRAP,
    IN_MEMORY_CONTROL_PLANE,
    IN_MEMORY_MACHINE,
    IN_MEMORY_MACHINE_TEMPLATE,
)
from herder.api.references.approvals import APPROVED
from herder.controllers.inmemory.controlplane import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Create, Decision, Delete, EffectResult, Patch
from tests.support.builders import (
    condition_fields,
    legacy_condition_of,
    new_condition,
    object_reference,
    patched,
    writes_of,
)
from tests.support.views import NOW
from tests.unit.controllers.inmemory.objects import cluster, member_object, reconcile_object, secret
from tests.unit.controllers.inmemory.objects import machine as inmemory_machine

KUBECONFIG = secret("c-kubeconfig")
CLONED = "cluster.x-k8s.io/cloned-from-name"


def plane(*, replicas: int = 1, version: str = "v1.35.0", template: Object | None = None, **options: Any) -> Object:
    machine_template: Object = {"spec": {"infrastructureRef": object_reference(IN_MEMORY_MACHINE_TEMPLATE, "t")}}
    spec = {"replicas": replicas, "version": version, "machineTemplate": machine_template | (template or {})}
    defaults: Any = {
        "owner": cluster(),
        "controller": False,
        "finalizers": [names.CONTROL_PLANE_FINALIZER],
        "spec": spec | options.pop("spec", {}),
    }
    return member_object(IN_MEMORY_CONTROL_PLANE, "cp", **(defaults | options))


def template(*, owned: bool = True, **template_fields: Any) -> Object:
    spec = {"template": {"spec": {}} | template_fields}
    return member_object(
        IN_MEMORY_MACHINE_TEMPLATE, "t", owner=cluster() if owned else None, controller=False, spec=spec
    )


def machine(name: str, *, ready: bool = True, fresh: bool = True, **options: Any) -> Object:
    message = "" if ready else "it starts"
    conditions = [new_condition(type_, str(ready), "R", message, since=NOW) for type_ in ("Ready", "Available")]
    status: Object = {"conditions": [*conditions, *([new_condition("UpToDate", since=NOW)] if fresh else [])]}
    if ready:
        status["nodeRef"] = {"name": name}
        status["initialization"] = {"infrastructureProvisioned": True}
    labels = {"cluster.x-k8s.io/control-plane-name": "cp"}
    return inmemory_machine(name, control_plane=True, labels=labels, owner=plane(), status=status, **options)


def machine_parts(owner_machine: Object, cloned_from: str = "t") -> list[Object]:
    name = owner_machine["metadata"]["name"]
    labels = owner_machine["metadata"]["labels"]
    return [
        member_object(IN_MEMORY_BOOTSTRAP, name, owner=owner_machine, labels=labels, spec={}),
        member_object(
            IN_MEMORY_MACHINE, name, owner=owner_machine, labels=labels, annotations={CLONED: cloned_from}, spec={}
        ),
    ]


def reconcile(control_plane: Object, *machines: Object, others: list[Object] | None = None, **options: Any) -> Decision:
    related = [cluster(), KUBECONFIG, template()] if others is None else others
    part_objects = [part for each in machines for part in machine_parts(each)]
    return reconcile_object(CONTROLLER, "cp", control_plane, *machines, *part_objects, *related, **options)


def machine_writes(decision: Decision) -> list[Any]:
    """All writes but those of the control plane itself."""
    return [w for w in writes_of(decision) if not (isinstance(w, Patch) and w.ref.kind == IN_MEMORY_CONTROL_PLANE)]


# --- kubeconfig ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster_object", "waits_for"),
    [
        (cluster(provisioned=False), "the cluster's infrastructure is not provisioned"),
        (cluster(endpoint=False), "the Cluster has no endpoint yet"),
    ],
)
def test_control_plane_waits_for_the_endpoint(cluster_object: Object, waits_for: str) -> None:
    decision = reconcile(plane(), others=[cluster_object, template()])
    assert machine_writes(decision) == []
    assert decision.wait is not None
    assert decision.wait.reason == waits_for


def test_an_owner_reference_alone_creates_no_machines() -> None:
    """Users write owner references: the Cluster must refer to the control plane too.

    Otherwise, users could add Machines to Clusters of other users.
    """
    foreign = cluster()
    foreign["spec"]["controlPlaneRef"]["name"] = "other"
    decision = reconcile(plane(), others=[foreign, KUBECONFIG, template()])
    assert decision.writes == ()
    assert decision.effects == ()


def test_kubeconfig_is_created_before_the_first_machine() -> None:
    decision = reconcile(plane(), others=[cluster(), template(), secret("c-ca")])
    assert machine_writes(decision) == []
    (effect,) = decision.effects
    assert effect.performer == "kubeconfig"
    assert effect.arguments == {"namespace": "ns", "cluster": "c", "server": "https://127.0.0.1:6443"}
    value = {"kubeconfig": "a3ViZQ==", "expires": "2027-01-01T00:00:00+00:00", "renew": "2026-07-01T00:00:00+00:00"}
    results = {effect.key: EffectResult(value)}
    (create,) = machine_writes(reconcile(plane(), others=[cluster(), template(), secret("c-ca")], results=results))
    assert isinstance(create, Create)
    assert create.obj["metadata"]["name"] == "c-kubeconfig"
    assert create.obj["type"] == "cluster.x-k8s.io/secret"
    assert create.obj["data"] == {"value": "a3ViZQ=="}
    (owner,) = create.obj["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("InMemoryControlPlane", True)


def test_kubeconfig_is_renewed_when_due() -> None:
    renewal = NOW + timedelta(days=1)
    kubeconfig = secret("c-kubeconfig", annotations={CERTIFICATE_RENEWAL: renewal.isoformat()})
    others = [cluster(), template(), kubeconfig]
    decision = reconcile(plane(), machine("a"), others=others)
    assert decision.effects == ()
    assert decision.wake_at == renewal
    (effect,) = reconcile(plane(), machine("a"), others=others, now=renewal).effects
    assert effect.performer == "kubeconfig"


# --- machines --------------------------------------------------------------------------------------------------------


def test_machine_is_created_complete_and_controlled() -> None:
    metadata = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    machine_template = {"metadata": metadata}
    control_plane = plane(version="1.35.0", template=machine_template)
    control_plane["spec"]["machineTemplate"]["spec"]["minReadySeconds"] = 5
    (apply,) = machine_writes(reconcile(control_plane))
    assert isinstance(apply, Apply)
    created_machine = apply.obj
    assert apply.kind == MACHINE
    name = created_machine["metadata"]["name"]
    assert name.startswith("cp-")
    assert created_machine["metadata"]["labels"] == {
        "team": "a",
        "cluster.x-k8s.io/cluster-name": "c",
        "cluster.x-k8s.io/control-plane": "",
        "cluster.x-k8s.io/control-plane-name": "cp",
    }
    assert created_machine["metadata"]["annotations"] == {"note": "b"}
    assert created_machine["metadata"]["finalizers"] == ["machine.cluster.x-k8s.io"]
    assert created_machine["metadata"]["ownerReferences"][0]["controller"] is True
    assert created_machine["spec"] == {
        "clusterName": "c",
        "version": "v1.35.0",
        "minReadySeconds": 5,
        "bootstrap": {"configRef": object_reference(IN_MEMORY_BOOTSTRAP, name)},
        "infrastructureRef": object_reference(IN_MEMORY_MACHINE, name),
    }


def test_template_cannot_forge_approved_references() -> None:
    """Controllers trust this record in objects that the manager writes. A forged one would leak any Secret."""
    forged = {"annotations": {APPROVED: "[]", "note": "b"}}
    control_plane, known = plane(template={"metadata": forged}), machine("a", ready=False)
    (created,) = machine_writes(reconcile(control_plane))
    others = [cluster(), KUBECONFIG, template(metadata=forged)]
    part_writes = writes_of(reconcile_object(CONTROLLER, "cp", control_plane, known, *others))
    sync_writes = machine_writes(reconcile(control_plane, known))
    written = [write for write in (created, *part_writes, *sync_writes) if isinstance(write, Apply | Patch)]
    metadata_list = [
        ((write.obj if isinstance(write, Apply) else write.patch).get("metadata") or {}) for write in written
    ]
    assert [each for each in metadata_list if "note" in (each.get("annotations") or {})]
    assert not [each for each in metadata_list if APPROVED in (each.get("annotations") or {})]


def test_next_machine_has_another_name() -> None:
    """Otherwise the next Machine would be applied to an existing one, and none would be created."""

    def new_name(*machines: Object) -> str:
        *_, apply = machine_writes(reconcile(plane(replicas=2), *machines))
        assert isinstance(apply, Apply)
        return str(apply.obj["metadata"]["name"])

    assert new_name() == new_name()
    assert len({new_name(), new_name(machine("a")), new_name(machine("b"))}) == 3


def test_machine_parts_are_created_with_their_owner() -> None:
    template_fields: Any = {"metadata": {"annotations": {names.START_DELAY: "2"}}, "spec": {"capacity": {"cpu": "8"}}}
    fresh = machine("a", ready=False)
    others = [cluster(), KUBECONFIG, template(**template_fields)]
    config, infra = machine_writes(
        reconcile_object(CONTROLLER, "cp", plane(status={"observedGeneration": 1}), fresh, *others)
    )
    assert [config.kind, infra.kind] == [IN_MEMORY_BOOTSTRAP, IN_MEMORY_MACHINE]
    for create in (config, infra):
        (owner,) = create.obj["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("Machine", "a", True)
        assert create.obj["metadata"]["name"] == "a"
        assert create.obj["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"] == "c"
    assert infra.obj["spec"] == {"capacity": {"cpu": "8"}}
    assert infra.obj["metadata"]["annotations"] == {
        names.START_DELAY: "2",
        CLONED: "t",
        "cluster.x-k8s.io/cloned-from-groupkind": "InMemoryMachineTemplate.inmemory.cluster.x-k8s.io",
    }


def test_machines_are_spread_over_control_plane_failure_domains() -> None:
    domains = [{"name": name, "controlPlane": name != "z0"} for name in ("z0", "z1", "z2")]
    control_plane = plane(replicas=3, status={"observedGeneration": 1})
    others = [cluster(domains=domains), KUBECONFIG, template()]
    (apply,) = machine_writes(reconcile(control_plane, machine("a", domain="z1"), others=others))
    assert apply.obj["spec"]["failureDomain"] == "z2"


def test_new_version_is_rolled_out_one_machine_at_a_time() -> None:
    control_plane = plane(version="v1.36.0")
    status_patch, *_, apply = machine_writes(reconcile(control_plane, machine("a")))
    assert isinstance(status_patch, Patch)
    assert condition_fields({"status": status_patch.patch["status"]}, "UpToDate") == (
        "False",
        "NotUpToDate",
        "* Version v1.35.0, v1.36.0 required",
    )
    assert apply.obj["spec"]["version"] == "v1.36.0"
    removed = machine_writes(reconcile(control_plane, machine("a"), machine("b", version="v1.36.0")))[-1]
    assert isinstance(removed, Delete)
    assert removed.ref.name == "a"


def test_another_template_is_rolled_out() -> None:
    old_machine = machine("a")
    decision = reconcile_object(
        CONTROLLER,
        "cp",
        plane(),
        old_machine,
        *machine_parts(old_machine, cloned_from="before"),
        cluster(),
        KUBECONFIG,
        template(),
    )
    updated = patched(old_machine, decision)
    assert condition_fields(updated, "UpToDate")[2] == "* InMemoryMachine is not up-to-date"


def test_rollout_after_outdates_machines_when_due() -> None:
    after = NOW + timedelta(hours=1)
    control_plane = plane(spec={"rollout": {"after": timestamp(after)}})
    decision = reconcile(control_plane, machine("a"))
    assert decision.wake_at == after
    later = reconcile(control_plane, machine("a"), now=after)
    assert (
        condition_fields(patched(machine("a"), later), "UpToDate")[2]
        == "* InMemoryControlPlane spec.rollout.after expired"
    )


def test_in_place_changes_are_propagated() -> None:
    control_plane = plane(template={"metadata": {"labels": {"team": "b"}, "annotations": {names.NODE_READY: "False"}}})
    apply, *part_patches = machine_writes(reconcile(control_plane, machine("a")))
    assert isinstance(apply, Apply)
    assert apply.obj["metadata"]["uid"] == "Machine-a"
    assert apply.obj["metadata"]["labels"]["team"] == "b"
    assert apply.obj["spec"]["version"] == "v1.35.0"
    for patch in part_patches:
        assert patch.patch["metadata"]["labels"] == {"team": "b"}
        assert patch.patch["metadata"]["annotations"] == {names.NODE_READY: "False"}
    assert [patch.ref.kind for patch in part_patches] == [IN_MEMORY_BOOTSTRAP, IN_MEMORY_MACHINE]


def test_up_to_date_machines_are_applied_only_for_a_new_generation() -> None:
    assert machine_writes(reconcile(plane(status={"observedGeneration": 1}), machine("a"))) == []
    (apply,) = machine_writes(reconcile(plane(), machine("a")))
    assert isinstance(apply, Apply)


@pytest.mark.parametrize(
    ("others", "blocker"),
    [
        ([cluster(), KUBECONFIG], "InMemoryMachineTemplate t does not exist"),
        ([cluster(deleting=True), KUBECONFIG, template()], "the Cluster is being deleted"),
    ],
)
def test_blocked_scale_up_is_reported(others: list[Object], blocker: str) -> None:
    decision = reconcile(plane(), others=others)
    assert machine_writes(decision) == []
    assert condition_fields(patched(plane(), decision), "ScalingUp") == (
        "True",
        "ScalingUp",
        f"Scaling up from 0 to 1 replicas is blocked because:\n* {blocker}",
    )


def test_other_infrastructure_templates_are_rejected() -> None:
    control_plane = plane()
    control_plane["spec"]["machineTemplate"]["spec"]["infrastructureRef"]["kind"] = "DockerMachineTemplate"
    decision = reconcile(control_plane)
    assert machine_writes(decision) == []
    assert (
        "infrastructureRef: DockerMachineTemplate is not"
        in condition_fields(patched(control_plane, decision), "ScalingUp")[2]
    )


def test_template_is_owned_by_the_cluster() -> None:
    owned = machine_writes(reconcile(plane(), others=[cluster(), KUBECONFIG, template(owned=False)]))[0]
    assert owned.ref.kind == IN_MEMORY_MACHINE_TEMPLATE
    assert owned.patch["metadata"]["ownerReferences"][0]["kind"] == "Cluster"


# --- status ----------------------------------------------------------------------------------------------------------


def reconciled(control_plane: Object, *machines: Object, **options: Any) -> Object:
    return patched(control_plane, reconcile(control_plane, *machines, **options))


def test_first_node_initializes_the_control_plane() -> None:
    before = reconciled(plane(), machine("a", ready=False))
    assert before["status"]["initialized"] is False
    assert condition_fields(before, "Available") == ("False", "NotAvailable", "Control plane not yet initialized")
    after = reconciled(plane(), machine("a"))
    assert after["status"]["initialization"] == {"controlPlaneInitialized": True}
    assert after["status"]["initialized"] is True
    assert after["status"]["ready"] is True
    assert condition_fields(after, "Available") == ("True", "Available", "")
    assert condition_fields(after, "Initialized")[0] == "True"
    assert legacy_condition_of(after, "Ready")["status"] == legacy_condition_of(after, "Available")["status"] == "True"


def test_initialization_is_not_reverted() -> None:
    status = {"initialization": {"controlPlaneInitialized": True}}
    unready = reconciled(plane(status=status), machine("a", ready=False))
    assert unready["status"]["initialization"] == {"controlPlaneInitialized": True}
    assert condition_fields(unready, "Available") == (
        "False",
        "NotAvailable",
        "No Machine of the control plane is ready",
    )


def test_counters_versions_and_selector() -> None:
    control_plane = plane(replicas=3, version="v1.36.0")
    status = reconciled(
        control_plane, machine("a"), machine("b", version="v1.36.0"), machine("d", ready=False, version="v1.36.0")
    )["status"]
    expected = {
        "replicas": 3,
        "readyReplicas": 2,
        "availableReplicas": 2,
        "upToDateReplicas": 2,
        "updatedReplicas": 2,
        "unavailableReplicas": 1,
        "version": "v1.35.0",
        "versions": [{"version": "v1.35.0", "replicas": 1}, {"version": "v1.36.0", "replicas": 2}],
        "selector": "cluster.x-k8s.io/cluster-name=c,cluster.x-k8s.io/control-plane",
        "observedGeneration": 1,
    }
    assert {name: status[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("control_plane", "machines", "type_", "expected"),
    [
        (plane(), [], "ScalingUp", ("True", "ScalingUp", "Scaling up from 0 to 1 replicas")),
        (plane(), [machine("a")], "ScalingUp", ("False", "NotScalingUp", "")),
        (
            plane(),
            [machine("a"), machine("b")],
            "ScalingDown",
            ("True", "ScalingDown", "Scaling down from 2 to 1 replicas"),
        ),
        (plane(), [machine("a")], "ScalingDown", ("False", "NotScalingDown", "")),
        (plane(), [machine("a")], "RollingOut", ("False", "NotRollingOut", "")),
        (
            plane(version="v1.36.0"),
            [machine("a")],
            "RollingOut",
            ("True", "RollingOut", "Rolling out 1 not up-to-date replicas\n* Version v1.35.0, v1.36.0 required"),
        ),
        (plane(), [], "MachinesReady", ("True", "NoReplicas", "")),
        (plane(), [machine("a")], "MachinesReady", ("True", "Ready", "")),
        (
            plane(),
            [machine("a", ready=False)],
            "MachinesReady",
            ("False", "NotReady", "* Machine a: it starts"),
        ),
        (plane(), [machine("a")], "MachinesUpToDate", ("True", "UpToDate", "")),
        (plane(), [machine("a")], "Remediating", ("False", "NotRemediating", "")),
        (plane(), [machine("a")], "Deleting", ("False", "NotDeleting", "")),
        (plane(), [machine("a")], "Paused", ("False", "NotPaused", "")),
    ],
)
def test_conditions(control_plane: Object, machines: list[Object], type_: str, expected: tuple[str, str, str]) -> None:
    assert condition_fields(reconciled(control_plane, *machines), type_) == expected


def test_progress_is_debounced_and_availability_is_not() -> None:
    def debounce(decision: Decision) -> float:
        return next(
            w for w in writes_of(decision) if isinstance(w, Patch) and w.ref.kind == IN_MEMORY_CONTROL_PLANE
        ).debounce

    assert debounce(reconcile(plane(), machine("a"))) == 0
    settled = reconciled(plane(), machine("a"))
    assert debounce(reconcile(settled, machine("a"), machine("b", ready=False))) > 0


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [(names.FAIL, "NoLicence", "NoLicence"), (names.NEVER_READY, "true", "NeverReady")],
)
def test_injected_faults_are_reported_in_conditions(annotation: str, value: str, reason: str) -> None:
    control_plane = plane(annotations={annotation: value})
    decision = reconcile(control_plane)
    assert machine_writes(decision) == []
    assert condition_fields(patched(control_plane, decision), "Available")[:2] == ("False", reason)


def test_invalid_annotation_is_reported_without_effect() -> None:
    control_plane = plane(
        annotations={names.NEVER_READY: "perhaps"}, status={"initialization": {"controlPlaneInitialized": True}}
    )
    status, reason, message = condition_fields(reconciled(control_plane, machine("a")), "Available")
    assert (status, reason) == ("True", "Available")
    assert names.NEVER_READY in message


# --- deletion --------------------------------------------------------------------------------------------------------


def test_machines_are_deleted_first() -> None:
    control_plane = plane(deleting=True)
    decision = reconcile(control_plane, machine("a"), machine("b"))
    assert [w.ref.name for w in machine_writes(decision)] == ["a", "b"]
    assert condition_fields(patched(control_plane, decision), "Deleting") == (
        "True",
        "WaitingForMachineDeletion",
        "Remaining Machines: a, b",
    )
    (released,) = writes_of(reconcile(control_plane))
    assert isinstance(released, Patch)
    assert released.patch == {"metadata": {"finalizers": []}}


def test_stuck_deletion_annotation_blocks_deletion() -> None:
    assert writes_of(reconcile(plane(deleting=True, annotations={names.STUCK_DELETION: "true"}))) == []


def test_unowned_control_plane_waits_for_its_owner_reference() -> None:
    assert writes_of(reconcile(plane(owner=None, finalizers=None))) == []


def test_finalizer_is_the_first_write() -> None:
    (added,) = writes_of(reconcile(plane(finalizers=None)))
    assert isinstance(added, Patch)
    assert added.patch == {"metadata": {"finalizers": [names.CONTROL_PLANE_FINALIZER]}}


def test_paused_object_only_reports_its_pause() -> None:
    control_plane = plane(annotations={PAUSED: ""})
    decision = reconcile(control_plane)
    assert machine_writes(decision) == []
    assert condition_fields(patched(control_plane, decision), "Paused")[0] == "True"
