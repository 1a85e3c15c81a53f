"""What `kubectl explain` says of the fields that every object has, in our own words.

Other fields of built-in kinds are published without descriptions; custom kinds bring theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

from herder.engine.meta.kinds import Object

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

OBJECT = {
    "apiVersion": "APIVersion defines the group and version of the API in which this object is written.",
    "kind": "Kind is the type of this object. It cannot change.",
    "metadata": "Standard object's metadata: what it is called, how it is labelled, whom it belongs to.",
}
METADATA = {
    "annotations": "Annotations are notes that tools keep with the object. They cannot be selected by.",
    "creationTimestamp": "CreationTimestamp is a timestamp of when the server took the object in. Set by the server.",
    "deletionGracePeriodSeconds": "Seconds between the request to delete the object and its end. Set by the server.",
    "deletionTimestamp": "When the object is to be gone at the latest; set once its deletion was asked for.",
    "finalizers": "Who has something left to do before the object may go. It goes when the list is empty.",
    "generateName": "The beginning of a name, to which the server adds the rest if no name is given.",
    "generation": "A number that grows with each change of what is wanted. Set by the server.",
    "labels": "Labels are short words by which objects are selected.",
    "managedFields": "Who set which field last, for server-side apply. Kept by the server.",
    "name": "Name of the object, unique for its kind within its namespace. It cannot change.",
    "namespace": "Namespace in which the object lies. It cannot change.",
    "ownerReferences": "Objects that this one belongs to. It is collected when the last of them is gone.",
    "resourceVersion": "The state of the object that this is; to be sent back with updates, never to be interpreted.",
    "selfLink": "No longer filled in.",
    "uid": "UID tells this object from all others of the same name before and after it. Set by the server.",
}


def described(name: str, schema: Object) -> Object:
    """The schema of that name, with what there is to say."""
    if name == OBJECT_META:
        return _with(schema, METADATA)
    return _with(schema, OBJECT) if "x-kubernetes-group-version-kind" in schema else schema


def _with(schema: Object, words: Mapping[str, str]) -> Object:
    """A copy: definitions are shared, and validation has no use for words."""
    properties = {
        name: {"description": words[name]} | inner if name in words else inner
        for name, inner in (schema.get("properties") or {}).items()
    }
    return schema | {"properties": properties} if properties else schema
