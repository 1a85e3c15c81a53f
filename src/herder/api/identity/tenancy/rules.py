"""What users may not write, because controllers and the gateway trust it.

RBAC decides who may create or edit an object at all. These rules decide which names, labels, types and fields of it
belong to the manager. They bind everyone except the manager and administrators, who are known by the right to
`escalate` management Clusters. `api/identity/tenancy_policies.py` states the same rules for API servers that do not
call us.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from herder.api.capi.core import CORE_LABEL, DEPLOYMENT, LEASE, LEASE_NAME
from herder.api.capi.inventory import CORE_PROVIDER, PROVIDERS
from herder.api.capi.kinds import CLUSTER, NAMESPACE, SECRET
from herder.api.capi.names import PROVIDER, annotations_of, is_deleting, labels_of
from herder.api.identity import restore_records
from herder.api.identity.creators import CREATOR_BOUND
from herder.api.identity.roles import OWNED_BY
from herder.api.identity.tenancy.clusters import (
    management_cluster_problems,
    name_of,
    namespace_problems,
    project_problems,
    provisioning_cluster_problems,
    spec_of,
)
from herder.api.identity.tenancy.rights import Rights, is_component, is_manager, is_system
from herder.api.identity.tenancy.secrets import may_change_all, registration_token_problems, secret_problems
from herder.api.machines.credentials import CREDENTIAL_TYPE
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.machines.kinds import MACHINE_GROUP
from herder.api.machines.names import CREDENTIAL_ROLE, PROVISION_ROLE
from herder.api.management.clusters import owns_namespace
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.names import REMOVE_MANAGEMENT, REMOVE_PROVISIONING, TOKEN_READER
from herder.api.observe_only import MARKED_KINDS, OBSERVE_ONLY, mark_of
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.api.rke.kinds import GROUP as RKE_GROUP
from herder.engine.meta.kinds import Kind, Object

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
BAD_MARKED_BINDING = (
    f"label {OWNED_BY}: the manager finds the bindings of a member by it, and waits until they are deleted; "
    "leave it out"
)
BAD_KEPT_ROLE = (
    "metadata.finalizers, metadata.ownerReferences: the manager grants rights by this object, which end with its "
    "deletion; leave both fields as they are"
)

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

_GRANTED_ROLE = re.compile(GRANTED_ROLE)


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
    has_all = is_plain and may_change_all(obj["metadata"]["namespace"], may)
    return has_all or is_component(user) or is_manager(may)


def _role(old: Object | None, new: Object, user: str, _may: Rights) -> Iterator[str]:
    """Roles of machines are also identified by their controller, because earlier versions truncated long names."""
    if not _GRANTED_ROLE.search(name_of(new)) and not _is_of_machine(old):
        return
    if old is None or (old.get("rules") or []) != (new.get("rules") or []):
        yield BAD_ROLE
    elif _outlasts(old, new) and not is_component(user):
        yield BAD_KEPT_ROLE


def _role_binding(old: Object | None, new: Object, user: str, _may: Rights) -> Iterator[str]:
    """API servers let everyone who may update a binding change the fields of the garbage collector. With a finalizer,
    the rights of its subjects would apply after their end, also to the next object of the name.
    """
    mark, before = (labels_of(each or {"metadata": {}}).get(OWNED_BY) for each in (new, old))
    if mark is not None and mark != before:
        yield BAD_MARKED_BINDING
    if old is not None and _is_granted(old) and _outlasts(old, new) and not is_component(user):
        yield BAD_KEPT_ROLE


def _is_granted(binding: Object) -> bool:
    role = binding.get("roleRef") or {}
    is_filled = role.get("kind") == ROLE.kind and _GRANTED_ROLE.search(role.get("name") or "") is not None
    return is_filled or OWNED_BY in labels_of(binding) or _is_of_machine(binding)


def _outlasts(old: Object, new: Object) -> bool:
    """Whether the garbage collector would treat it differently."""
    before, after = old["metadata"], new["metadata"]
    return any((before.get(field) or []) != (after.get(field) or []) for field in ("finalizers", "ownerReferences"))


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
    if was_core and spec_of(old).get("replicas") == spec_of(new).get("replicas"):
        return
    if not may("update", CLUSTER):
        yield BAD_CORE


_RULES: Mapping[Kind, Callable[[Object | None, Object, str, Rights], Iterator[str]]] = {
    MANAGEMENT_CLUSTER: management_cluster_problems,
    PROVISIONING_CLUSTER: provisioning_cluster_problems,
    PROJECT: project_problems,
    NAMESPACE: namespace_problems,
    SECRET: secret_problems,
    REGISTRATION_TOKEN: registration_token_problems,
    ROLE: _role,
    ROLE_BINDING: _role_binding,
    LEASE: _lease,
    DEPLOYMENT: _deployment,
    PROVIDERS: _provider,
    CLUSTER: lambda _old, _new, _user, _may: iter(()),  # only that it is observe-only
    CONTROL_PLANE: lambda old, new, _user, _may: restore_records.control_plane_problems(old, new),
    ETCD_SNAPSHOT: lambda old, new, _user, _may: restore_records.snapshot_problems(old, new),
}
KINDS = tuple(_RULES)
