"""Manifest of the cluster agent, applied in a managed cluster to connect it to the manager."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec
import yaml

from herder.api.management.names import AGENT_ACCOUNT, AGENT_TOKEN_SECRET, SYSTEM_NAMESPACE
from herder.engine.meta.kinds import Object

NAME, BOOTSTRAP_NAME = "cattle-cluster-agent", "cattle-cluster-agent-bootstrap"
ADMIN_ROLE, ADMIN_BINDING = "cattle-admin", "cattle-admin-binding"
PROXY_ROLE, PROXY_BINDING = "proxy-clusterrole-kubeapiserver", "proxy-role-binding-kubernetes-master"
CREDENTIALS_DIRECTORY = "/cattle-credentials"
HEALTH_PORT = 8080

_RBAC = "rbac.authorization.k8s.io"
_LABELS = {"app": NAME}
_TOLERATED = (
    ("node-role.kubernetes.io/controlplane", "NoSchedule"),
    ("node-role.kubernetes.io/control-plane", "NoSchedule"),
    ("node-role.kubernetes.io/master", "NoSchedule"),
    ("node-role.kubernetes.io/etcd", "NoExecute"),
)
_TOLERATED_BOOTSTRAP = (
    *_TOLERATED,
    ("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule"),
    ("node.kubernetes.io/not-ready", "NoSchedule"),
)
"""Tolerations of the agent during pre-bootstrap, before cloud provider and network exist."""
_UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATION_SECONDS = 30
"""How long the agent stays on a lost Node. Kubernetes' default of five minutes is too long: meanwhile, the manager
cannot reach the cluster.
"""
_AFFINITY = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 50,
                "preference": {
                    "matchExpressions": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]
                },
            }
        ]
    },
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": _LABELS},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }
        ]
    },
}
"""Servers are replaced less often than workers; two agents on one Node are lost together."""
_CREATOR = {"cattle.io/creator": "norman"}


@dataclass(frozen=True, slots=True)
class Agent:
    """All inputs of the agent's manifest."""

    server_url: str
    token: str
    ca_checksum: str
    image: str
    strict: bool = True
    environment: Sequence[Mapping[str, str]] = ()  # the cluster's agentEnvVars
    pre_bootstrap: bool = False  # pre-bootstrap: the cluster needs Secrets of ours before anything else runs
    customization: Mapping[str, object] = field(default_factory=dict)  # clusterAgentDeploymentCustomization

    def __repr__(self) -> str:
        return f"Agent(server_url={self.server_url!r}, image={self.image!r})"

    @property
    def credentials(self) -> str:
        """Name of the credentials Secret; it contains a digest, so that a new token creates new pods."""
        digest = hashlib.sha256(f"{self.server_url}.{self.token}.".encode()).hexdigest()
        return f"cattle-credentials-{digest[:10]}"


def manifest(agent: Agent, *, scheduled: bool = True) -> list[Object]:
    """Objects of the agent. `scheduled`: a scheduler places its pods; the embedded distribution has none."""
    deployment = _deployment(agent, scheduled)
    return [*_rights(), _namespace(), _account(), _account_token(), _credentials(agent), deployment, _service()]


_MAX_YAML_BYTES = 32 << 10
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON allows in strings and YAML does not."""


def as_yaml(objects: Sequence[Object]) -> str:
    return "".join(_dumped(obj) for obj in objects)


def _dumped(obj: Object) -> str:
    """Cache the YAML, because every server gets the same objects with each plan. Objects with tokens or user variables
    are not cached.
    """
    encoded = msgspec.json.encode(obj)
    return _dump(encoded) if obj.get("kind") in ("Secret", "Deployment") else _cached_dump(encoded)


def _dump(encoded: bytes) -> str:
    if len(encoded) > _MAX_YAML_BYTES:
        # JSON is valid YAML, and serialized a hundred times faster; owners may give the agent thousands of variables.
        text = json.dumps(msgspec.json.decode(encoded), ensure_ascii=False)
        return f"---\n{_NOT_IN_YAML.sub(_escaped, text)}\n"
    dumped: str = yaml.safe_dump_all([msgspec.json.decode(encoded)], sort_keys=False, explicit_start=True)
    return dumped


def _escaped(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"


_cached_dump = lru_cache(256)(_dump)


# --- permissions ----------------------------------------------------------------------------------------------------


def _rights() -> list[Object]:
    node_proxies = [f"nodes/{part}" for part in ("metrics", "proxy", "stats", "log", "spec")]
    everything = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
        {"nonResourceURLs": ["*"], "verbs": ["*"]},
    ]
    account = {"kind": "ServiceAccount", "name": AGENT_ACCOUNT, "namespace": SYSTEM_NAMESPACE}
    api_server = {"kind": "User", "apiGroup": _RBAC, "name": "kube-apiserver"}
    return [
        _role(
            PROXY_ROLE, [{"apiGroups": [""], "resources": node_proxies, "verbs": ["get", "list", "watch", "create"]}]
        ),
        _binding(PROXY_BINDING, PROXY_ROLE, api_server),
        _role(ADMIN_ROLE, everything, _CREATOR),
        _binding(ADMIN_BINDING, ADMIN_ROLE, account, _CREATOR),
    ]


def _role(name: str, rules: list[Object], labels: Mapping[str, str] | None = None) -> Object:
    return {**_object(f"{_RBAC}/v1", "ClusterRole", name, labels=labels), "rules": rules}


def _binding(name: str, role: str, subject: Object, labels: Mapping[str, str] | None = None) -> Object:
    reference = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role}
    obj = _object(f"{_RBAC}/v1", "ClusterRoleBinding", name, labels=labels)
    return {**obj, "subjects": [subject], "roleRef": reference}


# --- namespace and credentials --------------------------------------------------------------------------------------


def _namespace() -> Object:
    return _object("v1", "Namespace", SYSTEM_NAMESPACE)


def _account() -> Object:
    return _object("v1", "ServiceAccount", AGENT_ACCOUNT, SYSTEM_NAMESPACE)


def _account_token() -> Object:
    """Token Secret filled by the cluster; the manager acts with it in the cluster as long as it exists."""
    annotations = {"kubernetes.io/service-account.name": AGENT_ACCOUNT}
    obj = _object("v1", "Secret", AGENT_TOKEN_SECRET, SYSTEM_NAMESPACE, annotations=annotations)
    return {**obj, "type": "kubernetes.io/service-account-token"}


def _credentials(agent: Agent) -> Object:
    values = {"url": agent.server_url, "token": agent.token, "namespace": ""}
    data = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    return {**_object("v1", "Secret", agent.credentials, SYSTEM_NAMESPACE), "type": "Opaque", "data": data}


# --- workload -------------------------------------------------------------------------------------------------------


def _deployment(agent: Agent, scheduled: bool) -> Object:
    obj = _object("apps/v1", "Deployment", BOOTSTRAP_NAME if agent.pre_bootstrap else NAME, SYSTEM_NAMESPACE)
    obj["metadata"]["annotations"] = {"management.cattle.io/scale-available": "2"}
    obj["spec"] = {
        "selector": {"matchLabels": _LABELS},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": _LABELS}, "spec": _pod(agent, scheduled)},
    }
    return obj


def _pod(agent: Agent, scheduled: bool) -> Object:
    secret = {"secretName": agent.credentials, "defaultMode": 0o500}
    affinity, resources = (_mapping(agent, part) for part in ("overrideAffinity", "overrideResourceRequirements"))
    return {
        "serviceAccountName": AGENT_ACCOUNT,
        **({"hostNetwork": True} if agent.pre_bootstrap else {}),
        **({"affinity": affinity or _AFFINITY} if scheduled else {}),
        "tolerations": _tolerations(agent, scheduled),
        "containers": [
            {
                "name": "cluster-register",
                "image": agent.image,
                "imagePullPolicy": "IfNotPresent",
                "env": _environment(agent),
                "readinessProbe": {
                    "httpGet": {"path": "/health", "port": HEALTH_PORT},
                    "initialDelaySeconds": 2,
                    "periodSeconds": 5,
                },
                "volumeMounts": [{"name": "cattle-credentials", "mountPath": CREDENTIALS_DIRECTORY, "readOnly": True}],
                **({"resources": resources} if resources else {}),
            }
        ],
        "volumes": [{"name": "cattle-credentials", "secret": secret}],
    }


def _mapping(agent: Agent, part: str) -> Object:
    """A part of the customization. The spec of a management Cluster has no schema, so it may be anything."""
    found = agent.customization.get(part) if isinstance(agent.customization, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def _tolerations(agent: Agent, scheduled: bool) -> list[Object]:
    """Before a network exists, all Nodes are not ready: there the agent has nowhere to go."""
    tolerated = _TOLERATED_BOOTSTRAP if agent.pre_bootstrap else _TOLERATED
    tolerations: list[Object] = [{"key": key, "effect": effect, "operator": "Exists"} for key, effect in tolerated]
    added = _added_tolerations(agent)
    chosen = [each.get("key") for each in added]  # the shortest of several tolerations of a taint would count
    leaves = [key for key in _UNREACHABLE if key not in chosen] if scheduled and not agent.pre_bootstrap else []
    limited = {"effect": "NoExecute", "operator": "Exists", "tolerationSeconds": _TOLERATION_SECONDS}
    return [*tolerations, *({"key": key, **limited} for key in leaves), *added]


def _added_tolerations(agent: Agent) -> list[Object]:
    found = agent.customization.get("appendTolerations") if isinstance(agent.customization, Mapping) else None
    return [dict(each) for each in found if isinstance(each, Mapping)] if isinstance(found, Sequence) else []


def _environment(agent: Agent) -> list[Object]:
    """Return the agent's environment.

    Variables of the cluster's owner come first and cannot override what the agent trusts. The spec of a management
    Cluster has no schema, so they may be anything.
    """
    own = {
        "CATTLE_FEATURES": "provisioningprebootstrap=true" if agent.pre_bootstrap else "",
        "CATTLE_SERVER": agent.server_url,
        "CATTLE_CA_CHECKSUM": agent.ca_checksum,
        "CATTLE_CLUSTER": "true",
        "CATTLE_K8S_MANAGED": "true",
        "CATTLE_CREDENTIAL_NAME": agent.credentials,
        "STRICT_VERIFY": "true" if agent.strict else "false",
    }
    added = [
        {"name": str(each.get("name")), "value": str(each.get("value", ""))}
        for each in (agent.environment if isinstance(agent.environment, Sequence) else ())
        if isinstance(each, Mapping) and isinstance(each.get("name"), str) and each["name"] not in ("", *own)
    ]
    return [*added, *({"name": name, "value": value} for name, value in own.items())]


def _service() -> Object:
    ports = [
        {"name": "http", "port": 80, "targetPort": 80, "protocol": "TCP"},
        {"name": "https-internal", "port": 443, "targetPort": 444, "protocol": "TCP"},
    ]
    return {**_object("v1", "Service", NAME, SYSTEM_NAMESPACE), "spec": {"ports": ports, "selector": _LABELS}}


def _object(
    api_version: str,
    kind: str,
    name: str,
    namespace: str = "",
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    meta: Object = {"name": name}
    if namespace:
        meta["namespace"] = namespace
    if labels:
        meta["labels"] = dict(labels)
    if annotations:
        meta["annotations"] = dict(annotations)
    return {"apiVersion": api_version, "kind": kind, "metadata": meta}
