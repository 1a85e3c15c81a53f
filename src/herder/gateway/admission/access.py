"""Authorization checks by SubjectAccessReviews: the management cluster's own RBAC decides."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.references.catalogue import Target
from herder.engine.apiserver.auth.users import split_service_account
from herder.engine.apiserver.request.info import RequestInfo
from herder.engine.client.client import Client
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.wire import User

REVIEWS = GroupVersionResource("authorization.k8s.io", "v1", "subjectaccessreviews")
CONCURRENT_REVIEWS = 50
"""The embedded server answers concurrent reviews before other requests, so they are sent in batches."""


def _display_name(cluster: Object) -> str:
    """The display name; users may store a value of another type there."""
    name = (cluster.get("spec") or {}).get("displayName")
    return name if isinstance(name, str) and name else str(cluster["metadata"]["name"])


class Access:
    """SubjectAccessReview client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def may_use(self, user: User, cluster: str) -> bool:
        """Access to a cluster is the right to get its management Cluster."""
        kind = MANAGEMENT_CLUSTER
        return await self._allowed(user, verb="get", group=kind.group, resource=kind.plural, name=cluster)

    async def may(self, user: User, verb: str, target: Target) -> bool:
        """Whether the user has a right on an object, which need not exist."""
        return await self._allowed(
            user,
            verb=verb,
            group=target.group,
            resource=target.resource,
            name=target.name,
            namespace=target.namespace,
        )

    async def may_request(self, user: User, info: RequestInfo) -> bool:
        """Whether the user may still send this request to the management API."""
        if not info.is_resource_request:
            return await self._reviewed(user, {"nonResourceAttributes": {"verb": info.verb, "path": info.path}})
        return await self._allowed(
            user,
            verb=info.verb,
            group=info.group,
            resource=info.resource,
            name=info.name,
            subresource=info.subresource,
            namespace=info.namespace,
        )

    async def may_impersonate(self, user: User, other: User) -> bool:
        """Check the name, every group and every extra separately, as kube-apiserver does."""
        allowed = partial(self._allowed, user, verb="impersonate")
        if account := split_service_account(other.name):  # a right on users does not include service accounts
            namespace, name = account
            checks = [allowed(group="", resource=SERVICE_ACCOUNT.plural, namespace=namespace, name=name)]
        else:
            checks = [allowed(group="", resource="users", name=other.name)]
        checks += [allowed(group="", resource="groups", name=group) for group in other.groups]
        for extra, values in other.extra.items():
            named = partial(allowed, group="authentication.k8s.io", resource="userextras", subresource=extra)
            checks += [named(name=value) for value in values]
        return all(await asyncio.gather(*checks))

    async def reachable(self, user: User) -> Mapping[str, str]:
        """Clusters that a user may use: display name by ID."""
        clusters = (await self._client.list_all(MANAGEMENT_CLUSTER.resource)).items
        found: dict[str, str] = {}
        for start in range(0, len(clusters), CONCURRENT_REVIEWS):
            some = clusters[start : start + CONCURRENT_REVIEWS]
            allowed = await asyncio.gather(*(self.may_use(user, each["metadata"]["name"]) for each in some))
            found |= {
                each["metadata"]["name"]: _display_name(each) for each, may in zip(some, allowed, strict=True) if may
            }
        return found

    async def _allowed(
        self, user: User, *, verb: str, group: str, resource: str, name: str, subresource: str = "", namespace: str = ""
    ) -> bool:
        attributes = {"verb": verb, "group": group, "resource": resource, "name": name, "subresource": subresource}
        attributes["namespace"] = namespace
        return await self._reviewed(
            user, {"resourceAttributes": {key: value for key, value in attributes.items() if value}}
        )

    async def _reviewed(self, user: User, attributes: Object) -> bool:
        spec: Object = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {name: list(values) for name, values in user.extra.items()},
            **attributes,
        }
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await self._client.create(REVIEWS, review)
        return bool((answer.get("status") or {}).get("allowed"))
