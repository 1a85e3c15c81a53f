"""RBAC objects of an impersonator: a service account that may impersonate exactly one user."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.identity.impersonators import IMPERSONATOR, impersonator
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.wire import User

_RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLE = Kind(_RBAC, "v1", "ClusterRole", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDING = Kind(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False)

IMPERSONATION_NAMESPACE = "cattle-impersonation-system"
LABELS = {IMPERSONATOR: "true"}
ACCOUNT_LABEL = "cattle.io/service-account.name"
TOKEN_TYPE = "kubernetes.io/service-account-token"
ACCOUNT_NAME = "kubernetes.io/service-account.name"
ACCOUNT_UID = "kubernetes.io/service-account.uid"

MAX_RULES = 5_000
"""Rules of one account that are compared: a hostile cluster can report as many as fit into a response."""

_TOKEN = re.compile(r"[!-~]{1,16384}")
_ANY_VALUE = ("requesttokenid", "requesthost")
_THIS_VALUE = ("principalid", "username")


def fingerprint(user: User) -> str:
    """Changes with the content of the objects, and with nothing else."""
    identity = [user.name, sorted(user.groups), *(sorted(user.extra.get(key, ())) for key in _THIS_VALUE)]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def namespace() -> Object:
    return _object(NAMESPACE, {"name": IMPERSONATION_NAMESPACE})


def cluster_role(user: User) -> Object:
    return _object(CLUSTER_ROLE, {"name": impersonator(user.name), "labels": LABELS}, rules=_rules(user))


def rules_cover(rules: list[Object], user: User) -> bool:
    """Whether these rules, as the cluster reports them, are the current ones of the user."""
    if len(rules) > MAX_RULES:
        return False
    granted = {_compared(rule) for rule in rules if rule.get("verbs") == ["impersonate"]}
    return granted == {_compared(rule) for rule in _rules(user)}


def _compared(rule: Object) -> tuple[str, frozenset[str]]:
    return ",".join(rule["resources"]), frozenset(rule.get("resourceNames") or ())


def _rules(user: User) -> list[Object]:
    extras: list[tuple[str, list[str] | None]] = [(key, None) for key in _ANY_VALUE]
    extras += [(key, list(user.extra[key])) for key in _THIS_VALUE if user.extra.get(key)]
    rules = [_may("", "users", [user.name]), _may("", "groups", list(user.groups))]
    return rules + [_may("authentication.k8s.io", f"userextras/{key}", values) for key, values in extras]


def service_account(user: User, owner: Object) -> Object:
    meta = {"name": impersonator(user.name), "namespace": IMPERSONATION_NAMESPACE, "labels": LABELS}
    return _object(SERVICE_ACCOUNT, meta | {"ownerReferences": [_owned_by(owner)]})


def cluster_role_binding(user: User, owner: Object) -> Object:
    name = impersonator(user.name)
    return _object(
        CLUSTER_ROLE_BINDING,
        {"name": name, "labels": LABELS, "ownerReferences": [_owned_by(owner)]},
        roleRef={"apiGroup": _RBAC, "kind": CLUSTER_ROLE.kind, "name": name},
        subjects=[{"kind": SERVICE_ACCOUNT.kind, "name": name, "namespace": IMPERSONATION_NAMESPACE}],
    )


def token_secret(account: Object) -> Object:
    """Empty Secret that the cluster fills with a token."""
    name = account["metadata"]["name"]
    meta = {
        "generateName": f"{name}-token-",
        "namespace": IMPERSONATION_NAMESPACE,
        "labels": {ACCOUNT_LABEL: name},
        "annotations": {ACCOUNT_NAME: name},
    }
    return _object(SECRET, meta, type=TOKEN_TYPE)


def token_in(secret: Object, account: Object) -> str:
    """The base64 token that the cluster stored for this very account, or ""."""
    annotations = secret["metadata"].get("annotations") or {}
    wanted = (TOKEN_TYPE, account["metadata"]["name"], account["metadata"]["uid"])
    if (secret.get("type"), annotations.get(ACCOUNT_NAME), annotations.get(ACCOUNT_UID)) != wanted:
        return ""
    return str((secret.get("data") or {}).get("token") or "")


@contextmanager
def reading(cluster: str) -> Iterator[None]:
    """Objects of a hostile cluster may have any shape."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError):
        message = f"cluster {cluster}: its API server sends invalid objects"
        raise StatusError(message, code=502, reason="BadGateway") from None


def checked_token(token: object, cluster: str) -> str:
    """A token issued by the cluster, which is cached and sent as a header; a hostile cluster may return anything."""
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        raise StatusError(f"cluster {cluster}: it issued an invalid token", code=502, reason="BadGateway")
    return token


def _may(group: str, resource: str, names: list[str] | None) -> Object:
    rule: Object = {"apiGroups": [group], "resources": [resource], "verbs": ["impersonate"]}
    return rule if names is None else rule | {"resourceNames": names}


def _owned_by(owner: Object) -> Object:
    meta = owner["metadata"]
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}


def _object(kind: Kind, meta: Object, **rest: Any) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **rest}
