"""Which names, types, labels, annotations and contents of Secrets belong to the manager or to other users."""

from __future__ import annotations

import re
from collections.abc import Iterator

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import annotations_of, labels_of
from herder.api.identity.tenancy.clusters import name_of
from herder.api.identity.tenancy.rights import Rights, is_manager, is_system, is_token_controller
from herder.api.machines.credentials import CREATED_BY, CREATOR, CREDENTIAL_TYPE, RIGHTS_FINALIZER
from herder.api.machines.hosts import HOST_SECRET_TYPE
from herder.api.machines.jobs import CREDENTIAL_ANNOTATION
from herder.api.machines.names import STATE_SECRET_TYPE
from herder.api.management.names import TOKEN_LABEL
from herder.api.rke import names
from herder.engine.meta.kinds import Kind, Object

ACCOUNT_TOKEN_TYPE = "kubernetes.io/service-account-token"
TOKEN_OF = "kubernetes.io/service-account.name"
TOKEN_KEY = "token"

ISSUED_LABELS = (names.ACCOUNT_ROLE, TOKEN_LABEL, names.REQUEST_FOR)
"""Labels by which the gateway and controllers find bootstrap, plan and registration tokens, and machine registration
requests.
"""
ISSUED_TYPES = (
    names.PLAN_SECRET_TYPE,
    names.BOOTSTRAP_SECRET_TYPE,
    names.TOKENS_SECRET_TYPE,
    names.KEYS_SECRET_TYPE,
    names.REQUEST_SECRET_TYPE,
    STATE_SECRET_TYPE,
    HOST_SECRET_TYPE,
)
OWN_TYPES = (
    "Opaque",
    CREDENTIAL_TYPE,
    names.AUTH_SECRET_TYPE,
    "kubernetes.io/basic-auth",
    "kubernetes.io/dockercfg",
    "kubernetes.io/dockerconfigjson",
    "kubernetes.io/ssh-auth",
    "kubernetes.io/tls",
)
"""Types of Secrets that users without write access to all Secrets of the namespace may create."""
GENERATED_NAME = (
    "(^(cluster-serviceaccounttoken|crt-token)-)|(-(kubeconfig|ca|etcd|proxy|sa|rke-state|rke-encryption|machine-state|"
    "machine-plan|machine-plan-token|machine-bootstrap|machine-bootstrap-token|machine-driver-secret|"
    "machine-provision)$)|(^(bootstrap-secret|herder-gateway|herder-webhook-(certificates|path))$)"
)
"""Names of Secrets with the manager's credentials, next to those of users."""

BAD_TOKEN = "data.token: tokens of service accounts are issued by the API server; leave the field out"
BAD_ACCOUNT = (
    f"annotation {TOKEN_OF}: the Secret would hold a token of this service account; "
    "you may neither create its tokens nor pods that run as it"
)
BAD_ISSUED = "Secrets of this type, or with this label, are issued by the manager alone"
BAD_REGISTRATION = "status.token: registration tokens are issued by the manager; leave the field out"
BAD_OWN = (
    "you may create cloud credentials and Secrets of your own here: choose a name that the manager does not use for "
    "credentials of clusters and machines, a type such as Opaque, and no controlling owner"
)
BAD_CREATOR = f"annotation {CREATOR}: set it only when you create the Secret, to your own user name"
MANAGED_MARKS = (CREATED_BY, CREDENTIAL_ANNOTATION)
"""Annotations of Secrets that only the manager writes: the creator of a credential, and the credential of a machine, on
which the manager reports the machine.
"""
BAD_MARK = f"annotations {' and '.join(MANAGED_MARKS)}: the manager writes them; leave them as they are"
BAD_UNNAMED = (
    f"annotation {CREATOR}: required, because you may create Secrets here but not change all of them; set it to your "
    "own user name"
)
BAD_OVERWRITE = (
    "data: the user in annotation {} created this Secret, and may read it or have it copied; delete it and create it "
    "again, or choose another name"
)
BAD_FINALIZER = f"finalizer {RIGHTS_FINALIZER}: the manager removes it when rights on this name have ended; leave it"

SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
POD = Kind("", "v1", "Pod", "pods")
_GENERATED_NAME = re.compile(GENERATED_NAME)


def secret_problems(old: Object | None, new: Object, user: str, may: Rights) -> Iterator[str]:
    yield from _issued(old, new)
    if new.get("type") == ACCOUNT_TOKEN_TYPE:
        yield from _account_token(old, new, user, may)
    creator = annotations_of(new).get(CREATOR)
    # The creator of a credential keeps rights on it. An editor of the namespace, whose rights end one day, must not
    # become its creator later.
    if creator and creator != (user if old is None else annotations_of(old).get(CREATOR)):
        yield BAD_CREATOR
    if old is None and not creator and _only_creates(new["metadata"]["namespace"], user, may):
        yield BAD_UNNAMED
    if _managed_marks(new) != _managed_marks(old):
        yield BAD_MARK
    if _has_rights(old) and not _has_rights(new):
        yield BAD_FINALIZER
    suspect = not _is_own(new) if old is None else _is_controlled(new) and not _is_controlled(old)
    if suspect and not is_system(user) and not may_change_all(new["metadata"]["namespace"], may):
        yield BAD_OWN


def registration_token_problems(old: Object | None, new: Object, _user: str, _may: Rights) -> Iterator[str]:
    """This kind has no status subresource. Older managers stored the token in the status, from where it is migrated."""
    token, before = (((each or {}).get("status") or {}).get(TOKEN_KEY) for each in (new, old))
    if token and token != before:
        yield BAD_REGISTRATION


def _issued(old: Object | None, new: Object) -> Iterator[str]:
    before, labels = labels_of(old or {"metadata": {}}), labels_of(new)
    if any(label in labels and labels[label] != before.get(label) for label in ISSUED_LABELS):
        yield BAD_ISSUED
    if old is None and new.get("type") in ISSUED_TYPES:
        yield BAD_ISSUED


def _account_token(old: Object | None, new: Object, user: str, may: Rights) -> Iterator[str]:
    token, before = (((each or {}).get("data") or {}).get(TOKEN_KEY) for each in (new, old))
    if token and token != before and not is_token_controller(user):
        yield BAD_TOKEN
    account, known = (annotations_of(each or {"metadata": {}}).get(TOKEN_OF, "") for each in (new, old))
    if account == known and old is not None:
        return
    place = new["metadata"]["namespace"]
    is_theirs = may("create", SERVICE_ACCOUNT, namespace=place, name=account, subresource="token")
    # Users who can read all Secrets of the namespace, or run pods as any service account, have these tokens anyway.
    if not is_theirs and not may("create", POD, namespace=place) and not may("get", SECRET, namespace=place):
        yield BAD_ACCOUNT


def may_change_all(namespace: str, may: Rights) -> bool:
    return may("update", SECRET, namespace=namespace) or may("patch", SECRET, namespace=namespace)


def _managed_marks(secret: Object | None) -> list[str | None]:
    marks = annotations_of(secret or {"metadata": {}})
    return [marks.get(name) for name in MANAGED_MARKS]


def _created_by(secret: Object | None) -> str:
    return annotations_of(secret or {"metadata": {}}).get(CREATED_BY, "")


def with_creator(secret: Object, namespace: str, user: str, may: Rights) -> Object:
    """Name the author of a new Secret, unless the author may change all Secrets of the namespace anyway."""
    marks = annotations_of(secret)
    if marks.get(CREATOR) or not _only_creates(namespace, user, may):
        return secret
    return {**secret, "metadata": {**secret["metadata"], "annotations": {**marks, CREATOR: user}}}


def _only_creates(namespace: str, user: str, may: Rights) -> bool:
    """Whether the user creates Secrets next to those of others, whose names it can take in advance."""
    return not is_system(user) and not may_change_all(namespace, may) and not is_manager(may)


def overwrite_refusal(old: Object | None, new: Object, user: str) -> str:
    """Why this user may not change the content of this Secret, or "".

    Administrators are bound too. `kubectl apply` keeps what it does not mention, so whoever took the name in advance
    would read what they write, have it synced into a cluster, or add a key such as the server that gets the password.
    """
    creator = _created_by(old) or annotations_of(old or {"metadata": {}}).get(CREATOR, "")
    if creator in ("", user) or ((old or {}).get("type") or "Opaque") not in OWN_TYPES:
        return ""
    is_same = ((old or {}).get("data") or {}) == (new.get("data") or {})
    annotation = CREATED_BY if _created_by(old) else CREATOR
    return "" if is_same else BAD_OVERWRITE.format(f"{annotation}, {creator},")


def _has_rights(secret: Object | None) -> bool:
    """Whether its creator has permissions by its name."""
    return RIGHTS_FINALIZER in ((secret or {"metadata": {}})["metadata"].get("finalizers") or ())


def _is_own(secret: Object) -> bool:
    """Whether a new Secret can only be its author's own."""
    is_own_type = (secret.get("type") or "Opaque") in OWN_TYPES
    return is_own_type and not _is_controlled(secret) and not _GENERATED_NAME.search(name_of(secret))


def _is_controlled(secret: Object) -> bool:
    return any(each.get("controller") for each in secret["metadata"].get("ownerReferences") or ())
