"""Simulated rights in projects with conflicts, lost answers and interrupted connections: they follow namespaces, and
end with their project."""

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
from herder.api.management.kinds import GLOBAL_ROLE, PROJECT, PROJECT_BINDING, ROLE_TEMPLATE
from herder.controllers.identity import cluster_bindings, cluster_policies, default_projects, project_bindings, projects
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.support.builders import new_manifest
from tests.support.manager.cluster_namespaces import create_with_namespace
from tests.unit.controllers.identity.objects import cluster_manifest

CONTROLLERS = [
    module.CONTROLLER for module in (cluster_bindings, cluster_policies, default_projects, projects, project_bindings)
]
CLUSTER = "c-m-1"


async def places(world: World) -> list[str]:
    """The namespaces in which bob has rights, by bindings of the manager."""
    found = await world.workloads.client(CLUSTER).list(ROLE_BINDING.resource, labels=OWNED_BY)
    assert all(each["subjects"][0]["name"] == "bob" for each in found.items)
    return sorted(each["metadata"]["namespace"] for each in found.items)


async def project_of(world: World, namespace: str) -> str:
    found = await world.workloads.client(CLUSTER).get(NAMESPACE.resource, namespace)
    return str((found["metadata"].get("annotations") or {}).get(PROJECT_ID, ""))


async def move_namespace(world: World, namespace: str, project: str | None) -> None:
    patch = {"metadata": {"annotations": {PROJECT_ID: project}}}
    await world.workloads.client(CLUSTER).patch(NAMESPACE.resource, namespace, patch)


async def simulate_project(seed: int, faults: Faults) -> None:
    definitions = [*CRDS, *MANAGEMENT_CRDS]
    async with World(seed, CONTROLLERS, crds=definitions, faults=faults, watched=[PROJECT_BINDING]) as world:
        client = world.client
        for kind, shipped in ((GLOBAL_ROLE, GLOBAL_ROLES), (ROLE_TEMPLATE, ROLE_TEMPLATES)):
            for role in shipped:
                await client.create(kind.resource, role)
        await world.workloads.serve(CLUSTER)
        remote = world.workloads.client(CLUSTER)
        for name in ("meadow", "hill"):
            await remote.create(NAMESPACE.resource, new_manifest(NAMESPACE, name))
        cluster = cluster_manifest(CLUSTER)
        await create_with_namespace(client, cluster)

        async def two_projects() -> bool:
            found_projects = (await client.list(PROJECT.resource, namespace=CLUSTER)).items
            backing_namespaces = [(each.get("status") or {}).get("backingNamespace") for each in found_projects]
            return len(found_projects) == 2 and all(backing_namespaces) and bool(await project_of(world, "default"))

        await world.until(two_projects)
        project = await project_of(world, "default")
        assert project != await project_of(world, "kube-system")
        backing_namespace = project.replace(":", "-")
        binding_fields = {"projectName": project, "roleTemplateName": "project-member", "userName": "bob"}
        await client.create(
            PROJECT_BINDING.resource,
            new_manifest(PROJECT_BINDING, "bob", backing_namespace, **binding_fields),
            namespace=backing_namespace,
        )

        async def wait_for_rights_in(*expected: str) -> None:
            async def holds() -> bool:
                return await places(world) == sorted(expected)

            await world.until(holds)

        await wait_for_rights_in("default")
        await move_namespace(world, "meadow", project)
        await wait_for_rights_in("default", "meadow")
        await move_namespace(world, "default", f"{CLUSTER}:p-other")
        await move_namespace(world, "hill", project)
        await wait_for_rights_in("hill", "meadow")
        await remote.delete(NAMESPACE.resource, "hill")
        await wait_for_rights_in("meadow")
        impersonation_role = {"metadata": {"name": impersonator("bob"), "labels": {IMPERSONATOR: "true"}}, "rules": []}
        await remote.create(CLUSTER_ROLE.resource, {**new_manifest(CLUSTER_ROLE, ""), **impersonation_role})
        await client.delete(PROJECT.resource, backing_namespace.removeprefix(f"{CLUSTER}-"), namespace=CLUSTER)

        async def is_deleted() -> bool:
            left = (await client.list(PROJECT_BINDING.resource, namespace=backing_namespace)).items
            found_projects = (await client.list(PROJECT.resource, namespace=CLUSTER)).items
            return not left and len(found_projects) == 1

        await world.until(is_deleted)
        assert not await places(world)
        assert not (await remote.list(CLUSTER_ROLE.resource, labels=IMPERSONATOR)).items
        world.check()


@pytest.mark.parametrize("faults", [NONE, ROUGH], ids=["no faults", "faults"])
@pytest.mark.parametrize("seed", [1, 2])
def test_rights_follow_namespaces_and_end_with_the_project(seed: int, faults: Faults) -> None:
    loop.run(simulate_project(seed, faults))


# --- assignment of namespaces to projects -----------------------------------------------------------------------------


async def try_to_move(world: World, user: str, namespace: str, subresource: str = "") -> int:
    """The status code that a user gets who moves a namespace into the project p-mine."""
    headers = {"content-type": "application/merge-patch+json", "impersonate-user": user}
    body = json.dumps({"metadata": {"annotations": {PROJECT_ID: f"{CLUSTER}:p-mine"}}}).encode()
    path = NAMESPACE.resource.path("", namespace, subresource)
    return (await world.workloads.client(CLUSTER).raw("PATCH", path, body=body, headers=headers)).status


async def create_editors(world: World) -> None:
    remote = world.workloads.client(CLUSTER)
    verbs = ["get", "patch", "update", "create"]
    rules = {
        "nora": [{"apiGroups": [""], "resources": ["namespaces", "namespaces/status"], "verbs": verbs}],
        "owen": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    }
    for name, role_rules in rules.items():
        await remote.create(CLUSTER_ROLE.resource, cluster_role(name, role_rules))
        subject = {"apiGroup": RBAC, "kind": "User", "name": name}
        await remote.create(CLUSTER_ROLE_BINDING.resource, cluster_role_binding(name, name, subject))


async def simulate_editors() -> None:
    async with World(1, CONTROLLERS, crds=[*CRDS, *MANAGEMENT_CRDS]) as world:
        await world.workloads.serve(CLUSTER)
        cluster = cluster_manifest(CLUSTER)
        await create_with_namespace(world.client, cluster)
        await create_editors(world)

        async def is_system() -> bool:
            return bool(await project_of(world, "kube-system"))

        await world.until(is_system)
        await asyncio.sleep(120)  # of simulated time
        assert await try_to_move(world, "nora", "kube-system") == 403
        assert await try_to_move(world, "nora", "kube-system", "status") == 403
        assert not (await project_of(world, "kube-system")).endswith(":p-mine")
        assert await try_to_move(world, "owen", "kube-public", "status") == 200


def test_editors_of_namespaces_cannot_move_them_into_projects() -> None:
    """Members of a project get rights in its namespaces, some of which contain tokens of the owners."""
    loop.run(simulate_editors())


async def delete_binding_without_finalizer(seed: int, faults: Faults) -> None:
    async with World(seed, CONTROLLERS, crds=[*CRDS, *MANAGEMENT_CRDS], faults=faults) as world:
        client = world.client
        for role in ROLE_TEMPLATES:
            await client.create(ROLE_TEMPLATE.resource, role)
        await world.workloads.serve(CLUSTER)
        cluster = cluster_manifest(CLUSTER)
        await create_with_namespace(client, cluster)

        async def is_in_project() -> bool:
            return bool(await project_of(world, "default"))

        await world.until(is_in_project)
        project = await project_of(world, "default")
        backing_namespace = project.replace(":", "-")
        binding_fields = {"projectName": project, "roleTemplateName": "project-member", "userName": "bob"}
        await client.create(
            PROJECT_BINDING.resource,
            new_manifest(PROJECT_BINDING, "bob", backing_namespace, **binding_fields),
            namespace=backing_namespace,
        )

        async def is_member() -> bool:
            return await places(world) == ["default"]

        await world.until(is_member)
        await client.patch(
            PROJECT_BINDING.resource, "bob", {"metadata": {"finalizers": None}}, namespace=backing_namespace
        )
        await client.delete(PROJECT_BINDING.resource, "bob", namespace=backing_namespace)
        await asyncio.sleep(120)
        assert await places(world) == []
        assert (await client.list(CLUSTER_ROLE_BINDING.resource, labels=OWNED_BY)).items == [], "access to the cluster"


@pytest.mark.parametrize("faults", [NONE, ROUGH], ids=["no faults", "faults"])
def test_rights_end_with_a_binding_that_lost_its_finalizer(faults: Faults) -> None:
    loop.run(delete_binding_without_finalizer(1, faults))
