"""Descriptions of the fields of every object, for `kubectl explain`.

Other fields of built-in kinds have no description; those of custom resources come from their CRD.
"""

from __future__ import annotations

from collections.abc import Mapping

from herder.engine.meta.kinds import Object

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

OBJECT = {
    "apiVersion": "APIVersion is the API group and version of this representation of the object.",
    "kind": "Kind is the type of this object. Immutable.",
    "metadata": "Standard object's metadata: name, labels, annotations and owners.",
}
METADATA = {
    "annotations": "Annotations are unstructured data that tools store with the object. Selectors cannot match them.",
    "creationTimestamp": "CreationTimestamp is a timestamp of when the object was created. Set by the server.",
    "deletionGracePeriodSeconds": "Seconds that the object may take to terminate once deleted. Set by the server.",
    "deletionTimestamp": "Time after which the object is removed. Set by the server on a delete request.",
    "finalizers": "Entries that controllers remove. The object is removed when the list is empty.",
    "generateName": "Prefix of a unique name that the server generates if name is empty.",
    "generation": "Sequence number of the desired state. Set by the server.",
    "labels": "Labels are keys and values that selectors match.",
    "managedFields": "Managers of the object's fields, for server-side apply. Set by the server.",
    "name": "Name of the object, unique for its kind in its namespace. Immutable.",
    "namespace": "Namespace of the object. Immutable.",
    "ownerReferences": "Owners of the object. It is garbage collected when the last of them has been deleted.",
    "resourceVersion": "Opaque version of the object, for optimistic locking and watches.",
    "selfLink": "Deprecated. Always empty.",
    "uid": "UID is unique to this object, also among deleted objects of the same name. Set by the server.",
}


def described(name: str, schema: Object) -> Object:
    """Add the descriptions to a schema."""
    if name == OBJECT_META:
        return _with_descriptions(schema, METADATA)
    return _with_descriptions(schema, OBJECT) if "x-kubernetes-group-version-kind" in schema else schema


def _with_descriptions(schema: Object, descriptions: Mapping[str, str]) -> Object:
    """Return a copy with descriptions. The original is shared with validation, which does not need them."""
    properties = {
        name: {"description": descriptions[name]} | inner if name in descriptions else inner
        for name, inner in (schema.get("properties") or {}).items()
    }
    return schema | {"properties": properties} if properties else schema
