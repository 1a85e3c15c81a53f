"""OpenAPI v2 (Swagger) document of all resources, derived from the v3 documents.

Older clients and kubectl's patch merging use it. What v2 cannot express is omitted, like in kube-apiserver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herder.engine.apiserver.endpoints.discovery import VERSION
from herder.engine.apiserver.openapi.v3 import build_document, document_paths
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.meta.kinds import Object

_UNSUPPORTED = ("oneOf", "anyOf", "not", "nullable", "default")
_INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_PRODUCES = ["application/json", "application/yaml"]


def build_v2(registry: Registry) -> Object:
    """Build the Swagger document of all served resources."""
    paths: Object = {}
    definitions: Object = {}
    for served in document_paths(registry).values():
        document = build_document(registry, served)
        for path, item in document["paths"].items():
            paths[path] = _path_item(item)
        for name, schema in document["components"]["schemas"].items():
            if name not in definitions:
                definitions[name] = _definition(name, schema)
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": f"{VERSION['major']}.{VERSION['minor']}"},
        "paths": dict(sorted(paths.items())),
        "definitions": dict(sorted(definitions.items())),
        "securityDefinitions": {
            "BearerToken": {
                "description": "Bearer Token authentication",
                "type": "apiKey",
                "name": "authorization",
                "in": "header",
            }
        },
        "security": [{"BearerToken": []}],
    }


# --- schemas -----------------------------------------------------------------------------------------------------


def _definition(name: str, schema: Mapping[str, Any]) -> Object:
    if name == _INT_OR_STRING:
        return {"type": "string", "format": "int-or-string"}
    if name == _QUANTITY:
        return {"type": "string"}
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        kind = schema.get("x-kubernetes-group-version-kind")
        return {"type": "object"} | ({"x-kubernetes-group-version-kind": kind} if kind else {})
    return _schema(schema)


def _schema(schema: Mapping[str, Any]) -> Object:
    target = _target(schema)
    if target:
        described = {"description": schema["description"]} if "description" in schema else {}
        return described | {"$ref": "#/definitions/" + target}
    found = {key: value for key, value in schema.items() if key not in _UNSUPPORTED}
    if schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-int-or-string"):
        # Validating clients would reject unlisted fields, or one of the two types.
        for key in ("type", "items", "properties", "required"):
            found.pop(key, None)
    if schema.get("nullable"):
        for key in ("type", "items", "properties"):
            found.pop(key, None)
    if "properties" in found:
        found["properties"] = {name: _schema(inner) for name, inner in found["properties"].items()}
    if isinstance(found.get("items"), dict):
        found["items"] = _schema(found["items"])
    if isinstance(found.get("additionalProperties"), dict):
        found["additionalProperties"] = _schema(found["additionalProperties"])
    if "allOf" in found:
        found["allOf"] = [_schema(inner) for inner in found["allOf"]]
    return found


def _target(schema: Mapping[str, Any]) -> str:
    """Return the definition that a schema refers to, directly or through the single-element allOf that v3 needs for
    siblings."""
    target = schema.get("$ref")
    alternatives: list[Any] = schema.get("allOf") or []
    if not target and len(alternatives) == 1:
        target = alternatives[0].get("$ref")
    return str(target).rpartition("/")[2] if target else ""


# --- paths -------------------------------------------------------------------------------------------------------


def _path_item(item: Object) -> Object:
    found: Object = {method: _operation(operation) for method, operation in item.items() if method != "parameters"}
    if "parameters" in item:
        found["parameters"] = [_parameter(parameter) for parameter in item["parameters"]]
    return found


def _operation(operation: Object) -> Object:
    body = operation.get("requestBody")
    found = {
        "consumes": sorted(body["content"]) if body else ["*/*"],
        "produces": _PRODUCES,
        "schemes": ["https"],
        "tags": operation["tags"],
        "operationId": operation["operationId"],
    }
    parameters = [_parameter(parameter) for parameter in operation.get("parameters", ())]
    if body:
        schema = _schema(next(iter(body["content"].values()))["schema"])
        parameters.insert(0, {"name": "body", "in": "body", "required": bool(body.get("required")), "schema": schema})
    if parameters:
        found["parameters"] = parameters
    found["responses"] = {code: _response(response) for code, response in operation["responses"].items()}
    for key in ("x-kubernetes-action", "x-kubernetes-group-version-kind"):
        found[key] = operation[key]
    return found


def _parameter(parameter: Object) -> Object:
    found: Object = {key: value for key, value in parameter.items() if key != "schema"}
    found |= parameter["schema"]
    return found


def _response(response: Object) -> Object:
    found = {"description": response["description"]}
    if "content" in response:
        found["schema"] = _schema(next(iter(response["content"].values()))["schema"])
    return found
