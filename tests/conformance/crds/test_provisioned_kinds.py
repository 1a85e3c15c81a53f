"""CRDs of provisioned clusters on both engines: what they accept, keep and reject.

The cases of the autoscaler's fields have the names of upstream's suite.
"""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest

from herder.api.management.crds import PROVISIONING_CLUSTER_CRD
from herder.api.rke.crds import CRDS
from tests.conformance.objects import define
from tests.support.api import Api
from tests.support.engines import unique

Obj = dict[str, Any]


class Kinds:
    """The CRDs under groups of the test's own, so that tests do not interfere."""

    def __init__(self) -> None:
        self.suffix = f"{unique('rke')}.example.com"
        self.definitions = [self._moved(definition) for definition in (PROVISIONING_CLUSTER_CRD, *CRDS)]
        self._known = {found["spec"]["names"]["kind"]: found for found in self.definitions}

    def _moved(self, definition: Obj) -> Obj:
        moved = copy.deepcopy(definition)
        names = moved["spec"]["names"]
        moved["spec"]["group"] = f"{moved['spec']['group'].partition('.')[0]}-{self.suffix}"
        moved["metadata"]["name"] = f"{names['plural']}.{moved['spec']['group']}"
        names.pop("categories", None)
        names.pop("shortNames", None)
        return moved

    def resource(self, kind: str) -> str:
        spec = self._known[kind]["spec"]
        return f"{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"

    def object(self, kind: str, **parts: Any) -> Obj:
        spec = self._known[kind]["spec"]
        version = f"{spec['group']}/{spec['versions'][0]['name']}"
        return {"apiVersion": version, "kind": kind, "metadata": {"name": "meadow"}, **parts}


@pytest.fixture(scope="module")
async def kinds(admin: Api) -> Kinds:
    created = Kinds()
    for definition in created.definitions:
        await define(admin, definition)
    return created


def cluster(kinds: Kinds, *pools: Obj, **rke_config: Any) -> Obj:
    return kinds.object("Cluster", spec={"rkeConfig": {"machinePools": [*pools], **rke_config}})


def pool(**fields: Any) -> Obj:
    return {"name": "pool", "machineConfigRef": {}, "quantity": 0, **fields}


# --- autoscaling limits of a pool -------------------------------------------------------------------------------------

ETCD, PLANE, WORKER = {"etcdRole": True}, {"controlPlaneRole": True}, {"workerRole": True}
POSITIVE_FOR_ETCD = "AutoscalingMinSize must be greater than 0 when EtcdRole is true"
POSITIVE_FOR_PLANE = "AutoscalingMinSize must be greater than 0 when ControlPlaneRole is true"
IN_ORDER = "AutoscalingMinSize must be less than or equal to AutoscalingMaxSize when both are non-nil"
BOTH = "AutoscalingMinSize and AutoscalingMaxSize must both be set if enabling cluster-autoscaling"


def sized(least: int | None = None, most: int | None = None) -> Obj:
    sizes = {"autoscalingMinSize": least, "autoscalingMaxSize": most}
    return {field: size for field, size in sizes.items() if size is not None}


CREATED: dict[str, tuple[Obj, str]] = {
    "Valid - No autoscaling fields": (ETCD | WORKER | PLANE, ""),
    "Valid - EtcdRole with positive AutoscalingMinSize": (ETCD | sized(1, 1), ""),
    "Valid - ControlPlaneRole with positive AutoscalingMinSize": (PLANE | sized(1, 1), ""),
    "Valid - Both EtcdRole and ControlPlaneRole with positive AutoscalingMinSize": (ETCD | PLANE | sized(1, 1), ""),
    "Valid - WorkerRole with zero AutoscalingMinSize": (WORKER | sized(0, 3), ""),
    "Valid - Valid AutoscalingMinSize and AutoscalingMaxSize": (WORKER | sized(1, 3), ""),
    "Valid - AutoscalingMinSize equals AutoscalingMaxSize": (WORKER | sized(1, 1), ""),
    "Invalid - EtcdRole with zero AutoscalingMinSize": (ETCD | sized(0, 1), POSITIVE_FOR_ETCD),
    "Invalid - ControlPlaneRole with zero AutoscalingMinSize": (PLANE | sized(0, 1), POSITIVE_FOR_PLANE),
    "Invalid - Both EtcdRole and ControlPlaneRole with zero AutoscalingMinSize": (
        ETCD | PLANE | sized(0, 1),
        POSITIVE_FOR_ETCD,
    ),
    "Invalid - AutoscalingMinSize greater than AutoscalingMaxSize": (WORKER | sized(5, 3), IN_ORDER),
    "Invalid - EtcdRole with AutoscalingMinSize greater than AutoscalingMaxSize": (ETCD | sized(5, 3), IN_ORDER),
    "Invalid - EtcdRole with AutoscalingMinSize greater than AutoscalingMaxSize and Max set to zero": (
        ETCD | sized(5, 0),
        IN_ORDER,
    ),
    **{
        f"Invalid - Create {role} with {present} present but {lacking} nil": (fields | sizes, BOTH)
        for role, fields in (("WorkerRole", WORKER), ("EtcdRole", ETCD), ("ControlPlaneRole", PLANE))
        for present, lacking, sizes in (
            ("AutoscalingMinSize", "AutoscalingMaxSize", sized(least=1)),
            ("AutoscalingMaxSize", "AutoscalingMinSize", sized(most=3)),
        )
    },
}

_TO_INVALID = "Invalid - Update from valid to invalid"
UPDATED: dict[str, tuple[Obj, Obj, str]] = {
    "Valid - Update from no autoscaling to valid autoscaling": (ETCD | WORKER | PLANE, sized(1, 3), ""),
    f"{_TO_INVALID} ControlPlaneRole with zero AutoscalingMinSize": (PLANE, sized(0, 3), POSITIVE_FOR_PLANE),
    f"{_TO_INVALID} EtcdRole with zero AutoscalingMinSize": (ETCD, sized(0, 3), POSITIVE_FOR_ETCD),
    f"{_TO_INVALID} AutoscalingMinSize > AutoscalingMaxSize": (WORKER, sized(5, 3), IN_ORDER),
    f"{_TO_INVALID} AutoscalingMinSize > AutoscalingMaxSize and max = 0": (WORKER, sized(5, 0), IN_ORDER),
    f"{_TO_INVALID} ControlPlaneRole with negative AutoscalingMinSize": (PLANE, sized(-1, 3), POSITIVE_FOR_PLANE),
    f"{_TO_INVALID} EtcdRole with negative AutoscalingMinSize": (ETCD, sized(-1, 3), POSITIVE_FOR_ETCD),
    "Valid - Update from valid to valid with only AutoscalingMaxSize changed": (WORKER, sized(1, 5), ""),
    "Valid - Update from valid to valid with only AutoscalingMinSize changed": (WORKER, sized(2, 3), ""),
    f"{_TO_INVALID} with both ControlPlaneRole and EtcdRole with zero AutoscalingMinSize": (
        ETCD | PLANE,
        sized(0, 3),
        POSITIVE_FOR_ETCD,
    ),
    **{
        f"{_TO_INVALID} {role} with {present} present but {lacking} nil": (fields, sizes, BOTH)
        for role, fields in (("WorkerRole", WORKER), ("EtcdRole", ETCD), ("ControlPlaneRole", PLANE))
        for present, lacking, sizes in (
            ("AutoscalingMinSize", "AutoscalingMaxSize", sized(least=1)),
            ("AutoscalingMaxSize", "AutoscalingMinSize", sized(most=3)),
        )
    },
}


def test_no_case_of_upstream_is_missing() -> None:
    assert (len(CREATED), len(UPDATED)) == (19, 16)


@pytest.mark.parametrize("name", CREATED)
async def test_general_machine_pool_autoscaling_field_validation(api: Api, kinds: Kinds, name: str) -> None:
    fields, expected = CREATED[name]
    answer = await api.post(api.at(kinds.resource("Cluster")), cluster(kinds, pool(**fields)))
    assert answer.status == (422 if expected else 201)
    assert expected in answer.message


@pytest.mark.parametrize("name", UPDATED)
async def test_general_machine_pool_autoscaling_update_field_validation(api: Api, kinds: Kinds, name: str) -> None:
    fields, sizes, expected = UPDATED[name]
    first = {} if name.startswith("Valid - Update from no") else sized(1, 3)
    created = await api.create(kinds.resource("Cluster"), cluster(kinds, pool(**fields, **first)))
    created["spec"]["rkeConfig"]["machinePools"] = [pool(**fields, **sizes)]
    answer = await api.put(api.at(kinds.resource("Cluster"), "meadow"), created)
    assert answer.status == (422 if expected else 200)
    assert expected in answer.message


# --- all fields -------------------------------------------------------------------------------------------------------

SELECTOR = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["d"]}]}
REFERENCE = {"apiVersion": "rke-machine-config.cattle.io/v1", "kind": "ShedConfig", "name": "sheds"}
DRAIN = {
    "enabled": True,
    "force": True,
    "ignoreDaemonSets": False,
    "ignoreErrors": True,
    "deleteEmptyDirData": True,
    "disableEviction": True,
    "gracePeriod": -1,
    "timeout": 120,
    "skipWaitForDeleteTimeoutSeconds": 5,
    "preDrainHooks": [{"annotation": "example.com/before"}],
    "postDrainHooks": [{"annotation": "example.com/after"}],
}
FILES = {"name": "files", "defaultPermissions": "0600", "items": [{"key": "a", "path": "/a", "dynamic": True}]}
CERTIFICATE = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()
S3 = {"endpoint": "s3", "bucket": "b", "region": "r", "cloudCredentialName": "fleet-default:c", "retention": 3}
CONFIGURATION: Obj = {
    "upgradeStrategy": {
        "controlPlaneConcurrency": "1",
        "controlPlaneDrainOptions": DRAIN,
        "workerConcurrency": "25%",
        "workerDrainOptions": DRAIN,
    },
    "chartValues": {"some-chart": {"replicas": 1}},
    "machineGlobalConfig": {"cni": "calico", "disable": ["a", "b"]},
    "machineSelectorConfig": [{"config": {"debug": True}}, {"config": {}, "machineLabelSelector": SELECTOR}],
    "machineSelectorFiles": [
        {"machineLabelSelector": SELECTOR, "fileSources": [{"secret": FILES, "configMap": FILES}]}
    ],
    "additionalManifest": "apiVersion: v1\nkind: ConfigMap\n",
    "registries": {
        "mirrors": {"docker.io": {"endpoint": ["https://mirror"], "rewrite": {"a": "b"}}},
        "configs": {"mirror": {"authConfigSecretName": "auth", "tlsSecretName": "tls", "caBundle": CERTIFICATE}},
    },
    "etcd": {"disableSnapshots": False, "snapshotScheduleCron": "0 * * * *", "snapshotRetention": 5, "s3": S3},
    "networking": {"stackPreference": "dual"},
    "dataDirectories": {"systemAgent": "/a", "provisioning": "/b", "k8sDistro": "/c"},
    "provisionGeneration": 2,
}
OPERATIONS: Obj = {
    "etcdSnapshotCreate": {"generation": 1},
    "etcdSnapshotRestore": {"name": "s", "generation": 1, "restoreRKEConfig": "all"},
    "rotateCertificates": {"generation": 1, "services": ["admin"]},
    "rotateEncryptionKeys": {"generation": 1},
}
POOL: Obj = {
    **pool(machineConfigRef=REFERENCE, quantity=3, **ETCD, **PLANE, **WORKER),
    "displayName": "Pool",
    "paused": False,
    "drainBeforeDelete": True,
    "drainBeforeDeleteTimeout": "1h30m",
    "labels": {"a": "b"},
    "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
    "cloudCredentialSecretName": "cattle-global-data:cc-x",
    "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "25%"},
    "machineDeploymentLabels": {"c": "d"},
    "machineDeploymentAnnotations": {"e": "f"},
    "nodeStartupTimeout": "10m0s",
    "unhealthyNodeTimeout": "0m",
    "maxUnhealthy": "40%",
    "unhealthyRange": "[1-3]",
    "machineOS": "linux",
    "hostnameLengthLimit": 15,
    "dynamicSchemaSpec": "{}",
    "userdata": {"inlineUserdata": "#cloud-config"},
}
CUSTOMIZATION: Obj = {
    "appendTolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
    "overrideAffinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]
            }
        },
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"labelSelector": SELECTOR, "topologyKey": "zone"}}
            ]
        },
    },
    "overrideResourceRequirements": {"limits": {"cpu": "1"}, "requests": {"memory": "50Mi"}},
}
SCHEDULING = {
    "schedulingCustomization": {
        "priorityClass": {"value": 5, "preemptionPolicy": "Never"},
        "podDisruptionBudget": {"minAvailable": "1", "maxUnavailable": "0"},
    }
}
AGENTS: Obj = {
    "agentEnvVars": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
    "localClusterAuthEndpoint": {"enabled": True, "fqdn": "a.example.com", "caCerts": "PEM"},
}
FULL: dict[str, Obj] = {
    "Cluster": {
        "spec": {
            **AGENTS,
            "cloudCredentialSecretName": "cattle-global-data:cc-x",
            "kubernetesVersion": "v1.34.1+k3s1",
            "rkeConfig": {
                **CONFIGURATION,
                **OPERATIONS,
                "machinePools": [POOL],
                "machinePoolDefaults": {"hostnameLengthLimit": 63},
                "infrastructureRef": REFERENCE,
            },
            "clusterAgentDeploymentCustomization": CUSTOMIZATION | SCHEDULING,
            "fleetAgentDeploymentCustomization": CUSTOMIZATION | SCHEDULING,
            "webhookDeploymentCustomization": CUSTOMIZATION | {"replicaCount": 2},
            "defaultPodSecurityAdmissionConfigurationTemplateName": "restricted",
            "enableNetworkPolicy": True,
            "redeploySystemAgentGeneration": 1,
        }
    },
    "RKEControlPlane": {
        "spec": {
            **CONFIGURATION,
            **OPERATIONS,
            **AGENTS,
            "kubernetesVersion": "v1.34.1+k3s1",
            "clusterName": "meadow",
            "managementClusterName": "c-m-abcdefgh",
            "unmanagedConfig": False,
            "controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443},
        }
    },
    "RKECluster": {"spec": {"controlPlaneEndpoint": {"host": "localhost", "port": 6443}}},
    "RKEBootstrap": {"spec": {"clusterName": "meadow", "userdata": {"inlineUserdata": "#cloud-config"}}},
    "RKEBootstrapTemplate": {
        "spec": {
            "clusterName": "meadow",
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"clusterName": "meadow"}},
        }
    },
    "CustomMachine": {"spec": {"providerID": "k3s://node"}},
    "ETCDSnapshot": {
        "spec": {"clusterName": "meadow"},
        "snapshotFile": {"name": "s", "nodeName": "n", "createdAt": "2026-01-01T00:00:00Z", "size": 5, "s3": S3},
    },
    "Beacon": {"spec": {}},
}
CONDITION = {"type": "Ready", "status": "True", "lastUpdateTime": "2026-01-01T00:00:00Z"}
STATUSES: dict[str, Obj] = {
    "Cluster": {
        "ready": True,
        "clusterName": "c-m-abcdefgh",
        "display": {"state": "Ready", "message": "", "version": "v1.34.1+k3s1", "readyMachines": "3/4"},
        "conditions": [CONDITION],
    },
    "RKEControlPlane": {
        "observedGeneration": 1,
        "agentConnected": True,
        "initialized": True,
        "initialization": {"controlPlaneInitialized": True},
        "appliedSpec": {"anything": "goes"},
        "etcdSnapshotRestorePhase": "Shutdown",
        "conditions": [CONDITION],
    },
    "RKECluster": {"initialization": {"provisioned": True}},
    "RKEBootstrap": {
        "dataSecretName": "s",
        "initialization": {"dataSecretCreated": True},
        "conditions": [CONDITION],
    },
    "CustomMachine": {"ready": True, "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
    "ETCDSnapshot": {"missing": True},
    "Beacon": {"active": True, "owner": "o", "delegates": ["d"]},
}


@pytest.mark.parametrize("kind", FULL)
async def test_objects_with_every_field_are_stored_unchanged(api: Api, kinds: Kinds, kind: str) -> None:
    url = api.at(kinds.resource(kind)) + "?fieldValidation=Strict"
    created = (await api.post(url, kinds.object(kind, **FULL[kind]))).expect(201)
    assert {part: created[part] for part in FULL[kind]} == FULL[kind]


@pytest.mark.parametrize("kind", STATUSES)
async def test_status_is_stored_unchanged(api: Api, kinds: Kinds, kind: str) -> None:
    await api.create(kinds.resource(kind), kinds.object(kind, **FULL[kind]))
    url = api.at(kinds.resource(kind), "meadow", "status")
    assert (await api.patch(url, {"status": STATUSES[kind]})).expect(200)["status"] == STATUSES[kind]


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
DISPLAY = {"state": "Degraded", "message": "machine a is not ready", "version": "v1.34.1", "readyMachines": "3/4"}
NOT_READY = {"type": "Ready", "status": "False", "reason": "Error", "message": "no disk"}
TABLES: dict[str, tuple[Obj, dict[str, Any]]] = {
    "Cluster": (
        {"display": DISPLAY},
        {"Status": "Degraded", "Version": "v1.34.1", "Machines": "3/4", "Reason": "machine a is not ready"},
    ),
    "RKEControlPlane": (
        {"conditions": [NOT_READY], "operation": {"kind": "rotateCertificates", "phase": "Rotate"}},
        {"Ready": "False", "Reason": "no disk", "Operation": "rotateCertificates", "Phase": "Rotate"},
    ),
    "RKEBootstrap": ({"conditions": [NOT_READY]}, {"Reason": "no disk"}),
    "CustomMachine": ({"conditions": [NOT_READY]}, {"Ready": "False", "Reason": "no disk"}),
}


@pytest.mark.parametrize("kind", TABLES)
async def test_kubectl_get_shows_state_and_reason(api: Api, kinds: Kinds, kind: str) -> None:
    status, expected = TABLES[kind]
    await api.create(kinds.resource(kind), kinds.object(kind, **FULL[kind]))
    (await api.patch(api.at(kinds.resource(kind), "meadow", "status"), {"status": status})).expect(200)
    table = (await api.get(api.at(kinds.resource(kind)), accept=TABLE)).expect(200)
    shown = [each["name"] for each in table["columnDefinitions"] if not each.get("priority")]
    cells = dict(zip((each["name"] for each in table["columnDefinitions"]), table["rows"][0]["cells"], strict=True))
    assert cells | expected == cells
    assert expected.keys() <= set(shown)
    if kind == "Cluster":
        assert shown == ["Name", "Status", "Version", "Machines", "Reason", "Age"]
        assert cells.keys() >= {"Cluster Name", "Kubeconfig", "Ready"}, "Rancher's columns are shown by -o wide"


NULLS = (
    "etcd",
    "registries",
    "networking",
    "machineGlobalConfig",
    "chartValues",
    "machineSelectorConfig",
    "infrastructureRef",
    "etcdSnapshotCreate",
)


@pytest.mark.parametrize("field", NULLS)
async def test_null_is_accepted_for_optional_fields(api: Api, kinds: Kinds, field: str) -> None:
    answer = await api.post(api.at(kinds.resource("Cluster")), cluster(kinds, pool(), **{field: None}))
    answer.expect(201)


REFUSED: dict[str, tuple[Obj, str]] = {
    "taints": ({"taints": [{"key": "k", "effect": "Never"}]}, "taints[0].effect"),
    "taints without a key": ({"taints": [{"effect": "NoExecute"}]}, "taints[0].key"),
    "taints without an effect": ({"taints": [{"key": "k"}]}, "taints[0].effect"),
    "durations": ({"unhealthyNodeTimeout": "soon"}, "unhealthyNodeTimeout"),
    "ranges": ({"unhealthyRange": "1-3"}, "unhealthyRange"),
    "shares": ({"maxUnhealthy": "many"}, "maxUnhealthy"),
    "short host names": ({"hostnameLengthLimit": 9}, "hostnameLengthLimit"),
    "long host names": ({"hostnameLengthLimit": 64}, "hostnameLengthLimit"),
    "operating systems": ({"machineOS": "plan9"}, "machineOS"),
    "negative quantities": ({"quantity": -1}, "quantity"),
    "no name": ({"name": ""}, "name"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_invalid_pools_are_rejected_with_the_field(api: Api, kinds: Kinds, case: str) -> None:
    fields, path = REFUSED[case]
    answer = await api.post(api.at(kinds.resource("Cluster")), cluster(kinds, pool(**fields)))
    assert answer.status == 422
    assert f"spec.rkeConfig.machinePools[0].{path}" in answer.message


async def test_pool_names_must_be_unique(api: Api, kinds: Kinds) -> None:
    answer = await api.post(api.at(kinds.resource("Cluster")), cluster(kinds, pool(), pool()))
    assert (answer.status, "Duplicate value" in answer.message) == (422, True)
