"""Discovery documents of ext.cattle.io."""

from __future__ import annotations

from herder.engine.meta.kinds import Object

GROUP, VERSION = "ext.cattle.io", "v1"
API_VERSION = f"{GROUP}/{VERSION}"
GROUP_PATH = f"/apis/{GROUP}"
PATH = f"/apis/{API_VERSION}"

TOKENS, KUBECONFIGS = "tokens", "kubeconfigs"
SELF_USERS, PASSWORD_CHANGES = "selfusers", "passwordchangerequests"

_STORED = ("create", "delete", "get", "list")
_KINDS = (
    (TOKENS, "Token", _STORED),
    (KUBECONFIGS, "Kubeconfig", _STORED),
    (SELF_USERS, "SelfUser", ("create",)),
    (PASSWORD_CHANGES, "PasswordChangeRequest", ("create",)),
)

_VERSION = {"groupVersion": API_VERSION, "version": VERSION}
API_GROUP: Object = {
    "kind": "APIGroup",
    "apiVersion": "v1",
    "name": GROUP,
    "versions": [_VERSION],
    "preferredVersion": _VERSION,
}
RESOURCES: Object = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": API_VERSION,
    "resources": [
        {"name": plural, "singularName": kind.lower(), "namespaced": False, "kind": kind, "verbs": list(verbs)}
        for plural, kind, verbs in _KINDS
    ],
}

_DISCOVERY: Object = {
    "metadata": {"name": GROUP, "creationTimestamp": None},
    "versions": [
        {
            "version": VERSION,
            "freshness": "Current",
            "resources": [
                {
                    "resource": plural,
                    "responseKind": {"group": GROUP, "version": VERSION, "kind": kind},
                    "scope": "Cluster",
                    "singularResource": kind.lower(),
                    "verbs": list(verbs),
                }
                for plural, kind, verbs in _KINDS
            ],
        }
    ],
}


def with_group(groups: Object) -> Object:
    """The API server's group list, in either format, with our group."""
    match groups.get("kind"):
        case "APIGroupList":
            return {**groups, "groups": [*(groups.get("groups") or []), API_GROUP]}
        case "APIGroupDiscoveryList":
            return {**groups, "items": [*(groups.get("items") or []), _DISCOVERY]}
        case _:
            return groups
