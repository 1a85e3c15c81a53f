"""What a provisioning Cluster becomes, object by object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herder.api.rke.cluster_spec import decode_spec
from herder.api.rke.names import CLUSTER_SPEC
from herder.controllers.provisioning.cluster import machine_pools, objects, templates
from herder.controllers.provisioning.cluster.desired import Problem, checked_pools, pools_of
from herder.engine.meta.kinds import Object
from tests.unit.controllers.provisioning.provisioned import KINDS, NAME, SCHEMA, WORKSPACE, cluster, config, new, pool

FILLED = {"dynamicSchemaSpec": json.dumps(SCHEMA["spec"])}
EXTERNAL = {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CloudCluster", "name": "cloud"}


FINALIZERS = ["wrangler.cattle.io/provisioning-cluster-remove", "wrangler.cattle.io/rke-cluster-remove"]


def asked(*given: Object, spec: Object | None = None, meta: Object | None = None, **rke_config: Any) -> Object:
    """As the controllers see it: named, and held until it is removed."""
    made = cluster(*given, spec=spec, **rke_config)
    held = {"finalizers": FINALIZERS, "uid": "cluster-uid", **(meta or {})}
    return {**made, "metadata": {**made["metadata"], **held}, "status": {"clusterName": "c-m-abcdefgh"}}


def only(given: Object, **rke_config: Any) -> Any:
    return pools_of(asked(given, **rke_config))[0]


def deployment(given: Object, **rke_config: Any) -> Object:
    return machine_pools.machine_deployment(
        only(given | FILLED, **rke_config), new(KINDS.template, "meadow-workers-abcd")
    )


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
    plane = objects.control_plane(given)
    assert plane["spec"] == {
        "machineGlobalConfig": {"a": "b"},
        "rotateCertificates": {"generation": 1},
        "agentEnvVars": [{"name": "A", "value": "b"}],
        "kubernetesVersion": "v1.34.1+k3s1",
        "clusterName": NAME,
        "managementClusterName": "c-m-abcdefgh",
    }
    assert plane["metadata"]["labels"] == {"rke.cattle.io/init-node-machine-id": "7"}
    kept = decode_spec(plane["metadata"]["annotations"][CLUSTER_SPEC])["rkeConfig"]
    assert (kept["machinePools"][0]["name"], "rotateCertificates" in kept) == ("workers", False)


def test_a_spec_that_cannot_be_kept_is_a_problem() -> None:
    noise = "".join(chr(33 + number * number % 89) + str(number) for number in range(300_000))
    with pytest.raises(Problem, match="spec: too large"):
        objects.control_plane(asked(additionalManifest=noise))


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
    assert objects.core_cluster(asked(**rke_config), None)["spec"]["infrastructureRef"] == reference


def test_half_a_reference_is_a_problem() -> None:
    with pytest.raises(Problem, match=r"spec\.rkeConfig\.infrastructureRef: apiVersion, kind and name are required"):
        objects.infrastructure_reference(asked(infrastructureRef={"kind": "CloudCluster"}))


def test_the_control_planes_endpoint_is_the_clusters() -> None:
    plane = {"spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}}
    assert objects.core_cluster(asked(), plane)["spec"]["controlPlaneEndpoint"] == {"host": "10.0.0.1", "port": 6443}
    assert "controlPlaneEndpoint" not in objects.core_cluster(asked(), {"spec": {}})["spec"]


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
    assert objects.core_cluster(given, None)["metadata"].get("annotations") == annotations


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
    made = machine_pools.health_check(only(pool("workers", **fields)))
    assert (made["spec"] if made else None) == spec


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([{**pool("a"), "machineConfigRef": None}], r'machinePools\[0\] "a".machineConfigRef: kind and name'),
        ([pool("a"), pool("b", workerRole=False)], r'machinePools\[1\] "b": at least one of etcdRole'),
        ([pool("a"), pool("a")], r'machinePools\[1\] "a": duplicate of .*machinePools\[0\] "a"'),
        ([{**pool("a"), "machineConfigRef": {"kind": "Shed", "name": "s"}}], r'"Shed" is not a kind of machine config'),
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
    machine = machine_pools.machine_deployment(given, None)["spec"]["template"]["spec"]
    assert machine["bootstrap"]["configRef"]["name"] == start["metadata"]["name"]
    assert machine["infrastructureRef"] == {
        "apiGroup": "infrastructure.cluster.x-k8s.io",
        "kind": "CloudMachineTemplate",
        "name": "t",
    }


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:8]
