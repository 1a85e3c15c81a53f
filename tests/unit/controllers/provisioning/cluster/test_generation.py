"""Which objects a provisioning Cluster generates, in which order, and which references it may use."""

from __future__ import annotations

import json

import pytest

from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, SECRET
from herder.api.machines.kinds import DYNAMIC_SCHEMA
from herder.api.references.approvals import APPROVED
from herder.api.rke.kinds import BOOTSTRAP_TEMPLATE, CONTROL_PLANE, RKE_CLUSTER
from herder.api.rke.sets import set_hash, with_set_labels
from herder.controllers.provisioning.cluster import machine_pools, objects, templates
from herder.controllers.provisioning.cluster.controller import CONTROLLER
from herder.controllers.provisioning.cluster.desired import pools_of
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Apply, Decision, Delete, Patch
from tests.support.builders import (
    DELETED_AT,
    condition_fields,
    new_object,
    patched,
    patches_of,
    reconcile,
    writes_of,
)
from tests.unit.controllers.provisioning.objects import (
    FINALIZERS,
    KINDS,
    NAME,
    SCHEMA,
    WITH_SCHEMA,
    WORKSPACE,
    config,
    new_management_cluster,
    pool,
    stored_cluster,
)

# --- decisions ------------------------------------------------------------------------------------------------------

DEFINITIONS = [new_object(DEFINITION, f"{kind.plural}.{kind.group}") for kind in (*KINDS.all, DYNAMIC_SCHEMA)]


def decide(*found: Object, management_cluster: Object | None = None) -> Decision:
    management = management_cluster or new_management_cluster("c-m-abcdefgh", created_for=f"{WORKSPACE}/{NAME}")
    cluster_objects = [*DEFINITIONS, SCHEMA, config("sheds", image="debian"), management]
    kinds = (*KINDS.all, DYNAMIC_SCHEMA)
    return reconcile(CONTROLLER, f"{WORKSPACE}/{NAME}", *found, *cluster_objects, dynamic_kinds=kinds)


def applied(decision: Decision) -> list[Kind]:
    return [write.kind for write in writes_of(decision) if isinstance(write, Apply)]


def test_nothing_is_generated_before_the_finalizer_is_set() -> None:
    (only_write,) = writes_of(decide(stored_cluster(pool("workers"), meta={"finalizers": []})))
    assert isinstance(only_write, Patch)
    assert only_write.patch == {"metadata": {"finalizers": FINALIZERS}}


def test_nothing_is_generated_for_imported_or_unnamed_clusters() -> None:
    assert not applied(decide({**stored_cluster(), "spec": {}}))
    assert not applied(decide({**stored_cluster(), "status": {}}))


def test_the_schema_of_the_driver_is_recorded_before_anything_is_generated() -> None:
    decision = decide(stored_cluster(pool("workers")))
    assert applied(decision) == []
    patch = writes_of(decision)[0]
    assert isinstance(patch, Patch)
    filled = patch.patch["spec"]["rkeConfig"]["machinePools"][0]["dynamicSchemaSpec"]
    assert json.loads(filled) == SCHEMA["spec"]
    assert patch.resource_version, "others may write pools too"


def test_machine_deployments_are_applied_after_the_objects_they_reference() -> None:
    decision = decide(stored_cluster(pool("workers", unhealthyNodeTimeout="1m", **WITH_SCHEMA)))
    order = applied(decision)
    for before, after in [
        (CONTROL_PLANE, CLUSTER),
        (RKE_CLUSTER, CLUSTER),
        (BOOTSTRAP_TEMPLATE, MACHINE_DEPLOYMENT),
        (KINDS.template, MACHINE_DEPLOYMENT),
        (MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK),
    ]:
        assert order.index(before) < order.index(after)


@pytest.mark.parametrize(
    ("fields", "replicas"),
    [({}, 1), ({"autoscalingMinSize": 2, "autoscalingMaxSize": 4}, 2), ({"quantity": 0}, None)],
    ids=["default", "autoscaled", "fixed"],
)
def test_replicas_that_nobody_has_set_are_set_once(fields: Object, replicas: int | None) -> None:
    cluster = stored_cluster(pool("workers", **fields, **WITH_SCHEMA))
    generated = [write for write in writes_of(decide(cluster)) if isinstance(write, Apply)]
    [stored] = [write.obj for write in generated if write.kind == MACHINE_DEPLOYMENT]

    def patches(deployment: Object) -> list[Object]:
        writes = writes_of(decide(cluster, deployment))
        return [each.patch for each in writes if isinstance(each, Patch) and each.ref.kind == MACHINE_DEPLOYMENT]

    assert patches(stored) == ([] if replicas is None else [{"spec": {"replicas": replicas}}])
    assert patches({**stored, "spec": {**stored["spec"], "replicas": 3}}) == []


def test_nothing_is_generated_without_a_version() -> None:
    decision = decide(stored_cluster(spec={"kubernetesVersion": None}))
    assert applied(decision) == []
    assert decision.wait is not None
    assert decision.wait.reason.startswith("spec.kubernetesVersion: required")


def test_stored_values_without_effect_are_reported_until_they_are_removed() -> None:
    version = {"kubernetesVersion": "v1.34.1+kubeadm1"}
    stored = stored_cluster(spec=version, dataDirectories={"provisioning": "/data", "k8sDistro": ""})
    reported = patched(stored, decide(stored))
    status, reason, message = condition_fields(reported, "FieldsIgnored")
    assert (status, reason) == ("True", "NotSupported")
    field = "spec.rkeConfig.dataDirectories.provisioning"
    assert message == f"{field}: not supported on kubeadm: this distribution has no such directory; remove the field"
    removed = {**stored_cluster(spec=version), "status": reported["status"]}
    conditions = patched(removed, decide(removed))["status"]["conditions"]
    assert "FieldsIgnored" not in [each["type"] for each in conditions]


def test_the_report_of_ignored_fields_is_bounded() -> None:
    mirrors = {f"host-{number}": {"rewrite": {"a": "b"}} for number in range(1000)}
    stored = stored_cluster(spec={"kubernetesVersion": "v1.34.1+kubeadm1"}, registries={"mirrors": mirrors})
    _, _, message = condition_fields(patched(stored, decide(stored)), "FieldsIgnored")
    assert message.splitlines()[10:] == ["and 990 more"]


def test_an_error_deletes_nothing() -> None:
    old = with_set_labels(new_object(MACHINE_DEPLOYMENT, "meadow-old", WORKSPACE), WORKSPACE, NAME)
    assert [write for write in writes_of(decide(stored_cluster(), old)) if isinstance(write, Delete)]
    broken = decide(stored_cluster(pool("workers", workerRole=False, **WITH_SCHEMA)), old)
    assert not [write for write in writes_of(broken) if isinstance(write, Delete)]


def test_objects_of_another_cluster_are_not_adopted() -> None:
    """Pool `b-c` of cluster `a` and pool `c` of cluster `a-b` have the same name."""
    foreign = with_set_labels(new_object(MACHINE_DEPLOYMENT, f"{NAME}-workers", WORKSPACE), WORKSPACE, f"{NAME}-x")
    decision = decide(stored_cluster(pool("workers", **WITH_SCHEMA)), foreign)
    assert not [write for write in writes_of(decision) if isinstance(write, Apply)]
    assert decision.wait is not None
    assert f"MachineDeployment {WORKSPACE}/{NAME}-workers belongs to cluster" in decision.wait.reason


def test_objects_that_users_created_are_not_adopted() -> None:
    foreign = new_object(MACHINE_DEPLOYMENT, f"{NAME}-workers", WORKSPACE)
    decision = decide(stored_cluster(pool("workers", **WITH_SCHEMA)), foreign)
    assert not [write for write in writes_of(decision) if isinstance(write, Apply)]
    assert decision.wait is not None
    expected = f"MachineDeployment {WORKSPACE}/{NAME}-workers was not created for this cluster"
    assert expected in decision.wait.reason


def test_objects_that_others_created_for_the_cluster_are_not_pruned() -> None:
    foreign = new_object(MACHINE_DEPLOYMENT, "by-hand", WORKSPACE, labels={"cluster.x-k8s.io/cluster-name": NAME})
    assert not [write for write in writes_of(decide(stored_cluster(), foreign)) if isinstance(write, Delete)]


@pytest.mark.parametrize("deleted", [False, True])
def test_a_cluster_prunes_nothing_in_another_namespace(deleted: bool) -> None:
    """The hash has no separator between name and namespace: `shoppre` in `prod` has the same hash as `shop` in
    `preprod`."""
    name, namespace = f"{NAME}{WORKSPACE[:3]}", WORKSPACE[3:]
    kinds = (MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, RKE_CLUSTER, *((CONTROL_PLANE,) if deleted else ()))
    foreign = [with_set_labels(new_object(kind, NAME, WORKSPACE), WORKSPACE, NAME) for kind in kinds]
    assert set_hash(WORKSPACE, NAME) == set_hash(namespace, name)
    meta = {"name": name, "namespace": namespace}
    own = stored_cluster(meta=meta | ({"deletionTimestamp": DELETED_AT} if deleted else {}))
    decision = reconcile(CONTROLLER, f"{namespace}/{name}", own, *foreign, *DEFINITIONS)
    assert not [write for write in writes_of(decision) if isinstance(write, Delete)]


FOREIGN_CLUSTERS = {
    "with another control plane": new_object(
        CLUSTER,
        NAME,
        WORKSPACE,
        spec={"controlPlaneRef": {"apiGroup": "x", "kind": "KubeadmControlPlane", "name": NAME}},
    ),
    "without a control plane": new_object(CLUSTER, NAME, WORKSPACE, spec={}),
    "with a control plane of the same kind": new_object(
        CLUSTER,
        NAME,
        WORKSPACE,
        spec={"controlPlaneRef": {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane", "name": "by-hand"}},
    ),
    "generated for another cluster": with_set_labels(new_object(CLUSTER, NAME, WORKSPACE), WORKSPACE, "other"),
    "with another owner": new_object(
        CLUSTER,
        NAME,
        WORKSPACE,
        owners=[{"apiVersion": "a/v1", "kind": "K", "name": "n", "uid": "u", "controller": True}],
    ),
}


def test_objects_of_an_earlier_cluster_of_the_same_name_are_not_adopted() -> None:
    """Machines of another user would get the plans of this cluster, with its tokens and Secrets."""
    decision = decide(stored_cluster(), with_set_labels(new_object(CLUSTER, NAME, WORKSPACE), WORKSPACE, NAME))
    assert applied(decision) == []
    assert decision.wait is not None
    assert "another Cluster fleet-default/meadow" in decision.wait.reason


@pytest.mark.parametrize("case", FOREIGN_CLUSTERS)
def test_a_capi_cluster_of_another_owner_is_not_adopted(case: str) -> None:
    decision = decide(stored_cluster(), FOREIGN_CLUSTERS[case])
    assert applied(decision) == []
    assert decision.wait is not None
    assert "another Cluster fleet-default/meadow" in decision.wait.reason


# --- references -----------------------------------------------------------------------------------------------------


def credential(uid: str = "cc-uid", name: str = "cc") -> Object:
    return new_object(SECRET, name, WORKSPACE, metadata={"uid": uid})


def with_approvals(provisioning_cluster: Object, *entries: Object) -> Object:
    base = {"resource": "secrets", "namespace": WORKSPACE, "author": "somebody"}
    text = json.dumps([base | each for each in entries])
    return {**provisioning_cluster, "metadata": {**provisioning_cluster["metadata"], "annotations": {APPROVED: text}}}


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
    provisioning_cluster = with_approvals(
        stored_cluster(pool("workers", cloudCredentialSecretName="cc", **WITH_SCHEMA)), *entries
    )
    decision = decide(provisioning_cluster, credential())
    assert bool(applied(decision)) is not bool(expected)
    if expected:
        assert expected in str([patch.patch for patch in patches_of(decision)])


def test_generated_objects_are_bound_to_the_approved_objects() -> None:
    registries = {"configs": {"a": {"authConfigSecretName": "auth"}}}
    provisioning_cluster = stored_cluster(
        pool("workers", cloudCredentialSecretName="cc", **WITH_SCHEMA), registries=registries
    )
    provisioning_cluster = with_approvals(
        provisioning_cluster, CREDENTIAL_OF_POOL | {"uid": "cc-uid"}, CONFIG_OF_POOL, REGISTRY
    )

    def record_of(obj: Object) -> list[tuple[str, str]]:
        return [(each["path"], each["uid"]) for each in json.loads(obj["metadata"]["annotations"][APPROVED])]

    assert record_of(objects.control_plane(provisioning_cluster)) == [
        ("spec.registries.configs[a].authConfigSecretName", "1")
    ]
    template = templates.machine_template(pools_of(provisioning_cluster)[0], config("sheds"))
    assert record_of(template) == [("spec.template.spec.common.cloudCredentialSecretName", "cc-uid")]


TEMPLATE_OF_POOL = {
    "path": "spec.rkeConfig.machinePools[workers].machineConfigRef",
    "group": KINDS.template.group,
    "resource": KINDS.template.plural,
    "name": "sheds",
    "uid": "1",
}


def test_a_pool_is_bound_to_the_approved_template() -> None:
    """Core controllers compare the UID of the template with the record of the MachineDeployment."""
    reference = {"apiVersion": KINDS.template.api_version, "kind": KINDS.template.kind, "name": "sheds"}
    pool_annotations = {"other": "kept", APPROVED: "[]"}
    provisioning_cluster = stored_cluster(
        {**pool("workers"), "machineConfigRef": reference, "machineDeploymentAnnotations": pool_annotations}
    )
    (parsed_pool,) = pools_of(with_approvals(provisioning_cluster, TEMPLATE_OF_POOL, CREDENTIAL_OF_POOL))
    annotations = machine_pools.machine_deployment(parsed_pool, None)["metadata"]["annotations"]
    record = {each["path"]: each.get("uid", "") for each in json.loads(annotations[APPROVED])}
    assert record == {"spec.template.spec.infrastructureRef": "1", "spec.template.spec.bootstrap.configRef": ""}
    assert annotations["other"] == "kept"


def test_a_pool_cannot_bring_its_own_approval_record() -> None:
    provisioning_cluster = stored_cluster(pool("workers", machineDeploymentAnnotations={APPROVED: "[]"}, **WITH_SCHEMA))
    (parsed_pool,) = pools_of(provisioning_cluster)
    template = templates.machine_template(parsed_pool, config("sheds"))
    assert APPROVED not in machine_pools.machine_deployment(parsed_pool, template)["metadata"].get("annotations", {})


def test_a_reference_is_bound_to_a_secret_that_is_created_later() -> None:
    provisioning_cluster = with_approvals(
        stored_cluster(pool("workers", cloudCredentialSecretName="cc", **WITH_SCHEMA)), CREDENTIAL_OF_POOL
    )
    (write,) = decide(provisioning_cluster, credential()).writes
    assert isinstance(write, Patch)
    assert json.loads(write.patch["metadata"]["annotations"][APPROVED])[0]["uid"] == "cc-uid"
    assert write.resource_version


@pytest.mark.parametrize(("created_for", "is_own"), [(f"{WORKSPACE}/{NAME}", True), ("fleet-default/victim", False)])
def test_nothing_is_generated_for_the_management_cluster_of_another_cluster(created_for: str, is_own: bool) -> None:
    """Otherwise machines would get the registration token of a cluster that anyone can name in a status."""
    management = new_management_cluster("c-m-abcdefgh", created_for=created_for)
    decision = decide(stored_cluster(pool("workers") | WITH_SCHEMA), management_cluster=management)
    assert (CONTROL_PLANE in applied(decision)) is is_own
