"""Find users by name or ID, and the bindings that give them roles."""

from __future__ import annotations

from typing import NamedTuple

import click

from herder.api.identity.roles import subject_of
from herder.api.management.kinds import CLUSTER_BINDING, GLOBAL_ROLE_BINDING, PROJECT_BINDING, USER
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object


class BindingNames(NamedTuple):
    """How a kind of role binding is called, and how its objects are named."""

    noun: str
    prefix: str


BINDINGS = {
    GLOBAL_ROLE_BINDING: BindingNames("global role binding", "grb-"),
    CLUSTER_BINDING: BindingNames("cluster role binding", "crtb-"),
    PROJECT_BINDING: BindingNames("project role binding", "prtb-"),
}
"""The kinds that give roles to users."""


async def user_named(client: Client, name: str) -> Object:
    """The user with this user name or ID. Names are not unique, and can equal the ID of another user."""
    known = (await client.list_all(USER.resource)).items
    found = [each for each in known if name in (each.get("username"), each["metadata"]["name"])]
    if len(found) > 1:
        ids = ", ".join(str(each["metadata"]["name"]) for each in found)
        raise click.ClickException(f'"{name}" is the user name or ID of several users ({ids}); rename one first')
    if found:
        return found[0]
    raise click.ClickException(f'user "{name}" not found; list users with: herder users list')


def is_of_user(binding: Object, user: str) -> bool:
    """Whether a binding grants its role to the user with this ID, by ID or by principal."""
    subject = subject_of(binding)
    return isinstance(subject, dict) and (subject["kind"], subject["name"]) == ("User", user)
