"""NamespaceLifecycle: reject creates in missing or terminating namespaces, and deletion of system namespaces."""

from __future__ import annotations

from herder.engine.apiserver.admission.chain import CREATE, DELETE, UPDATE, Attributes, denied_by_plugin
from herder.engine.apiserver.admission.objects import NAMESPACES, Objects
from herder.engine.meta.errors import forbidden, not_found
from herder.engine.meta.kinds import GroupResource

IMMORTAL = frozenset({"default", "kube-system", "kube-public"})
# Access reviews must not reveal whether a namespace exists.
_ACCESS_REVIEWS = frozenset({GroupResource("authorization.k8s.io", "localsubjectaccessreviews")})


class NamespaceLifecycle:
    """The NamespaceLifecycle admission plugin."""

    name = "NamespaceLifecycle"
    operations = frozenset({CREATE, UPDATE, DELETE})
    resources: frozenset[GroupResource] | None = None
    subresources: frozenset[str] | None = None

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def admit(self, attributes: Attributes) -> None:
        resource = attributes.resource.group_resource
        if resource == NAMESPACES:
            if attributes.operation == DELETE and attributes.name in IMMORTAL:
                raise forbidden(NAMESPACES, attributes.name, "this namespace may not be deleted")
            return
        if not attributes.namespace or attributes.operation == DELETE or resource in _ACCESS_REVIEWS:
            return
        record = self._objects.record(NAMESPACES, "", attributes.namespace)
        if record is None:
            raise not_found(NAMESPACES, attributes.namespace)
        if attributes.operation != CREATE or b"Terminating" not in record.value:
            return
        namespace = self._objects.get(NAMESPACES, "", attributes.namespace) or {}
        if (namespace.get("status") or {}).get("phase") == "Terminating":
            error = denied_by_plugin(
                attributes,
                f"unable to create new content in namespace {attributes.namespace} because it is being terminated",
            )
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {attributes.namespace} is being terminated",
                "field": "metadata.namespace",
            }
            error.details = (error.details or {}) | {"causes": [cause]}
            raise error
