"""OpenAPI paths of a resource, with their query parameters.

kubectl looks here whether a kind's patch supports `fieldValidation`, `dryRun` and `fieldManager`.
"""

from __future__ import annotations

from herder.engine.apiserver.openapi.components import META, component_name, list_name, reference
from herder.engine.apiserver.registry.resources import Resource, Subresource, Version
from herder.engine.meta.kinds import GroupVersionKind, GroupVersionResource, Object

_TYPES = {
    "allowWatchBookmarks": "boolean", "force": "boolean", "gracePeriodSeconds": "integer", "limit": "integer",
    "orphanDependents": "boolean", "sendInitialEvents": "boolean", "timeoutSeconds": "integer", "watch": "boolean",
}  # fmt: skip
_LIST = (
    "allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "resourceVersion",
    "resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch",
)  # fmt: skip
_WRITE = ("dryRun", "fieldManager", "fieldValidation")
_DELETE = ("dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy")
_DELETE_COLLECTION = (
    "continue", "dryRun", "fieldSelector", "gracePeriodSeconds", "labelSelector", "limit", "orphanDependents",
    "propagationPolicy", "resourceVersion", "resourceVersionMatch", "sendInitialEvents", "timeoutSeconds",
)  # fmt: skip
_PATCHES = ("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json")
_STRATEGIC = "application/strategic-merge-patch+json"
_RESPONSE_TYPES = ("application/json", "application/yaml")
_STATUS_TEXTS = {"200": "OK", "201": "Created", "202": "Accepted"}
SCALE = "io.k8s.api.autoscaling.v1.Scale"
_STATUS = f"{META}.Status"
_METHODS = {
    "get": ("get", "read"),
    "create": ("post", "create"),
    "update": ("put", "replace"),
    "patch": ("patch", "patch"),
}


def paths_of(resource: Resource, version: Version) -> dict[str, Object]:
    """Return every path of one resource."""
    return _Paths(resource, version).build()


class _Paths:
    """Builds the paths of one version of a resource."""

    def __init__(self, resource: Resource, version: Version) -> None:
        self.resource = resource
        self.version = version
        self.component = component_name(resource, version)
        self.kind = GroupVersionKind(resource.group, version.name, resource.kind)
        self.scope = "Namespaced" if resource.namespaced else ""
        self.stem = _group_stem(resource.group) + version.name[:1].upper() + version.name[1:]
        where = GroupVersionResource(resource.group, version.name, resource.plural)
        self.collection = where.path("{namespace}" if resource.namespaced else "")
        self.all_namespaces = where.path()

    def build(self) -> dict[str, Object]:
        paths = {
            self.collection: self._with_parameters(self._on_collection()),
            f"{self.collection}/{{name}}": self._with_parameters(self._on_item(), named=True),
        }
        if self.resource.namespaced and "list" in self.resource.verbs:
            list_all = self._operation(
                "list", "list", f"{self.resource.kind}ForAllNamespaces", _LIST, response=self._list
            )
            paths[self.all_namespaces] = {"get": list_all}
        for name, operations in self._on_subresources():
            paths[f"{self.collection}/{{name}}/{name}"] = self._with_parameters(operations, named=True)
        return {path: item for path, item in paths.items() if item}

    @property
    def _list(self) -> str:
        return list_name(self.resource, self.version)

    # --- operations --------------------------------------------------------------------------------------------

    def _on_collection(self) -> Object:
        verbs, kind = self.resource.verbs, self.scope + self.resource.kind
        operations: Object = {}
        if "list" in verbs:
            operations["get"] = self._operation("list", "list", kind, _LIST, response=self._list)
        if "create" in verbs:
            operations["post"] = self._write_operation(
                "create", "post", kind, self.component, codes=("200", "201", "202")
            )
        if "deletecollection" in verbs:
            operations["delete"] = self._delete_operation("deletecollection", f"Collection{kind}", _DELETE_COLLECTION)
        return operations

    def _on_item(self) -> Object:
        verbs, kind = self.resource.verbs, self.scope + self.resource.kind
        operations: Object = {}
        if "get" in verbs:
            operations["get"] = self._operation("read", "get", kind, response=self.component)
        if "update" in verbs:
            operations["put"] = self._write_operation("replace", "put", kind, self.component, codes=("200", "201"))
        if "delete" in verbs:
            operations["delete"] = self._delete_operation("delete", kind, _DELETE)
        if "patch" in verbs:
            operations["patch"] = self._patch_operation(kind, self.component)
        return operations

    def _on_subresources(self) -> list[tuple[str, Object]]:
        operations = []
        every = ("get", "update", "patch")
        if self.version.status:
            operations.append(("status", self._on_subresource("status", self.component, every)))
        if self.version.scale:
            operations.append(("scale", self._on_subresource("scale", SCALE, every)))
        for extra in self.resource.subresources.values():
            operations.append((extra.name, self._on_subresource(extra.name, _response_schema(extra), extra.verbs)))
        return operations

    def _on_subresource(self, name: str, component: str, verbs: tuple[str, ...]) -> Object:
        kind = f"{self.scope}{self.resource.kind}{name[:1].upper()}{name[1:]}"
        operations: Object = {}
        for verb in verbs:
            if verb not in _METHODS:
                continue
            method, prefix = _METHODS[verb]
            if verb == "get":
                operations[method] = self._operation(prefix, "get", kind, response=component)
            elif verb == "patch":
                operations[method] = self._patch_operation(kind, component)
            else:
                operations[method] = self._write_operation(prefix, method, kind, component, codes=("200", "201"))
        return operations

    def _operation(
        self,
        prefix: str,
        action: str,
        kind: str,
        query: tuple[str, ...] = (),
        *,
        response: str,
        codes: tuple[str, ...] = ("200",),
    ) -> Object:
        operation: Object = {
            "tags": [_tag(self.resource.group, self.version.name)],
            "operationId": f"{prefix}{self.stem}{kind}",
        }
        if query:
            operation["parameters"] = [_parameter(name) for name in query]
        content = {"content": {media: {"schema": reference(response)} for media in _RESPONSE_TYPES}} if response else {}
        operation["responses"] = {
            **{code: {"description": _STATUS_TEXTS[code], **content} for code in codes},
            "401": {"description": "Unauthorized"},
        }
        operation["x-kubernetes-action"] = action
        operation["x-kubernetes-group-version-kind"] = self.kind._asdict()
        return operation

    def _write_operation(
        self, prefix: str, action: str, kind: str, component: str, *, codes: tuple[str, ...]
    ) -> Object:
        operation = self._operation(prefix, action, kind, _WRITE, response=component, codes=codes)
        body: Object = {"*/*": {"schema": reference(component)}} if component else {"*/*": {"schema": {}}}
        operation["requestBody"] = {"content": body, "required": True}
        return operation

    def _patch_operation(self, kind: str, component: str) -> Object:
        operation = self._operation("patch", "patch", kind, (*_WRITE, "force"), response=component)
        accepted = _PATCHES if self.resource.custom else (*_PATCHES, _STRATEGIC)
        patch = {media: {"schema": reference(f"{META}.Patch")} for media in accepted}
        operation["requestBody"] = {"content": patch, "required": True}
        return operation

    def _delete_operation(self, action: str, kind: str, query: tuple[str, ...]) -> Object:
        codes = ("200",) if action == "deletecollection" else ("200", "202")
        operation = self._operation("delete", action, kind, query, response=_STATUS, codes=codes)
        operation["requestBody"] = {"content": {"*/*": {"schema": reference(f"{META}.DeleteOptions")}}}
        return operation

    def _with_parameters(self, operations: Object, *, named: bool = False) -> Object:
        if not operations:
            return {}
        parameters = [_in_path("name")] if named else []
        if self.resource.namespaced:
            parameters.append(_in_path("namespace"))
        return operations | {"parameters": [*parameters, _parameter("pretty")]}


def _parameter(name: str) -> Object:
    return {"name": name, "in": "query", "schema": {"type": _TYPES.get(name, "string"), "uniqueItems": True}}


def _in_path(name: str) -> Object:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "uniqueItems": True}}


def _response_schema(extra: Subresource) -> str:
    """Return the schema name of a subresource's response; empty if it is a stream."""
    from herder.engine.apiserver.builtin import BuiltinType

    try:
        return BuiltinType(extra.kind).definition_name
    except KeyError:
        return ""


def _group_stem(group: str) -> str:
    """`apps` -> Apps, `rbac.authorization.k8s.io` -> RbacAuthorization, `example.com` -> ExampleCom."""
    if not group:
        return "Core"
    return "".join(part[:1].upper() + part[1:] for part in group.removesuffix(".k8s.io").split("."))


def _tag(group: str, version: str) -> str:
    stem = _group_stem(group)
    return f"{stem[:1].lower()}{stem[1:]}_{version}"
