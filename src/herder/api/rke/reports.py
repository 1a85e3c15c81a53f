"""What a node may change of its own plan Secret: what became of the plan. What the plan is, and what the machine is,
is the manager's to say there: a worker that gave itself a server's role would be handed all keys of its cluster."""

from __future__ import annotations

from herder.api.capi.kinds import SECRET
from herder.api.policies import policy
from herder.api.rke.names import PLAN_SECRET_TYPE
from herder.api.rke.plan_secret import APPLIED_PLAN, FAILURE_THRESHOLD, MAX_FAILURES, PLAN
from herder.engine.meta.kinds import Object

POLICY_NAME = "herder-plans"
NO_REPORT = "a node reports what became of its plan; the plan itself, labels and annotations are the manager's to write"

_ACCOUNT = "system:serviceaccount:"
_KEPT = ("labels", "annotations", "ownerReferences", "finalizers")  # of the metadata
_ASKED = (PLAN, APPLIED_PLAN, MAX_FAILURES, FAILURE_THRESHOLD)
"""Keys that the manager writes and guards rely on: with another `appliedPlan` a node could claim another version."""


def is_refused(user: str, old: Object, new: Object) -> bool:
    """Whether the node whose plan this is changes more of it than it may. Others have other rules."""
    meta = old["metadata"]
    if old.get("type") != PLAN_SECRET_TYPE or user != f"{_ACCOUNT}{meta['namespace']}:{meta['name']}":
        return False
    reported = any((meta.get(part) or None) != (new["metadata"].get(part) or None) for part in _KEPT)
    return reported or _asked(old) != _asked(new) or bool(new.get("immutable"))


def _asked(secret: Object) -> list[object]:
    data = secret.get("data") or {}
    return [data.get(key) for key in _ASKED]


# --- the same, for API servers that do not ask us -------------------------------------------------------------------

_IS_ITS_NODE = (
    f"oldObject.?type.orValue('') == '{PLAN_SECRET_TYPE}' && "
    f"request.userInfo.username == '{_ACCOUNT}' + request.namespace + ':' + request.name"
)
_IS_A_REPORT = " && ".join(
    (
        *(f"object.metadata.?{part} == oldObject.metadata.?{part}" for part in _KEPT),
        *(f"object.?data[?'{key}'] == oldObject.?data[?'{key}']" for key in _ASKED),
        "!object.?immutable.orValue(false)",
    )
)

POLICY = policy(POLICY_NAME, (SECRET,), ("UPDATE",), _IS_ITS_NODE, _IS_A_REPORT, NO_REPORT)
