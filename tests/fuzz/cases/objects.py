# ruff: noqa: E501 — many short requests to a line read better than one field a line
"""Objects that are well-formed and invalid: types, names, metadata, versions, unknown fields."""

from __future__ import annotations

import copy
from typing import Any

from tests.fuzz.server_pair import (
    BINDINGS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    GROUP,
    JOBS,
    LEASES,
    NAMESPACE,
    PODS,
    ROLES,
    SAMPLES,
    SECRETS,
    SERVICES,
    WIDGETS,
    config_map,
    named,
    posted,
    widget,
)
from tests.fuzz.wire import Input

Obj = dict[str, Any]
_STRICT = "dryRun=All&fieldValidation=Strict"


def changed(obj: Obj, path: str, value: Any) -> Obj:
    """A copy with one field set; `a/0/b` descends into lists, and `...` removes the field."""
    copied = copy.deepcopy(obj)
    *parents, last = path.split("/")
    holder: Any = copied
    for part in parents:
        if isinstance(holder, list):
            holder = holder[int(part)]
        else:
            holder = holder.setdefault(part, {})
    if value is ...:
        holder.pop(last, None)
    elif isinstance(holder, list):
        holder[int(last)] = value
    else:
        holder[last] = value
    return copied


_NAMES: list[Any] = [
    "", "X", "a_b", "a b", "a/b", "a%b", "..", ".", "-a", "a-", ".a", "a.", "a..b", "é", "💥", "a\x00", "a\n", "x" * 254, "x" * 253, "x" * 64, "a.b", "1", "0x", "a:b", "~", "system:a", 1, True, [], {}, None, 1.5,
]  # fmt: skip

_META: list[tuple[str, Any]] = [
    ("metadata", None), ("metadata", []), ("metadata", "x"), ("metadata", 1), ("metadata", ...), ("metadata/labels", "x"), ("metadata/labels", []), ("metadata/labels", {"a": 1}), ("metadata/labels", {"a": None}),
    ("metadata/labels", {"a b": "c"}), ("metadata/labels", {"a": "b c"}), ("metadata/labels", {"": "x"}), ("metadata/labels", {"a/b/c": "x"}), ("metadata/labels", {"/a": "x"}), ("metadata/labels", {"x" * 64: "x"}), ("metadata/labels", {"a": "x" * 64}),
    ("metadata/labels", {"-a": "x"}), ("metadata/labels", {"a": "-x"}), ("metadata/labels", {"é": "x"}), ("metadata/annotations", {"a b": "c"}), ("metadata/annotations", {"": "c"}), ("metadata/annotations", {"a": {}}), ("metadata/annotations", {"A/B": "c"}),
    ("metadata/annotations", {"a": "x" * 262145}), ("metadata/finalizers", "x"), ("metadata/finalizers", [1]), ("metadata/finalizers", ["a b"]), ("metadata/finalizers", ["plain"]), ("metadata/finalizers", ["a/b", "a/b"]), ("metadata/finalizers", [""]),
    ("metadata/finalizers", ["orphan", "foregroundDeletion"]), ("metadata/finalizers", ["a/b/c"]), ("metadata/ownerReferences", {}), ("metadata/ownerReferences", [{}]), ("metadata/ownerReferences", [{"apiVersion": "v1", "kind": "Pod", "name": "a"}]),
    ("metadata/ownerReferences", [{"apiVersion": "v1", "kind": "Event", "name": "a", "uid": "b"}]), ("metadata/ownerReferences", [{"apiVersion": "a/b/c", "kind": "Pod", "name": "a", "uid": "b"}]),
    ("metadata/ownerReferences", [{"apiVersion": "v1", "kind": "", "name": "", "uid": ""}]), ("metadata/ownerReferences", [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b", "controller": True}, {"apiVersion": "v1", "kind": "Pod", "name": "c", "uid": "d", "controller": True}]),
    ("metadata/ownerReferences", [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b", "controller": "x"}]), ("metadata/generation", -1), ("metadata/generation", "x"), ("metadata/generation", 1.5), ("metadata/generation", 2**63), ("metadata/uid", 1), ("metadata/uid", "x"),
    ("metadata/resourceVersion", "x"), ("metadata/resourceVersion", "1"), ("metadata/resourceVersion", 1), ("metadata/resourceVersion", "-1"), ("metadata/resourceVersion", "99999999999999999999999"), ("metadata/resourceVersion", "0"), ("metadata/creationTimestamp", "x"), ("metadata/creationTimestamp", 1),
    ("metadata/creationTimestamp", "2024-01-01"), ("metadata/creationTimestamp", "2024-13-01T00:00:00Z"), ("metadata/creationTimestamp", ""), ("metadata/deletionTimestamp", "2024-01-01T00:00:00Z"), ("metadata/deletionTimestamp", "x"), ("metadata/deletionGracePeriodSeconds", "x"), ("metadata/deletionGracePeriodSeconds", -1),
    ("metadata/namespace", "other"), ("metadata/namespace", "UPPER"), ("metadata/namespace", 1), ("metadata/namespace", ""), ("metadata/generateName", "X_"), ("metadata/generateName", 1), ("metadata/selfLink", 1), ("metadata/nope", 1), ("metadata/managedFields", "x"), ("metadata/managedFields", [1]), ("metadata/managedFields", [{}]),
    ("metadata/managedFields", [{"manager": "m", "operation": "Nope", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}]), ("metadata/managedFields", [{"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "Nope"}]),
    ("metadata/managedFields", [{"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"x": 1}}]), ("metadata/managedFields", [{"manager": "m", "operation": "Update", "apiVersion": "v9/v9", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {}}}]),
    ("metadata/managedFields", [{"manager": "m", "operation": "Update", "apiVersion": "v1", "time": "x"}]), ("metadata/managedFields", [{"manager": "x" * 200, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}]),
    ("metadata/managedFields", [{"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": "x"}]), ("metadata/managedFields", [{"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": 1}}]),
    ("apiVersion", ...), ("kind", ...), ("apiVersion", "v9"), ("kind", "Nope"), ("apiVersion", 1), ("kind", {}), ("nope", 1), ("status", 1), ("metadata/labels", {"a": "b", "c": ["d"]}),
]  # fmt: skip

_FIELDS: dict[str, list[tuple[str, Any]]] = {
    CONFIG_MAPS: [
        ("data", []), ("data", "x"), ("data", {"a": 1}), ("data", {"a": None}), ("data", {"a b": "x"}), ("data", {"": "x"}), ("data", {"..": "x"}), ("data", {"x" * 254: "x"}), ("data", {"a/b": "x"}), ("binaryData", {"b": "!"}), ("binaryData", {"b": 1}), ("binaryData", {"b": "YQ"}), ("binaryData", {"b": "YQ=="}),
        ("binaryData", {"a": "YQ=="}), ("binaryData", {"b": [1, 2]}), ("immutable", "x"), ("immutable", 1), ("immutable", None), ("spec", {}), ("Data", {"x": "y"}), ("data", {"a": {"b": "c"}}),
    ],
    SECRETS: [
        ("data", {"a": "!"}), ("data", {"a": "Yg"}), ("data", {"a": 1}), ("data", {"a b": "Yg=="}), ("stringData", {"a b": "x"}), ("stringData", {"a": 1}), ("stringData", []), ("type", 1), ("type", ""), ("type", "kubernetes.io/tls"), ("type", "kubernetes.io/dockercfg"), ("type", "kubernetes.io/dockerconfigjson"),
        ("type", "kubernetes.io/basic-auth"), ("type", "kubernetes.io/ssh-auth"), ("type", "kubernetes.io/service-account-token"), ("type", "bootstrap.kubernetes.io/token"), ("type", "x" * 1000), ("immutable", 0),
    ],
    PODS: [
        ("spec", ...), ("spec", None), ("spec", []), ("spec/containers", []), ("spec/containers", {}), ("spec/containers", [1]), ("spec/containers", [{}]), ("spec/containers", [None]), ("spec/containers/0/name", "X_"), ("spec/containers/0/name", 1), ("spec/containers/0/image", ""), ("spec/containers/0/image", 1),
        ("spec/containers/0/image", " a"), ("spec/containers/0/ports", [{"containerPort": 0}]), ("spec/containers/0/ports", [{"containerPort": 99999}]), ("spec/containers/0/ports", [{"containerPort": "80"}]), ("spec/containers/0/ports", [{"containerPort": 2**40}]), ("spec/containers/0/ports", [{"containerPort": 80, "protocol": "X"}]),
        ("spec/containers/0/ports", [{"containerPort": 80, "name": "UPPER"}]), ("spec/containers/0/env", [{"name": ""}]), ("spec/containers/0/env", [{"name": "a=b"}]), ("spec/containers/0/env", [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]), ("spec/containers/0/env", [{"name": "A", "value": 1}]),
        ("spec/containers/0/env", [{"name": "A", "valueFrom": {}}]), ("spec/containers/0/env", [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "nope"}}}]), ("spec/containers/0/resources", {"limits": {"cpu": "x"}}), ("spec/containers/0/resources", {"limits": {"cpu": -1}}), ("spec/containers/0/resources", {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
        ("spec/containers/0/resources", {"limits": {"nope": "1"}}), ("spec/containers/0/resources", {"limits": {"memory": "1ZZ"}}), ("spec/containers/0/resources", {"limits": {"memory": {}}}), ("spec/containers/0/volumeMounts", [{"name": "v", "mountPath": "/x"}]), ("spec/containers/0/volumeMounts", [{"name": "v"}]), ("spec/containers/0/imagePullPolicy", "X"),
        ("spec/containers/0/livenessProbe", {}), ("spec/containers/0/livenessProbe", {"httpGet": {"port": "UPPER_"}}), ("spec/containers/0/livenessProbe", {"httpGet": {"port": 80}, "tcpSocket": {"port": 80}}), ("spec/containers/0/livenessProbe", {"exec": {"command": ["x"]}, "periodSeconds": -1}), ("spec/containers/0/livenessProbe", {"httpGet": {"port": []}}),
        ("spec/containers/0/command", "x"), ("spec/containers/0/securityContext", {"privileged": "x"}), ("spec/containers/0/nope", 1), ("spec/volumes", [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]), ("spec/volumes", [{"name": "A_B"}]), ("spec/volumes", [{"name": "v"}, {"name": "v"}]), ("spec/volumes", [{"name": "v", "hostPath": {"path": ".."}}]),
        ("spec/volumes", [{"name": "v", "secret": {}}]), ("spec/volumes", [{"name": "v", "emptyDir": {"sizeLimit": "x"}}]), ("spec/restartPolicy", "X"), ("spec/dnsPolicy", "X"), ("spec/terminationGracePeriodSeconds", -1), ("spec/terminationGracePeriodSeconds", "x"), ("spec/activeDeadlineSeconds", 0), ("spec/nodeSelector", {"a b": "c"}), ("spec/nodeSelector", []),
        ("spec/nodeName", "X Y"), ("spec/hostname", "X_"), ("spec/subdomain", "."), ("spec/tolerations", [{"operator": "X"}]), ("spec/tolerations", [{"operator": "Exists", "value": "x"}]), ("spec/serviceAccountName", "nope"), ("spec/serviceAccountName", "X_"), ("spec/priorityClassName", "nope"), ("spec/hostAliases", [{"ip": "x"}]),
        ("spec/imagePullSecrets", [{"name": ""}]), ("spec/affinity", {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}), ("spec/runtimeClassName", "nope"), ("spec/securityContext", {"runAsUser": -1}), ("spec/ephemeralContainers", [{"name": "e", "image": "i"}]), ("spec/overhead", {"cpu": "1"}), ("spec/os", {"name": "x"}),
        ("spec/schedulingGates", [{"name": ""}]), ("spec/topologySpreadConstraints", [{}]), ("spec/initContainers", [{"name": "c", "image": "i"}]), ("spec/readinessGates", [{"conditionType": "a b"}]), ("spec/hostNetwork", "x"), ("spec/nope", {"a": 1}),
    ],
    SERVICES: [
        ("spec/ports", []), ("spec/ports", [{}]), ("spec/ports", [{"port": 0}]), ("spec/ports", [{"port": 70000}]), ("spec/ports", [{"port": "80"}]), ("spec/ports", [{"port": 80}, {"port": 81}]), ("spec/ports", [{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]), ("spec/ports", [{"port": 80, "protocol": "X"}]), ("spec/ports", [{"port": 80, "targetPort": "UPPER_"}]),
        ("spec/ports", [{"port": 80, "targetPort": 99999}]), ("spec/ports", [{"port": 80, "targetPort": 1.5}]), ("spec/ports", [{"port": 80, "nodePort": 1}]), ("spec/type", "X"), ("spec/type", "ExternalName"), ("spec/clusterIP", "x"), ("spec/clusterIP", "1.2.3.4"), ("spec/selector", {"a b": "c"}), ("spec/sessionAffinity", "X"), ("spec/externalIPs", ["x"]), ("spec/loadBalancerSourceRanges", ["x"]),
        ("spec/externalTrafficPolicy", "X"), ("spec/ipFamilies", ["IPv9"]), ("spec/ipFamilyPolicy", "X"), ("spec/healthCheckNodePort", 5), ("metadata/name", "1a"), ("metadata/name", "a.b"), ("spec", ...), ("spec/ports", "x"),
    ],
    DEPLOYMENTS: [
        ("spec", ...), ("spec/selector", ...), ("spec/selector", {}), ("spec/selector/matchLabels", {"x": "y"}), ("spec/selector/matchLabels", {"a b": "c"}), ("spec/selector", {"matchExpressions": [{"key": "a", "operator": "X"}]}), ("spec/selector", {"matchExpressions": [{"key": "a", "operator": "In"}]}), ("spec/replicas", -1), ("spec/replicas", "1"), ("spec/replicas", 1.5), ("spec/replicas", 2**31),
        ("spec/replicas", True), ("spec/replicas", None), ("spec/replicas", 1e1), ("spec/strategy", {"type": "X"}), ("spec/strategy", {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}), ("spec/strategy", {"rollingUpdate": {"maxSurge": "x"}}), ("spec/strategy", {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}), ("spec/strategy", {"rollingUpdate": {"maxUnavailable": "200%"}}),
        ("spec/template", ...), ("spec/template/spec/restartPolicy", "Never"), ("spec/template/spec/containers", []), ("spec/minReadySeconds", -1), ("spec/revisionHistoryLimit", -1), ("spec/progressDeadlineSeconds", 0), ("spec/paused", "x"), ("spec/template/metadata/labels", {"x": "y"}), ("spec/template/spec/activeDeadlineSeconds", 5), ("spec/nope", 1), ("spec/template/spec/nope", 1),
    ],
    JOBS: [
        ("spec/template", ...), ("spec/template/spec/restartPolicy", "Always"), ("spec/template/spec/restartPolicy", ...), ("spec/parallelism", -1), ("spec/completions", -1), ("spec/backoffLimit", -1), ("spec/activeDeadlineSeconds", -1), ("spec/ttlSecondsAfterFinished", -1), ("spec/completionMode", "X"), ("spec/completionMode", "Indexed"), ("spec/selector", {"matchLabels": {"a": "b"}}), ("spec/manualSelector", True),
        ("spec/suspend", "x"), ("spec/podFailurePolicy", {"rules": [{}]}), ("spec/maxFailedIndexes", 1), ("spec/podReplacementPolicy", "X"), ("spec/managedBy", "x"), ("spec/successPolicy", {}), ("metadata/name", "x" * 64),
    ],
    LEASES: [("spec/leaseDurationSeconds", 0), ("spec/leaseDurationSeconds", "x"), ("spec/leaseTransitions", -1), ("spec/renewTime", "x"), ("spec/renewTime", "2024-01-01T00:00:00Z"), ("spec/renewTime", 1), ("spec/acquireTime", "2024-01-01"), ("spec/holderIdentity", ""), ("spec/holderIdentity", 1), ("spec/strategy", "x"), ("spec/preferredHolder", "x"), ("spec", None), ("spec", [])],
    ROLES: [("rules", {}), ("rules", [{}]), ("rules", [{"verbs": ["get"]}]), ("rules", [{"verbs": [], "resources": ["pods"], "apiGroups": [""]}]), ("rules", [{"verbs": ["get"], "resources": ["pods"]}]), ("rules", [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]), ("rules", [{"verbs": "get"}]), ("rules", [{"verbs": [1]}]), ("rules", [None]), ("aggregationRule", {}), ("metadata/name", "a/b"), ("metadata/name", "A:b")],
    BINDINGS: [("roleRef", ...), ("roleRef", {}), ("roleRef/kind", "Nope"), ("roleRef/apiGroup", "nope"), ("roleRef/name", ""), ("roleRef/name", "a/b"), ("subjects", {}), ("subjects", [{}]), ("subjects", [{"kind": "Nope", "name": "x"}]), ("subjects", [{"kind": "ServiceAccount", "name": "x"}]), ("subjects", [{"kind": "ServiceAccount", "name": "X_", "namespace": "a"}]), ("subjects", [{"kind": "User", "name": "x", "apiGroup": "nope"}]), ("subjects", [{"kind": "User", "name": ""}])],
    WIDGETS: [
        ("spec", ...), ("spec", None), ("spec", []), ("spec", "x"), ("spec/color", ...), ("spec/color", "pink"), ("spec/color", 1), ("spec/color", None), ("spec/replicas", -1), ("spec/replicas", 101), ("spec/replicas", "1"), ("spec/replicas", 1.5), ("spec/replicas", 1.0), ("spec/replicas", None), ("spec/replicas", True), ("spec/replicas", 2**63), ("spec/replicas", 1e30), ("spec/ratio", 0), ("spec/ratio", 0.3), ("spec/ratio", 0.5),
        ("spec/ratio", "x"), ("spec/wide", 2**63), ("spec/wide", -(2**63)), ("spec/narrow", 2**31), ("spec/narrow", -(2**31) - 1), ("spec/size", 1.5), ("spec/size", []), ("spec/size", True), ("spec/size", None), ("spec/when", "x"), ("spec/when", "2024-01-01"), ("spec/when", "2024-01-01T00:00:00"), ("spec/when", "2024-01-01T25:00:00Z"), ("spec/when", 1), ("spec/word", "A"), ("spec/word", "a"), ("spec/word", "abcdefghi"), ("spec/word", "éé"), ("spec/word", ""),
        ("spec/maybe", None), ("spec/maybe", 1), ("spec/yes", "true"), ("spec/yes", 1), ("spec/yes", None), ("spec/parts", {}), ("spec/parts", [{}]), ("spec/parts", [None]), ("spec/parts", [1]), ("spec/parts", [{"name": "a"}, {"name": "a"}]), ("spec/parts", [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}, {"name": "e"}]), ("spec/parts", [{"name": 1}]), ("spec/parts", [{"name": "a", "size": -1}]), ("spec/parts", [{"name": "a", "nope": 1}]),
        ("spec/tags", ["a", "a"]), ("spec/tags", [1]), ("spec/tags", [None]), ("spec/tags", "x"), ("spec/steps", []), ("spec/steps", [[]]), ("spec/free", 1), ("spec/free", []), ("spec/free", {"a": {"b": [None]}}), ("spec/notes", {"a": 1}), ("spec/notes", {"a": "1", "b": "2", "c": "3", "d": "4"}), ("spec/notes", {"toolong": "x"}), ("spec/notes", []), ("spec/notes", {"a": None}), ("spec/low", 5), ("spec/template", {}), ("spec/template", {"apiVersion": "v1"}),
        ("spec/template", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "X_"}}), ("spec/template", {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a b": "c"}}}), ("spec/template", {"apiVersion": 1, "kind": "Pod"}), ("spec/template", {"apiVersion": "v1", "kind": "Pod", "metadata": {"nope": 1}}), ("spec/template", {"apiVersion": "v1", "kind": "Pod", "metadata": 1}), ("spec/template", []), ("spec/nope", 1), ("spec/nope", {"a": {"b": 1}}), ("nope", 1), ("status", 1), ("status", {"replicas": "x"}), ("status", {"nope": 1}),
    ],
}  # fmt: skip

CASES: list[Input] = []


def _case(about: str, url: str, obj: Any, method: str = "POST") -> None:
    CASES.append(posted(about, url, obj, method))


for _url, _kind in (
    (CONFIG_MAPS, "configmap"),
    (WIDGETS, "widget"),
    (SERVICES, "service"),
    (ROLES, "role"),
    ("/api/v1/namespaces", "namespace"),
):
    _sample = SAMPLES.get(_url) or named("v1", "Namespace", "x")
    for _name in _NAMES:
        _case(
            f"object: {_kind} named {str(_name)[:30]!r} {len(str(_name))}",
            f"{_url}?{_STRICT}",
            changed(_sample, "metadata/name", _name),
        )
for _url, _kind in ((CONFIG_MAPS, "configmap"), (WIDGETS, "widget"), (DEPLOYMENTS, "deployment")):
    _sample = changed(SAMPLES[_url], "metadata/name", "x-object")
    for _at, _value in _META:
        _case(f"object: {_kind} {_at} = {str(_value)[:80]}", f"{_url}?{_STRICT}", changed(_sample, _at, _value))
        _case(
            f"object: update {_kind} {_at} = {str(_value)[:80]}",
            f"{_url}/standing?{_STRICT}",
            changed(SAMPLES[_url], _at, _value),
            "PUT",
        )
for _url, _changes in _FIELDS.items():
    _kind = _url.rpartition("/")[2]
    for _at, _value in _changes:
        _sample = changed(SAMPLES[_url], "metadata/name", "x-object")
        _case(f"object: {_kind} {_at} = {str(_value)[:80]}", f"{_url}?{_STRICT}", changed(_sample, _at, _value))
        if _at != "metadata/name":
            _case(
                f"object: update {_kind} {_at} = {str(_value)[:80]}",
                f"{_url}/standing?dryRun=All",
                changed(SAMPLES[_url], _at, _value),
                "PUT",
            )

for _url in (CONFIG_MAPS, WIDGETS):
    _kind, _sample = _url.rpartition("/")[2], SAMPLES[_url]
    _case(f"object: {_kind} that exists", f"{_url}?dryRun=All", _sample)
    _case(f"object: {_kind} updated by another name", f"{_url}/other?dryRun=All", _sample, "PUT")
    _case(
        f"object: {_kind} updated and missing",
        f"{_url}/nope?dryRun=All",
        changed(_sample, "metadata/name", "nope"),
        "PUT",
    )
    _case(
        f"object: {_kind} updated and missing, with a version",
        f"{_url}/nope?dryRun=All",
        changed(changed(_sample, "metadata/name", "nope"), "metadata/resourceVersion", "1"),
        "PUT",
    )
    _case(
        f"object: {_kind} updated and missing, with a uid",
        f"{_url}/nope?dryRun=All",
        changed(changed(_sample, "metadata/name", "nope"), "metadata/uid", "1"),
        "PUT",
    )
    _case(
        f"object: {_kind} in a missing namespace",
        f"{_url}?dryRun=All".replace(f"/{NAMESPACE}/", "/nope/"),
        changed(_sample, "metadata/name", "x"),
    )
    _case(
        f"object: {_kind} in a badly named namespace",
        f"{_url}?dryRun=All".replace(f"/{NAMESPACE}/", "/N_O/"),
        changed(_sample, "metadata/name", "x"),
    )
    _case(f"object: {_kind} without any name", f"{_url}?dryRun=All", changed(_sample, "metadata/name", ...))
    for _options in (
        {"preconditions": {"uid": "x"}}, {"preconditions": {"resourceVersion": "1"}}, {"preconditions": {"resourceVersion": "x"}}, {"preconditions": []}, {"preconditions": {"uid": 1}}, {"gracePeriodSeconds": "x"}, {"gracePeriodSeconds": -1}, {"gracePeriodSeconds": 1.5},
        {"propagationPolicy": "x"}, {"propagationPolicy": 1}, {"orphanDependents": "x"}, {"orphanDependents": True, "propagationPolicy": "Orphan"}, {"dryRun": ["x"]}, {"dryRun": "All"}, {"dryRun": [1]}, {"kind": "Nope"}, {"kind": "DeleteOptions", "apiVersion": "nope/v1"}, {"kind": "ConfigMap", "apiVersion": "v1"}, {"apiVersion": "v1"}, {"nope": 1}, {"kind": "DeleteOptions", "apiVersion": "v1", "nope": 1}, {"preconditions": {"nope": 1}},
    ):  # fmt: skip
        _all = _options if "dryRun" in _options else {**_options, "dryRun": ["All"]}
        _case(f"object: delete {_kind} with {_options}", f"{_url}/standing", _all, "DELETE")
    _case(
        f"object: delete missing {_kind} with preconditions",
        f"{_url}/nope",
        {"preconditions": {"uid": "x"}, "dryRun": ["All"]},
        "DELETE",
    )
_case(
    "object: immutable deployment selector",
    f"{DEPLOYMENTS}/standing?dryRun=All",
    changed(
        changed(SAMPLES[DEPLOYMENTS], "spec/selector/matchLabels", {"x": "y"}),
        "spec/template/metadata/labels",
        {"x": "y"},
    ),
    "PUT",
)
_case(
    "object: immutable job template",
    f"{JOBS}/standing?dryRun=All",
    changed(SAMPLES[JOBS], "spec/template/spec/containers/0/image", "other"),
    "PUT",
)
_case(
    "object: immutable secret type", f"{SECRETS}/standing?dryRun=All", changed(SAMPLES[SECRETS], "type", "other"), "PUT"
)
_case(
    "object: immutable role reference",
    f"{BINDINGS}/standing?dryRun=All",
    changed(SAMPLES[BINDINGS], "roleRef/name", "other"),
    "PUT",
)
_case(
    "object: immutable container",
    f"{PODS}/standing?dryRun=All",
    changed(SAMPLES[PODS], "spec/containers/0/name", "other"),
    "PUT",
)
_case(
    "object: transition rule", f"{WIDGETS}/standing?dryRun=All", changed(SAMPLES[WIDGETS], "spec/fixed", "other"), "PUT"
)
_case("object: crossed bounds", f"{WIDGETS}?dryRun=All", widget("x", spec={"color": "red", "low": 2, "high": 1}))
_case("object: unknown fields, Warn", f"{WIDGETS}?dryRun=All", widget("x", nope=1))
_case("object: twice unknown, Strict", f"{CONFIG_MAPS}?{_STRICT}", config_map("x", nope=1, neither={"a": 1}))
_case("object: a kind of another group", f"{WIDGETS}?dryRun=All", named("other.example.com/v1", "Widget", "x"))
_case("object: another version", f"{WIDGETS}?dryRun=All", named(f"{GROUP}/v2", "Widget", "x"))
_case("object: status of a missing one", f"{WIDGETS}/nope/status?dryRun=All", widget("nope"), "PUT")
_case("object: status by another name", f"{WIDGETS}/standing/status?dryRun=All", widget("other"), "PUT")
_case(
    "object: status with a wrong type", f"{WIDGETS}/standing/status?dryRun=All", widget(status={"replicas": "x"}), "PUT"
)
