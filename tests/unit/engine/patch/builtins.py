"""Types of built-in kinds, from the OpenAPI that a real server publishes."""

from __future__ import annotations

import functools
from typing import Any

from herder.engine.patch.typed.types import TypeRef, type_from_schema
from tests.unit.engine.patch.servers import RealServer


@functools.cache
def definitions(real: RealServer, api_version: str) -> dict[str, Any]:
    prefix = "apis" if "/" in api_version else "api"
    code, spec = real.call("GET", f"/openapi/v3/{prefix}/{api_version}")
    assert code == 200, spec
    schemas: dict[str, Any] = spec["components"]["schemas"]
    return schemas


@functools.cache
def builtin_type(real: RealServer, api_version: str, kind: str) -> TypeRef:
    group, _, version = api_version.rpartition("/")
    wanted = {"group": group, "version": version, "kind": kind}
    known = definitions(real, api_version)
    root = next(s for s in known.values() if wanted in s.get("x-kubernetes-group-version-kind", ()))
    return type_from_schema(root, known)
