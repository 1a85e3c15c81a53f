"""With a user go the bindings that name it."""

from __future__ import annotations

from herder.api.management.kinds import GLOBAL_ROLE_BINDING, USER
from herder.controllers.identity import users
from herder.engine.meta.kinds import Object
from tests.unit.controllers.identity.test_bindings import crtb, decided, obj, told
from tests.unit.controllers.identity.test_projects import GOING, prtb


def user(**meta: object) -> Object:
    return obj(USER, "u-1", meta={"finalizers": [users.FINALIZER], **meta})


def grb(**who: str) -> Object:
    return obj(GLOBAL_ROLE_BINDING, "g", globalRoleName="admin", **who)


def test_a_user_is_kept_until_its_bindings_are_deleted() -> None:
    assert told(decided(users.CONTROLLER, "/u-1", user(finalizers=[]))) == ["Patch User u-1"]
    assert told(decided(users.CONTROLLER, "/u-1", user(), crtb())) == []


def test_all_bindings_that_name_it_go_and_no_others() -> None:
    others = [
        obj(GLOBAL_ROLE_BINDING, "other", globalRoleName="admin", userName="u-2"),
        obj(GLOBAL_ROLE_BINDING, "group", globalRoleName="admin", groupPrincipalName="u-1"),
    ]
    decision = decided(users.CONTROLLER, "/u-1", user(**GOING), grb(userName="u-1"), crtb(), prtb(), *others)
    assert told(decision) == [
        "Delete GlobalRoleBinding g",
        "Delete ClusterRoleTemplateBinding b",
        "Delete ProjectRoleTemplateBinding b",
    ]


def test_a_binding_names_a_user_by_its_principal_too() -> None:
    decision = decided(users.CONTROLLER, "/u-1", user(**GOING), grb(userPrincipalName="local://u-1"))
    assert told(decision) == ["Delete GlobalRoleBinding g"]


def test_those_that_are_going_do_not_hold_it_up() -> None:
    """A binding waits for its cluster, which may be away for good; the first user could never be made anew."""
    assert told(decided(users.CONTROLLER, "/u-1", user(**GOING), crtb(meta=GOING))) == ["Patch User u-1"]
    assert told(decided(users.CONTROLLER, "/u-1", user(**GOING))) == ["Patch User u-1"]
