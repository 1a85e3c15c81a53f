"""Lookup of users and projects by ID or name: whoever chooses a name must not get the roles that another is granted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

from herder.cli.auth.grant import _project
from herder.cli.auth.user_lookup import user_named
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object


class Manager:
    """Serves these objects."""

    def __init__(self, *objects: Object) -> None:
        self._objects = objects

    async def list_all(self, *_: Any, **__: Any) -> SimpleNamespace:
        return SimpleNamespace(items=[*self._objects])


def user(id_: str, username: str) -> Object:
    return {"metadata": {"name": id_}, "username": username}


def project(id_: str, name: str) -> Object:
    return {"metadata": {"name": id_}, "spec": {"displayName": name}}


async def found_user(name: str, *users: Object) -> str:
    return str((await user_named(cast(Client, Manager(*users)), name))["metadata"]["name"])


async def found_project(name: str, *projects: Object) -> str:
    return str((await _project(cast(Client, Manager(*projects)), "c-m-1", name))["metadata"]["name"])


async def test_users_and_projects_are_found_by_name_and_id() -> None:
    users, projects = (user("u-1", "dolly"), user("u-2", "molly")), (project("p-1", "Default"), project("p-2", "Apps"))
    assert [await found_user(name, *users) for name in ("dolly", "u-2")] == ["u-1", "u-2"]
    assert [await found_project(name, *projects) for name in ("Default", "p-2")] == ["p-1", "p-2"]
    assert await found_user("u-1", user("u-1", "u-1")) == "u-1"
    with pytest.raises(click.ClickException, match="not found"):
        await found_user("polly", *users)
    with pytest.raises(click.ClickException, match="its projects are: Default, Apps"):
        await found_project("System", *projects)


@pytest.mark.parametrize("others", [("u-2", "dolly"), ("dolly", "mallory")], ids=["same name", "ID"])
async def test_an_ambiguous_user_is_refused(others: tuple[str, str]) -> None:
    for users in ((user("u-1", "dolly"), user(*others)), (user(*others), user("u-1", "dolly"))):
        with pytest.raises(click.ClickException, match="is the user name or ID of several users"):
            await found_user("dolly", *users)


@pytest.mark.parametrize("others", [("p-2", "Default"), ("Default", "mallory's")], ids=["same name", "ID"])
async def test_an_ambiguous_project_is_refused(others: tuple[str, str]) -> None:
    for projects in ((project("p-1", "Default"), project(*others)), (project(*others), project("p-1", "Default"))):
        with pytest.raises(click.ClickException, match="is the name or ID of several projects"):
            await found_project("Default", *projects)
