"""Rights that `herder run` needs, as reviews of the user's own access."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from herder.api.capi.core import LEASE
from herder.api.capi.inventory import NAMESPACE
from herder.app.doctor.finding import Finding, failed, ok
from herder.app.rbac.rights import PARTS, Right
from herder.engine.client.client import Client
from herder.engine.meta.kinds import GroupVersionResource, Object

REVIEWS = GroupVersionResource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
NAME = "rights"
_SHOWN = 5
_CONCURRENT = 20


class Review(NamedTuple):
    """One verb on one resource. Without a name, on all objects."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        which = f" {self.name}" if self.name else ""
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}{which}{where}"


EVERYTHING = Review("*", "*", "*")


def needed(parts: Iterable[str], namespace: str) -> list[Review]:
    """What these parts of the manager need; `namespace` has the Lease of the leader."""
    rights = (right for part in parts for right in PARTS[part])
    return list(dict.fromkeys(review for right in rights for review in _reviews(right, namespace)))


def _reviews(right: Right, namespace: str) -> Iterator[Review]:
    for resource in right.resources:
        where = namespace if resource == LEASE.plural and right.namespace == NAMESPACE else right.namespace
        for verb in right.verbs:
            yield from (Review(verb, right.group, resource, where, name) for name in right.names or ("",))


async def check_rights(client: Client, parts: Iterable[str], namespace: str) -> Finding:
    if await _is_allowed(client, EVERYTHING):
        return ok(NAME, "this user can do everything")
    wanted, places = needed(parts, namespace), asyncio.Semaphore(_CONCURRENT)

    async def is_allowed(review: Review) -> bool:
        async with places:
            return await _is_allowed(client, review)

    allowed = await asyncio.gather(*map(is_allowed, wanted))
    missing = [review for review, has_it in zip(wanted, allowed, strict=True) if not has_it]
    if not missing:
        return ok(NAME, f"this user has all rights of the manager ({len(wanted)} reviewed)")
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    message = f"this user cannot {', '.join(map(str, missing[:_SHOWN]))}{more}"
    return failed(NAME, message, "bind the roles in docs/rights.md to the user or service account of herder run")


async def _is_allowed(client: Client, review: Review) -> bool:
    resource, _, subresource = review.resource.partition("/")
    attributes = {
        "verb": review.verb,
        "group": review.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": review.namespace,
        "name": review.name,
    }
    request: Object = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.create(REVIEWS, request)
    return bool((answer.get("status") or {}).get("allowed"))
