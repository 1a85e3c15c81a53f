"""The objects that a provisioning Cluster generates."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from herder.api.references.approvals import APPROVED
from herder.api.rke.cluster_spec import decode_spec
from herder.api.rke.names import ABORT_OPERATION, ALLOW_VERSION_SKIP, CLUSTER_SPEC
from herder.controllers.provisioning.cluster import machine_pools, objects, templates
from herder.controllers.provisioning.cluster.desired import Problem, checked_pools, pools_of
from herder.engine.meta.kinds import Object
from tests.support.builders import new_object
from tests.unit.controllers.provisioning.objects import (
    KINDS,
    NAME,
    WITH_SCHEMA,
    WORKSPACE,
    config,
    pool,
    stored_cluster,
)

EXTERNAL = {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CloudCluster", "name": "cloud"}


def only_pool(pool_spec: Object, **rke_config: Any) -> Any:
    return pools_of(stored_cluster(pool_spec, **rke_config))[0]


def deployment(pool_spec: Object, **rke_config: Any) -> Object:
    return machine_pools.machine_deployment(
        only_pool(pool_spec | WITH_SCHEMA, **rke_config), new_object(KINDS.template, "meadow-workers-abcd")
    )


# --- clusters -------------------------------------------------------------------------------------------------------


def test_the_control_plane_gets_the_configuration_without_the_pools() -> None:
    provisioning_cluster = stored_cluster(
        pool("workers"),
        machineGlobalConfig={"a": "b"},
        etcd=None,
        rotateCertificates={"generation": 1},
        spec={"agentEnvVars": [{"name": "A", "value": "b"}]},
        meta={"labels": {"rke.cattle.io/init-node-machine-id": "7"}},
    )
    control_plane = objects.control_plane(provisioning_cluster)
    assert control_plane["spec"] == {
        "machineGlobalConfig": {"a": "b"},
        "rotateCertificates": {"generation": 1},
        "agentEnvVars": [{"name": "A", "value": "b"}],
        "kubernetesVersion": "v1.34.1+k3s1",
        "clusterName": NAME,
        "managementClusterName": "c-m-abcdefgh",
    }
    assert control_plane["metadata"]["labels"] == {"rke.cattle.io/init-node-machine-id": "7"}
    stored_config = decode_spec(control_plane["metadata"]["annotations"][CLUSTER_SPEC])["rkeConfig"]
    assert (stored_config["machinePools"][0]["name"], "rotateCertificates" in stored_config) == ("workers", False)


def test_a_spec_that_is_too_large_is_an_error() -> None:
    noise = "".join(chr(33 + number * number % 89) + str(number) for number in range(300_000))
    with pytest.raises(Problem, match="spec: too large"):
        objects.control_plane(stored_cluster(additionalManifest=noise))


def test_annotations_fit_into_the_control_plane() -> None:
    """The API server rejects more than 256 KiB, and the Cluster would not say why nothing happens."""
    cluster = stored_cluster(additionalManifest=noise(140_000))
    cluster["metadata"]["annotations"] = {ABORT_OPERATION: "x" * 200_000, ALLOW_VERSION_SKIP: "v1.35.0+k3s1"}
    annotations = objects.control_plane(cluster)["metadata"]["annotations"]
    assert annotations.keys() == {CLUSTER_SPEC, ALLOW_VERSION_SKIP}
    record = [
        {"path": f"spec.rkeConfig.registries.configs[{each}].tlsSecretName", "resource": "secrets", "name": "x" * 200}
        for each in range(800)
    ]
    cluster["metadata"]["annotations"] = {APPROVED: json.dumps(record)}
    with pytest.raises(Problem, match="spec: too large"):
        objects.control_plane(cluster)


def noise(length: int) -> str:
    return random.Random(1).randbytes(length // 2).hex()


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
def test_the_infrastructure_is_an_rke_cluster_or_that_of_another_provider(
    rke_config: Object, reference: Object
) -> None:
    assert objects.core_cluster(stored_cluster(**rke_config), None)["spec"]["infrastructureRef"] == reference


def test_an_incomplete_infrastructure_reference_is_an_error() -> None:
    with pytest.raises(Problem, match=r"spec\.rkeConfig\.infrastructureRef: apiVersion, kind and name are required"):
        objects.infrastructure_reference(stored_cluster(infrastructureRef={"kind": "CloudCluster"}))


def test_the_cluster_gets_the_endpoint_of_its_control_plane() -> None:
    control_plane = {"spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}}
    assert objects.core_cluster(stored_cluster(), control_plane)["spec"]["controlPlaneEndpoint"] == {
        "host": "10.0.0.1",
        "port": 6443,
    }
    assert "controlPlaneEndpoint" not in objects.core_cluster(stored_cluster(), {"spec": {}})["spec"]


SCALED = pool("workers", autoscalingMinSize=1, autoscalingMaxSize=3)
PAUSED = {"annotations": {"provisioning.cattle.io/cluster-autoscaler-paused": "true"}}


@pytest.mark.parametrize(
    ("provisioning_cluster", "annotations"),
    [
        (stored_cluster(pool("workers")), None),
        (stored_cluster(SCALED), {"provisioning.cattle.io/cluster-autoscaler-enabled": "true"}),
        (stored_cluster(SCALED, meta=PAUSED), {"provisioning.cattle.io/cluster-autoscaler-paused": "true"}),
    ],
)
def test_annotations_of_the_cluster_configure_the_autoscaler(
    provisioning_cluster: Object, annotations: Object | None
) -> None:
    assert objects.core_cluster(provisioning_cluster, None)["metadata"].get("annotations") == annotations


# --- pools ----------------------------------------------------------------------------------------------------------


def test_all_fields_of_a_pool_reach_its_machine_deployment() -> None:
    pool_spec = pool(
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
    machine_deployment = deployment(pool_spec, machinePoolDefaults={"hostnameLengthLimit": 20})
    assert machine_deployment["metadata"] == {
        "name": "meadow-servers",
        "namespace": WORKSPACE,
        "labels": {"a": "1", "b": "<2>", "c": "3", "cattle.io/os": "linux", "cluster.x-k8s.io/cluster-name": NAME},
        "annotations": {"d": "4"},
    }
    assert machine_deployment["spec"] == {
        "clusterName": NAME,
        "replicas": 3,
        "paused": True,
        "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
        "selector": {
            "matchLabels": {
                "cluster.x-k8s.io/cluster-name": NAME,
                "cluster.x-k8s.io/deployment-name": "meadow-servers",
            }
        },
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


def test_a_minimal_pool_uses_defaults() -> None:
    machine_deployment = deployment(pool("workers"))
    assert "replicas" not in machine_deployment["spec"], "users may scale the MachineDeployment"
    assert machine_deployment["spec"]["template"]["metadata"]["annotations"] == {
        "machine.cluster.x-k8s.io/exclude-node-draining": "true"
    }


def test_the_hostname_limit_of_the_cluster_is_the_default_of_pools() -> None:
    machine_deployment = deployment(pool("workers"), machinePoolDefaults={"hostnameLengthLimit": 20})
    annotations = machine_deployment["spec"]["template"]["metadata"]["annotations"]
    assert annotations["rke.cattle.io/hostname-length-limit"] == "20"


def test_the_autoscaler_decides_the_replicas_of_an_autoscaled_pool() -> None:
    machine_deployment = deployment(
        {**SCALED, "quantity": 2, "autoscalingMinSize": 1.0}
    )  # a whole number, which API servers may return as a float
    assert "replicas" not in machine_deployment["spec"]
    assert machine_deployment["metadata"]["annotations"] == {
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "1",
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "3",
    }


def test_labels_of_users_do_not_override_labels_of_machines() -> None:
    labels = {"rke.cattle.io/cluster-name": "other", "cattle.io/os": "windows"}
    machine_labels = deployment(pool("workers", labels=labels))["spec"]["template"]["metadata"]["labels"]
    assert (machine_labels["rke.cattle.io/cluster-name"], machine_labels["cattle.io/os"]) == (NAME, "linux")


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
def test_a_pool_with_an_unhealthy_timeout_gets_a_health_check(fields: Object, spec: Object | None) -> None:
    check = machine_pools.health_check(only_pool(pool("workers", **fields)))
    assert (check["spec"] if check else None) == spec


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ([{**pool("a"), "machineConfigRef": None}], r'machinePools\[0\] "a".machineConfigRef: kind and name'),
        ([pool("a"), pool("b", workerRole=False)], r'machinePools\[1\] "b": at least one of etcdRole'),
        ([pool("a"), pool("a")], r'machinePools\[1\] "a": duplicate of .*machinePools\[0\] "a"'),
        ([{**pool("a"), "machineConfigRef": {"kind": "Shed", "name": "s"}}], r'"Shed" is not a kind of machine config'),
    ],
)
def test_invalid_pools_are_reported_by_index_and_name(pools: list[Object], expected: str) -> None:
    with pytest.raises(Problem, match=expected):
        checked_pools(stored_cluster(*pools))


# --- templates ------------------------------------------------------------------------------------------------------


def test_a_machine_template_contains_the_config_fields_of_the_schema() -> None:
    sheds = config("sheds", image="debian", size="", roof="straw")
    parsed_pool = only_pool(pool("workers", labels={"a": "b"}, **WITH_SCHEMA), machineGlobalConfig={})
    template = templates.machine_template(parsed_pool, sheds)
    assert template["spec"] == {
        "clusterName": NAME,
        "template": {"spec": {"image": "debian", "size": "", "common": {"labels": {"a": "b"}}}},
    }
    assert template["metadata"]["annotations"] == {
        "rke.cattle.io/cloned-from-group-version": "rke-machine-config.cattle.io/v1",
        "rke.cattle.io/cloned-from-kind": "ShedConfig",
        "rke.cattle.io/cloned-from-name": "sheds",
    }
    assert template["metadata"]["labels"]["objectset.rio.cattle.io/prune"] == "false"


@pytest.mark.parametrize(
    ("of_cluster", "of_pool", "expected"),
    [("", "", None), ("cc-all", "", "cc-all"), ("cc-all", "cc-own", "cc-own"), ("", "cc-own", "cc-own")],
)
def test_the_credential_of_a_pool_takes_precedence_over_that_of_the_cluster(
    of_cluster: str, of_pool: str, expected: str | None
) -> None:
    provisioning_cluster = stored_cluster(
        pool("workers", cloudCredentialSecretName=of_pool, **WITH_SCHEMA),
        spec={"cloudCredentialSecretName": of_cluster},
    )
    template = templates.machine_template(pools_of(provisioning_cluster)[0], config("sheds"))
    common = {"cloudCredentialSecretName": expected} if expected else None
    assert template["spec"]["template"]["spec"].get("common") == common


def test_pools_of_another_provider_have_their_own_bootstrap_template() -> None:
    reference = {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CloudMachineTemplate", "name": "t"}
    parsed_pool = only_pool(
        {**pool("workers", userdata={"inlineUserdata": "#cloud-config"}), "machineConfigRef": reference},
        infrastructureRef=EXTERNAL,
    )
    bootstrap_template = templates.bootstrap_template(parsed_pool)
    assert bootstrap_template["metadata"]["name"] == "meadow-workers-" + _digest("meadow-workers#cloud-config")
    assert bootstrap_template["spec"]["template"]["spec"]["userdata"] == {"inlineUserdata": "#cloud-config"}
    machine_spec = machine_pools.machine_deployment(parsed_pool, None)["spec"]["template"]["spec"]
    assert machine_spec["bootstrap"]["configRef"]["name"] == bootstrap_template["metadata"]["name"]
    assert machine_spec["infrastructureRef"] == {
        "apiGroup": "infrastructure.cluster.x-k8s.io",
        "kind": "CloudMachineTemplate",
        "name": "t",
    }


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:8]
