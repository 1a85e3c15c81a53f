"""The eviction subresource: delete a pod if its PodDisruptionBudget allows it."""

from __future__ import annotations

from collections.abc import Sequence

from herder.engine.apiserver.builtin.subresources.pods import set_condition
from herder.engine.apiserver.request.handler_call import SubresourceRequest
from herder.engine.meta.errors import BadRequest, StatusError, TooManyRequests
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.wire import Response

BUDGETS = GroupResource("policy", "poddisruptionbudgets")
PODS = GroupResource("", "pods")
_EVICTION_MESSAGE = "Cannot evict pod as it would violate the pod's disruption budget."
_CAUSE = "DisruptionBudget"


async def evict(call: SubresourceRequest) -> Object | Response:
    """Evict a pod: check its disruption budget, mark it with DisruptionTarget, and delete it."""
    pod, eviction = call.parent_or_404(), call.body or {}
    if (eviction.get("metadata") or {}).get("name") != call.name:
        raise BadRequest("name in URL does not match name in Eviction object")
    if not _needs_no_budget(pod):
        _check_budgets(pod, call)
    options = dict(eviction.get("deleteOptions") or {})
    if call.dry_run:
        options["dryRun"] = ["All"]
    await call.update(lambda stored: _mark_disrupted(stored, call))
    await call.delete(options)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _needs_no_budget(pod: Object) -> bool:
    """Whether the pod does not run, or is being deleted anyway."""
    phase = pod.get("status", {}).get("phase")
    return phase in {"Succeeded", "Failed", "Pending"} or "deletionTimestamp" in pod["metadata"]


def _check_budgets(pod: Object, call: SubresourceRequest) -> None:
    budgets = budgets_of(pod, call.list(BUDGETS, call.namespace))
    if len(budgets) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise StatusError(message, code=500, reason="")
    for budget in budgets:
        if not _may_evict_unhealthy(pod, budget):
            _check_budget(budget, call.list(PODS, call.namespace))


def budgets_of(pod: Object, budgets: Sequence[Object]) -> list[Object]:
    """Return the budgets whose selector matches the pod."""
    labels = pod["metadata"].get("labels") or {}
    found = []
    for budget in budgets:
        selector = label_selector_from_object(budget.get("spec", {}).get("selector"))
        if selector is not None and selector.matches(labels):
            found.append(budget)
    return found


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def _may_evict_unhealthy(pod: Object, budget: Object) -> bool:
    if is_ready(pod):
        return False
    status = budget.get("status", {})
    desired = status.get("desiredHealthy", 0)
    always = budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
    return bool(always or status.get("currentHealthy", 0) >= desired > 0)


def _check_budget(budget: Object, pods: Sequence[Object]) -> None:
    name, status = budget["metadata"]["name"], budget.get("status", {})
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        message = f"The disruption budget {name} is still being processed by the server."
        raise _eviction_error(message, retry_after=10)
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    # The status may be older than the last eviction, so the pods themselves are counted, too.
    now_healthy = sum(1 for pod in pods if _is_healthy(pod, budget))
    if min(status.get("disruptionsAllowed", 0), now_healthy - desired) > 0:
        return
    healthy = min(healthy, now_healthy)
    if healthy <= desired:
        raise _eviction_error(f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently")
    raise _eviction_error(f"The disruption budget {name} does not allow evicting pods currently")


def _is_healthy(pod: Object, budget: Object) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and is_ready(pod) and bool(budgets_of(pod, [budget]))


def _eviction_error(why: str, retry_after: int = 0) -> TooManyRequests:
    details: Object = {"causes": [{"reason": _CAUSE, "message": why}]}
    headers = {}
    if retry_after:
        details["retryAfterSeconds"] = retry_after
        headers["Retry-After"] = str(retry_after)
    return TooManyRequests(_EVICTION_MESSAGE, details=details, headers=headers)


def _mark_disrupted(pod: Object, call: SubresourceRequest) -> None:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastProbeTime": None,
        "lastTransitionTime": call.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    set_condition(pod, condition)
