"""Names for kinds and resources, as every part of the Kubernetes API spells them."""

from __future__ import annotations

from typing import Any, NamedTuple

Object = dict[str, Any]
"""A decoded Kubernetes object. Whoever holds one from a cache must not change it."""


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
        """The URL path that names this collection, an object in it, or a subresource of that object."""
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
    """One version of one kind with all that its URLs need, so that nobody has to ask discovery for what is known."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    partial: bool = False  # read as metadata alone, whatever else the objects carry
    fields: str = ""  # a field selector: only these objects of the kind, kept apart from the others

    def metadata_only(self) -> Kind:
        """The same kind for who needs no more than names, labels, owners and revisions of its objects."""
        return self._replace(partial=True)

    def only(self, fields: str) -> Kind:
        """The same kind for who needs the contents of some of its objects: the others are never in memory."""
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
