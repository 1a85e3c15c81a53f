"""Discovery: groups, versions and resources, as legacy and as aggregated documents, and the server's version.

Everything is derived from the registry and cached until the registry changes. Legacy discovery has one document per
group version; aggregated discovery returns everything in a single document with an ETag.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from herder.engine.apiserver.registry.resources import Registry, Resource, Version
from herder.engine.apiserver.request.negotiation import MAX_ACCEPT
from herder.engine.meta.errors import MethodNotAllowed, NotAcceptable, NotFound
from herder.engine.meta.kinds import GroupVersion, GroupVersionKind, Object
from herder.engine.wire import Request, Response

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}

VERSION: Object = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.3+herder1",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": sys.implementation.name,
    "platform": f"{sys.platform}/{_MACHINES.get(os.uname().machine, os.uname().machine)}",
}
"""Build metadata after `+` is ignored when versions are compared, so no client detects version skew."""

SCALE = GroupVersionKind("autoscaling", "v1", "Scale")

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_SUBRESOURCE_VERBS = ["get", "patch", "update"]
# Order of kube-aggregator's own groups; custom groups follow by name.
_GROUP_ORDER = {
    group: place
    for place, group in enumerate((
        "", "apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io",
        "autoscaling", "batch", "certificates.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io",
        "storage.k8s.io", "admissionregistration.k8s.io", "apiextensions.k8s.io", "scheduling.k8s.io",
        "coordination.k8s.io", "node.k8s.io", "discovery.k8s.io", "resource.k8s.io", "flowcontrol.apiserver.k8s.io",
    ))
}  # fmt: skip
_OTHER_PATHS = (
    "/.well-known/openid-configuration", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3",
    "/openid/v1/jwks", "/readyz", "/version",
)  # fmt: skip
_KUBE_VERSION = re.compile(r"v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?\Z")


class Discovery:
    """Serves /, /api, /apis with their groups and versions, and /version."""

    def __init__(self, registry: Registry, *, server_address: str = "") -> None:
        self._registry = registry
        self._server_address = server_address
        self._generation = -1
        self._documents: dict[str, bytes] = {}
        self._etags: dict[str, str] = {}

    def handle(self, request: Request) -> Response | None:
        """Return the document; None if the path is not a discovery path, or of a group that is not served."""
        path = request.path.rstrip("/")
        if path == "/version":
            _require_get(request)
            return _respond(request, lambda: msgspec.json.format(_encode(VERSION), indent=2))
        if path.startswith("/version/"):
            raise _not_found()
        if not path.startswith("/") and path:
            return None
        if not path:
            _require_get(request)
            return _respond(request, lambda: msgspec.json.format(_encode({"paths": self._paths()}), indent=2))
        parts = path.split("/")[1:]
        if parts[0] == "api" and len(parts) <= 2:
            _require_get(request)
        elif parts[0] != "apis" or len(parts) > 3:
            return None
        if len(parts) == 1 and _wants_aggregated(_accept(request)):
            return self._aggregated(request, path)
        if not self._exists(parts):
            return None
        if len(parts) == 3 and not self._is_custom_group(parts[1]):
            _require_get(request)
        return _respond(request, lambda: self._document(path, lambda: self._build(parts)))

    def _paths(self) -> list[str]:
        """Return the paths that the root document lists."""
        paths = [*_OTHER_PATHS, "/api", "/api/v1", "/apis", "/apis/"]
        for group in groups_served(self._registry):
            if group:
                paths.append(f"/apis/{group}")
                paths += [f"/apis/{group}/{version}" for version in versions_served(self._registry, group)]
        return sorted(paths)

    # --- legacy ------------------------------------------------------------------------------------------------

    def _exists(self, parts: list[str]) -> bool:
        if len(parts) == 1:
            return True
        if parts[0] == "api":
            if parts[1] == "v1":
                return True
            raise _not_found()
        if not any(resource.group == parts[1] for resource in self._registry):
            return False
        if len(parts) == 2 or self._registry.serves_group_version(parts[1], parts[2]):
            return True
        # An unknown version of a CRD group is an unregistered path (404 in plain text), that of a built-in group a
        # missing resource.
        if self._is_custom_group(parts[1]):
            return False
        raise _not_found()

    def _is_custom_group(self, group: str) -> bool:
        return all(resource.custom for resource in self._registry if resource.group == group)

    def _build(self, parts: list[str]) -> Object:
        match parts:
            case ["api"]:
                return {
                    "kind": "APIVersions",
                    "versions": ["v1"],
                    "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": self._server_address}],
                }
            case ["apis"]:
                groups = [self._group(group) for group in groups_served(self._registry) if group]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
            case ["apis", group]:
                return {"kind": "APIGroup", "apiVersion": "v1"} | self._group(group)
            case _:
                return self._resources(GroupVersion(parts[1] if parts[0] == "apis" else "", parts[-1]))

    def _group(self, group: str) -> Object:
        versions = [
            {"groupVersion": f"{group}/{version}", "version": version}
            for version in versions_served(self._registry, group)
        ]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _resources(self, served: GroupVersion) -> Object:
        entries: list[Object] = []
        for resource, version in resources_served(self._registry, served):
            entries.append(_legacy_entry(resource))
            for name, kind, verbs in subresources_served(resource, version):
                entries.append(_legacy_subresource(resource, served, name, kind, verbs))
        if any(not resource.custom for resource, _ in resources_served(self._registry, served)):
            entries.sort(key=lambda entry: str(entry["name"]))
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": str(served),
            "resources": entries,
        }

    # --- aggregated --------------------------------------------------------------------------------------------

    def _aggregated(self, request: Request, path: str) -> Response:
        body = self._document(path + ";aggregated", lambda: self._build_aggregated(core=path == "/api"))
        etag = self._etags.setdefault(path, f'"{hashlib.sha512(body).hexdigest().upper()}"')
        headers = {"content-type": _AGGREGATED, "etag": etag, "vary": "Accept", "cache-control": "public"}
        if etag in request.headers.get("if-none-match", ""):
            return Response(304, headers)
        return Response(200, headers, body)

    def _build_aggregated(self, *, core: bool) -> Object:
        items = []
        for group in groups_served(self._registry):
            if (group == "") is core:
                versions = [
                    {
                        "version": version,
                        "resources": [
                            _aggregated_entry(resource, GroupVersion(group, version), shown_version)
                            for resource, shown_version in resources_served(
                                self._registry, GroupVersion(group, version)
                            )
                        ],
                        "freshness": "Current",
                    }
                    for version in versions_served(self._registry, group)
                ]
                items.append({"metadata": {"name": group} if group else {}, "versions": versions})
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": items,
        }

    # --- caching -----------------------------------------------------------------------------------------------

    def _document(self, path: str, build: Callable[[], Object]) -> bytes:
        if self._generation != self._registry.generation:
            self._generation = self._registry.generation
            self._documents.clear()
            self._etags.clear()
        body = self._documents.get(path)
        if body is None:
            body = self._documents[path] = _encode(build())
        return body


# --- served groups, versions and resources, in order -----------------------------------------------------------------


def groups_served(registry: Registry) -> list[str]:
    """Return the served groups in discovery order."""
    groups = {resource.group for resource in registry if any(version.served for version in resource.versions.values())}
    return sorted(groups, key=lambda group: (_GROUP_ORDER.get(group, len(_GROUP_ORDER)), group))


def versions_served(registry: Registry, group: str) -> list[str]:
    """Return the group's versions, preferred version first."""
    versions = {
        version.name
        for resource in registry
        if resource.group == group
        for version in resource.versions.values()
        if version.served
    }
    return sorted(versions, key=version_priority)


def resources_served(registry: Registry, served: GroupVersion) -> list[tuple[Resource, Version]]:
    """Return the resources of a group version, by plural name."""
    found = [
        (resource, resource.versions[served.version])
        for resource in registry
        if resource.group == served.group and served.version in resource.versions
    ]
    return sorted(((r, v) for r, v in found if v.served), key=lambda pair: pair[0].plural)


def subresources_served(resource: Resource, version: Version) -> Iterator[tuple[str, GroupVersionKind, list[str]]]:
    """Yield name, response kind and verbs of every subresource."""
    own = GroupVersionKind(resource.group, version.name, resource.kind)
    found: list[tuple[str, GroupVersionKind, list[str]]] = []
    if version.status:
        found.append(("status", own, _SUBRESOURCE_VERBS))
    if version.scale:
        found.append(("scale", SCALE, _SUBRESOURCE_VERBS))
    for extra in resource.subresources.values():
        found.append((extra.name, extra.kind, sorted(extra.verbs)))
    yield from found if resource.custom else sorted(found, key=lambda entry: entry[0])


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Sort key of versions in Kubernetes' order: v2, v1, v1beta1, v1alpha1, then others by name."""
    match = _KUBE_VERSION.match(version)
    if not match:
        return (3, 0, 0, version)
    major, stage, minor = match.groups()
    return ({None: 0, "beta": 1, "alpha": 2}[stage], -int(major), -int(minor or 0), version)


def storage_version_hash(resource: Resource) -> str:
    """Return storageVersionHash of a resource, computed like in kube-apiserver."""
    message = f"{resource.storage.group}/{resource.storage_version}/{resource.kind}"
    return base64.b64encode(hashlib.sha256(message.encode()).digest()[:8]).decode()


# --- entries -----------------------------------------------------------------------------------------------------


def _legacy_entry(resource: Resource) -> Object:
    entry: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _verbs(resource),
    }
    _add_names(entry, resource)
    if resource.virtual is None and "watch" in resource.verbs:
        entry["storageVersionHash"] = storage_version_hash(resource)
    return entry


def _legacy_subresource(
    resource: Resource, served: GroupVersion, name: str, kind: GroupVersionKind, verbs: list[str]
) -> Object:
    entry: Object = {
        "name": f"{resource.plural}/{name}",
        "singularName": "",
        "namespaced": resource.namespaced,
    }
    if (kind.group, kind.version) != served:
        entry |= {"group": kind.group, "version": kind.version}
    return entry | {"kind": kind.kind, "verbs": verbs}


def _aggregated_entry(resource: Resource, served: GroupVersion, version: Version) -> Object:
    own = GroupVersionKind(served.group, served.version, resource.kind)
    entry: Object = {
        "resource": resource.plural,
        "responseKind": _response_kind(resource, served, own),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": _verbs(resource),
    }
    _add_names(entry, resource)
    subresources = [
        {"subresource": name, "responseKind": _response_kind(resource, served, kind), "verbs": verbs}
        for name, kind, verbs in subresources_served(resource, version)
    ]
    if subresources:
        entry["subresources"] = subresources
    return entry


def _response_kind(resource: Resource, served: GroupVersion, kind: GroupVersionKind) -> Object:
    """Built-in resources omit group and version of their own kinds, like in kube-apiserver."""
    if (kind.group, kind.version) == served and not resource.custom:
        return {"group": "", "version": "", "kind": kind.kind}
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _verbs(resource: Resource) -> list[str]:
    """Omit write verbs while a CRD is terminating, like kube-apiserver does, although updates still succeed."""
    if resource.custom and getattr(resource.strategy, "terminating", False):
        return [verb for verb in resource.verbs if verb not in {"create", "patch", "update"}]
    return list(resource.verbs)


def _add_names(entry: Object, resource: Resource) -> None:
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)


# --- HTTP --------------------------------------------------------------------------------------------------------


def _accept(request: Request) -> str:
    return request.headers.get("accept", "")[:MAX_ACCEPT]


def _wants_aggregated(accept: str) -> bool:
    """Whether the client prefers the aggregated document to plain JSON."""
    for clause in accept.split(","):
        media_type, *parameters = [part.strip().lower() for part in clause.split(";")]
        wanted = dict(parameter.partition("=")[::2] for parameter in parameters)
        if media_type == "application/json" and wanted.get("as") == "apigroupdiscoverylist":
            if wanted.get("v") == "v2" and wanted.get("g") == "apidiscovery.k8s.io":
                return True
        elif media_type in {"application/json", "application/*", "*/*"}:
            return False
    return False


def _respond(request: Request, body: Callable[[], bytes]) -> Response:
    for clause in (_accept(request) or "*/*").split(","):
        media_type, *parameters = [part.strip() for part in clause.split(";")]
        if any(parameter.startswith("as=") for parameter in parameters):
            continue
        if media_type in {"application/json", "application/*", "*/*"}:
            return Response(200, {"content-type": "application/json"}, body())
        if media_type == "application/yaml":
            return Response(200, {"content-type": "application/yaml"}, _as_yaml(body()))
    raise NotAcceptable(
        "only the following media types are accepted: application/json, application/yaml, "
        "application/vnd.kubernetes.protobuf"
    )


def _require_get(request: Request) -> None:
    if request.method != "GET":
        raise MethodNotAllowed("the server does not allow this method on the requested resource", details={})


def _not_found() -> NotFound:
    return NotFound("the server could not find the requested resource", details={})


def _encode(document: Any) -> bytes:
    return msgspec.json.encode(document) + b"\n"


def _as_yaml(body: bytes) -> bytes:
    import yaml

    return yaml.safe_dump(msgspec.json.decode(body), sort_keys=True).encode()
