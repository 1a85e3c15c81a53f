"""Object set labels and annotations (objectset.rio.cattle.io), compatible with upstream's `apply`.

They identify the objects created from a provisioning Cluster, which are pruned once they are no longer desired.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from herder.api.capi.names import annotations_of, labels_of
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object

_PREFIX = "objectset.rio.cattle.io/"
HASH = f"{_PREFIX}hash"
NO_PRUNE = {f"{_PREFIX}prune": "false"}  # labels of objects that are not pruned

_ID, _KIND, _NAME, _NAMESPACE = (f"{_PREFIX}{part}" for part in ("id", "owner-gvk", "owner-name", "owner-namespace"))
_SET = "rke-cluster"
_OWNER = f"{PROVISIONING_CLUSTER.api_version}, Kind={PROVISIONING_CLUSTER.kind}"


def set_hash(namespace: str, name: str) -> str:
    """Return the value of the label that all objects created from this Cluster have."""
    return hashlib.sha1(f"{_SET}{_OWNER}{name}{namespace}".encode(), usedforsecurity=False).hexdigest()


def with_set_labels(obj: Object, namespace: str, name: str) -> Object:
    meta = obj["metadata"]
    annotations = {_ID: _SET, _KIND: _OWNER, _NAME: name, _NAMESPACE: namespace}
    marks = {
        "labels": {**(meta.get("labels") or {}), HASH: set_hash(namespace, name)},
        "annotations": {**(meta.get("annotations") or {}), **annotations},
    }
    return {**obj, "metadata": {**meta, **marks}}


def hash_of(obj: Object) -> Iterable[str]:
    """Indexer: the object set hash."""
    mark = labels_of(obj).get(HASH)
    return (mark,) if mark else ()


def owning_cluster(obj: Object) -> Iterable[Key]:
    """Return the provisioning Cluster that an object was created from."""
    annotations = annotations_of(obj)
    if annotations.get(_ID) == _SET and annotations.get(_NAME):
        yield Key(annotations.get(_NAMESPACE, ""), annotations[_NAME])
