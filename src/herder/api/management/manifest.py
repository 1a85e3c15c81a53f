"""The cluster agent as objects: what is applied in a cluster so that it dials here."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import yaml

from herder.api.management.names import AGENT_ACCOUNT, AGENT_TOKEN_SECRET, SYSTEM_NAMESPACE
from herder.engine.meta.kinds import Object

NAME, FIRST_NAME = "cattle-cluster-agent", "cattle-cluster-agent-bootstrap"
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
_TOLERATED_FIRST = (
    *_TOLERATED,
    ("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule"),
    ("node.kubernetes.io/not-ready", "NoSchedule"),
)
"""By the agent of a cluster that is not yet to have anything else: neither cloud provider nor network are there."""
_CREATOR = {"cattle.io/creator": "norman"}


@dataclass(frozen=True, slots=True)
class Agent:
    """All that the agent of one cluster is rendered from."""

    server_url: str
    token: str
    ca_checksum: str
    image: str
    strict: bool = True
    environment: Sequence[Mapping[str, str]] = ()  # of the cluster's agentEnvVars
    comes_first: bool = False  # the cluster is to have Secrets of ours before it has anything else

    def __repr__(self) -> str:
        return f"Agent(server_url={self.server_url!r}, image={self.image!r})"

    @property
    def credentials(self) -> str:
        """The Secret's name tells one set of credentials from another, so a new token makes new pods."""
        digest = hashlib.sha256(f"{self.server_url}.{self.token}.".encode()).hexdigest()
        return f"cattle-credentials-{digest[:10]}"


def manifest(agent: Agent) -> list[Object]:
    return [*_rights(), _namespace(), _account(), _account_token(), _credentials(agent), _deployment(agent), _service()]


_MOST_BLOCK_BYTES = 32 << 10
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON allows in strings and YAML does not."""


def as_yaml(objects: Sequence[Object]) -> str:
    return "".join(_dumped(obj) for obj in objects)


def _dumped(obj: Object) -> str:
    """Every server of a cluster is given the same, again with each of its plans. What holds a token, or variables of
    users, is not remembered."""
    encoded = msgspec.json.encode(obj)
    return _dump(encoded) if obj.get("kind") in ("Secret", "Deployment") else _remembered(encoded)


def _dump(encoded: bytes) -> str:
    if len(encoded) > _MOST_BLOCK_BYTES:
        # JSON is YAML too, and written a hundred times as fast: owners may give the agent thousands of variables.
        text = json.dumps(msgspec.json.decode(encoded), ensure_ascii=False)
        return f"---\n{_NOT_IN_YAML.sub(_escaped, text)}\n"
    dumped: str = yaml.safe_dump_all([msgspec.json.decode(encoded)], sort_keys=False, explicit_start=True)
    return dumped


def _escaped(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"


_remembered = lru_cache(256)(_dump)


# --- rights ---------------------------------------------------------------------------------------------------------


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
    made = _object(f"{_RBAC}/v1", "ClusterRoleBinding", name, labels=labels)
    return {**made, "subjects": [subject], "roleRef": reference}


# --- where it lives, and how it registers ---------------------------------------------------------------------------


def _namespace() -> Object:
    return _object("v1", "Namespace", SYSTEM_NAMESPACE)


def _account() -> Object:
    return _object("v1", "ServiceAccount", AGENT_ACCOUNT, SYSTEM_NAMESPACE)


def _account_token() -> Object:
    """Filled by the cluster: what the manager acts with there, for as long as it stands."""
    marks = {"kubernetes.io/service-account.name": AGENT_ACCOUNT}
    made = _object("v1", "Secret", AGENT_TOKEN_SECRET, SYSTEM_NAMESPACE, annotations=marks)
    return {**made, "type": "kubernetes.io/service-account-token"}


def _credentials(agent: Agent) -> Object:
    values = {"url": agent.server_url, "token": agent.token, "namespace": ""}
    data = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    return {**_object("v1", "Secret", agent.credentials, SYSTEM_NAMESPACE), "type": "Opaque", "data": data}


# --- what runs ------------------------------------------------------------------------------------------------------


def _deployment(agent: Agent) -> Object:
    made = _object("apps/v1", "Deployment", FIRST_NAME if agent.comes_first else NAME, SYSTEM_NAMESPACE)
    made["metadata"]["annotations"] = {"management.cattle.io/scale-available": "2"}
    made["spec"] = {
        "selector": {"matchLabels": _LABELS},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": _LABELS}, "spec": _pod(agent)},
    }
    return made


def _pod(agent: Agent) -> Object:
    secret = {"secretName": agent.credentials, "defaultMode": 0o500}
    return {
        "serviceAccountName": AGENT_ACCOUNT,
        **({"hostNetwork": True} if agent.comes_first else {}),
        "tolerations": [
            {"key": key, "effect": effect, "operator": "Exists"}
            for key, effect in (_TOLERATED_FIRST if agent.comes_first else _TOLERATED)
        ],
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
            }
        ],
        "volumes": [{"name": "cattle-credentials", "secret": secret}],
    }


def _environment(agent: Agent) -> list[Object]:
    """What a cluster's owner adds comes first: whom the agent trusts is not theirs to say. The spec of a management
    Cluster has no schema, so what they add may be anything."""
    own = {
        "CATTLE_FEATURES": "provisioningprebootstrap=true" if agent.comes_first else "",
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
