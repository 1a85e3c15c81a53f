"""The default roles and bindings that every Kubernetes API server starts with.

They are data, taken from a real server. At each start what is missing is written, in one transaction; what is there
gets the rules and subjects that it lacks, and keeps those that somebody added, unless its owner opted out
by annotating it `rbac.authorization.kubernetes.io/autoupdate: "false"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from importlib import resources
from typing import Any

from msgspec import json

from herder.engine.apiserver.auth.aggregation import aggregated_rules
from herder.engine.apiserver.auth.policy import GROUP
from herder.engine.apiserver.auth.stored import born, stored
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
    """Write what is missing; answers how many objects that were."""
    changes = list(_changes(store, now, entropy))
    if changes:
        await store.write(*changes)
    return len(changes)


def default_policy() -> list[Object]:
    """The default objects, as a client would write them; aggregated roles with the rules they gather."""
    raw = resources.files(__package__).joinpath("data/bootstrap_policy.json").read_bytes()
    policy = [_whole(item) for item in json.decode(raw)]
    cluster_roles = [obj for obj in policy if obj["kind"] == "ClusterRole"]
    for _ in range(3):  # view gathers first, then edit, then admin
        for role in cluster_roles:
            rules = aggregated_rules(role, cluster_roles)
            if rules is not None:
                role["rules"] = rules
    return policy


def _whole(item: Object) -> Object:
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
            yield Put(key, stored(default | {"metadata": born(metadata, now=now, entropy=entropy)}), 0)
            continue
        existing: Object = json.decode(record.value)
        wanted = _reconciled(existing, default, now=now, entropy=entropy)
        if wanted != existing:
            yield Put(key, stored(wanted), record.revision)


def _reconciled(existing: Object, default: Object, *, now: datetime, entropy: Callable[[int], bytes]) -> Object:
    metadata = existing["metadata"]
    annotations = metadata.get("annotations") or {}
    if annotations.get(AUTOUPDATE) == "false":
        return existing
    if existing.get("roleRef") != default.get("roleRef"):
        # A binding to another role cannot be mended, only replaced: a new object under the old name.
        return default | {"metadata": born(default["metadata"], now=now, entropy=entropy)}
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


def _union(existing: list[Any] | None, wanted: list[Any]) -> list[Any]:
    kept = list(existing or ())
    return kept + [item for item in wanted if item not in kept]


def _with_missing_rules(existing: list[Object], wanted: list[Object]) -> list[Object]:
    return existing + missing_rules(existing, wanted)
