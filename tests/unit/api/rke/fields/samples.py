"""A Cluster of each distribution, and for each field a value other than its default."""

from __future__ import annotations

import base64
import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from herder.api.rke import names
from herder.api.rke.schema.cluster import CLUSTER_SPEC
from herder.api.rke.schema.pieces import COUNT_OR_PERCENT
from herder.engine.meta.kinds import Object
from tests.unit.controllers.provisioning.objects import FIELDS, SCHEMA, WITH_SCHEMA, pool

VERSIONS = {
    "k3s": "v1.33.4+k3s1",
    "rke2": "v1.33.4+rke2r1",
    "kubeadm": "v1.33.4+kubeadm1",
    "embedded": "v1.33.4+herder1",
}
CONFIG = "spec.rkeConfig"
POOL = f"{CONFIG}.machinePools[]"
CERTIFICATE = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()


def base_spec(distribution: str) -> Object:
    """One pool of workers and one of servers."""
    pools = [pool("workers", **WITH_SCHEMA), pool("servers", "etcd", "controlPlane", **WITH_SCHEMA)]
    return {"kubernetesVersion": VERSIONS[distribution], "rkeConfig": {"machinePools": pools}}


@dataclass(frozen=True)
class Sample:
    """A value of a field, and what else the Cluster needs, with and without the value."""

    value: Any
    given: Mapping[str, Any] = field(default_factory=dict)  # other values, by path
    at: str = ""  # its path, if it is not in the first entry of each list
    is_error: bool = False  # the value makes plans fail: the field demands a property of another object


def sample_of(path: str, distribution: str) -> Sample:
    if path == "spec.kubernetesVersion":
        return Sample(VERSIONS[distribution].replace("1.33.4", "1.33.5"))
    return SAMPLES.get(path) or Sample(_value_of(path))


def with_values(spec: Object, values: Mapping[str, Any]) -> Object:
    """A copy of the spec with these values; missing parents are created."""
    root = copy.deepcopy({"spec": spec})
    for path, value in values.items():
        _set(root, path, value)
    changed: Object = root["spec"]
    return changed


def _set(root: Any, path: str, value: Any) -> None:
    keys = _keys(path)
    for key, following in pairwise(keys):
        new: Any = [] if isinstance(following, int) else {}
        if isinstance(root, list):
            root += [new] * (key + 1 - len(root))
            root = root[key]
        else:
            root = root.setdefault(key, new)
    if isinstance(root, list):
        root += [None] * (keys[-1] + 1 - len(root))
    root[keys[-1]] = copy.deepcopy(value)


def concrete(path: str) -> str:
    """The path of the first entry of each list, and of `r.example` in each map."""
    return re.sub(r"(configs|mirrors)\[\]", r"\1[r.example]", path).replace("[]", "[0]")


def _keys(path: str) -> list[Any]:
    found = re.findall(r"(?<=\[)[^]]+(?=\])|[^.[\]]+(?![^[]*\])", concrete(path))
    return [int(key) if key.isdecimal() else key for key in found]


def _value_of(path: str) -> Any:
    """A value of the field's type."""
    schema: Any = CLUSTER_SPEC
    for name in path.replace("[]", ".[]").split(".")[1:]:
        schema = (schema.get("items") or schema["additionalProperties"]) if name == "[]" else schema["properties"][name]
    if schema.get("enum"):
        return schema["enum"][-1]
    if schema.get("pattern") == COUNT_OR_PERCENT["pattern"]:
        return "2"
    if "additionalProperties" in schema:
        return {"sample": "1"}
    by_type = {"boolean": True, "integer": 7, "array": ["sample"], "object": {"sample": {"a": "b"}}, "string": "sample"}
    return by_type.get(schema.get("type", ""), 3)


# --- samples of cluster-wide fields ---------------------------------------------------------------------------------

_AGENTS = [f"spec.{agent}DeploymentCustomization" for agent in ("clusterAgent", "fleetAgent", "webhook")]
_TERM = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
_AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]}}}
_CLAIM = "overrideResourceRequirements.claims[]"
_VARIABLE = {"spec.agentEnvVars": [{"name": "A", "value": "b"}]}
_CLUSTER = {
    "spec.agentEnvVars[].name": Sample("B", _VARIABLE),
    "spec.agentEnvVars[].value": Sample("c", _VARIABLE),
    "spec.cloudCredentialSecretName": Sample("cc"),
    **{f"{agent}.overrideAffinity": Sample(_AFFINITY) for agent in _AGENTS},
    **{f"{agent}.{_CLAIM}.request": Sample("b", {f"{agent}.{_CLAIM}.name": "a"}) for agent in _AGENTS},
    f"{CONFIG}.additionalManifest": Sample("apiVersion: v1\nkind: Namespace\n"),
    **{f"{CONFIG}.dataDirectories.{part}": Sample("/data") for part in ("k8sDistro", "provisioning", "systemAgent")},
    f"{CONFIG}.machineGlobalConfig": Sample({"tls-san": ["a.example"]}),
}

_S3 = f"{CONFIG}.etcd.s3"
_ETCD = {
    f"{CONFIG}.etcd.snapshotScheduleCron": Sample("0 */6 * * *"),
    f"{CONFIG}.etcd.snapshotRetention": Sample(3, {f"{CONFIG}.etcd.snapshotScheduleCron": "0 */6 * * *"}),
    f"{CONFIG}.etcd.disableSnapshots": Sample(True, {f"{CONFIG}.etcd.snapshotScheduleCron": "0 */6 * * *"}),
    f"{_S3}.bucket": Sample("b", {f"{_S3}.cloudCredentialName": "cc"}),
    f"{_S3}.cloudCredentialName": Sample("cc", {f"{_S3}.bucket": "b"}),
    **{
        f"{_S3}.{part}": Sample(_value_of(f"{_S3}.{part}"), {f"{_S3}.bucket": "b", f"{_S3}.cloudCredentialName": "cc"})
        for part in ("endpoint", "endpointCA", "folder", "region", "retention", "skipSSLVerify")
    },
}

_EXTERNAL = {"apiVersion": "infrastructure.example/v1", "kind": "CloudCluster", "name": "cloud"}
_TEMPLATE = {"apiVersion": "infrastructure.example/v1", "kind": "CloudMachineTemplate", "name": "small"}
_ON_OTHER_INFRASTRUCTURE = {f"{CONFIG}.infrastructureRef": _EXTERNAL, f"{POOL}.machineConfigRef": _TEMPLATE}
_REFERENCES = {
    f"{path}.{part}": Sample(value, _ON_OTHER_INFRASTRUCTURE)
    for path in (f"{CONFIG}.infrastructureRef", f"{POOL}.machineConfigRef")
    for part, value in {"apiVersion": "other.example/v1", "kind": "Other", "name": "other"}.items()
} | {
    f"{CONFIG}.infrastructureRef.{part}": Sample("sample", _ON_OTHER_INFRASTRUCTURE)
    for part in ("fieldPath", "namespace", "resourceVersion", "uid")
}

_HOSTS, _MIRRORS = f"{CONFIG}.registries.configs[]", f"{CONFIG}.registries.mirrors[]"
_REGISTRIES = {
    f"{_HOSTS}.authConfigSecretName": Sample("login", {_HOSTS: {}}),
    f"{_HOSTS}.caBundle": Sample(CERTIFICATE, {_HOSTS: {}}),
    f"{_HOSTS}.insecureSkipVerify": Sample(True, {_HOSTS: {}}),
    f"{_HOSTS}.tlsSecretName": Sample("client", {_HOSTS: {}}),
    f"{_MIRRORS}.endpoint": Sample(["https://mirror.example"], {_MIRRORS: {}}),
    f"{_MIRRORS}.rewrite": Sample({"^a": "b"}, {f"{_MIRRORS}.endpoint": ["https://mirror.example"]}),
}

# --- samples of what selectors select -------------------------------------------------------------------------------

_SELECTED = {
    f"{CONFIG}.machineSelectorConfig[]": {"config": {"tls-san": ["a.example"]}},
    f"{CONFIG}.machineSelectorFiles[]": {
        "fileSources": [{"configMap": {"name": "files", "items": [{"key": "a", "path": "/etc/a"}]}}]
    },
}
_EXISTS = {"key": names.POOL_NAME, "operator": "Exists"}
_IN = {"key": names.POOL_NAME, "operator": "In", "values": ["servers"]}
_SELECTORS: dict[str, Sample] = {}
for _path, _entry in _SELECTED.items():
    _selector = f"{_path}.machineLabelSelector"
    _expression = f"{_selector}.matchExpressions[]"
    _SELECTORS |= {
        f"{_selector}.matchLabels": Sample({"a": "b"}, {_path: _entry}),
        f"{_expression}.key": Sample("absent", {_path: _entry, _expression: _EXISTS}),
        f"{_expression}.operator": Sample("DoesNotExist", {_path: _entry, _expression: _EXISTS}),
        f"{_expression}.values": Sample(["none"], {_path: _entry, _expression: _IN}),
    }
_SELECTORS[f"{CONFIG}.machineSelectorConfig[].config"] = Sample({"tls-san": ["a.example"]})

_FILES: dict[str, Sample] = {}
for _source in ("configMap", "secret"):
    _path = f"{CONFIG}.machineSelectorFiles[].fileSources[].{_source}"
    _given = {_path: {"name": "files", "items": [{"key": "a", "path": "/etc/a"}]}}
    _FILES |= {
        f"{_path}.defaultPermissions": Sample("0640", _given),
        f"{_path}.items[].dynamic": Sample(True, _given),
        f"{_path}.items[].hash": Sample("of other content", _given, is_error=True),
        f"{_path}.items[].key": Sample("b", _given),
        f"{_path}.items[].path": Sample("/etc/b", _given),
        f"{_path}.items[].permissions": Sample("0640", _given),
        f"{_path}.name": Sample("other-files", _given),
    }

# --- samples of upgrade strategies ----------------------------------------------------------------------------------

_STRATEGY = f"{CONFIG}.upgradeStrategy"
_DRAINS: dict[str, Sample] = {}
for _tier in ("controlPlane", "worker"):
    _options = f"{_STRATEGY}.{_tier}DrainOptions"
    _DRAINS |= {f"{_STRATEGY}.{_tier}Concurrency": Sample("2"), f"{_options}.enabled": Sample(True)}
    _DRAINS |= {
        f"{_options}.{option}": Sample(value, {f"{_options}.enabled": True})
        for option, value in {
            "deleteEmptyDirData": True,
            "disableEviction": True,
            "force": True,
            "gracePeriod": 5,
            "ignoreDaemonSets": False,
            "ignoreErrors": True,
            "postDrainHooks[].annotation": "example.com/hook",
            "preDrainHooks[].annotation": "example.com/hook",
            "skipWaitForDeleteTimeoutSeconds": 5,
            "timeout": 5,
        }.items()
    }

# --- samples of machine pools ---------------------------------------------------------------------------------------

_SCALED = {f"{POOL}.autoscalingMinSize": 1, f"{POOL}.autoscalingMaxSize": 3}
_CHECKED = {f"{POOL}.unhealthyNodeTimeout": "5m"}
_TAINT = {f"{POOL}.taints": [{"key": "a", "effect": "NoSchedule"}]}
_SERVERS = f"{CONFIG}.machinePools[1]"
_ONE_FIELD = {**SCHEMA["spec"], "resourceFields": {"image": FIELDS["image"]}}
_POOLS = {
    f"{CONFIG}.machinePoolDefaults.hostnameLengthLimit": Sample(20),
    f"{POOL}.autoscalingMaxSize": Sample(5, _SCALED),
    f"{POOL}.autoscalingMinSize": Sample(2, _SCALED),
    f"{POOL}.cloudCredentialSecretName": Sample("cc"),
    f"{POOL}.controlPlaneRole": Sample(True, {f"{_SERVERS}.controlPlaneRole": False}, f"{_SERVERS}.controlPlaneRole"),
    f"{POOL}.etcdRole": Sample(True, {f"{_SERVERS}.etcdRole": False}, f"{_SERVERS}.etcdRole"),
    f"{POOL}.workerRole": Sample(True, at=f"{_SERVERS}.workerRole"),
    f"{POOL}.drainBeforeDeleteTimeout": Sample("10m"),
    f"{POOL}.dynamicSchemaSpec": Sample(str(_ONE_FIELD).replace("'", '"').replace("True", "true")),
    f"{POOL}.hostnameLengthLimit": Sample(20),
    f"{POOL}.maxUnhealthy": Sample("40%", _CHECKED),
    f"{POOL}.nodeStartupTimeout": Sample("10m", _CHECKED),
    f"{POOL}.unhealthyNodeTimeout": Sample("5m"),
    f"{POOL}.unhealthyRange": Sample("[1-3]", _CHECKED),
    f"{POOL}.taints[].effect": Sample("NoExecute", _TAINT),
    f"{POOL}.taints[].key": Sample("b", _TAINT),
    f"{POOL}.taints[].timeAdded": Sample("2026-01-01T00:00:00Z", _TAINT),
    f"{POOL}.taints[].value": Sample("b", _TAINT),
    f"{POOL}.userdata.inlineUserdata": Sample("#cloud-config\n", _ON_OTHER_INFRASTRUCTURE),
}

_RESTORE = f"{CONFIG}.etcdSnapshotRestore"
_OPERATIONS = {
    f"{_RESTORE}.generation": Sample(1, {f"{_RESTORE}.name": "before"}),
    f"{_RESTORE}.name": Sample("before", {f"{_RESTORE}.generation": 1}),
    f"{_RESTORE}.restoreRKEConfig": Sample("all", {f"{_RESTORE}.generation": 1, f"{_RESTORE}.name": "before"}),
    f"{CONFIG}.rotateCertificates.caCertificates": Sample(True, {f"{CONFIG}.rotateCertificates.generation": 1}),
    f"{CONFIG}.rotateCertificates.services": Sample(["api-server"], {f"{CONFIG}.rotateCertificates.generation": 1}),
}
_PARTS = (_CLUSTER, _ETCD, _REFERENCES, _REGISTRIES, _SELECTORS, _FILES, _DRAINS, _POOLS, _OPERATIONS)
SAMPLES: Mapping[str, Sample] = {path: sample for part in _PARTS for path, sample in part.items()}
