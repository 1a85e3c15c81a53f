"""The rights of the manager cover what its controllers declare, and no more than its parts need."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from herder.api.machines.kinds import kinds_of
from herder.app.manager import Roles, controllers, dynamic_controllers
from herder.app.rbac.rights import PARTS, Right
from herder.app.rbac.roles import role_objects

ROLES = {
    "core": Roles(core=True),
    "machines": Roles(machines=True),
    "gateway": Roles(gateway=True),
    "in-memory": Roles(in_memory=True),
}


def covers(rights: Iterable[Right], group: str, resource: str, verb: str) -> bool:
    return any(
        each.group == group
        and verb in each.verbs
        and (resource in each.resources or "*" in each.resources)
        and not each.names
        and not each.namespace
        for each in rights
    )


@pytest.mark.parametrize("part", ROLES)
def test_each_part_can_watch_the_kinds_that_its_controllers_declare(part: str) -> None:
    rights = (*PARTS["base"], *PARTS[part])
    driver = (each.controller(kinds_of("process").machine) for each in dynamic_controllers(ROLES[part]))
    kinds = {watch.kind for controller in (*controllers(ROLES[part]), *driver) for watch in controller.kinds()}
    assert kinds
    for kind in sorted(kinds, key=str):
        for verb in ("list", "watch"):
            assert covers(rights, kind.group, kind.plural, verb), f"{part}: {verb} {kind.plural}.{kind.group}"


def test_no_right_has_all_verbs_or_all_groups() -> None:
    for rights in PARTS.values():
        for right in rights:
            assert "*" not in right.verbs
            assert "*" not in right.group
            assert right.reason


def test_all_resources_are_granted_only_in_groups_of_herder() -> None:
    groups = {right.group for rights in PARTS.values() for right in rights if "*" in right.resources}
    assert all(group.endswith((".cattle.io", "cluster.x-k8s.io")) for group in groups), groups


def test_only_the_gateway_can_grant_rights_that_it_does_not_have() -> None:
    verbs = {
        part: {verb for right in rights for verb in right.verbs if not right.names} for part, rights in PARTS.items()
    }
    assert {part for part in PARTS if verbs[part] & {"bind", "escalate", "impersonate"}} == {"gateway"}


def test_every_role_is_bound_to_the_account() -> None:
    objects = role_objects(PARTS)
    named = {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in objects}
    assert len(named) == len(objects)
    for kind, namespace, name in named:
        if not kind.endswith("Binding"):
            assert (f"{kind}Binding", namespace, name) in named
