"""Pod admission of the node: which pods it runs, and with which spec.

By default it runs only pods of Jobs that Herder's controllers created.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.runner.approval import Approval, Refused, content_mac, verify
from herder.engine.runner.kinds import JOBS
from herder.engine.runner.pod.sources import Sources

ApprovalKey = Callable[[], Awaitable[bytes | None]]
"""Returns the key that signs approvals; None if no manager has published one."""

REASON = "PodNotApproved"
_HINT = "this node runs pods of Jobs that Herder created; --runner-pods=all makes it run any pod"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A pod that may run. The Secrets in `secrets` must have the contents that were signed."""

    spec: Object
    secrets: Mapping[str, str] = field(default_factory=dict)
    key: bytes = b""

    def sources(self, client: Client, namespace: str) -> Sources:
        def is_approved(name: str, data: Mapping[str, bytes]) -> bool:
            mac = self.secrets.get(name)
            return mac is None or hmac.compare_digest(content_mac(self.key, namespace, name, data), mac)

        return Sources(client, namespace, is_approved)


class PodAdmission:
    """Verifies that Herder's controllers approved a pod, unless `all_pods` is set."""

    def __init__(self, client: Client, key: ApprovalKey, *, all_pods: bool) -> None:
        self._client = client
        self._key = key
        self._all_pods = all_pods

    async def admit(self, pod: Object) -> Admitted:
        """Return the spec to run. Raises Refused; the caller retries errors of the API server."""
        if self._all_pods:
            return Admitted(pod["spec"])
        try:
            key = await self._key()
            if key is None:
                raise Refused("no manager has published an approval key")
            approval = verify(key, pod["metadata"]["namespace"], pod["metadata"].get("annotations") or {})
            self._check_containers(pod, approval)
            await self._check_job(pod, approval)
            await self._check_owner(pod, approval)
        except Refused as refusal:
            raise Refused(f"{refusal}; {_HINT}") from None
        return Admitted(approval.spec, approval.secrets, key)

    def _check_containers(self, pod: Object, approval: Approval) -> None:
        """Require the approved container names, because the pod's status lists the pod's own containers."""
        for field_name in ("initContainers", "containers"):
            names = [container["name"] for container in pod["spec"].get(field_name) or ()]
            if names != [container["name"] for container in approval.spec.get(field_name) or ()]:
                raise Refused(f"spec.{field_name} are not those of the Job that Herder created")

    async def _check_job(self, pod: Object, approval: Approval) -> None:
        references = pod["metadata"].get("ownerReferences") or ()
        uids = [one["uid"] for one in references if one.get("controller") and one["kind"] == "Job"]
        if await self._uid(JOBS, pod, approval.job) not in uids:
            raise Refused(f"Job {approval.job} does not control this pod")

    async def _check_owner(self, pod: Object, approval: Approval) -> None:
        owner = approval.owner
        resource = GroupVersionResource(owner.group, owner.version, owner.resource)
        if await self._uid(resource, pod, owner.name) != owner.uid:
            raise Refused(f"{owner.resource} {owner.name}, for which Herder created the Job, no longer exists")

    async def _uid(self, resource: GroupVersionResource, pod: Object, name: str) -> str:
        try:
            found = await self._client.get(resource, name, namespace=pod["metadata"]["namespace"])
        except NotFound:
            return ""
        return str(found["metadata"]["uid"])
