"""OpenAPI v3 documents, one per group version."""

from __future__ import annotations

import hashlib

import msgspec

import herder
from herder.engine.apiserver.crds.model import CustomModel
from herder.engine.apiserver.endpoints.discovery import VERSION, groups_served, resources_served, versions_served
from herder.engine.apiserver.openapi.components import (
    component_name,
    list_name,
    own_schemas,
    references,
    with_referenced,
)
from herder.engine.apiserver.openapi.paths import paths_of
from herder.engine.apiserver.registry.resources import Registry, Resource, Version
from herder.engine.meta.kinds import GroupVersion, Object


def document_paths(registry: Registry) -> dict[str, GroupVersion]:
    """Return the group versions by document path: `api/v1`, `apis/apps/v1` and so on."""
    return {
        f"apis/{group}/{version}" if group else f"api/{version}": GroupVersion(group, version)
        for group in groups_served(registry)
        for version in versions_served(registry, group)
    }


def build_document(registry: Registry, served: GroupVersion) -> Object:
    """Build the document of a group version."""
    listed = resources_served(registry, served)
    paths: dict[str, Object] = {}
    schemas: dict[str, Object] = {}
    roots: list[str] = []
    for resource, version in listed:
        paths |= paths_of(resource, version)
        schemas |= own_schemas(resource, version)
        roots += [component_name(resource, version), list_name(resource, version)]
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": f"{VERSION['major']}.{VERSION['minor']}"},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": with_referenced(schemas, iter([*roots, *references(paths)])),
            "securitySchemes": {
                "BearerToken": {
                    "description": "Bearer Token authentication",
                    "in": "header",
                    "name": "authorization",
                    "type": "apiKey",
                }
            },
        },
    }


def document_hash(registry: Registry, served: GroupVersion) -> str:
    """Return a hash that changes with the document. It covers the inputs, so that the index does not build any
    document."""
    identities = [_identity(resource, version) for resource, version in resources_served(registry, served)]
    return hashlib.sha512(msgspec.json.encode([herder.__version__, str(served), identities])).hexdigest().upper()


def _identity(resource: Resource, version: Version) -> list[object]:
    return [
        resource.plural,
        resource.kind,
        resource.list_kind,
        resource.namespaced,
        resource.verbs,
        sorted(resource.subresources),
        version.status,
        version.scale is not None,
        version.selectable,
        version.model.schema if isinstance(version.model, CustomModel) else None,
    ]
