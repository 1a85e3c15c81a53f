"""Roles that the manager fills, and Roles of users."""

from __future__ import annotations

from typing import Any

from herder.api.machines.jobs import ROLE
from herder.engine.meta.kinds import Object
from tests.support.tenancy.case import CONTROLLER, Case


def _role(id_: str, name: str, patch: Object | None = None, rules: list[Object] | None = None, **meta: Any) -> Case:
    named = {"name": name} if name else {}
    return Case(id_, ROLE, {**named, "namespace": "fleet-default", **meta}, {"rules": rules or []}, patch)


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
OWN_ROLES = (
    _role("a role", "readers"),
    _role("a role is emptied", "readers-2", {"rules": []}, _READER),
    _role("a label of a role", "c-m-roles789-clusterowner", {"metadata": {"labels": {"a": "b"}}}),
)
