"""Simulated rights in clusters with conflicts, lost answers and interrupted connections: granted, revoked, and never
left behind."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from herder.api.capi.kinds import NAMESPACE
from herder.api.identity.builtin_roles import GLOBAL_ROLES, ROLE_TEMPLATES
from herder.api.identity.crds import CRDS
from herder.api.identity.roles import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, OWNED_BY, RBAC
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    GLOBAL_ROLE,
    GLOBAL_ROLE_BINDING,
    MANAGEMENT_CLUSTER,
    ROLE_TEMPLATE,
)
from herder.controllers.identity import cluster_bindings, global_bindings, global_roles, leftover_bindings
from herder.engine.meta.errors import AlreadyExists, NotFound
from herder.engine.meta.kinds import Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.support.builders import new_manifest
from tests.support.manager.cluster_namespaces import create_with_namespace
from tests.unit.controllers.identity.objects import cluster_manifest

CONTROLLERS = [module.CONTROLLER for module in (global_roles, global_bindings, cluster_bindings, leftover_bindings)]


async def subjects(world: World, cluster: str) -> list[tuple[str, str]]:
    """The subject and role of each binding of the manager in the cluster."""
    found = await world.workloads.client(cluster).list(CLUSTER_ROLE_BINDING.resource, labels=OWNED_BY)
    return sorted((each["subjects"][0]["name"], each["roleRef"]["name"]) for each in found.items)


async def simulate_rights(seed: int, faults: Faults) -> None:
    definitions = [*CRDS, *MANAGEMENT_CRDS]
    async with World(seed, CONTROLLERS, crds=definitions, faults=faults, watched=[CLUSTER_BINDING]) as world:
        client = world.client
        for kind, shipped in ((GLOBAL_ROLE, GLOBAL_ROLES), (ROLE_TEMPLATE, ROLE_TEMPLATES)):
            for role in shipped:
                await client.create(kind.resource, role)
        for name in ("cattle-global-data", "fleet-default"):
            await client.create(NAMESPACE.resource, new_manifest(NAMESPACE, name))
        for name in ("c-m-1", "c-m-2"):
            await world.workloads.serve(name)
            cluster = cluster_manifest(name)
            await create_with_namespace(client, cluster)
        binding_fields = {"clusterName": "c-m-1", "roleTemplateName": "cluster-member", "userName": "bob"}
        await client.create(
            CLUSTER_BINDING.resource, new_manifest(CLUSTER_BINDING, "bob", "c-m-1", **binding_fields), namespace="c-m-1"
        )
        admin = new_manifest(GLOBAL_ROLE_BINDING, "root", globalRoleName="admin", userName="root")
        await client.create(GLOBAL_ROLE_BINDING.resource, admin)
        owner, guest = ("root", "cattle-roletemplate-cluster-owner"), ("bob", "cattle-roletemplate-cluster-member")

        async def are_granted() -> bool:
            return await subjects(world, "c-m-1") == [guest, owner] and await subjects(world, "c-m-2") == [owner]

        await world.until(are_granted)
        await _tamper(world)
        await world.until(are_granted)
        world.workloads.cut("c-m-1", "hang")
        await client.delete(CLUSTER_BINDING.resource, "bob", namespace="c-m-1")
        await asyncio.sleep(60)
        assert (await client.get(CLUSTER_BINDING.resource, "bob", namespace="c-m-1"))["metadata"]["deletionTimestamp"]
        world.workloads.heal("c-m-1")

        async def is_deleted() -> bool:
            try:
                await client.get(CLUSTER_BINDING.resource, "bob", namespace="c-m-1")
            except NotFound:
                return True
            return False

        await world.until(is_deleted)
        assert await subjects(world, "c-m-1") == [owner]
        await client.delete(GLOBAL_ROLE_BINDING.resource, "root")

        async def are_revoked() -> bool:
            return not await subjects(world, "c-m-1") and not await subjects(world, "c-m-2")

        await world.until(are_revoked)
        world.check()


async def _tamper(world: World) -> None:
    remote = world.workloads.client("c-m-1")
    bindings = (await remote.list(CLUSTER_ROLE_BINDING.resource, labels=OWNED_BY)).items
    await remote.delete(CLUSTER_ROLE_BINDING.resource, bindings[0]["metadata"]["name"])
    mallory = {"subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory"}]}
    await remote.patch(CLUSTER_ROLE_BINDING.resource, bindings[1]["metadata"]["name"], mallory)


@pytest.mark.parametrize("faults", [NONE, ROUGH], ids=["no faults", "faults"])
@pytest.mark.parametrize("seed", [1, 2])
def test_rights_are_granted_kept_and_revoked(seed: int, faults: Faults) -> None:
    loop.run(simulate_rights(seed, faults))


async def lose_roles(seed: int) -> None:
    async with World(seed, CONTROLLERS, crds=[*CRDS, *MANAGEMENT_CRDS]) as world:
        await prepare(world, "c-m-1")
        client, cluster_role = world.client, "c-m-1-clusterowner"
        await client.create(CLUSTER_BINDING.resource, cluster_binding("bob", "cluster-owner", "bob"), namespace="c-m-1")

        async def rules() -> Any:
            try:
                return (await client.get(CLUSTER_ROLE.resource, cluster_role))["rules"]
            except NotFound:
                return None

        async def is_granted() -> bool:
            return bool(await rules())

        await world.until(is_granted)
        granted = await rules()
        await asyncio.sleep(60)
        await client.delete(CLUSTER_ROLE.resource, cluster_role)
        await asyncio.sleep(30)
        assert await rules() == granted, "the owner has access again"
        await client.patch(CLUSTER_ROLE.resource, cluster_role, {"rules": []})
        await asyncio.sleep(30)
        assert await rules() == granted
        world.check()


def test_a_role_of_owners_that_is_deleted_or_changed_is_restored() -> None:
    loop.run(lose_roles(1))


# --- clusters that are imported again -------------------------------------------------------------------------------


REFERENCE = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cattle-roletemplate-project-member"}


async def import_twice(seed: int, faults: Faults) -> None:
    """A cluster that is removed from the manager is unreachable, and keeps the RBAC objects of its bindings."""
    definitions = [*CRDS, *MANAGEMENT_CRDS]
    async with World(seed, CONTROLLERS, crds=definitions, faults=faults) as world:
        client = world.client
        for role in ROLE_TEMPLATES:
            await client.create(ROLE_TEMPLATE.resource, role)
        await world.workloads.serve("c-m-1")
        cluster = cluster_manifest("c-m-1")
        await create_with_namespace(client, cluster)
        binding_fields = {"clusterName": "c-m-1", "roleTemplateName": "cluster-owner", "userName": "bob"}
        await client.create(
            CLUSTER_BINDING.resource, new_manifest(CLUSTER_BINDING, "bob", "c-m-1", **binding_fields), namespace="c-m-1"
        )
        owner, guest = ("bob", "cattle-roletemplate-cluster-owner"), ("bob", "cattle-roletemplate-cluster-member")

        async def is_owner() -> bool:
            return await subjects(world, "c-m-1") == [owner]

        await world.until(is_owner)
        await client.delete(MANAGEMENT_CLUSTER.resource, "c-m-1")

        async def is_removed() -> bool:
            return "c-m-1" not in {each["metadata"]["name"] for each in (await client.list(NAMESPACE.resource)).items}

        await world.until(is_removed)
        remote = world.workloads.client("c-m-1")
        leftover = new_manifest(ROLE_BINDING, "prtb-left", "default", roleRef=REFERENCE, subjects=[])
        leftover["metadata"]["labels"] = {OWNED_BY: "c-m-1-p-team_molly"}  # of a project binding
        await remote.create(ROLE_BINDING.resource, leftover, namespace="default")
        await create_with_namespace(client, cluster)
        binding_fields["roleTemplateName"] = "cluster-member"
        again = new_manifest(CLUSTER_BINDING, "bob-again", "c-m-1", **binding_fields)
        await client.create(CLUSTER_BINDING.resource, again, namespace="c-m-1")

        async def is_guest() -> bool:
            in_projects = (await remote.list(ROLE_BINDING.resource, labels=OWNED_BY)).items
            return await subjects(world, "c-m-1") == [guest] and not in_projects

        await world.until(is_guest)
        world.check()


@pytest.mark.parametrize("faults", [NONE, ROUGH], ids=["no faults", "faults"])
@pytest.mark.parametrize("seed", [1, 2])
def test_former_members_have_no_rights_in_a_cluster_that_is_imported_again(seed: int, faults: Faults) -> None:
    loop.run(import_twice(seed, faults))


# --- clusters that are restored -------------------------------------------------------------------------------------


async def restore_with_former_owner(seed: int, faults: Faults) -> None:
    """A restored snapshot brings back the RBAC objects of its time. The agent stays connected meanwhile."""
    async with World(seed, CONTROLLERS, crds=[*CRDS, *MANAGEMENT_CRDS], faults=faults) as world:
        await prepare(world, "c-m-1")
        client, remote = world.client, world.workloads.client("c-m-1")
        for name, template in (("owner", "cluster-owner"), ("member", "cluster-member")):
            await client.create(CLUSTER_BINDING.resource, cluster_binding(name, template, "bob"), namespace="c-m-1")
        owner, guest = ("bob", "cattle-roletemplate-cluster-owner"), ("bob", "cattle-roletemplate-cluster-member")

        async def is_owner() -> bool:
            return await subjects(world, "c-m-1") == [guest, owner]

        async def is_guest() -> bool:
            in_projects = (await remote.list(ROLE_BINDING.resource, labels=OWNED_BY)).items
            return await subjects(world, "c-m-1") == [guest] and not in_projects

        await world.until(is_owner)
        saved = (await remote.list(CLUSTER_ROLE_BINDING.resource, labels=OWNED_BY)).items
        await client.delete(CLUSTER_BINDING.resource, "owner", namespace="c-m-1")
        await world.until(is_guest)
        await asyncio.sleep(600)
        for each in saved:
            with suppress(AlreadyExists):
                meta = {key: each["metadata"][key] for key in ("name", "labels")}
                await remote.create(CLUSTER_ROLE_BINDING.resource, {**each, "metadata": meta})
        in_project = new_manifest(ROLE_BINDING, "prtb-restored", "default", roleRef=REFERENCE, subjects=[])
        in_project["metadata"]["labels"] = {OWNED_BY: "c-m-1-p-team_molly"}
        await remote.create(ROLE_BINDING.resource, in_project, namespace="default")
        await world.until(is_guest)
        world.check()


@pytest.mark.parametrize("faults", [NONE, ROUGH], ids=["no faults", "faults"])
@pytest.mark.parametrize("seed", [1, 2])
def test_former_owners_have_no_rights_in_a_cluster_that_is_restored(seed: int, faults: Faults) -> None:
    loop.run(restore_with_former_owner(seed, faults))


# --- users who manage the members of their cluster --------------------------------------------------------------------


async def prepare(world: World, *clusters: str) -> None:
    for kind, shipped in ((GLOBAL_ROLE, GLOBAL_ROLES), (ROLE_TEMPLATE, ROLE_TEMPLATES)):
        for role in shipped:
            await world.client.create(kind.resource, role)
    for name in ("cattle-global-data", "fleet-default"):
        await world.client.create(NAMESPACE.resource, new_manifest(NAMESPACE, name))
    for name in clusters:
        await world.workloads.serve(name)
        cluster = cluster_manifest(name)
        await create_with_namespace(world.client, cluster)


def cluster_binding(name: str, template: str, user: str, **metadata: Any) -> Object:
    fields = {"clusterName": "c-m-1", "roleTemplateName": template, "userName": user}
    return new_manifest(CLUSTER_BINDING, name, "c-m-1", metadata=metadata, **fields)


async def delete_binding_without_finalizer(seed: int, faults: Faults) -> None:
    async with World(seed, CONTROLLERS, crds=[*CRDS, *MANAGEMENT_CRDS], faults=faults) as world:
        await prepare(world, "c-m-1")
        client = world.client
        await client.create(CLUSTER_BINDING.resource, cluster_binding("bob", "cluster-owner", "bob"), namespace="c-m-1")

        async def is_owner() -> bool:
            return bool(await subjects(world, "c-m-1"))

        await world.until(is_owner)
        await client.patch(CLUSTER_BINDING.resource, "bob", {"metadata": {"finalizers": None}}, namespace="c-m-1")
        await client.delete(CLUSTER_BINDING.resource, "bob", namespace="c-m-1")
        await asyncio.sleep(120)
        assert await subjects(world, "c-m-1") == []
        assert (await client.list(CLUSTER_ROLE_BINDING.resource, labels=OWNED_BY)).items == [], "access to the cluster"


@pytest.mark.parametrize("faults", [NONE, ROUGH], ids=["no faults", "faults"])
def test_rights_end_with_a_binding_that_lost_its_finalizer(faults: Faults) -> None:
    """An owner who may edit bindings can remove the finalizer of its own one again and again."""
    loop.run(delete_binding_without_finalizer(1, faults))


async def take_binding_name(seed: int, owned: bool) -> None:
    async with World(seed, CONTROLLERS, crds=[*CRDS, *MANAGEMENT_CRDS]) as world:
        await prepare(world, "c-m-1", "c-m-2")
        client = world.client
        admin = new_manifest(GLOBAL_ROLE_BINDING, "root", globalRoleName="admin", userName="root")
        if owned:
            created = await client.create(GLOBAL_ROLE_BINDING.resource, admin)
            reference = {"apiVersion": created["apiVersion"], "kind": created["kind"], "controller": True}
            reference |= {"name": "root", "uid": created["metadata"]["uid"]}
        name = "grb-root-cluster-owner"
        references = {"ownerReferences": [reference]} if owned else {}
        squatter = cluster_binding(name, "cluster-member", "bob", **references)
        await client.create(CLUSTER_BINDING.resource, squatter, namespace="c-m-1")
        if not owned:
            await client.create(GLOBAL_ROLE_BINDING.resource, admin)
        await asyncio.sleep(120)
        owner = ("root", "cattle-roletemplate-cluster-owner")
        assert await subjects(world, "c-m-2") == [owner]
        assert await subjects(world, "c-m-1") == [owner]


@pytest.mark.parametrize("owned", [False, True], ids=["by a binding", "by a binding with the same owner"])
def test_taking_a_name_does_not_stop_the_bindings_of_global_roles(owned: bool) -> None:
    loop.run(take_binding_name(1, owned))
