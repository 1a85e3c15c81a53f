"""Handlers of built-in subresources other than status and scale.

`token` of service accounts is implemented by the `auth` package. Subresources that upgrade the connection (exec,
attach, portforward, proxy) are not served.
"""

from __future__ import annotations

import copy

from herder.engine.apiserver.builtin.subresources import eviction, kubelet, pods
from herder.engine.apiserver.registry.resources import SubresourceCall
from herder.engine.apiserver.request.handler_call import SubresourceRequest
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.wire import Response


async def finalize(call: SubresourceRequest) -> Object | Response:
    """Set spec.finalizers of a namespace; no other endpoint can remove them."""
    call.parent_or_404()
    wanted = ((call.body or {}).get("spec") or {}).get("finalizers") or []

    def change(namespace: Object) -> None:
        spec = namespace.setdefault("spec", {})
        if wanted:
            spec["finalizers"] = list(wanted)
        else:
            spec.pop("finalizers", None)

    return await call.update(change)


async def approve(call: SubresourceRequest) -> Object | Response:
    """Approve or deny a CertificateSigningRequest through its conditions. RBAC controls this subresource separately."""
    parent, body = call.parent_or_404(), call.body
    if call.verb == "get" or body is None:
        return parent
    conditions = copy.deepcopy(body.get("status", {}).get("conditions"))
    now = call.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    for condition in conditions or ():
        condition["lastUpdateTime"] = condition.get("lastUpdateTime") or now
        condition["lastTransitionTime"] = condition.get("lastTransitionTime") or now

    def change(request: Object) -> None:
        status = request.setdefault("status", {})
        if conditions:
            status["conditions"] = conditions
        else:
            status.pop("conditions", None)

    return await call.update(change)


HANDLERS: dict[GroupResource, dict[str, SubresourceCall]] = {
    GroupResource("", "namespaces"): {"finalize": finalize},
    GroupResource("", "pods"): {
        "binding": pods.bind,
        "eviction": eviction.evict,
        "ephemeralcontainers": pods.ephemeral_containers,
        "resize": pods.resize,
        "log": kubelet.log,
    },
    GroupResource("certificates.k8s.io", "certificatesigningrequests"): {"approval": approve},
}
