"""Group, version, kind and resource names, as in apimachinery's `schema` package."""

from __future__ import annotations

from typing import Any, NamedTuple

Object = dict[str, Any]
"""A decoded Kubernetes object. Objects from a cache must not be modified."""


class GroupKind(NamedTuple):
    group: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


class GroupResource(NamedTuple):
    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource


class GroupVersion(NamedTuple):
    group: str
    version: str

    @classmethod
    def parse(cls, api_version: str) -> GroupVersion:
        group, _, version = api_version.rpartition("/")
        return cls(group, version)

    def __str__(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class GroupVersionKind(NamedTuple):
    group: str
    version: str
    kind: str

    @classmethod
    def of(cls, obj: Object) -> GroupVersionKind:
        group, _, version = str(obj.get("apiVersion", "")).rpartition("/")
        return cls(group, version, str(obj.get("kind", "")))

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_kind(self) -> GroupKind:
        return GroupKind(self.group, self.kind)

    def __str__(self) -> str:
        return f"{self.api_version}, Kind={self.kind}"


class GroupVersionResource(NamedTuple):
    group: str
    version: str
    resource: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> GroupResource:
        return GroupResource(self.group, self.resource)

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection, of an object in it, or of a subresource."""
        parts = ["", "apis", self.group, self.version] if self.group else ["", "api", self.version]
        if namespace:
            parts += ["namespaces", namespace]
        parts.append(self.resource)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.api_version}, Resource={self.resource}"


class Kind(NamedTuple):
    """One version of a kind with everything that its URLs need, so that no discovery is required."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    partial: bool = False  # read as PartialObjectMetadata
    fields: str = ""  # field selector: only these objects, cached separately from the others

    def metadata_only(self) -> Kind:
        """Return the kind as PartialObjectMetadata: names, labels, owners and resource versions only."""
        return self._replace(partial=True)

    def only(self, fields: str) -> Kind:
        """Return the kind restricted to some objects by a field selector: the others are never in memory."""
        return self._replace(fields=fields)

    @property
    def resource(self) -> GroupVersionResource:
        return GroupVersionResource(self.group, self.version, self.plural)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_kind(self) -> GroupKind:
        return GroupKind(self.group, self.kind)

    def __str__(self) -> str:
        return f"{self.kind}.{self.version}.{self.group}" if self.group else f"{self.kind}.{self.version}"
