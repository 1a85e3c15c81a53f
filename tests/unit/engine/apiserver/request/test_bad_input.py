"""Any invalid request gets an error with a reason, and never an internal error."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.unit.engine.apiserver.api import (
    APPLY,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    Answer,
    Api,
    config_map,
    serve_widgets,
    widget,
)

JUNK: list[Any] = [
    None, True, -1, 0, 1.5, 2**63, "", "x", "\x00", "-", "a/b", "💥", "x" * 300,
    [], [None], {}, {"": None}, [[]], {"a": {"b": []}},
]  # fmt: skip

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "labels": {"a": "b"}, "finalizers": ["x.y/z"]},
    "spec": {
        "containers": [
            {"name": "c", "image": "i", "ports": [{"containerPort": 80}], "env": [{"name": "E", "value": "v"}]}
        ],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "restartPolicy": "Never",
    },
}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "s"},
    "spec": {"ports": [{"port": 80, "targetPort": "x"}], "selector": {"a": "b"}, "type": "ClusterIP"},
}
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "j"},
    "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}},
}
ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "r"},
    "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
}
SAMPLES: list[tuple[str, dict[str, Any]]] = [
    ("/api/v1/namespaces/{}/configmaps", config_map("a", x="y")),
    ("/api/v1/namespaces/{}/secrets", {"metadata": {"name": "s"}, "data": {"a": "Yg=="}, "type": "Opaque"}),
    ("/api/v1/namespaces/{}/pods", POD),
    ("/api/v1/namespaces/{}/services", SERVICE),
    ("/apis/batch/v1/namespaces/{}/jobs", JOB),
    ("/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles", ROLE),
    ("/apis/example.com/v1/namespaces/{}/widgets", widget("w") | {"spec": {"color": "red", "replicas": 1}}),
]


def is_server_error(answer: Answer) -> bool:
    """Return whether the response is an internal server error."""
    return answer.status >= 500 and answer.reason != "Timeout"


def mutated(value: Any, rng: random.Random) -> Any:
    """Return the value with a part replaced, dropped or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        copy = dict(value)
        match rng.randrange(10):
            case 0:
                del copy[key]
            case 1:
                copy[rng.choice(["", "unheard", "metadata", key.upper()])] = copy.pop(key)
            case _:
                copy[key] = mutated(value[key], rng)
        return copy
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return [*value[:place], mutated(value[place], rng), *value[place + 1 :]]
    return rng.choice(JUNK)


@pytest.mark.parametrize("seed", range(40))
async def test_mutated_objects_never_cause_a_server_error(api: Api, seed: int) -> None:
    await serve_widgets(api)
    rng = random.Random(seed)
    for _ in range(60):
        where, sample = rng.choice(SAMPLES)
        url = where.format(api.namespace)
        body = mutated(sample, rng)
        if rng.random() < 0.3:
            body = mutated(body, rng)
        for answer in (await api.post(url, body), await api.put(f"{url}/{sample['metadata']['name']}", body)):
            assert not is_server_error(answer), (url, body, answer.body)


@pytest.mark.parametrize("seed", range(20))
async def test_mutated_patches_never_cause_a_server_error(api: Api, seed: int) -> None:
    await serve_widgets(api)
    rng = random.Random(seed)
    for where, sample in SAMPLES:
        await api.post(where.format(api.namespace), sample)
    operations = [{"op": "add", "path": "/metadata/labels/x", "value": "y"}, {"op": "move", "from": "/a", "path": "/b"}]
    for _ in range(60):
        where, sample = rng.choice(SAMPLES)
        url = f"{where.format(api.namespace)}/{sample['metadata']['name']}"
        content_type = rng.choice([MERGE, STRATEGIC, JSON_PATCH, APPLY])
        body = mutated(operations if content_type == JSON_PATCH else sample, rng)
        query = "?fieldManager=m&force=true" if content_type == APPLY else ""
        answer = await api.patch(url + query, body, content_type)
        assert not is_server_error(answer), (url, content_type, body, answer.body)


@pytest.mark.parametrize("seed", range(20))
async def test_mutated_bytes_never_cause_a_server_error(api: Api, seed: int) -> None:
    rng = random.Random(seed)
    types = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"]
    for _ in range(80):
        content = bytearray(msgspec.json.encode(POD))
        if rng.random() < 0.5:
            content[:0] = b"k8s\x00"
        for _ in range(rng.randrange(1, 6)):
            place = rng.randrange(len(content))
            content[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(20))
        url = api.path("pods")
        answer = await api.post(url, bytes(content), content_type=rng.choice(types))
        assert not is_server_error(answer), (bytes(content), answer.body)


@pytest.mark.parametrize("seed", range(3))
async def test_mutated_queries_never_cause_a_server_error(api: Api, seed: int) -> None:
    rng = random.Random(seed)
    names = [
        "limit", "continue", "resourceVersion", "resourceVersionMatch", "labelSelector", "fieldSelector", "pretty",
        "timeoutSeconds", "sendInitialEvents", "allowWatchBookmarks", "dryRun", "fieldManager", "fieldValidation",
        "propagationPolicy", "gracePeriodSeconds", "orphanDependents", "includeObject", "force",
    ]  # fmt: skip
    values = ["", "0", "-1", "1", "x", "true", "a=b", "a in (", "!", "=,=", "metadata.name=a", "é", "9" * 30, "Exact"]
    for _ in range(80):
        query = "&".join(f"{rng.choice(names)}={rng.choice(values)}" for _ in range(rng.randrange(1, 5)))
        for method in ("GET", "DELETE"):
            answer = await api.ask(method, f"{api.path('configmaps')}?{query}", accept="application/json")
            assert not is_server_error(answer), (method, query, answer.body)
