"""Restrict what a node may change in its own plan Secret: the reported status only.

Plan, labels and annotations belong to the manager: a worker that gave itself a server role would receive all keys of
its cluster.
"""

from __future__ import annotations

from herder.api.capi.kinds import SECRET
from herder.api.policies import policy
from herder.api.rke.names import PLAN_SECRET_TYPE
from herder.api.rke.node.plan_secret import APPLIED_PLAN, FAILURE_THRESHOLD, MAX_FAILURES, PLAN
from herder.engine.meta.kinds import Object

POLICY_NAME = "herder-plans"
NOT_A_STATUS_UPDATE = (
    "a node may only change the status keys of its plan Secret; plan, labels and annotations belong to the manager"
)

_ACCOUNT = "system:serviceaccount:"
_PROTECTED_METADATA = ("labels", "annotations", "ownerReferences", "finalizers")
_PROTECTED_KEYS = (PLAN, APPLIED_PLAN, MAX_FAILURES, FAILURE_THRESHOLD)
"""Keys that the manager writes and guards rely on: with another `appliedPlan` a node could claim another version."""


def is_refused(user: str, old: Object, new: Object) -> bool:
    """Whether the node that owns this plan Secret changes more than its status. Other users have other rules."""
    meta = old["metadata"]
    if old.get("type") != PLAN_SECRET_TYPE or user != f"{_ACCOUNT}{meta['namespace']}:{meta['name']}":
        return False
    metadata_changed = any(
        (meta.get(part) or None) != (new["metadata"].get(part) or None) for part in _PROTECTED_METADATA
    )
    return metadata_changed or _protected_data(old) != _protected_data(new) or bool(new.get("immutable"))


def _protected_data(secret: Object) -> list[object]:
    data = secret.get("data") or {}
    return [data.get(key) for key in _PROTECTED_KEYS]


# --- the same rule as a ValidatingAdmissionPolicy -------------------------------------------------------------------

_IS_ITS_NODE = (
    f"oldObject.?type.orValue('') == '{PLAN_SECRET_TYPE}' && "
    f"request.userInfo.username == '{_ACCOUNT}' + request.namespace + ':' + request.name"
)
_IS_A_REPORT = " && ".join(
    (
        *(f"object.metadata.?{part} == oldObject.metadata.?{part}" for part in _PROTECTED_METADATA),
        *(f"object.?data[?'{key}'] == oldObject.?data[?'{key}']" for key in _PROTECTED_KEYS),
        "!object.?immutable.orValue(false)",
    )
)

POLICY = policy(POLICY_NAME, (SECRET,), ("UPDATE",), _IS_ITS_NODE, _IS_A_REPORT, NOT_A_STATUS_UPDATE)
