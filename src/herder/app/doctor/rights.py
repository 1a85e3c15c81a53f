"""Rights that `herder run` needs to install itself, as reviews of the user's own access."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from herder.api.capi.core import CRD, LEASE, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from herder.api.capi.kinds import CLUSTER, MACHINE, NAMESPACE, SECRET
from herder.api.machines.kinds import NODE_DRIVER
from herder.api.management.kinds import GLOBAL_ROLE, PROVISIONING_CLUSTER, ROLE_TEMPLATE
from herder.api.policies import POLICY, POLICY_BINDING
from herder.api.settings import SETTING
from herder.app.doctor.finding import Finding, failed, ok
from herder.engine.client.client import Client
from herder.engine.meta.kinds import GroupVersionResource, Kind, Object

REVIEWS = GroupVersionResource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
NAME = "rights"
_SHOWN = 5
_READ, _APPLY = ("list", "watch"), ("create", "patch")


class Right(NamedTuple):
    verb: str
    group: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}{where}"


EVERYTHING = Right("*", "*", "*")


def needed(namespace: str, *, gateway: bool) -> list[Right]:
    """What an install writes, and one kind of each group that controllers reconcile; `namespace` has the Lease."""
    kinds: list[tuple[Kind, Sequence[str]]] = [
        (CRD, ("get", *_READ, *_APPLY)),
        (SETTING, (*_READ, *_APPLY)),
        (NAMESPACE, ("create",)),
        (SECRET, (*_READ, *_APPLY)),
        (MUTATING_WEBHOOKS, ("create",)),
        (VALIDATING_WEBHOOKS, ("create",)),
        (NODE_DRIVER, (*_READ, *_APPLY)),
        (CLUSTER, _READ),
        (MACHINE, _READ),
    ]
    if gateway:
        kinds += [(PROVISIONING_CLUSTER, _READ)]
        kinds += [(kind, _APPLY) for kind in (GLOBAL_ROLE, ROLE_TEMPLATE, POLICY, POLICY_BINDING)]
    found = [Right(verb, kind.group, kind.plural) for kind, verbs in kinds for verb in verbs]
    return found + [Right(verb, LEASE.group, LEASE.plural, namespace) for verb in ("get", "create", "update")]


async def check_rights(client: Client, namespace: str, *, gateway: bool) -> Finding:
    if await _is_allowed(client, EVERYTHING):
        return ok(NAME, "this user can do everything")
    wanted = needed(namespace, gateway=gateway)
    allowed = await asyncio.gather(*(_is_allowed(client, right) for right in wanted))
    missing = [right for right, has_it in zip(wanted, allowed, strict=True) if not has_it]
    if not missing:
        return ok(NAME, f"this user can install Herder ({len(wanted)} rights reviewed)")
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    message = f"this user cannot {', '.join(map(str, missing[:_SHOWN]))}{more}"
    return failed(NAME, message, "bind the ClusterRole cluster-admin to the user or service account of herder run")


async def _is_allowed(client: Client, right: Right) -> bool:
    attributes = {"verb": right.verb, "group": right.group, "resource": right.resource, "namespace": right.namespace}
    review: Object = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.create(REVIEWS, review)
    return bool((answer.get("status") or {}).get("allowed"))
