# ruff: noqa: E501 — many short requests to a line read better than one field a line
"""Patches of all four types that cannot be parsed, cannot be applied, or result in invalid objects."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.fuzz.server_pair import CONFIG_MAPS, DEPLOYMENTS, GROUP, PODS, SERVICES, WIDGETS, config_map, posted, widget
from tests.fuzz.wire import Input

JSON_PATCH, MERGE = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"

_OPERATIONS: list[Any] = [
    None, {}, 1, "x", [1], [None], [[]], [{}], [{"op": "nope", "path": "/a"}], [{"op": 1, "path": "/a"}], [{"op": "add"}], [{"op": "add", "path": "/x"}], [{"op": "add", "value": 1}], [{"op": "add", "path": "x", "value": 1}], [{"op": "add", "path": 1, "value": 1}], [{"op": "add", "path": "", "value": 1}],
    [{"op": "add", "path": "", "value": {}}], [{"op": "remove", "path": ""}], [{"op": "remove", "path": "/nope"}], [{"op": "remove", "path": "/data/nope"}], [{"op": "remove", "path": "/nope/nope"}], [{"op": "replace", "path": "/nope", "value": 1}], [{"op": "replace", "path": "/data/nope", "value": "1"}], [{"op": "replace", "path": "/data/a"}],
    [{"op": "replace", "path": "/metadata/name", "value": "other"}], [{"op": "replace", "path": "/metadata/namespace", "value": "other"}], [{"op": "replace", "path": "/metadata/uid", "value": "x"}], [{"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}], [{"op": "replace", "path": "/metadata/resourceVersion", "value": 1}], [{"op": "remove", "path": "/metadata"}], [{"op": "remove", "path": "/metadata/name"}], [{"op": "remove", "path": "/kind"}],
    [{"op": "replace", "path": "/kind", "value": "Nope"}], [{"op": "replace", "path": "/kind", "value": "Secret"}], [{"op": "replace", "path": "/apiVersion", "value": "v9"}], [{"op": "replace", "path": "/metadata", "value": 1}], [{"op": "replace", "path": "/metadata", "value": {}}], [{"op": "replace", "path": "/metadata/creationTimestamp", "value": "x"}],
    [{"op": "test", "path": "/data/a", "value": "z"}], [{"op": "test", "path": "/nope", "value": None}], [{"op": "test", "path": "/nope/x", "value": 1}], [{"op": "test", "path": "/data/a"}], [{"op": "move", "path": "/data/b"}], [{"op": "move", "from": "/nope", "path": "/data/b"}], [{"op": "move", "from": "/data", "path": "/data/b"}], [{"op": "move", "from": 1, "path": "/x"}], [{"op": "copy", "path": "/data/b"}], [{"op": "copy", "from": "/nope", "path": "/x"}],
    [{"op": "copy", "from": "", "path": "/data/x"}], [{"op": "add", "path": "/data/~2", "value": "x"}], [{"op": "add", "path": "/data/~", "value": "x"}], [{"op": "add", "path": "/data/a~1b", "value": "x"}], [{"op": "add", "path": "/data/a b", "value": "x"}], [{"op": "add", "path": "/data/a/b", "value": "x"}], [{"op": "add", "path": "/data/x", "value": 1}], [{"op": "add", "path": "/data", "value": []}],
    [{"op": "add", "path": "/metadata/finalizers/-", "value": "a/b"}], [{"op": "add", "path": "/metadata/finalizers", "value": ["a/b"]}, {"op": "add", "path": "/metadata/finalizers/5", "value": "c/d"}], [{"op": "add", "path": "/metadata/finalizers", "value": ["a/b"]}, {"op": "remove", "path": "/metadata/finalizers/-1"}], [{"op": "add", "path": "/metadata/finalizers", "value": ["a/b"]}, {"op": "remove", "path": "/metadata/finalizers/x"}],
    [{"op": "add", "path": "/metadata/finalizers", "value": ["a/b"]}, {"op": "remove", "path": "/metadata/finalizers/-"}], [{"op": "add", "path": "/metadata/finalizers", "value": ["a/b"]}, {"op": "remove", "path": "/metadata/finalizers/01"}], [{"op": "add", "path": "/metadata/labels/x", "value": "y"}], [{"op": "ADD", "path": "/data/x", "value": "y"}], [{"op": "add", "path": "/data/x", "value": "y", "nope": 1}], [{"op": "add", "path": "/data//", "value": "x"}], [{"op": "add", "path": "/nope", "value": {"a": 1}}],
    [{"op": "add", "path": "/data/x", "value": "y"}] * 10001, [{"op": "copy", "from": "/data", "path": f"/d{n}"} for n in range(50)],
]  # fmt: skip

_MERGES: list[Any] = [
    None, [], 1, "x", {}, {"metadata": None}, {"metadata": 1}, {"metadata": []}, {"metadata": {"name": "other"}}, {"metadata": {"name": None}}, {"metadata": {"name": 1}}, {"metadata": {"namespace": "other"}}, {"metadata": {"uid": "x"}}, {"metadata": {"resourceVersion": "1"}}, {"metadata": {"resourceVersion": "x"}}, {"metadata": {"resourceVersion": 5}}, {"metadata": {"resourceVersion": ""}},
    {"metadata": {"labels": {"a b": "c"}}}, {"metadata": {"labels": {"a": 1}}}, {"metadata": {"labels": "x"}}, {"metadata": {"finalizers": "x"}}, {"metadata": {"finalizers": ["plain"]}}, {"metadata": {"ownerReferences": [{}]}}, {"metadata": {"managedFields": "x"}}, {"metadata": {"managedFields": [{}]}}, {"metadata": {"managedFields": []}}, {"metadata": {"creationTimestamp": "x"}}, {"metadata": {"creationTimestamp": None}},
    {"metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"}}, {"metadata": {"generation": -1}}, {"metadata": {"generateName": 1}}, {"kind": "Nope"}, {"kind": None}, {"kind": 1}, {"apiVersion": "v9"}, {"apiVersion": None}, {"nope": 1}, {"data": 1}, {"data": {"a": 1}}, {"data": {"a b": "c"}}, {"data": {"a": {"b": "c"}}}, {"data": None, "binaryData": {"a": "!"}}, {"immutable": "x"}, {"spec": 1}, {"spec": None}, {"spec": []},
    {"spec": {"color": None}}, {"spec": {"color": "pink"}}, {"spec": {"color": 1}}, {"spec": {"replicas": "x"}}, {"spec": {"replicas": -1}}, {"spec": {"parts": [{}]}}, {"spec": {"parts": {"x": 1}}}, {"spec": {"fixed": "other"}}, {"spec": {"low": 2, "high": 1}}, {"spec": {"nope": 1}}, {"spec": {"tags": ["a", "a"]}}, {"status": {"replicas": "x"}}, {"": 1},
]  # fmt: skip

_STRATEGIC: list[tuple[str, Any]] = [
    (CONFIG_MAPS, body) for body in _MERGES[:44]
] + [
    (DEPLOYMENTS, {"spec": {"template": {"spec": {"containers": [{"image": "x"}]}}}}), (DEPLOYMENTS, {"spec": {"template": {"spec": {"containers": [{"name": 1}]}}}}), (DEPLOYMENTS, {"spec": {"template": {"spec": {"containers": [1]}}}}), (DEPLOYMENTS, {"spec": {"template": {"spec": {"containers": {"a": 1}}}}}), (DEPLOYMENTS, {"spec": {"template": {"spec": {"containers": [{"name": "c", "$patch": "delete"}]}}}}),
    (DEPLOYMENTS, {"spec": {"template": {"spec": {"containers": [{"name": "c", "$patch": "nope"}]}}}}), (DEPLOYMENTS, {"spec": {"template": {"spec": {"containers": [{"$patch": "delete"}]}}}}), (DEPLOYMENTS, {"spec": {"template": {"spec": {"containers": [{"$patch": "replace"}]}}}}), (DEPLOYMENTS, {"$patch": "nope"}), (DEPLOYMENTS, {"$patch": 1}), (DEPLOYMENTS, {"$patch": "delete"}), (DEPLOYMENTS, {"$patch": "replace"}), (DEPLOYMENTS, {"spec": {"$patch": "replace"}}),
    (DEPLOYMENTS, {"spec": {"$patch": "delete"}}), (DEPLOYMENTS, {"spec": {"$retainKeys": "x"}}), (DEPLOYMENTS, {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}), (DEPLOYMENTS, {"spec": {"strategy": {"$retainKeys": ["nope"], "type": "Recreate"}}}), (DEPLOYMENTS, {"spec": {"strategy": {"$retainKeys": [1]}}}), (DEPLOYMENTS, {"spec": {"template": {"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "d"}], "containers": [{"name": "e", "image": "i"}]}}}}),
    (DEPLOYMENTS, {"spec": {"template": {"spec": {"$setElementOrder/containers": 1}}}}), (DEPLOYMENTS, {"spec": {"template": {"spec": {"$setElementOrder/containers": [1]}}}}), (DEPLOYMENTS, {"spec": {"template": {"spec": {"$setElementOrder/containers": [{"nope": "c"}]}}}}), (DEPLOYMENTS, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}}), (DEPLOYMENTS, {"metadata": {"$deleteFromPrimitiveList/finalizers": 1}}), (DEPLOYMENTS, {"metadata": {"$deleteFromPrimitiveList/nope": ["x"]}}),
    (DEPLOYMENTS, {"metadata": {"$setElementOrder/finalizers": ["a/b"]}}), (DEPLOYMENTS, {"$nope": 1}), (DEPLOYMENTS, {"spec": {"nope": {"a": 1}}}), (DEPLOYMENTS, {"spec": {"replicas": "x"}}), (DEPLOYMENTS, {"spec": {"selector": {"matchLabels": {"x": "y"}}}}), (DEPLOYMENTS, {"spec": {"selector": None}}), (DEPLOYMENTS, {"spec": {"template": None}}), (SERVICES, {"spec": {"ports": [{"port": 81}]}}), (SERVICES, {"spec": {"ports": [{"name": "x"}]}}), (SERVICES, {"spec": {"ports": [{"port": "x"}]}}),
    (SERVICES, {"spec": {"ports": [{"port": 80, "$patch": "delete"}]}}), (PODS, {"spec": {"containers": [{"name": "d", "image": "x"}]}}), (PODS, {"spec": {"containers": None}}), (PODS, {"spec": {"nodeName": "x"}}), (PODS, {"spec": {"tolerations": [{"operator": "X"}]}}), (WIDGETS, {"spec": {"color": "blue"}}), (WIDGETS, {}), (WIDGETS, []),
]  # fmt: skip

_APPLIED: list[tuple[str, Any]] = [
    *[(CONFIG_MAPS, body) for body in (None, [], 1, "x", {}, {"kind": "ConfigMap"}, {"apiVersion": "v1"}, {"apiVersion": "v1", "kind": "ConfigMap"}, {"apiVersion": "v9", "kind": "ConfigMap", "metadata": {"name": "standing"}}, {"apiVersion": "v1", "kind": "Nope"}, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "standing"}}, {"apiVersion": 1, "kind": "ConfigMap"})],
    *[(CONFIG_MAPS, config_map(metadata=meta)) for meta in ({"name": "other"}, {"name": "standing", "namespace": "other"}, {"name": "standing", "managedFields": [{}]}, {"name": "standing", "managedFields": []}, {"name": "standing", "uid": "x"}, {"name": "standing", "resourceVersion": "1"}, {"name": "standing", "resourceVersion": "x"}, {"name": 1}, {"name": "standing", "labels": {"a": 1}}, {"name": "standing", "labels": {"a b": "c"}}, {"name": "standing", "finalizers": ["a/b", "a/b"]}, {"name": "standing", "finalizers": "x"}, {"name": "standing", "nope": 1}, {"generateName": "x"}, None, [], {"name": "standing", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}, {"apiVersion": "v1", "kind": "Pod", "name": "c", "uid": "b"}]})],
    *[(CONFIG_MAPS, config_map(**rest)) for rest in ({"data": {"a": "other"}}, {"data": {"a": 1}}, {"data": []}, {"data": {"a b": "c"}}, {"nope": 1}, {"immutable": "x"}, {"binaryData": {"x": "!"}}, {"data": {"a": None}})],
    *[(WIDGETS, widget(spec=spec)) for spec in ({"color": "blue"}, {"color": "pink"}, {"color": 1}, {}, None, [], {"color": "red", "parts": [{"name": "a"}, {"name": "a"}]}, {"color": "red", "parts": [{}]}, {"color": "red", "parts": [{"size": 1}]}, {"color": "red", "parts": {}}, {"color": "red", "parts": [None]}, {"color": "red", "tags": ["a", "a"]}, {"color": "red", "tags": [{}]}, {"color": "red", "tags": [None]}, {"color": "red", "nope": 1}, {"color": "red", "replicas": "x"}, {"color": "red", "notes": {"a": 1}}, {"color": "red", "free": {"a": [1, {"b": None}]}}, {"color": "red", "fixed": "other"}, {"color": "red", "low": 2, "high": 1}, {"color": "red", "template": {"apiVersion": "v1"}}, {"color": "red", "parts": [{"name": 1}]}, {"color": "red", "size": 1.5})],
    (WIDGETS, {"apiVersion": f"{GROUP}/v2", "kind": "Widget", "metadata": {"name": "standing"}}), (WIDGETS, {"apiVersion": f"{GROUP}/v1", "kind": "Gadget", "metadata": {"name": "standing"}}), (WIDGETS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "standing"}}), (WIDGETS, widget(nope=1)), (WIDGETS, widget(status={"replicas": "x"})), (WIDGETS, widget(metadata={"name": "other"})),
    (DEPLOYMENTS, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "standing"}, "spec": {"template": {"spec": {"containers": [{"image": "x"}]}}}}), (DEPLOYMENTS, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "standing"}, "spec": {"template": {"spec": {"containers": [{"name": "c"}, {"name": "c"}]}}}}), (DEPLOYMENTS, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "standing"}, "spec": {"replicas": "x"}}), (DEPLOYMENTS, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "standing"}, "spec": {"replicas": 3}}),
    (DEPLOYMENTS, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "standing"}, "spec": {"nope": 3}}), (DEPLOYMENTS, {"apiVersion": "apps/v1beta1", "kind": "Deployment", "metadata": {"name": "standing"}}),
]  # fmt: skip

_UNREADABLE = [b"", b" ", b"{", b"[", b"null", b"\xff", b'{"a":1}{', b'[{"op":"add","path":"/a"', b"a: b: c", b"{}{}", b"x", b'{"metadata":{"labels":{"a":"b","a":"c"}}}', b'[{"op":"remove","path":"/data/a"}] x', b"[" * 20000, b'{"a":' * 20000]  # fmt: skip


def _patch(about: str, url: str, body: Any, content_type: str) -> Input:
    return posted(f"patch: {about} {str(body)[:160]}", url, body, "PATCH", content_type)


CASES = [
    _patch(f"JSON {url.rpartition('/')[2]}", f"{url}/standing?dryRun=All", body, JSON_PATCH)
    for body in _OPERATIONS
    for url in (CONFIG_MAPS, WIDGETS)
]
CASES += [
    _patch(f"merge {url.rpartition('/')[2]}", f"{url}/standing?dryRun=All", body, MERGE)
    for body in _MERGES
    for url in (CONFIG_MAPS, WIDGETS)
]
CASES += [
    _patch(f"merge strictly {url.rpartition('/')[2]}", f"{url}/standing?dryRun=All&fieldValidation=Strict", body, MERGE)
    for body in ({"nope": 1}, {"spec": {"nope": 1}}, {"data": {"x": "y"}, "metadata": {"nope": {}}})
    for url in (CONFIG_MAPS, WIDGETS, DEPLOYMENTS)
]
CASES += [
    _patch(f"strategic {url.rpartition('/')[2]}", f"{url}/standing?dryRun=All", body, STRATEGIC)
    for url, body in _STRATEGIC
]
CASES += [
    _patch(f"{kind} {url.rpartition('/')[2]}", f"{url}/standing?dryRun=All&fieldManager=applier{more}", body, APPLY)
    for url, body in _APPLIED
    for kind, more in (("apply", ""), ("force apply", "&force=true"))
]
CASES += [
    _patch("apply to a new one", f"{url}/x-applied?dryRun=All&fieldManager=a", body, APPLY)
    for url, body in _APPLIED[:20]
]
CASES += [
    _patch("apply strictly", f"{url}/standing?dryRun=All&fieldManager=a&force=true&fieldValidation=Strict", body, APPLY)
    for url, body in _APPLIED
]
CASES += [
    Input(f"patch: {content_type.partition('/')[2]} {url.rpartition('/')[2]} unreadable {body[:30]!r}", "PATCH", f"{url}/standing?dryRun=All&fieldManager=a", body, (("Content-Type", content_type),))
    for body in _UNREADABLE
    for content_type in (JSON_PATCH, MERGE, STRATEGIC, APPLY)
    for url in (CONFIG_MAPS, WIDGETS)
]  # fmt: skip
CASES += [
    Input(f"patch: missing {content_type}", "PATCH", f"{CONFIG_MAPS}/nope?dryRun=All", msgspec.json.encode(body), (("Content-Type", content_type),))
    for content_type, body in ((JSON_PATCH, []), (MERGE, {}), (STRATEGIC, {}))
]  # fmt: skip
