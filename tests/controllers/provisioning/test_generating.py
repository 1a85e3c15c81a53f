"""What a provisioning Cluster becomes, object by object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, SECRET
from herder.api.machines.kinds import DYNAMIC_SCHEMA
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import PROVISIONING_CLUSTER_OF
from herder.api.references.approvals import APPROVED
from herder.api.rke.cluster_spec import unpacked
from herder.api.rke.kinds import BOOTSTRAP_TEMPLATE, CONTROL_PLANE, RKE_CLUSTER
from herder.api.rke.names import CLUSTER_SPEC
from herder.api.rke.sets import marked
from herder.controllers.provisioning.generation import pools, templates, whole
from herder.controllers.provisioning.generation.asked import Problem, checked_pools, pools_of
from herder.controllers.provisioning.generation.controller import CONTROLLER
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Apply, Decision, Delete, Parallel, Patch, Write
from tests.controllers.provisioning.provisioned import KINDS, NAME, SCHEMA, WORKSPACE, cluster, config, new, pool
from tests.support.views import view_of

FILLED = {"dynamicSchemaSpec": json.dumps(SCHEMA["spec"])}
EXTERNAL = {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CloudCluster", "name": "cloud"}


def asked(*given: Object, spec: Object | None = None, meta: Object | None = None, **rke_config: Any) -> Object:
    """As the controllers see it: named, and held until it is removed."""
    made = cluster(*given, spec=spec, **rke_config)
    held = {"finalizers": ["wrangler.cattle.io/rke-cluster-remove"], "uid": "cluster-uid", **(meta or {})}
    return {**made, "metadata": {**made["metadata"], **held}, "status": {"clusterName": "c-m-abcdefgh"}}


def only(given: Object, **rke_config: Any) -> Any:
    return pools_of(asked(given, **rke_config))[0]


def deployment(given: Object, **rke_config: Any) -> Object:
    return pools.machine_deployment(only(given | FILLED, **rke_config), new(KINDS.template, "meadow-workers-abcd"))


# --- the cluster ----------------------------------------------------------------------------------------------------


def test_the_control_plane_has_the_configuration_and_not_the_pools() -> None:
    given = asked(
        pool("workers"),
        machineGlobalConfig={"a": "b"},
        etcd=None,
        rotateCertificates={"generation": 1},
        spec={"agentEnvVars": [{"name": "A", "value": "b"}]},
        meta={"labels": {"rke.cattle.io/init-node-machine-id": "7"}},
    )
    plane = whole.control_plane(given)
    assert plane["spec"] == {
        "machineGlobalConfig": {"a": "b"},
        "rotateCertificates": {"generation": 1},
        "agentEnvVars": [{"name": "A", "value": "b"}],
        "kubernetesVersion": "v1.34.1+k3s1",
        "clusterName": NAME,
        "managementClusterName": "c-m-abcdefgh",
    }
    assert plane["metadata"]["labels"] == {"rke.cattle.io/init-node-machine-id": "7"}
    kept = unpacked(plane["metadata"]["annotations"][CLUSTER_SPEC])["rkeConfig"]
    assert (kept["machinePools"][0]["name"], "rotateCertificates" in kept) == ("workers", False)


def test_a_spec_that_cannot_be_kept_is_a_problem() -> None:
    noise = "".join(chr(33 + number * number % 89) + str(number) for number in range(300_000))
    with pytest.raises(Problem, match="spec: too large"):
        whole.control_plane(asked(additionalManifest=noise))


@pytest.mark.parametrize(
    ("rke_config", "reference"),
    [
        ({}, {"apiGroup": "rke.cattle.io", "kind": "RKECluster", "name": NAME}),
        (
            {"infrastructureRef": EXTERNAL},
            {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "CloudCluster", "name": "cloud"},
        ),
    ],
)
def test_infrastructure_is_its_own_or_another_providers(rke_config: Object, reference: Object) -> None:
    assert whole.core_cluster(asked(**rke_config), None)["spec"]["infrastructureRef"] == reference


def test_half_a_reference_is_a_problem() -> None:
    with pytest.raises(Problem, match=r"spec\.rkeConfig\.infrastructureRef: apiVersion, kind and name are required"):
        whole.infrastructure_reference(asked(infrastructureRef={"kind": "CloudCluster"}))


def test_the_control_planes_endpoint_is_the_clusters() -> None:
    plane = {"spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}}
    assert whole.core_cluster(asked(), plane)["spec"]["controlPlaneEndpoint"] == {"host": "10.0.0.1", "port": 6443}
    assert "controlPlaneEndpoint" not in whole.core_cluster(asked(), {"spec": {}})["spec"]


SCALED = pool("workers", autoscalingMinSize=1, autoscalingMaxSize=3)
PAUSED = {"annotations": {"provisioning.cattle.io/cluster-autoscaler-paused": "true"}}


@pytest.mark.parametrize(
    ("given", "annotations"),
    [
        (asked(pool("workers")), None),
        (asked(SCALED), {"provisioning.cattle.io/cluster-autoscaler-enabled": "true"}),
        (asked(SCALED, meta=PAUSED), {"provisioning.cattle.io/cluster-autoscaler-paused": "true"}),
    ],
)
def test_an_autoscaler_is_told_by_the_clusters_annotations(given: Object, annotations: Object | None) -> None:
    assert whole.core_cluster(given, None)["metadata"].get("annotations") == annotations


# --- pools ----------------------------------------------------------------------------------------------------------


def test_a_pool_in_all_its_fields() -> None:
    given = pool(
        "servers",
        "etcd",
        "controlPlane",
        quantity=3,
        paused=True,
        drainBeforeDelete=True,
        drainBeforeDeleteTimeout="2m",
        labels={"b": "<2>", "a": "1"},
        taints=[{"key": "k", "effect": "NoSchedule", "value": "v"}],
        machineDeploymentLabels={"c": "3"},
        machineDeploymentAnnotations={"d": "4"},
        rollingUpdate={"maxSurge": 1, "maxUnavailable": None},
        hostnameLengthLimit=15,
    )
    made = deployment(given, machinePoolDefaults={"hostnameLengthLimit": 20})
    assert made["metadata"] == {
        "name": "meadow-servers",
        "namespace": WORKSPACE,
        "labels": {"a": "1", "b": "<2>", "c": "3", "cattle.io/os": "linux"},
        "annotations": {"d": "4"},
    }
    assert made["spec"] == {
        "clusterName": NAME,
        "replicas": 3,
        "paused": True,
        "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}},
        "deletion": {"order": "Oldest"},
        "template": {
            "metadata": {
                "labels": {
                    "a": "1",
                    "b": "<2>",
                    "cluster.x-k8s.io/cluster-name": NAME,
                    "rke.cattle.io/cluster-name": NAME,
                    "cluster.x-k8s.io/deployment-name": "meadow-servers",
                    "rke.cattle.io/rke-machine-pool-name": "servers",
                    "cattle.io/os": "linux",
                    "rke.cattle.io/etcd-role": "true",
                    "rke.cattle.io/control-plane-role": "true",
                    "cluster.x-k8s.io/control-plane": "true",
                },
                "annotations": {
                    "rke.cattle.io/hostname-length-limit": "15",
                    "rke.cattle.io/labels": r'{"a":"1","b":"\u003c2\u003e"}',
                    "rke.cattle.io/taints": '[{"key":"k","value":"v","effect":"NoSchedule"}]',
                },
            },
            "spec": {
                "clusterName": NAME,
                "bootstrap": {
                    "configRef": {
                        "apiGroup": "rke.cattle.io",
                        "kind": "RKEBootstrapTemplate",
                        "name": "meadow-bootstrap-template",
                    }
                },
                "infrastructureRef": {
                    "apiGroup": "rke-machine.cattle.io",
                    "kind": "ShedMachineTemplate",
                    "name": "meadow-workers-abcd",
                },
                "deletion": {"nodeDeletionTimeoutSeconds": 900, "nodeDrainTimeoutSeconds": 120},
            },
        },
    }


def test_a_pool_that_says_little() -> None:
    made = deployment(pool("workers"))
    assert "replicas" not in made["spec"], "Cluster API's default is one"
    assert made["spec"]["template"]["metadata"]["annotations"] == {
        "machine.cluster.x-k8s.io/exclude-node-draining": "true"
    }


def test_the_clusters_limit_of_host_names_is_that_of_pools_without_one() -> None:
    made = deployment(pool("workers"), machinePoolDefaults={"hostnameLengthLimit": 20})
    annotations = made["spec"]["template"]["metadata"]["annotations"]
    assert annotations["rke.cattle.io/hostname-length-limit"] == "20"


def test_how_many_machines_an_autoscaled_pool_has_is_the_autoscalers_to_say() -> None:
    made = deployment({**SCALED, "quantity": 2, "autoscalingMinSize": 1.0})  # as whole as 1, for any API server
    assert "replicas" not in made["spec"]
    assert made["metadata"]["annotations"] == {
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "1",
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "3",
    }


def test_users_labels_do_not_give_machines_roles() -> None:
    labels = {"rke.cattle.io/cluster-name": "other", "cattle.io/os": "windows"}
    made = deployment(pool("workers", labels=labels))["spec"]["template"]["metadata"]["labels"]
    assert (made["rke.cattle.io/cluster-name"], made["cattle.io/os"]) == (NAME, "linux")


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({}, None),
        ({"unhealthyNodeTimeout": "0s"}, None),
        (
            {"unhealthyNodeTimeout": "5m", "nodeStartupTimeout": "10m", "maxUnhealthy": "3", "unhealthyRange": "[1-2]"},
            {
                "clusterName": NAME,
                "selector": {"matchLabels": {"cluster.x-k8s.io/deployment-name": "meadow-workers"}},
                "checks": {
                    "nodeStartupTimeoutSeconds": 600,
                    "unhealthyNodeConditions": [
                        {"type": "Ready", "status": "Unknown", "timeoutSeconds": 300},
                        {"type": "Ready", "status": "False", "timeoutSeconds": 300},
                    ],
                },
                "remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": 3, "unhealthyInRange": "[1-2]"}},
            },
        ),
    ],
)
def test_machines_are_checked_where_it_is_said_for_how_long_they_may_be_ill(
    fields: Object, spec: Object | None
) -> None:
    made = pools.health_check(only(pool("workers", **fields)))
    assert (made["spec"] if made else None) == spec


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([{**pool("a"), "machineConfigRef": None}], r'machinePools\[0\] "a".machineConfigRef: kind and name'),
        ([pool("a"), pool("b", workerRole=False)], r'machinePools\[1\] "b": at least one of etcdRole'),
        ([pool("a"), pool("a")], r'machinePools\[1\] "a": duplicate of .*machinePools\[0\] "a"'),
        ([{**pool("a"), "machineConfigRef": {"kind": "Shed", "name": "s"}}], r'"Shed" is no kind of machine config'),
    ],
)
def test_bad_pools_are_told_by_their_place_and_name(given: list[Object], told: str) -> None:
    with pytest.raises(Problem, match=told):
        checked_pools(asked(*given))


# --- templates ------------------------------------------------------------------------------------------------------


def test_a_machine_template_has_the_configs_fields_that_the_pool_knows() -> None:
    sheds = config("sheds", image="debian", size="", roof="straw")
    given = only(pool("workers", labels={"a": "b"}, **FILLED), machineGlobalConfig={})
    made = templates.machine_template(given, sheds)
    assert made["spec"] == {
        "clusterName": NAME,
        "template": {"spec": {"image": "debian", "size": "", "common": {"labels": {"a": "b"}}}},
    }
    assert made["metadata"]["annotations"] == {
        "rke.cattle.io/cloned-from-group-version": "rke-machine-config.cattle.io/v1",
        "rke.cattle.io/cloned-from-kind": "ShedConfig",
        "rke.cattle.io/cloned-from-name": "sheds",
    }
    assert made["metadata"]["labels"]["objectset.rio.cattle.io/prune"] == "false"


@pytest.mark.parametrize(
    ("cluster_wide", "own", "used"),
    [("", "", None), ("cc-all", "", "cc-all"), ("cc-all", "cc-own", "cc-own"), ("", "cc-own", "cc-own")],
)
def test_a_pools_own_credential_comes_before_the_clusters(cluster_wide: str, own: str, used: str | None) -> None:
    given = asked(
        pool("workers", cloudCredentialSecretName=own, **FILLED), spec={"cloudCredentialSecretName": cluster_wide}
    )
    made = templates.machine_template(pools_of(given)[0], config("sheds"))
    common = {"cloudCredentialSecretName": used} if used else None
    assert made["spec"]["template"]["spec"].get("common") == common


def test_with_other_infrastructure_each_pool_has_its_own_start_and_names_the_providers_template() -> None:
    reference = {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CloudMachineTemplate", "name": "t"}
    given = only(
        {**pool("workers", userdata={"inlineUserdata": "#cloud-config"}), "machineConfigRef": reference},
        infrastructureRef=EXTERNAL,
    )
    start = templates.bootstrap_template(given)
    assert start["metadata"]["name"] == "meadow-workers-" + _digest("meadow-workers#cloud-config")
    assert start["spec"]["template"]["spec"]["userdata"] == {"inlineUserdata": "#cloud-config"}
    machine = pools.machine_deployment(given, None)["spec"]["template"]["spec"]
    assert machine["bootstrap"]["configRef"]["name"] == start["metadata"]["name"]
    assert machine["infrastructureRef"] == {
        "apiGroup": "infrastructure.cluster.x-k8s.io",
        "kind": "CloudMachineTemplate",
        "name": "t",
    }


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:8]


# --- decisions ------------------------------------------------------------------------------------------------------

DEFINITIONS = [new(DEFINITION, f"{kind.plural}.{kind.group}") for kind in (*KINDS.all, DYNAMIC_SCHEMA)]


def decide(*objects: Object) -> Decision:
    around = [*DEFINITIONS, SCHEMA, config("sheds", image="debian")]
    view = view_of(CONTROLLER, f"{WORKSPACE}/{NAME}", [*objects, *around], followed=(*KINDS.all, DYNAMIC_SCHEMA))
    return CONTROLLER.reconcile(view)


def writes(decision: Decision) -> list[Write]:
    steps = [step.writes if isinstance(step, Parallel) else (step,) for step in decision.writes]
    return [write for step in steps for write in step]


def applied(decision: Decision) -> list[Kind]:
    return [write.kind for write in writes(decision) if isinstance(write, Apply)]


def test_nothing_is_made_before_the_finalizer_is_there() -> None:
    (only_write,) = writes(decide(asked(pool("workers"), meta={"finalizers": []})))
    assert isinstance(only_write, Patch)
    assert only_write.patch == {"metadata": {"finalizers": ["wrangler.cattle.io/rke-cluster-remove"]}}


def test_nothing_is_made_of_imported_and_nameless_clusters() -> None:
    assert not writes(decide({**asked(), "spec": {}}))
    assert not writes(decide({**asked(), "status": {}}))


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
    old = marked(new(MACHINE_DEPLOYMENT, "meadow-old", WORKSPACE), WORKSPACE, NAME)
    assert [write for write in writes(decide(asked(), old)) if isinstance(write, Delete)]
    broken = decide(asked(pool("workers", workerRole=False, **FILLED)), old)
    assert not [write for write in writes(broken) if isinstance(write, Delete)]


def test_what_was_made_for_another_cluster_is_not_taken_over() -> None:
    """Pool `b-c` of cluster `a` and pool `c` of cluster `a-b` have the same name."""
    theirs = marked(new(MACHINE_DEPLOYMENT, f"{NAME}-workers", WORKSPACE), WORKSPACE, f"{NAME}-x")
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


OTHERS = {
    "another control plane's": new(CLUSTER, NAME, WORKSPACE)
    | {"spec": {"controlPlaneRef": {"apiGroup": "x", "kind": "KubeadmControlPlane", "name": NAME}}},
    "without a control plane": new(CLUSTER, NAME, WORKSPACE) | {"spec": {}},
    "with one of the same kind": new(CLUSTER, NAME, WORKSPACE)
    | {"spec": {"controlPlaneRef": {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane", "name": "by-hand"}}},
    "made from another": marked(new(CLUSTER, NAME, WORKSPACE), WORKSPACE, "other"),
    "somebody's": new(
        CLUSTER,
        NAME,
        WORKSPACE,
        ownerReferences=[{"apiVersion": "a/v1", "kind": "K", "name": "n", "uid": "u", "controller": True}],
    ),
}


def test_what_an_earlier_cluster_of_the_same_name_left_behind_is_not_taken_over() -> None:
    """Its machines are another user's: they would get the plans of this cluster, with its tokens and Secrets."""
    decision = decide(asked(), marked(new(CLUSTER, NAME, WORKSPACE), WORKSPACE, NAME))
    assert applied(decision) == []
    assert decision.wait is not None
    assert "there is another Cluster fleet-default/meadow" in decision.wait.reason


@pytest.mark.parametrize("case", OTHERS)
def test_a_cluster_of_that_name_that_is_anothers_is_not_taken_over(case: str) -> None:
    decision = decide(asked(), OTHERS[case])
    assert applied(decision) == []
    assert decision.wait is not None
    assert "there is another Cluster fleet-default/meadow" in decision.wait.reason


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

    assert handed(whole.control_plane(given)) == [("spec.registries.configs[a].authConfigSecretName", "1")]
    template = templates.machine_template(pools_of(given)[0], config("sheds"))
    assert handed(template) == [("spec.template.spec.common.cloudCredentialSecretName", "cc-uid")]


def test_a_reference_is_bound_to_a_secret_that_comes_after_it() -> None:
    given = with_record(asked(pool("workers", cloudCredentialSecretName="cc", **FILLED)), CREDENTIAL_OF_POOL)
    (write,) = decide(given, credential()).writes
    assert isinstance(write, Patch)
    assert json.loads(write.patch["metadata"]["annotations"][APPROVED])[0]["uid"] == "cc-uid"
    assert write.resource_version


@pytest.mark.parametrize(("made_for", "is_own"), [(f"{WORKSPACE}/{NAME}", True), ("fleet-default/victim", False)])
def test_nothing_is_made_for_a_management_cluster_of_another_cluster(made_for: str, is_own: bool) -> None:
    """Machines would get its registration token, whoever wrote the status that names it."""
    management = new(MANAGEMENT_CLUSTER, "c-m-abcdefgh")
    management["metadata"]["annotations"] = {PROVISIONING_CLUSTER_OF: made_for}
    management["spec"] = {"fleetWorkspaceName": made_for.partition("/")[0]}
    assert (CONTROL_PLANE in applied(decide(asked(pool("workers") | FILLED), management))) is is_own
