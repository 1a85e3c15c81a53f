"""Rights in projects, through conflicts, lost answers and cut lines: they follow the namespaces, and end with all."""

from __future__ import annotations

import asyncio
import json

import pytest

from herder.api.capi.kinds import NAMESPACE
from herder.api.identity.builtin_roles import GLOBAL_ROLES, ROLE_TEMPLATES
from herder.api.identity.crds import CRDS
from herder.api.identity.impersonators import IMPERSONATOR, impersonator
from herder.api.identity.projects import PROJECT_ID
from herder.api.identity.roles import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    OWNED_BY,
    RBAC,
    cluster_role,
    cluster_role_binding,
)
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import GLOBAL_ROLE, MANAGEMENT_CLUSTER, PROJECT, PROJECT_BINDING, ROLE_TEMPLATE
from herder.api.management.names import CONNECTED_SINCE
from herder.controllers.identity import cluster_bindings, cluster_policies, default_projects, project_bindings, projects
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.support.homes import create_with_home
from tests.unit.controllers.identity.test_simulated import obj

CONTROLLERS = [
    module.CONTROLLER for module in (cluster_bindings, cluster_policies, default_projects, projects, project_bindings)
]
CLUSTER = "c-m-1"


async def places(world: World) -> list[str]:
    """Where bob has rights, by bindings of ours."""
    found = await world.workloads.client(CLUSTER).list(ROLE_BINDING.resource, labels=OWNED_BY)
    assert all(each["subjects"][0]["name"] == "bob" for each in found.items)
    return sorted(each["metadata"]["namespace"] for each in found.items)


async def project_of(world: World, namespace: str) -> str:
    found = await world.workloads.client(CLUSTER).get(NAMESPACE.resource, namespace)
    return str((found["metadata"].get("annotations") or {}).get(PROJECT_ID, ""))


async def moved(world: World, namespace: str, project: str | None) -> None:
    patch = {"metadata": {"annotations": {PROJECT_ID: project}}}
    await world.workloads.client(CLUSTER).patch(NAMESPACE.resource, namespace, patch)


async def live_through(seed: int, faults: Faults) -> None:
    definitions = [*CRDS, *MANAGEMENT_CRDS]
    async with World(seed, CONTROLLERS, crds=definitions, faults=faults, watched=[PROJECT_BINDING]) as world:
        client = world.client
        for kind, shipped in ((GLOBAL_ROLE, GLOBAL_ROLES), (ROLE_TEMPLATE, ROLE_TEMPLATES)):
            for role in shipped:
                await client.create(kind.resource, role)
        await world.workloads.serve(CLUSTER)
        there = world.workloads.client(CLUSTER)
        for name in ("meadow", "hill"):
            await there.create(NAMESPACE.resource, obj(NAMESPACE, name))
        cluster = obj(MANAGEMENT_CLUSTER, CLUSTER, spec={})
        cluster["metadata"]["annotations"] = {CONNECTED_SINCE: "2026-01-01T00:00:00Z"}
        await create_with_home(client, cluster)

        async def two_projects() -> bool:
            made = (await client.list(PROJECT.resource, namespace=CLUSTER)).items
            homes = [(each.get("status") or {}).get("backingNamespace") for each in made]
            return len(made) == 2 and all(homes) and bool(await project_of(world, "default"))

        await world.until(two_projects)
        project = await project_of(world, "default")
        assert project != await project_of(world, "kube-system")
        home = project.replace(":", "-")
        member = {"projectName": project, "roleTemplateName": "project-member", "userName": "bob"}
        await client.create(PROJECT_BINDING.resource, obj(PROJECT_BINDING, "bob", home, **member), namespace=home)

        async def has(*wanted: str) -> None:
            async def holds() -> bool:
                return await places(world) == sorted(wanted)

            await world.until(holds)

        await has("default")
        await moved(world, "meadow", project)
        await has("default", "meadow")
        await moved(world, "default", f"{CLUSTER}:p-other")
        await moved(world, "hill", project)
        await has("hill", "meadow")
        await there.delete(NAMESPACE.resource, "hill")
        await has("meadow")
        acting = {"metadata": {"name": impersonator("bob"), "labels": {IMPERSONATOR: "true"}}, "rules": []}
        await there.create(CLUSTER_ROLE.resource, {**obj(CLUSTER_ROLE, ""), **acting})
        await client.delete(PROJECT.resource, home.removeprefix(f"{CLUSTER}-"), namespace=CLUSTER)

        async def all_is_gone() -> bool:
            left = (await client.list(PROJECT_BINDING.resource, namespace=home)).items
            made = (await client.list(PROJECT.resource, namespace=CLUSTER)).items
            return not left and len(made) == 1

        await world.until(all_is_gone)
        assert not await places(world)
        assert not (await there.list(CLUSTER_ROLE.resource, labels=IMPERSONATOR)).items
        world.check()


@pytest.mark.parametrize("faults", [NONE, ROUGH], ids=["calm", "rough"])
@pytest.mark.parametrize("seed", [1, 2])
def test_rights_follow_namespaces_and_end_with_the_project(seed: int, faults: Faults) -> None:
    loop.run(live_through(seed, faults))


# --- who decides which project a namespace is in ----------------------------------------------------------------------


async def tried_to_move(world: World, user: str, namespace: str, subresource: str = "") -> int:
    """The answer of the cluster to a user who moves a namespace into the project p-mine."""
    headers = {"content-type": "application/merge-patch+json", "impersonate-user": user}
    body = json.dumps({"metadata": {"annotations": {PROJECT_ID: f"{CLUSTER}:p-mine"}}}).encode()
    path = NAMESPACE.resource.path("", namespace, subresource)
    return (await world.workloads.client(CLUSTER).raw("PATCH", path, body=body, headers=headers)).status


async def editors_of_namespaces(world: World) -> None:
    there = world.workloads.client(CLUSTER)
    every = ["get", "patch", "update", "create"]
    rules = {
        "nora": [{"apiGroups": [""], "resources": ["namespaces", "namespaces/status"], "verbs": every}],
        "owen": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    }
    for name, given in rules.items():
        await there.create(CLUSTER_ROLE.resource, cluster_role(name, given))
        subject = {"apiGroup": RBAC, "kind": "User", "name": name}
        await there.create(CLUSTER_ROLE_BINDING.resource, cluster_role_binding(name, name, subject))


async def live_with_editors() -> None:
    async with World(1, CONTROLLERS, crds=[*CRDS, *MANAGEMENT_CRDS]) as world:
        await world.workloads.serve(CLUSTER)
        cluster = obj(MANAGEMENT_CLUSTER, CLUSTER, spec={})
        cluster["metadata"]["annotations"] = {CONNECTED_SINCE: "2026-01-01T00:00:00Z"}
        await create_with_home(world.client, cluster)
        await editors_of_namespaces(world)

        async def is_system() -> bool:
            return bool(await project_of(world, "kube-system"))

        await world.until(is_system)
        await asyncio.sleep(120)  # of the simulated clock
        assert await tried_to_move(world, "nora", "kube-system") == 403
        assert await tried_to_move(world, "nora", "kube-system", "status") == 403
        assert not (await project_of(world, "kube-system")).endswith(":p-mine")
        assert await tried_to_move(world, "owen", "kube-public", "status") == 200


def test_who_edits_namespaces_does_not_move_them_into_projects() -> None:
    """Members of a project get rights in its namespaces, such as those in which tokens of the cluster's owners are."""
    loop.run(live_with_editors())


async def without_its_finalizer(seed: int, faults: Faults) -> None:
    async with World(seed, CONTROLLERS, crds=[*CRDS, *MANAGEMENT_CRDS], faults=faults) as world:
        client = world.client
        for role in ROLE_TEMPLATES:
            await client.create(ROLE_TEMPLATE.resource, role)
        await world.workloads.serve(CLUSTER)
        cluster = obj(MANAGEMENT_CLUSTER, CLUSTER, spec={})
        cluster["metadata"]["annotations"] = {CONNECTED_SINCE: "2026-01-01T00:00:00Z"}
        await create_with_home(client, cluster)

        async def is_in_project() -> bool:
            return bool(await project_of(world, "default"))

        await world.until(is_in_project)
        project = await project_of(world, "default")
        home = project.replace(":", "-")
        bound = {"projectName": project, "roleTemplateName": "project-member", "userName": "bob"}
        await client.create(PROJECT_BINDING.resource, obj(PROJECT_BINDING, "bob", home, **bound), namespace=home)

        async def is_member() -> bool:
            return await places(world) == ["default"]

        await world.until(is_member)
        await client.patch(PROJECT_BINDING.resource, "bob", {"metadata": {"finalizers": None}}, namespace=home)
        await client.delete(PROJECT_BINDING.resource, "bob", namespace=home)
        await asyncio.sleep(120)
        assert await places(world) == []
        assert (await client.list(CLUSTER_ROLE_BINDING.resource, labels=OWNED_BY)).items == [], "who may reach it"


@pytest.mark.parametrize("faults", [NONE, ROUGH], ids=["calm", "rough"])
def test_rights_end_with_a_binding_that_has_lost_its_finalizer(faults: Faults) -> None:
    loop.run(without_its_finalizer(1, faults))
