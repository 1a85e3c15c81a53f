"""Minimal objects for tests, and a custom resource with a bit of everything."""

from __future__ import annotations

from typing import Any

from tests.support.api import JSON_PATCH, Api

Obj = dict[str, Any]


def secret(name: str = "", *, labels: dict[str, str] | None = None, **data: str) -> Obj:
    metadata: Obj = {"name": name} if name else {}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata} | ({"stringData": data} if data else {})


def config_map(name: str, **data: str) -> Obj:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}} | ({"data": data} if data else {})


def pod(name: str, **spec: Any) -> Obj:
    """Return a pod that stays Pending: its node does not exist."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "main", "image": "nothing"}],
            "automountServiceAccountToken": False,
            "nodeSelector": {"nowhere": "yes"},
        }
        | spec,
    }


def deployment(name: str, **spec: Any) -> Obj:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "nothing"}]},
            },
        }
        | spec,
    }


def job(name: str, **spec: Any) -> Obj:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "nothing"}]}}
    return {"metadata": {"name": name}, "spec": {"suspend": True, "template": template} | spec}


def service(name: str, **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]} | spec}


def definition(group: str, plural: str, kind: str, schema: Obj, *, scope: str = "Namespaced", **version: Any) -> Obj:
    """Return a CRD with one version, v1; `version` adds to it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}} | version
            ],
        },
    }


def spec_schema(**properties: Any) -> Obj:
    """Return the schema of an object whose spec has these properties."""
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}


CRDS = "apiextensions.k8s.io/v1/customresourcedefinitions"


async def ensure_defined(api: Api, crd: Obj) -> None:
    """Define a kind that several modules use on one server."""
    if (await api.get(api.cluster(CRDS, crd["metadata"]["name"]))).status == 404:
        await define(api, crd)


async def define(api: Api, crd: Obj) -> Obj:
    """Create a CRD and wait until its kind is served."""
    await api.create_cluster(CRDS, crd)
    name = crd["metadata"]["name"]
    created: Obj = await api.until_object(
        api.cluster(CRDS, name), lambda found: condition(found, "Established") == "True"
    )
    created = await _aged(api, created)
    spec = crd["spec"]
    for version in spec["versions"]:
        if version["served"]:
            await api.until(
                f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}", lambda a: a.status == 200
            )
    return created


async def _aged(api: Api, crd: Obj) -> Obj:
    """Make the CRD look old: kube-apiserver delays creates of a new kind for two seconds, for replicas that do not
    exist here."""
    for position, found in enumerate(crd["status"]["conditions"]):
        if found["type"] == "Established":
            path = f"/status/conditions/{position}/lastTransitionTime"
            patch = [{"op": "replace", "path": path, "value": "2020-01-01T00:00:00Z"}]
            url = api.cluster(CRDS, crd["metadata"]["name"], "status")
            crd = (await api.patch(url, patch, JSON_PATCH)).expect(200)
    return crd


def condition(obj: Obj, kind: str) -> str:
    """Return the status of a condition; empty if it is missing."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((str(found["status"]) for found in conditions if found["type"] == kind), "")


def custom(group: str, kind: str, name: str, spec: Any = None, *, version: str = "v1", **more: Any) -> Obj:
    obj = {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": name}}
    return obj | ({"spec": spec} if spec is not None else {}) | more
