"""What tells clients of the group which kinds it has."""

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
