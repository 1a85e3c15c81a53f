"""Component schemas of an OpenAPI document, under kube-apiserver's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from herder.engine.apiserver.builtin import DEFINITIONS, BuiltinType
from herder.engine.apiserver.openapi.descriptions import described
from herder.engine.apiserver.registry.resources import Resource, Version
from herder.engine.meta.kinds import Object

META = "io.k8s.apimachinery.pkg.apis.meta.v1"
PREFIX = "#/components/schemas/"


def reference(name: str) -> Object:
    return {"$ref": PREFIX + name}


def component_name(resource: Resource, version: Version) -> str:
    """Return the schema name: `io.k8s.api.apps.v1.Deployment`, `com.example.v1.Widget`."""
    if isinstance(version.model, BuiltinType):
        return version.model.definition_name
    return f"{'.'.join(reversed(resource.group.split('.')))}.{version.name}.{resource.kind}"


def list_name(resource: Resource, version: Version) -> str:
    return component_name(resource, version).removesuffix(resource.kind) + (
        resource.list_kind or f"{resource.kind}List"
    )


def own_schemas(resource: Resource, version: Version) -> dict[str, Object]:
    """Return the schemas of a custom resource and its list; those of built-in kinds are shared definitions."""
    if isinstance(version.model, BuiltinType):
        return {}
    name, listed = component_name(resource, version), list_name(resource, version)
    published = described(name, dict(version.model.openapi()))
    items = _list_schema(resource, version, name)
    if version.selectable:
        fields = [{"fieldPath": path.removeprefix(".")} for path in version.selectable]
        published["x-kubernetes-selectable-fields"] = fields
        items["x-kubernetes-selectable-fields"] = fields
    return {name: published, listed: items}


def _list_schema(resource: Resource, version: Version, name: str) -> Object:
    kind = {"group": resource.group, "kind": resource.list_kind, "version": version.name}
    return {
        "description": f"{resource.list_kind} is a list of {resource.kind}",
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "items": {"type": "array", "items": reference(name)},
            "kind": {"type": "string"},
            "metadata": {"allOf": [reference(f"{META}.ListMeta")]},
        },
        "x-kubernetes-group-version-kind": [kind],
    }


def with_referenced(schemas: dict[str, Object], roots: Iterator[str]) -> dict[str, Object]:
    """Return `schemas` and every shared definition that they or `roots` refer to, by name."""
    found = dict(schemas)
    pending = [*roots, *(name for schema in schemas.values() for name in references(schema))]
    while pending:
        name = pending.pop()
        if name not in found:
            try:
                found[name] = described(name, DEFINITIONS[name])
            except KeyError:
                continue
            pending += references(found[name])
    return dict(sorted(found.items()))


def references(node: Any) -> Iterator[str]:
    """Yield the names that a schema or path refers to."""
    if isinstance(node, dict):
        target = node.get("$ref")
        if isinstance(target, str):
            yield target.rpartition("/")[2]
        for inner in node.values():
            if isinstance(inner, dict | list):
                yield from references(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from references(inner)
