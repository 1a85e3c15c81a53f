"""The pair of servers under test, and the objects that exist on both: one of each kind that inputs refer to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from herder.engine.client.kubeconfig import RestConfig
from tests.conformance.objects import definition
from tests.fuzz.outcomes import NO_RESPONSE, Outcome, outcome_of
from tests.fuzz.wire import Input, NoResponse, Wire
from tests.unit.engine.apiserver.builtin.driving import resource_of

Obj = dict[str, Any]

GROUP = "fuzz.example.com"
NAMESPACE = "fuzz"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
CONFIG_MAPS = f"{CORE}/configmaps"
SECRETS = f"{CORE}/secrets"
PODS = f"{CORE}/pods"
SERVICES = f"{CORE}/services"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
ROLES = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles"
BINDINGS = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings"
WIDGETS = f"/apis/{GROUP}/v1/namespaces/{NAMESPACE}/widgets"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAME = "standing"  # of the object in each of these collections

_PART = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "size": {"type": "integer", "minimum": 0}},
}
WIDGET_SPEC: Obj = {
    "type": "object",
    "required": ["color"],
    "properties": {
        "color": {"type": "string", "enum": ["red", "green", "blue"]},
        "replicas": {"type": "integer", "minimum": 0, "maximum": 100, "default": 1},
        "ratio": {"type": "number", "exclusiveMinimum": True, "minimum": 0, "multipleOf": 0.5},
        "wide": {"type": "integer", "format": "int64"},
        "narrow": {"type": "integer", "format": "int32"},
        "size": {"x-kubernetes-int-or-string": True},
        "when": {"type": "string", "format": "date-time"},
        "word": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 8, "minLength": 2},
        "maybe": {"type": "string", "nullable": True},
        "yes": {"type": "boolean"},
        "parts": {
            "type": "array",
            "items": _PART,
            "maxItems": 4,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "steps": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "notes": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 3},
        "low": {"type": "integer"},
        "high": {"type": "integer"},
        "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "is fixed"}]},
        "template": {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "x-kubernetes-preserve-unknown-fields": True,
        },
    },
    "x-kubernetes-validations": [
        {"rule": "!has(self.low) || !has(self.high) || self.low <= self.high", "message": "low is above high"},
        {"rule": "!has(self.notes) || self.notes.all(k, size(k) < 5)", "fieldPath": ".notes"},
    ],
}
_STATUS = {"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}}
_SCALE = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
WIDGET_DEFINITION = definition(
    GROUP,
    "widgets",
    "Widget",
    {"type": "object", "properties": {"spec": WIDGET_SPEC, "status": _STATUS}},
    subresources={"status": {}, "scale": _SCALE},
    selectableFields=[{"jsonPath": ".spec.color"}],
)

_POD_SPEC = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]}
_TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def named(api_version: str, kind: str, name: str = NAME, **rest: Any) -> Obj:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **rest}


def config_map(name: str = NAME, **rest: Any) -> Obj:
    return named("v1", "ConfigMap", name, data={"a": "b"}) | rest


def secret(name: str = NAME, **rest: Any) -> Obj:
    return named("v1", "Secret", name, type="Opaque", data={"a": "Yg=="}) | rest


def pod(name: str = NAME, **rest: Any) -> Obj:
    return named("v1", "Pod", name, spec=_POD_SPEC) | rest


def service(name: str = NAME, **rest: Any) -> Obj:
    return named("v1", "Service", name, spec={"ports": [{"port": 80}], "selector": {"a": "b"}}) | rest


def deployment(name: str = NAME, **rest: Any) -> Obj:
    spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": _TEMPLATE}
    return named("apps/v1", "Deployment", name, spec=spec) | rest


def job(name: str = NAME, **rest: Any) -> Obj:
    return named("batch/v1", "Job", name, spec={"suspend": True, "template": {"spec": _POD_SPEC}}) | rest


def lease(name: str = NAME, **rest: Any) -> Obj:
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2024-01-01T00:00:00.000000Z"}
    return named("coordination.k8s.io/v1", "Lease", name, spec=spec) | rest


def role(name: str = NAME, **rest: Any) -> Obj:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    return named("rbac.authorization.k8s.io/v1", "Role", name, rules=rules) | rest


def binding(name: str = NAME, **rest: Any) -> Obj:
    return (
        named(
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            name,
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
            subjects=[{"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}],
        )
        | rest
    )


def widget(name: str = NAME, **rest: Any) -> Obj:
    spec = {"color": "red", "parts": [{"name": "p", "size": 1}], "tags": ["t"], "notes": {"n": "1"}, "fixed": "f"}
    return named(f"{GROUP}/v1", "Widget", name, spec=spec) | rest


SAMPLES: dict[str, Obj] = {
    CONFIG_MAPS: config_map(),
    SECRETS: secret(),
    PODS: pod(),
    SERVICES: service(),
    DEPLOYMENTS: deployment(),
    JOBS: job(),
    LEASES: lease(),
    ROLES: role(),
    BINDINGS: binding(),
    WIDGETS: widget(),
}
"""A valid object for each collection, which exists there."""


@dataclass
class Pair:
    """The two servers; sends the same request to both."""

    real: Wire
    embedded: Wire

    @classmethod
    def of(cls, real: RestConfig, embedded: RestConfig) -> Pair:
        return cls(Wire(real), Wire(embedded))

    async def ask(self, request: Input) -> tuple[Outcome, Outcome]:
        return await asyncio.gather(_outcome(self.real, request), _outcome(self.embedded, request))

    async def close(self) -> None:
        await self.real.close()
        await self.embedded.close()

    async def create_objects(self) -> None:
        await asyncio.gather(create_objects(self.real), create_objects(self.embedded))


async def _outcome(wire: Wire, request: Input) -> Outcome:
    try:
        return outcome_of(await wire.send(request))
    except (NoResponse, OSError) as error:
        await wire.close()
        return Outcome(0, NO_RESPONSE, message=repr(error))


async def create_objects(wire: Wire) -> None:
    """Create the namespace, kinds and objects that do not exist yet."""
    await _create(wire, "/api/v1/namespaces", named("v1", "Namespace", NAMESPACE))
    await _create(wire, DEFINITIONS, WIDGET_DEFINITION)
    await _until_served(wire, WIDGETS)
    await _until_served(wire, f"{CORE}/serviceaccounts/default")
    for collection, sample in SAMPLES.items():
        await _create(wire, collection, sample)


async def _create(wire: Wire, url: str, obj: Obj) -> None:
    reply = await wire.send(posted("world", url, obj))
    assert reply.code in (201, 409), (url, reply.body)


async def _until_served(wire: Wire, url: str) -> None:
    async with asyncio.timeout(60):
        while (await wire.send(Input("world", "GET", url))).code != 200:
            await asyncio.sleep(0.02)


def collection_of(sample: Obj) -> str:
    """Where objects of this built-in kind are created."""
    resource = resource_of(sample)
    root = f"/apis/{sample['apiVersion']}" if resource.group else "/api/v1"
    return f"{root}/namespaces/{NAMESPACE}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"


def posted(about: str, url: str, obj: Any, method: str = "POST", content_type: str = "application/json") -> Input:
    return Input(about, method, url, msgspec.json.encode(obj), (("Content-Type", content_type),))
