"""Roles that the manager fills, and Roles of users."""

from __future__ import annotations

from typing import Any

from herder.api.identity.roles import OWNED_BY
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.engine.meta.kinds import Object
from tests.support.tenancy.case import CONTROLLER, OWNER, Case


def _role(id_: str, name: str, patch: Object | None = None, rules: list[Object] | None = None, **meta: Any) -> Case:
    named = {"name": name} if name else {}
    return Case(id_, ROLE, {**named, "namespace": "fleet-default", **meta}, {"rules": rules or []}, patch)


def _binding(id_: str, name: str, patch: Object | None, role: str = "", **meta: Any) -> Case:
    reference = {
        "apiGroup": ROLE.group,
        "kind": "Role" if role else "ClusterRole",
        "name": role or "view",
    }
    fields = {"roleRef": reference, "subjects": []}
    return Case(id_, ROLE_BINDING, {"name": name, "namespace": "fleet-default", **meta}, fields, patch)


_READER = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
GRANTED_ROLES = (
    _role("a role of cluster owners", "c-m-roles123-clusterowner"),
    _role("a role of cluster members", "c-m-roles123-clustermember"),
    _role("a global role", "cattle-globalrole-roles"),
    _role("a generated name of a global role", "", generateName="cattle-globalrole-"),
    _role("a role of cluster owners is emptied", "c-m-roles456-clusterowner", {"rules": []}, _READER),
)
"""Roles that the manager fills. A user who may bind an empty one would gain the rights that the manager adds to it."""
MACHINE_ROLES = (
    _role("a role of a machine's plan", "roles-machine-plan"),
    _role("a role of a machine's Job", "roles-machine-provision"),
    _role("a role of the creator of a cloud credential", "roles-aws-cloud-credential"),
    _role("a role of readers of registration tokens", "crt-token-reader"),
    _role(
        "a role of a machine with a long name is emptied",
        "a-name-that-is-cut-and-distinguished-by-a-hash-12345",
        {"rules": []},
        _READER,
        ownerReferences=[CONTROLLER],
    ),
    _role("a role of a machine's plan is emptied", "roles-2-machine-plan", {"rules": []}, _READER),
)
"""The same for Roles that let machines and their Jobs read Secrets."""
_MARKED: Object = {"metadata": {"labels": {OWNED_BY: "c-m-roles123_member"}}}
MARKED_BINDINGS = (
    _binding("a binding with the label of a member", "roles-marked", None, **_MARKED["metadata"]),
    _binding("a binding gets the label of a member", "roles-marked-2", _MARKED),
)
"""A member is removed, and a cluster deleted, only when the bindings with this label are."""
_HELD: Object = {"metadata": {"finalizers": ["example.org/keep"]}}
_MOVED: Object = {"metadata": {"ownerReferences": [OWNER]}}
KEPT_ROLES = (
    _role("a role of cluster owners is held", "c-m-roles111-clusterowner", _HELD, _READER),
    _role("a role of cluster owners gets another owner", "c-m-roles222-clusterowner", _MOVED, _READER),
    _role("a role of a machine is held", "roles-cut-12345", _HELD, _READER, ownerReferences=[CONTROLLER]),
    _binding("a binding of a cluster owner is held", "roles-held", _HELD, "c-m-roles111-clusterowner"),
    _binding("a binding of a cluster owner gets another owner", "roles-moved", _MOVED, "c-m-roles111-clusterowner"),
    _binding("a binding of a credential's creator is held", "roles-creator", _HELD, "roles-aws-cloud-credential"),
    _binding("a binding of a global role is held", "roles-global", _HELD, "cattle-globalrole-roles"),
    _binding("a binding of a project member is held", "roles-project", _HELD, labels={OWNED_BY: "x"}),
    _binding("a binding of a machine is held", "roles-machine", _HELD, ownerReferences=[CONTROLLER]),
)
"""Objects by which the manager grants rights. With a finalizer, or another owner, the rights would not end."""
OWN_ROLES = (
    _role("a role is held", "readers-3", _HELD, _READER),
    _binding("a binding is held", "readers-4", _HELD, "readers"),
    _role("a role", "readers"),
    _role("a role is emptied", "readers-2", {"rules": []}, _READER),
    _role("a label of a role", "c-m-roles789-clusterowner", {"metadata": {"labels": {"a": "b"}}}),
)
