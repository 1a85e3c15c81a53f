"""Default RBAC roles and bindings of kube-apiserver, reconciled at every start.

They are data from a real server. Missing objects are created in one transaction. Existing ones get the rules and
subjects that they lack and keep additional ones, unless they are annotated
`rbac.authorization.kubernetes.io/autoupdate: "false"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from importlib import resources
from typing import Any

from msgspec import json

from herder.engine.apiserver.auth.aggregation import aggregated_rules
from herder.engine.apiserver.auth.policy import GROUP
from herder.engine.apiserver.auth.system_objects import new_metadata, object_encoder
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.meta.rules import missing_rules
from herder.engine.store import Key, Put, Store

AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
BOOTSTRAPPING = "kubernetes.io/bootstrapping"

_RESOURCES = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}


async def reconcile(store: Store, *, now: datetime, entropy: Callable[[int], bytes]) -> int:
    """Create and update the default objects. Return the number of writes."""
    changes = list(_changes(store, now, entropy))
    if changes:
        await store.write(*changes)
    return len(changes)


def default_policy() -> list[Object]:
    """Return the default objects as a client would create them. Aggregated roles include their aggregated rules."""
    raw = resources.files(__package__).joinpath("data/bootstrap_policy.json").read_bytes()
    policy = [_expand(item) for item in json.decode(raw)]
    cluster_roles = [obj for obj in policy if obj["kind"] == "ClusterRole"]
    for _ in range(3):  # first view is aggregated, then edit, then admin
        for role in cluster_roles:
            rules = aggregated_rules(role, cluster_roles)
            if rules is not None:
                role["rules"] = rules
    return policy


def _expand(item: Object) -> Object:
    metadata: Object = {"name": item.pop("name")}
    if "namespace" in item:
        metadata["namespace"] = item.pop("namespace")
    metadata["labels"] = {BOOTSTRAPPING: "rbac-defaults"} | item.pop("labels", {})
    metadata["annotations"] = {AUTOUPDATE: "true"}
    return {"kind": item.pop("kind"), "apiVersion": f"{GROUP}/v1", "metadata": metadata} | item


def _changes(store: Store, now: datetime, entropy: Callable[[int], bytes]) -> Iterator[Put]:
    for default in default_policy():
        metadata = default["metadata"]
        resource = GroupResource(GROUP, _RESOURCES[default["kind"]])
        key = Key(str(resource), metadata.get("namespace", ""), metadata["name"])
        record = store.latest(key)
        if record is None:
            yield Put(key, object_encoder(default | {"metadata": new_metadata(metadata, now=now, entropy=entropy)}), 0)
            continue
        existing: Object = json.decode(record.value)
        desired = _reconciled(existing, default, now=now, entropy=entropy)
        if desired != existing:
            yield Put(key, object_encoder(desired), record.revision)


def _reconciled(existing: Object, default: Object, *, now: datetime, entropy: Callable[[int], bytes]) -> Object:
    metadata = existing["metadata"]
    annotations = metadata.get("annotations") or {}
    if annotations.get(AUTOUPDATE) == "false":
        return existing
    if existing.get("roleRef") != default.get("roleRef"):
        # roleRef is immutable: the binding is replaced by a new object of the same name.
        return default | {"metadata": new_metadata(default["metadata"], now=now, entropy=entropy)}
    merged = existing | {
        "metadata": metadata
        | {
            "labels": default["metadata"]["labels"] | (metadata.get("labels") or {}),
            "annotations": default["metadata"]["annotations"] | annotations,
        }
    }
    if "subjects" in default:
        merged["subjects"] = _union(existing.get("subjects"), default["subjects"])
    if "aggregationRule" in default:
        own = (existing.get("aggregationRule") or {}).get("clusterRoleSelectors")
        selectors = _union(own, default["aggregationRule"]["clusterRoleSelectors"])
        merged["aggregationRule"] = {"clusterRoleSelectors": selectors}
    elif "rules" in default:
        merged["rules"] = _with_missing_rules(existing.get("rules") or [], default["rules"])
    return merged


def _union(existing: list[Any] | None, desired: list[Any]) -> list[Any]:
    kept = list(existing or ())
    return kept + [item for item in desired if item not in kept]


def _with_missing_rules(existing: list[Object], desired: list[Object]) -> list[Object]:
    return existing + missing_rules(existing, desired)
