"""What users may not write, because controllers and the gateway trust it.

RBAC decides who may create or edit an object at all. These rules decide which names, labels, types and fields of it
belong to the manager. They bind everyone except the manager and administrators, who are known by the right to
`escalate` management Clusters. `api/identity/tenancy_policies.py` states the same rules for API servers that do not
call us.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from herder.api.capi.core import CORE_LABEL, DEPLOYMENT, LEASE, LEASE_NAME
from herder.api.capi.inventory import CORE_PROVIDER, PROVIDERS
from herder.api.capi.kinds import CLUSTER, NAMESPACE, SECRET
from herder.api.capi.names import PROVIDER, annotations_of, is_deleting, labels_of
from herder.api.identity import projects, restore_records
from herder.api.identity.creators import CREATOR_BOUND
from herder.api.identity.projects import PROJECT_ID, SYSTEM_NAMESPACES
from herder.api.machines.credentials import CREATED_BY, CREATOR, CREDENTIAL_TYPE, RIGHTS_FINALIZER
from herder.api.machines.hosts import HOST_SECRET_TYPE
from herder.api.machines.jobs import CREDENTIAL_ANNOTATION, ROLE
from herder.api.machines.kinds import MACHINE_GROUP
from herder.api.machines.names import CREDENTIAL_ROLE, PROVISION_ROLE, STATE_SECRET_TYPE
from herder.api.management.clusters import owns_namespace
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.names import (
    MANAGEMENT_NAME,
    REMOVE_MANAGEMENT,
    REMOVE_PROVISIONING,
    TOKEN_LABEL,
    TOKEN_READER,
    is_legacy,
)
from herder.api.observe_only import MARKED_KINDS, OBSERVE_ONLY, mark_of
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.api.rke.kinds import GROUP as RKE_GROUP
from herder.engine.meta.kinds import Kind, Object

# --- names ----------------------------------------------------------------------------------------------------------

CLUSTER_NAME = "^c-[a-z0-9]([-a-z0-9]{0,58}[a-z0-9])?$"
"""A management Cluster owns the namespace of its name. Namespaces for other purposes never begin with `c-`."""
GENERATED_CLUSTER_NAME = "^c-m-[a-z0-9]{8}$"  # Kubeconfigs outlive a cluster: users cannot choose its name again.
PROJECT_NAMESPACE = "-p-[a-z0-9]+$"  # suffix of the namespace with a project's bindings
SYSTEM_PREFIXES = ("kube-", "cattle-", "herder-")
RANDOM_SUFFIX = "xxxxx"  # placeholder for what the server appends to generateName

BAD_CLUSTER_NAME = (
    "a management Cluster owns the namespace of its name: the name must begin with c-; …-p-… are project namespaces, "
    "and the manager generates c-m- and eight letters or digits; choose another name"
)
BAD_INTERNAL = "spec.internal: only the manager's own cluster is internal; remove the field"
BAD_WORKSPACE = "spec.fleetWorkspaceName: you may not create provisioning Clusters in this namespace; choose another"
BAD_MOVED = (
    "spec.fleetWorkspaceName: a cluster keeps its workspace, in which its provisioning Cluster is; leave the field"
)
BAD_PLACE = "clusters are not provisioned in system namespaces; choose another namespace, such as fleet-default"
BAD_ID = "status.clusterName: the manager creates the management Cluster and records its name; leave the field as it is"
BAD_PAIR_NAME = (
    'a provisioning Cluster named "local" or c- and five letters or digits stands for the management Cluster of that '
    "name, and the manager creates it; choose another name"
)
BAD_PROJECT = (
    "a Project is named p- and lower-case letters or digits, and spec.clusterName is the name of its namespace"
)
BAD_MOVE = f"annotation {PROJECT_ID}: members of the project get rights in this namespace; ask an administrator"

# --- Secrets --------------------------------------------------------------------------------------------------------

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

# --- Roles ----------------------------------------------------------------------------------------------------------

GRANTED_ROLE = (
    "(^cattle-globalrole-)|(-cluster(owner|member)$)"
    f"|(-({names.PLAN_ROLE}|{PROVISION_ROLE}|{CREDENTIAL_ROLE})$)|(^{TOKEN_READER}$)"
)
"""Names of Roles that the manager fills with the permissions of GlobalRoles, cluster owners and members, machines and
their Jobs, creators of cloud credentials, and readers of registration tokens.

The API server checks what a Role grants when it is bound: a user who binds an empty Role would get the permissions
later.
"""
MACHINE_OWNERS = (f"{RKE_GROUP}/", f"{MACHINE_GROUP}/")
"""API groups of the objects that control Roles of machines and their Jobs."""
BAD_ROLE = "the manager grants rights by Roles of this name: choose another name, and leave their rules as they are"

# --- Cluster API cores ----------------------------------------------------------------------------------------------

BAD_CORE = (
    "a Lease of this name, a Deployment with this label, or a Provider of this type disables the built-in Cluster API "
    f"core for all users; it needs the right to update {CLUSTER.plural}.{CLUSTER.group} in all namespaces, which every "
    "core has"
)

# --- deletion -------------------------------------------------------------------------------------------------------

ORPHAN_POLICY, ORPHAN_FINALIZER = "Orphan", "orphan"
GRANTED_BY_NAME = (MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER, SECRET)
"""Kinds whose dependents grant permissions by name: Roles of their owners, and the namespace with a cluster's bindings.

The garbage collector deletes those with the object. If orphaned, they would apply to the next object with that name.
"""
BAD_ORPHANS = (
    "its dependents would keep rights that the next object of this name has to grant anew; delete it without "
    "propagationPolicy Orphan, and without the finalizer orphan"
)


HELD_BY = {MANAGEMENT_CLUSTER: REMOVE_MANAGEMENT, PROVISIONING_CLUSTER: REMOVE_PROVISIONING}
"""Finalizers that keep a cluster until no permissions by its name remain."""
BAD_RELEASE = (
    "the manager's finalizer keeps the name until rights on it have ended; leave it to the manager, and try again in a "
    "moment if it is missing"
)
BAD_OBSERVE_ONLY = (
    f"annotation {OBSERVE_ONLY}: the manager withholds all changes of such a cluster, also the end of rights in it; "
    "leave it as it is, or ask an administrator"
)
OWNED_CLUSTERS = (MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER)
BAD_OWNERS = (
    "metadata.ownerReferences: the cluster would be deleted with its owner, also by users who may not delete the "
    "cluster; leave the new references out"
)


class Rights(Protocol):
    """Checks what the writer may do, using the authorizer."""

    def __call__(
        self, verb: str, kind: Kind, *, namespace: str = "", name: str = "", subresource: str = ""
    ) -> bool: ...


_ACCOUNTS = "system:serviceaccount:"
_COMPONENT_ACCOUNTS = f"{_ACCOUNTS}kube-system:"

SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
POD = Kind("", "v1", "Pod", "pods")


def is_manager(may: Rights) -> bool:
    """Whether the writer may escalate management Clusters, and so grant any permission: no rule here would
    stop them.
    """
    return may("escalate", MANAGEMENT_CLUSTER)


def refusal(kind: Kind, old: Object | None, new: Object, user: str, may: Rights) -> str:
    """Return why this user may not write this object, or "". Permissions are checked only if a rule would
    be violated.
    """
    for reason in _RULES[kind](old, new, user, may):
        return "" if is_manager(may) else reason
    if (
        kind in GRANTED_BY_NAME
        and _is_orphaning(new)
        and not _is_orphaning(old)
        and not _may_orphan(kind, new, user, may)
    ):
        return BAD_ORPHANS
    if kind in OWNED_CLUSTERS and _owners(new) - _owners(old) and not is_system(user) and not is_manager(may):
        return BAD_OWNERS
    if kind in MARKED_KINDS and mark_of(new) != mark_of(old):
        return "" if is_manager(may) else BAD_OBSERVE_ONLY
    if old is not None and is_deleting(old) and _is_held(kind, old) and not _is_held(kind, new):
        return "" if is_manager(may) else BAD_RELEASE
    return ""


def deletion_refusal(kind: Kind, old: Object, options: Object, user: str, may: Rights) -> str:
    """Why this user may not delete this with these DeleteOptions, or ""."""
    orphans = options.get("propagationPolicy") == ORPHAN_POLICY or options.get("orphanDependents") is True
    if orphans and not _may_orphan(kind, old, user, may):
        return BAD_ORPHANS
    is_open = _grants_rights(kind, old) and not _is_held(kind, old) and not is_deleting(old)
    return BAD_RELEASE if is_open and not is_component(user) and not is_manager(may) else ""


def _grants_rights(kind: Kind, obj: Object) -> bool:
    """Whether someone may have permissions by its name."""
    if kind == PROVISIONING_CLUSTER:
        return bool((obj.get("status") or {}).get("clusterName"))
    # Bindings take effect in the cluster's namespace. The status may lag behind the binding of the creator.
    is_bound = annotations_of(obj).get(CREATOR_BOUND) == "true"
    return kind == MANAGEMENT_CLUSTER and (is_bound or owns_namespace(obj))


def _is_held(kind: Kind, obj: Object) -> bool:
    return kind in HELD_BY and HELD_BY[kind] in (obj["metadata"].get("finalizers") or ())


def _is_orphaning(obj: Object | None) -> bool:
    return ORPHAN_FINALIZER in ((obj or {"metadata": {}})["metadata"].get("finalizers") or ())


def _owners(obj: Object | None) -> set[str]:
    return {str(each.get("uid")) for each in (obj or {"metadata": {}})["metadata"].get("ownerReferences") or ()}


def _may_orphan(kind: Kind, obj: Object, user: str, may: Rights) -> bool:
    """Editors of a namespace can orphan Secrets there, but not cloud credentials: the right of a creator would outlast
    theirs.
    """
    is_plain = kind == SECRET and obj.get("type") != CREDENTIAL_TYPE
    has_all = is_plain and _may_change_all(obj["metadata"]["namespace"], may)
    return has_all or is_component(user) or is_manager(may)


# --- clusters -------------------------------------------------------------------------------------------------------


def name_of(obj: Object) -> str:
    meta = obj["metadata"]
    return meta.get("name") or f"{meta.get('generateName') or ''}{RANDOM_SUFFIX}"


def is_cluster_name(name: str) -> bool:
    return bool(_CLUSTER_NAME.search(name)) and not _PROJECT_NAMESPACE.search(name)


def _may_be_chosen(name: str) -> bool:
    return is_cluster_name(name) and not re.search(GENERATED_CLUSTER_NAME, name)


_CLUSTER_NAME, _PROJECT_NAMESPACE = re.compile(CLUSTER_NAME), re.compile(PROJECT_NAMESPACE)
_GENERATED_NAME, _GRANTED_ROLE = re.compile(GENERATED_NAME), re.compile(GRANTED_ROLE)


def _spec(obj: Object | None) -> Object:
    spec = (obj or {}).get("spec")
    return spec if isinstance(spec, dict) else {}


def _management_cluster(old: Object | None, new: Object, _user: str, may: Rights) -> Iterator[str]:
    if old is None and not _may_be_chosen(name_of(new)):
        yield BAD_CLUSTER_NAME
    if _spec(new).get("internal") and _spec(new).get("internal") != _spec(old).get("internal"):
        yield BAD_INTERNAL
    workspace, before = (str(_spec(each).get("fleetWorkspaceName") or "") for each in (new, old))
    usable = not _is_system(workspace) and may("create", PROVISIONING_CLUSTER, namespace=workspace)
    if workspace not in ("", before) and not usable:
        yield BAD_WORKSPACE
    if before and workspace != before:
        yield BAD_MOVED


def _provisioning_cluster(old: Object | None, new: Object, _user: str, _may: Rights) -> Iterator[str]:
    asked = annotations_of(new).get(MANAGEMENT_NAME)
    if asked and asked != annotations_of(old or {"metadata": {}}).get(MANAGEMENT_NAME) and not _may_be_chosen(asked):
        yield f"annotation {MANAGEMENT_NAME}: {BAD_CLUSTER_NAME}"
    if old is not None and _id_of(new) != _id_of(old):
        yield BAD_ID
    if old is None and _is_system(new["metadata"].get("namespace") or ""):
        yield BAD_PLACE
    if old is None and is_legacy(name_of(new)):
        yield BAD_PAIR_NAME


def _id_of(cluster: Object) -> str:
    """Name of the management Cluster, which administrators resume and log in to with the provisioning Cluster."""
    return (cluster.get("status") or {}).get("clusterName") or ""


def _is_system(namespace: str) -> bool:
    return namespace in SYSTEM_NAMESPACES or namespace.startswith(SYSTEM_PREFIXES)


def _project(old: Object | None, new: Object, _user: str, _may: Rights) -> Iterator[str]:
    if old is None and projects.unusable(new):
        yield BAD_PROJECT


def _namespace(old: Object | None, new: Object, _user: str, may: Rights) -> Iterator[str]:
    """Moving a namespace into a project grants the project's members permissions in it."""
    joined = annotations_of(new).get(PROJECT_ID)
    if not joined or joined == annotations_of(old or {"metadata": {}}).get(PROJECT_ID):
        return
    cluster, _, project = joined.partition(":")
    if not may("manage-namespaces", PROJECT, namespace=cluster, name=project):
        yield BAD_MOVE


# --- Secrets --------------------------------------------------------------------------------------------------------


def _secret(old: Object | None, new: Object, user: str, may: Rights) -> Iterator[str]:
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
    if suspect and not is_system(user) and not _may_change_all(new["metadata"]["namespace"], may):
        yield BAD_OWN


def _registration_token(old: Object | None, new: Object, _user: str, _may: Rights) -> Iterator[str]:
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


def _role(old: Object | None, new: Object, _user: str, _may: Rights) -> Iterator[str]:
    """Roles of machines are also identified by their controller, because earlier versions truncated long names."""
    if not _GRANTED_ROLE.search(name_of(new)) and not _is_of_machine(old):
        return
    if old is None or (old.get("rules") or []) != (new.get("rules") or []):
        yield BAD_ROLE


def _is_of_machine(role: Object | None) -> bool:
    owners = (role or {"metadata": {}})["metadata"].get("ownerReferences") or ()
    return any(each.get("controller") and each["apiVersion"].startswith(MACHINE_OWNERS) for each in owners)


def _lease(_old: Object | None, new: Object, _user: str, may: Rights) -> Iterator[str]:
    if name_of(new) == LEASE_NAME and not may("update", CLUSTER):
        yield BAD_CORE


def _provider(_old: Object | None, new: Object, _user: str, may: Rights) -> Iterator[str]:
    if new.get("type") == CORE_PROVIDER and not may("update", CLUSTER):
        yield BAD_CORE


def _deployment(old: Object | None, new: Object, _user: str, may: Rights) -> Iterator[str]:
    if labels_of(new).get(PROVIDER) != CORE_LABEL:
        return
    was_core = old is not None and labels_of(old).get(PROVIDER) == CORE_LABEL
    if was_core and _spec(old).get("replicas") == _spec(new).get("replicas"):
        return
    if not may("update", CLUSTER):
        yield BAD_CORE


def is_system(user: str) -> bool:
    """Whether it is a service account or component; an administrator decided what it may create."""
    return user.startswith("system:")


def is_component(user: str) -> bool:
    """Whether it is a part of Kubernetes, such as the garbage collector. Admins of a namespace can create any other
    service account, and act as it.
    """
    return is_system(user) and (not user.startswith(_ACCOUNTS) or user.startswith(_COMPONENT_ACCOUNTS))


def _may_change_all(namespace: str, may: Rights) -> bool:
    return may("update", SECRET, namespace=namespace) or may("patch", SECRET, namespace=namespace)


def is_token_controller(user: str) -> bool:
    """Whether it is kube-controller-manager, which issues the tokens of such Secrets."""
    return user == "system:kube-controller-manager" or user.startswith(_COMPONENT_ACCOUNTS)


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
    return not is_system(user) and not _may_change_all(namespace, may) and not is_manager(may)


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


_RULES: Mapping[Kind, Callable[[Object | None, Object, str, Rights], Iterator[str]]] = {
    MANAGEMENT_CLUSTER: _management_cluster,
    PROVISIONING_CLUSTER: _provisioning_cluster,
    PROJECT: _project,
    NAMESPACE: _namespace,
    SECRET: _secret,
    REGISTRATION_TOKEN: _registration_token,
    ROLE: _role,
    LEASE: _lease,
    DEPLOYMENT: _deployment,
    PROVIDERS: _provider,
    CLUSTER: lambda _old, _new, _user, _may: iter(()),  # only that it is observe-only
    CONTROL_PLANE: lambda old, new, _user, _may: restore_records.control_plane_problems(old, new),
    ETCD_SNAPSHOT: lambda old, new, _user, _may: restore_records.snapshot_problems(old, new),
}
KINDS = tuple(_RULES)
