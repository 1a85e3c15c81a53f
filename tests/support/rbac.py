"""Grant rights to users, and wait until they are in effect: kube-apiserver authorizes from a cache of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.api import TIMEOUT, Api

GROUP = "rbac.authorization.k8s.io"
RBAC = f"{GROUP}/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def binding(role: str, kind: str, user: str) -> dict[str, Any]:
    """A binding with the name of its role."""
    return {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user, "apiGroup": GROUP}],
    }


async def grant(api: Api, name: str, user: str, rules: list[dict[str, Any]]) -> None:
    """Grant the rules to the user in the namespace of `api`."""
    await api.create(f"{RBAC}/roles", {"metadata": {"name": name}, "rules": rules})
    await api.create(f"{RBAC}/rolebindings", binding(name, "Role", user))
    await wait_for_rights(api, user, rules)


async def grant_everywhere(api: Api, name: str, user: str, rules: list[dict[str, Any]]) -> None:
    """Grant the rules to the user in all namespaces."""
    await api.create_cluster(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    await api.create_cluster(f"{RBAC}/clusterrolebindings", binding(name, "ClusterRole", user))
    await wait_for_rights(api, user, rules)


async def revoke(api: Api, name: str, user: str, rules: list[dict[str, Any]]) -> None:
    """Take back what `grant` granted."""
    (await api.delete(api.at(f"{RBAC}/rolebindings", name))).expect(200)
    await wait_for_rights(api, user, rules, allowed=False)


async def wait_for_rights(api: Api, user: str, rules: list[dict[str, Any]], *, allowed: bool = True) -> None:
    """Wait until the authorizer allows, or denies, the first request that each rule describes."""
    for rule in rules:
        if "resources" not in rule:
            continue  # a role takes effect as a whole: its other rules suffice
        resource, _, subresource = rule["resources"][0].partition("/")
        attributes = {
            "verb": rule["verbs"][0],
            "resource": resource,
            "subresource": subresource,
            "group": rule["apiGroups"][0],
            "namespace": api.namespace,
            "name": (rule.get("resourceNames") or [""])[0],
        }
        async with asyncio.timeout(TIMEOUT):
            while (await review(api, user, **attributes))["allowed"] != allowed:
                await asyncio.sleep(0.01)


async def review(api: Api, user: str, **attributes: str) -> Any:
    """The status of a SubjectAccessReview."""
    body = {"spec": {"user": user, "resourceAttributes": attributes}}
    return (await api.post(REVIEWS, body)).expect(201)["status"]
