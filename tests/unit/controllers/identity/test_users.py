"""Bindings of a user are deleted with the user."""

from __future__ import annotations

from herder.api.management.kinds import GLOBAL_ROLE_BINDING, USER
from herder.controllers.identity import users
from herder.engine.meta.kinds import Object
from tests.support.builders import new_object
from tests.unit.controllers.identity.objects import DELETING, crtb, decide, grb, prtb, summaries_with_targets


def user(**metadata: object) -> Object:
    return new_object(USER, "u-1", finalizers=[users.FINALIZER], metadata=metadata)


def test_a_user_has_a_finalizer_until_its_bindings_are_deleted() -> None:
    assert summaries_with_targets(decide(users.CONTROLLER, "/u-1", user(finalizers=[]))) == ["Patch User u-1"]
    assert summaries_with_targets(decide(users.CONTROLLER, "/u-1", user(), crtb())) == []


def test_all_bindings_of_a_user_are_deleted_and_no_others() -> None:
    others = [
        new_object(GLOBAL_ROLE_BINDING, "other", globalRoleName="admin", userName="u-2"),
        new_object(GLOBAL_ROLE_BINDING, "group", globalRoleName="admin", groupPrincipalName="u-1"),
    ]
    decision = decide(users.CONTROLLER, "/u-1", user(**DELETING), grb(userName="u-1"), crtb(), prtb(), *others)
    assert summaries_with_targets(decision) == [
        "Delete GlobalRoleBinding g",
        "Delete ClusterRoleTemplateBinding b",
        "Delete ProjectRoleTemplateBinding b",
    ]


def test_a_binding_may_name_a_user_by_its_principal() -> None:
    decision = decide(users.CONTROLLER, "/u-1", user(**DELETING), grb(userPrincipalName="local://u-1"))
    assert summaries_with_targets(decision) == ["Delete GlobalRoleBinding g"]


def test_bindings_that_are_being_deleted_do_not_block_the_user() -> None:
    """A binding waits for its cluster, which may be unreachable for good; the first user could never be recreated."""
    assert summaries_with_targets(decide(users.CONTROLLER, "/u-1", user(**DELETING), crtb(metadata=DELETING))) == [
        "Patch User u-1"
    ]
    assert summaries_with_targets(decide(users.CONTROLLER, "/u-1", user(**DELETING))) == ["Patch User u-1"]
