"""Built-in kinds have the same field owners and strategic merge patch results as on a real kube-apiserver."""

from __future__ import annotations

import itertools
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from herder.engine.meta.errors import StatusError
from herder.engine.patch import apply_strategic_patch
from herder.engine.patch.fieldpath.fieldset import from_fields_v1
from herder.engine.patch.ssa import managed
from tests.unit.engine.patch.builtins import builtin_type
from tests.unit.engine.patch.servers import RealServer, Request
from tests.unit.engine.patch.strategic_strategies import FINALIZERS, PATCHES, POD_SPECS

RUN = uuid.uuid4().hex[:8]
NUMBERS = itertools.count()
NOW = datetime(2030, 1, 1, tzinfo=UTC)

POD_SPEC: dict[str, Any] = {
    "containers": [
        {
            "name": "c",
            "image": "nginx",
            "ports": [{"containerPort": 80}],
            "env": [{"name": "A", "value": "b"}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        }
    ],
    "volumes": [{"name": "v", "emptyDir": {}}],
}
SELECTOR = {"matchLabels": {"a": "b"}}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": POD_SPEC}
ROLE = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
BACKEND = {"service": {"name": "s", "port": {"number": 80}}}
RBAC = "rbac.authorization.k8s.io"

KINDS: list[tuple[str, str, str, bool, dict[str, Any]]] = [
    ("v1", "ConfigMap", "configmaps", True, {"data": {"a": "b"}}),
    ("v1", "Secret", "secrets", True, {"stringData": {"a": "b"}}),
    ("v1", "ServiceAccount", "serviceaccounts", True, {"imagePullSecrets": [{"name": "x"}]}),
    ("v1", "ResourceQuota", "resourcequotas", True, {"spec": {"hard": {"pods": "1000"}}}),
    ("v1", "PodTemplate", "podtemplates", True, {"template": TEMPLATE}),
    ("v1", "Event", "events", True, {"involvedObject": {"namespace": "default", "name": "x"}, "reason": "r"}),
    ("apps/v1", "Deployment", "deployments", True, {"spec": {"selector": SELECTOR, "template": TEMPLATE}}),
    ("apps/v1", "DaemonSet", "daemonsets", True, {"spec": {"selector": SELECTOR, "template": TEMPLATE}}),
    (
        "apps/v1",
        "StatefulSet",
        "statefulsets",
        True,
        {
            "spec": {
                "selector": SELECTOR,
                "serviceName": "x",
                "template": TEMPLATE,
                "volumeClaimTemplates": [{"metadata": {"name": "p"}, "spec": CLAIM}],
            }
        },
    ),
    (
        "batch/v1",
        "CronJob",
        "cronjobs",
        True,
        {
            "spec": {
                "schedule": "* * * * *",
                "jobTemplate": {"spec": {"template": {"spec": {**POD_SPEC, "restartPolicy": "Never"}}}},
            }
        },
    ),
    (f"{RBAC}/v1", "Role", "roles", True, {"rules": [ROLE]}),
    (f"{RBAC}/v1", "ClusterRole", "clusterroles", False, {"aggregationRule": {"clusterRoleSelectors": [SELECTOR]}}),
    (
        f"{RBAC}/v1",
        "RoleBinding",
        "rolebindings",
        True,
        {"roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "x"}, "subjects": [{"kind": "User", "name": "u"}]},
    ),
    ("coordination.k8s.io/v1", "Lease", "leases", True, {"spec": {"holderIdentity": "x"}}),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", True, {"spec": {"minAvailable": 1}}),
    (
        "networking.k8s.io/v1",
        "Ingress",
        "ingresses",
        True,
        {"spec": {"rules": [{"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": BACKEND}]}}]}},
    ),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", True, {"spec": {"podSelector": {}}}),
    ("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", False, {"value": 10}),
    ("storage.k8s.io/v1", "StorageClass", "storageclasses", False, {"provisioner": "x"}),
    (
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "endpointslices",
        True,
        {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]},
    ),
]


def collection(api_version: str, plural: str, namespaced: bool) -> str:
    prefix = "/apis" if "/" in api_version else "/api"
    return f"{prefix}/{api_version}" + ("/namespaces/default" if namespaced else "") + f"/{plural}"


@pytest.mark.parametrize(("api_version", "kind", "plural", "namespaced", "body"), KINDS, ids=[k[1] for k in KINDS])
def test_the_creator_owns_the_same_fields_as_on_kube_apiserver(
    real_server: RealServer, api_version: str, kind: str, plural: str, namespaced: bool, body: dict[str, Any]
) -> None:
    metadata = {"name": f"x-{RUN}", "labels": {"l": "m"}}
    sent = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
    path = collection(api_version, plural, namespaced)
    code, created = real_server.write(Request("create", "creator", sent), path, "")
    assert code == 201, created
    entries = created["metadata"].pop("managedFields")
    of = builtin_type(real_server, api_version, kind)
    ours = managed.track_update(
        created,
        None,
        manager="creator",
        api_version=api_version,
        now=NOW,
        type_of={api_version: of}.get,
        reset={"f:status": {}},
    )
    assert [from_fields_v1(entry["fieldsV1"]) for entry in ours] == [entry["fieldsV1"] for entry in entries]
    assert [list(entry) for entry in ours] == [list(entry) for entry in entries]


def without_directives(value: Any) -> Any:
    """Directives inside new items are unknown fields, which decoding drops."""
    if isinstance(value, dict):
        return {key: without_directives(item) for key, item in value.items() if not key.startswith("$")}
    return [without_directives(item) for item in value] if isinstance(value, list) else value


def outline(obj: dict[str, Any]) -> Any:
    """Return the patched fields, without those that defaulting adds."""
    spec = without_directives(obj["template"]["spec"])
    containers = [{k: c[k] for k in ("name", "image", "args", "env") if c.get(k)} for c in spec.get("containers") or []]
    volumes = [volume if len(volume) > 1 else {**volume, "emptyDir": {}} for volume in spec.get("volumes") or []]
    metadata = obj["metadata"]
    return containers, volumes, metadata.get("finalizers") or [], metadata.get("labels") or {}


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(POD_SPECS, FINALIZERS, st.lists(PATCHES, min_size=1, max_size=3))
def test_strategic_patches_have_the_same_result(
    real_server: RealServer, spec: dict[str, Any], finalizers: list[str], patches: list[dict[str, Any]]
) -> None:
    name = f"s-{RUN}-{next(NUMBERS)}"
    path = collection("v1", "podtemplates", True)
    metadata = {"name": name, "finalizers": finalizers, "labels": {"a": "1"}}
    sent = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": {"spec": spec}}
    code, live = real_server.write(Request("create", "creator", sent), path, "")
    assert code == 201, live
    schema = builtin_type(real_server, "v1", "PodTemplate").patch_schema()
    for patch in patches:
        code, theirs = real_server.write(Request("strategic", "patcher", patch), path, name)
        if code in (400, 500):  # the real server reports any one of several errors
            with pytest.raises(StatusError):
                apply_strategic_patch(live, patch, schema)
        elif code == 200:  # otherwise the patch merges, but the result is invalid
            assert outline(apply_strategic_patch(live, patch, schema)) == outline(theirs)
            live = theirs


@pytest.mark.parametrize(
    "patch",
    [
        {"template": {"spec": {"containers": [{"image": "y"}]}}},
        {"template": {"spec": {"$patch": "foo"}}},
        {"template": {"spec": {"containers": [{"name": "c", "$patch": "merge"}]}}},
        {"template": {"spec": {"containers": [{"name": "c", "$patch": "foo"}]}}},
        {"template": {"spec": {"containers": [{"name": "c", "$retainKeys": ["image"]}]}}},
        {"template": {"spec": {"containers": [{"name": "c", "$retainKeys": 1}]}}},
        {"template": {"spec": {"containers": ["x"]}}},
        {"template": {"spec": {"containers": [["x"]]}}},
        {"template": {"spec": {"$setElementOrder/containers": [{"name": "x"}], "containers": [{"name": "c"}]}}},
        {"template": {"spec": {"$setElementOrder/containers": "x"}}},
        {"metadata": {"$deleteFromPrimitiveList": ["x"]}},
        {"metadata": {"$setElementOrder": ["x"]}},
        [1],
        "x",
    ],
)
def test_strategic_patches_are_rejected_alike(real_server: RealServer, patch: Any) -> None:
    name = f"e-{RUN}-{next(NUMBERS)}"
    path = collection("v1", "podtemplates", True)
    sent = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": TEMPLATE}
    code, live = real_server.write(Request("create", "creator", sent), path, "")
    assert code == 201, live
    code, theirs = real_server.write(Request("strategic", "patcher", patch), path, name)
    assert code >= 400
    schema = builtin_type(real_server, "v1", "PodTemplate").patch_schema()
    with pytest.raises(StatusError) as raised:
        apply_strategic_patch(live, patch, schema)
    error = raised.value
    assert (error.code, error.reason, error.message) == (code, theirs.get("reason", ""), theirs["message"])
