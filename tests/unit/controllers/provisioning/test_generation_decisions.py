"""Which objects a provisioning Cluster generates, in which order, and which references it may use."""

from __future__ import annotations

import json

import pytest

from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, SECRET
from herder.api.machines.kinds import DYNAMIC_SCHEMA
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import PROVISIONING_CLUSTER_OF
from herder.api.references.approvals import APPROVED
from herder.api.rke.kinds import BOOTSTRAP_TEMPLATE, CONTROL_PLANE, RKE_CLUSTER
from herder.api.rke.sets import set_hash, with_set_labels
from herder.controllers.provisioning.cluster import machine_pools, objects, templates
from herder.controllers.provisioning.cluster.controller import CONTROLLER
from herder.controllers.provisioning.cluster.desired import pools_of
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Apply, Decision, Delete, Parallel, Patch, Write
from tests.support.views import view_of
from tests.unit.controllers.provisioning.provisioned import KINDS, NAME, SCHEMA, WORKSPACE, config, new, pool
from tests.unit.controllers.provisioning.test_generating import FILLED, FINALIZERS, asked

# --- decisions ------------------------------------------------------------------------------------------------------

DEFINITIONS = [new(DEFINITION, f"{kind.plural}.{kind.group}") for kind in (*KINDS.all, DYNAMIC_SCHEMA)]


def management(created_for: str = f"{WORKSPACE}/{NAME}") -> Object:
    found = new(MANAGEMENT_CLUSTER, "c-m-abcdefgh", annotations={PROVISIONING_CLUSTER_OF: created_for})
    return found | {"spec": {"fleetWorkspaceName": created_for.partition("/")[0]}}


def decide(*found: Object, of: Object | None = None) -> Decision:
    around = [*DEFINITIONS, SCHEMA, config("sheds", image="debian"), of or management()]
    view = view_of(CONTROLLER, f"{WORKSPACE}/{NAME}", [*found, *around], followed=(*KINDS.all, DYNAMIC_SCHEMA))
    return CONTROLLER.reconcile(view)


def writes(decision: Decision) -> list[Write]:
    steps = [step.writes if isinstance(step, Parallel) else (step,) for step in decision.writes]
    return [write for step in steps for write in step]


def applied(decision: Decision) -> list[Kind]:
    return [write.kind for write in writes(decision) if isinstance(write, Apply)]


def test_nothing_is_made_before_the_finalizer_is_there() -> None:
    (only_write,) = writes(decide(asked(pool("workers"), meta={"finalizers": []})))
    assert isinstance(only_write, Patch)
    assert only_write.patch == {"metadata": {"finalizers": FINALIZERS}}


def test_nothing_is_made_of_imported_and_nameless_clusters() -> None:
    assert not applied(decide({**asked(), "spec": {}}))
    assert not applied(decide({**asked(), "status": {}}))


def test_the_drivers_fields_are_filled_in_before_anything_is_made_from_them() -> None:
    decision = decide(asked(pool("workers")))
    assert applied(decision) == []
    patch = writes(decision)[0]
    assert isinstance(patch, Patch)
    filled = patch.patch["spec"]["rkeConfig"]["machinePools"][0]["dynamicSchemaSpec"]
    assert json.loads(filled) == SCHEMA["spec"]
    assert patch.resource_version, "others may write pools too"


def test_machines_come_after_what_they_are_made_from() -> None:
    decision = decide(asked(pool("workers", unhealthyNodeTimeout="1m", **FILLED)))
    order = applied(decision)
    for before, after in [
        (CONTROL_PLANE, CLUSTER),
        (RKE_CLUSTER, CLUSTER),
        (BOOTSTRAP_TEMPLATE, MACHINE_DEPLOYMENT),
        (KINDS.template, MACHINE_DEPLOYMENT),
        (MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK),
    ]:
        assert order.index(before) < order.index(after)


def test_without_a_version_nothing_is_made() -> None:
    decision = decide(asked(spec={"kubernetesVersion": None}))
    assert applied(decision) == []
    assert decision.wait is not None
    assert decision.wait.reason.startswith("spec.kubernetesVersion: required")


def test_a_problem_deletes_nothing() -> None:
    old = with_set_labels(new(MACHINE_DEPLOYMENT, "meadow-old", WORKSPACE), WORKSPACE, NAME)
    assert [write for write in writes(decide(asked(), old)) if isinstance(write, Delete)]
    broken = decide(asked(pool("workers", workerRole=False, **FILLED)), old)
    assert not [write for write in writes(broken) if isinstance(write, Delete)]


def test_what_was_made_for_another_cluster_is_not_taken_over() -> None:
    """Pool `b-c` of cluster `a` and pool `c` of cluster `a-b` have the same name."""
    theirs = with_set_labels(new(MACHINE_DEPLOYMENT, f"{NAME}-workers", WORKSPACE), WORKSPACE, f"{NAME}-x")
    decision = decide(asked(pool("workers", **FILLED)), theirs)
    assert not [write for write in writes(decision) if isinstance(write, Apply)]
    assert decision.wait is not None
    assert f"MachineDeployment {WORKSPACE}/{NAME}-workers belongs to cluster" in decision.wait.reason


def test_what_was_made_by_hand_is_not_taken_over() -> None:
    theirs = new(MACHINE_DEPLOYMENT, f"{NAME}-workers", WORKSPACE)
    decision = decide(asked(pool("workers", **FILLED)), theirs)
    assert not [write for write in writes(decision) if isinstance(write, Apply)]
    assert decision.wait is not None
    told = f"MachineDeployment {WORKSPACE}/{NAME}-workers was not created for this cluster"
    assert told in decision.wait.reason


def test_what_others_made_for_the_cluster_is_not_pruned() -> None:
    foreign = new(MACHINE_DEPLOYMENT, "by-hand", WORKSPACE, labels={"cluster.x-k8s.io/cluster-name": NAME})
    assert not [write for write in writes(decide(asked(), foreign)) if isinstance(write, Delete)]


@pytest.mark.parametrize("deleted", [False, True])
def test_a_cluster_prunes_nothing_in_another_namespace(deleted: bool) -> None:
    """The hash has no separator between name and namespace: `shoppre` in `prod` has that of `shop` in `preprod`."""
    name, namespace = f"{NAME}{WORKSPACE[:3]}", WORKSPACE[3:]
    kinds = (MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, RKE_CLUSTER, *((CONTROL_PLANE,) if deleted else ()))
    theirs = [with_set_labels(new(kind, NAME, WORKSPACE), WORKSPACE, NAME) for kind in kinds]
    assert set_hash(WORKSPACE, NAME) == set_hash(namespace, name)
    meta = {"name": name, "namespace": namespace}
    own = asked(meta=meta | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}))
    decision = CONTROLLER.reconcile(view_of(CONTROLLER, f"{namespace}/{name}", [own, *theirs, *DEFINITIONS]))
    assert not [write for write in writes(decision) if isinstance(write, Delete)]


OTHERS = {
    "another control plane's": new(CLUSTER, NAME, WORKSPACE)
    | {"spec": {"controlPlaneRef": {"apiGroup": "x", "kind": "KubeadmControlPlane", "name": NAME}}},
    "without a control plane": new(CLUSTER, NAME, WORKSPACE) | {"spec": {}},
    "with one of the same kind": new(CLUSTER, NAME, WORKSPACE)
    | {"spec": {"controlPlaneRef": {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane", "name": "by-hand"}}},
    "made from another": with_set_labels(new(CLUSTER, NAME, WORKSPACE), WORKSPACE, "other"),
    "somebody's": new(
        CLUSTER,
        NAME,
        WORKSPACE,
        ownerReferences=[{"apiVersion": "a/v1", "kind": "K", "name": "n", "uid": "u", "controller": True}],
    ),
}


def test_what_an_earlier_cluster_of_the_same_name_left_behind_is_not_taken_over() -> None:
    """Its machines are another user's: they would get the plans of this cluster, with its tokens and Secrets."""
    decision = decide(asked(), with_set_labels(new(CLUSTER, NAME, WORKSPACE), WORKSPACE, NAME))
    assert applied(decision) == []
    assert decision.wait is not None
    assert "another Cluster fleet-default/meadow" in decision.wait.reason


@pytest.mark.parametrize("case", OTHERS)
def test_a_cluster_of_that_name_that_is_anothers_is_not_taken_over(case: str) -> None:
    decision = decide(asked(), OTHERS[case])
    assert applied(decision) == []
    assert decision.wait is not None
    assert "another Cluster fleet-default/meadow" in decision.wait.reason


# --- references -----------------------------------------------------------------------------------------------------


def credential(uid: str = "cc-uid", name: str = "cc") -> Object:
    return new(SECRET, name, WORKSPACE, uid=uid)


def with_record(given: Object, *entries: Object) -> Object:
    base = {"resource": "secrets", "namespace": WORKSPACE, "author": "somebody"}
    text = json.dumps([base | each for each in entries])
    return {**given, "metadata": {**given["metadata"], "annotations": {APPROVED: text}}}


CREDENTIAL_OF_POOL = {"path": "spec.rkeConfig.machinePools[workers].cloudCredentialSecretName", "name": "cc"}
CONFIG_OF_POOL = {
    "path": "spec.rkeConfig.machinePools[workers].machineConfigRef",
    "group": "rke-machine-config.cattle.io",
    "resource": KINDS.config.plural,
    "name": "sheds",
}
REGISTRY = {"path": "spec.rkeConfig.registries.configs[a].authConfigSecretName", "name": "auth", "uid": "1"}


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([CREDENTIAL_OF_POOL | {"uid": "cc-uid"}, CONFIG_OF_POOL], ""),
        ([CREDENTIAL_OF_POOL | {"uid": "of-another"}, CONFIG_OF_POOL], "cc was recreated"),
        ([CONFIG_OF_POOL], "cc is not approved"),
        ([CREDENTIAL_OF_POOL | {"uid": "cc-uid"}], "sheds is not approved"),
        ([CREDENTIAL_OF_POOL | {"uid": "cc-uid"}, CONFIG_OF_POOL | {"uid": "other"}], "sheds was recreated"),
    ],
)
def test_nothing_is_generated_from_references_that_are_not_approved(entries: list[Object], expected: str) -> None:
    given = with_record(asked(pool("workers", cloudCredentialSecretName="cc", **FILLED)), *entries)
    decision = decide(given, credential())
    assert bool(applied(decision)) is not bool(expected)
    if expected:
        assert expected in str([write.patch for write in writes(decision) if isinstance(write, Patch)])


def test_what_is_generated_is_bound_to_the_same_objects() -> None:
    registries = {"configs": {"a": {"authConfigSecretName": "auth"}}}
    given = asked(pool("workers", cloudCredentialSecretName="cc", **FILLED), registries=registries)
    given = with_record(given, CREDENTIAL_OF_POOL | {"uid": "cc-uid"}, CONFIG_OF_POOL, REGISTRY)

    def handed(obj: Object) -> list[tuple[str, str]]:
        return [(each["path"], each["uid"]) for each in json.loads(obj["metadata"]["annotations"][APPROVED])]

    assert handed(objects.control_plane(given)) == [("spec.registries.configs[a].authConfigSecretName", "1")]
    template = templates.machine_template(pools_of(given)[0], config("sheds"))
    assert handed(template) == [("spec.template.spec.common.cloudCredentialSecretName", "cc-uid")]


TEMPLATE_OF_POOL = {
    "path": "spec.rkeConfig.machinePools[workers].machineConfigRef",
    "group": KINDS.template.group,
    "resource": KINDS.template.plural,
    "name": "sheds",
    "uid": "1",
}


def test_a_pool_is_bound_to_the_template_that_was_approved() -> None:
    """Core controllers compare the UID of a template with that in the record of the MachineDeployment."""
    reference = {"apiVersion": KINDS.template.api_version, "kind": KINDS.template.kind, "name": "sheds"}
    marks = {"other": "kept", APPROVED: "[]"}
    given = asked({**pool("workers"), "machineConfigRef": reference, "machineDeploymentAnnotations": marks})
    (found,) = pools_of(with_record(given, TEMPLATE_OF_POOL, CREDENTIAL_OF_POOL))
    annotations = machine_pools.machine_deployment(found, None)["metadata"]["annotations"]
    record = {each["path"]: each.get("uid", "") for each in json.loads(annotations[APPROVED])}
    assert record == {"spec.template.spec.infrastructureRef": "1", "spec.template.spec.bootstrap.configRef": ""}
    assert annotations["other"] == "kept"


def test_a_pool_brings_no_record_of_its_own() -> None:
    given = asked(pool("workers", machineDeploymentAnnotations={APPROVED: "[]"}, **FILLED))
    (found,) = pools_of(given)
    template = templates.machine_template(found, config("sheds"))
    assert APPROVED not in machine_pools.machine_deployment(found, template)["metadata"].get("annotations", {})


def test_a_reference_is_bound_to_a_secret_that_comes_after_it() -> None:
    given = with_record(asked(pool("workers", cloudCredentialSecretName="cc", **FILLED)), CREDENTIAL_OF_POOL)
    (write,) = decide(given, credential()).writes
    assert isinstance(write, Patch)
    assert json.loads(write.patch["metadata"]["annotations"][APPROVED])[0]["uid"] == "cc-uid"
    assert write.resource_version


@pytest.mark.parametrize(("made_for", "is_own"), [(f"{WORKSPACE}/{NAME}", True), ("fleet-default/victim", False)])
def test_nothing_is_made_for_a_management_cluster_of_another_cluster(made_for: str, is_own: bool) -> None:
    """Machines would get its registration token, whoever wrote the status that names it."""
    decision = decide(asked(pool("workers") | FILLED), of=management(made_for))
    assert (CONTROL_PLANE in applied(decision)) is is_own
