"""Rights in clusters, through conflicts, lost answers and cut lines: given, taken away, and never left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from herder.api.capi.kinds import NAMESPACE
from herder.api.identity.builtin_roles import GLOBAL_ROLES, ROLE_TEMPLATES
from herder.api.identity.crds import CRDS
from herder.api.identity.roles import CLUSTER_ROLE_BINDING, OWNED_BY, RBAC
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    GLOBAL_ROLE,
    GLOBAL_ROLE_BINDING,
    MANAGEMENT_CLUSTER,
    ROLE_TEMPLATE,
)
from herder.api.management.names import CONNECTED_SINCE
from herder.controllers.identity import cluster_bindings, global_bindings, global_roles, leftover_bindings
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.support.homes import create_with_home

CONTROLLERS = [module.CONTROLLER for module in (global_roles, global_bindings, cluster_bindings, leftover_bindings)]


def obj(kind: Kind, name: str, namespace: str = "", **fields: Any) -> Object:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **fields}


async def subjects(world: World, cluster: str) -> list[tuple[str, str]]:
    """Who has which role there, by bindings of ours."""
    found = await world.workloads.client(cluster).list(CLUSTER_ROLE_BINDING.resource, labels=OWNED_BY)
    return sorted((each["subjects"][0]["name"], each["roleRef"]["name"]) for each in found.items)


async def live_through(seed: int, faults: Faults) -> None:
    definitions = [*CRDS, *MANAGEMENT_CRDS]
    async with World(seed, CONTROLLERS, crds=definitions, faults=faults, watched=[CLUSTER_BINDING]) as world:
        client = world.client
        for kind, shipped in ((GLOBAL_ROLE, GLOBAL_ROLES), (ROLE_TEMPLATE, ROLE_TEMPLATES)):
            for role in shipped:
                await client.create(kind.resource, role)
        for name in ("cattle-global-data", "fleet-default"):
            await client.create(NAMESPACE.resource, obj(NAMESPACE, name))
        for name in ("c-m-1", "c-m-2"):
            await world.workloads.serve(name)
            cluster = obj(MANAGEMENT_CLUSTER, name, spec={})
            cluster["metadata"]["annotations"] = {CONNECTED_SINCE: "2026-01-01T00:00:00Z"}
            await create_with_home(client, cluster)
        member = {"clusterName": "c-m-1", "roleTemplateName": "cluster-member", "userName": "bob"}
        await client.create(CLUSTER_BINDING.resource, obj(CLUSTER_BINDING, "bob", "c-m-1", **member), namespace="c-m-1")
        admin = obj(GLOBAL_ROLE_BINDING, "root", globalRoleName="admin", userName="root")
        await client.create(GLOBAL_ROLE_BINDING.resource, admin)
        owner, guest = ("root", "cattle-roletemplate-cluster-owner"), ("bob", "cattle-roletemplate-cluster-member")

        async def given() -> bool:
            return await subjects(world, "c-m-1") == [guest, owner] and await subjects(world, "c-m-2") == [owner]

        await world.until(given)
        await _tamper(world)
        await world.until(given)
        world.workloads.cut("c-m-1", "hang")
        await client.delete(CLUSTER_BINDING.resource, "bob", namespace="c-m-1")
        await asyncio.sleep(60)
        assert (await client.get(CLUSTER_BINDING.resource, "bob", namespace="c-m-1"))["metadata"]["deletionTimestamp"]
        world.workloads.heal("c-m-1")

        async def bob_is_gone() -> bool:
            try:
                await client.get(CLUSTER_BINDING.resource, "bob", namespace="c-m-1")
            except NotFound:
                return True
            return False

        await world.until(bob_is_gone)
        assert await subjects(world, "c-m-1") == [owner]
        await client.delete(GLOBAL_ROLE_BINDING.resource, "root")

        async def nobody() -> bool:
            return not await subjects(world, "c-m-1") and not await subjects(world, "c-m-2")

        await world.until(nobody)
        world.check()


async def _tamper(world: World) -> None:
    there = world.workloads.client("c-m-1")
    bindings = (await there.list(CLUSTER_ROLE_BINDING.resource, labels=OWNED_BY)).items
    await there.delete(CLUSTER_ROLE_BINDING.resource, bindings[0]["metadata"]["name"])
    mallory = {"subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory"}]}
    await there.patch(CLUSTER_ROLE_BINDING.resource, bindings[1]["metadata"]["name"], mallory)


@pytest.mark.parametrize("faults", [NONE, ROUGH], ids=["calm", "rough"])
@pytest.mark.parametrize("seed", [1, 2])
def test_rights_are_given_kept_and_taken_away(seed: int, faults: Faults) -> None:
    loop.run(live_through(seed, faults))


# --- clusters that are imported again -------------------------------------------------------------------------------


REFERENCE = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cattle-roletemplate-project-member"}


async def imported_twice(seed: int, faults: Faults) -> None:
    """A cluster that is removed from the manager is out of reach, and keeps what bindings made there."""
    definitions = [*CRDS, *MANAGEMENT_CRDS]
    async with World(seed, CONTROLLERS, crds=definitions, faults=faults) as world:
        client = world.client
        for role in ROLE_TEMPLATES:
            await client.create(ROLE_TEMPLATE.resource, role)
        await world.workloads.serve("c-m-1")
        cluster = obj(MANAGEMENT_CLUSTER, "c-m-1", spec={})
        cluster["metadata"]["annotations"] = {CONNECTED_SINCE: "2026-01-01T00:00:00Z"}
        await create_with_home(client, cluster)
        bound = {"clusterName": "c-m-1", "roleTemplateName": "cluster-owner", "userName": "bob"}
        await client.create(CLUSTER_BINDING.resource, obj(CLUSTER_BINDING, "bob", "c-m-1", **bound), namespace="c-m-1")
        owner, guest = ("bob", "cattle-roletemplate-cluster-owner"), ("bob", "cattle-roletemplate-cluster-member")

        async def is_owner() -> bool:
            return await subjects(world, "c-m-1") == [owner]

        await world.until(is_owner)
        await client.delete(MANAGEMENT_CLUSTER.resource, "c-m-1")

        async def is_removed() -> bool:
            return "c-m-1" not in {each["metadata"]["name"] for each in (await client.list(NAMESPACE.resource)).items}

        await world.until(is_removed)
        there = world.workloads.client("c-m-1")
        left = obj(ROLE_BINDING, "prtb-left", "default", roleRef=REFERENCE, subjects=[])
        left["metadata"]["labels"] = {OWNED_BY: "c-m-1-p-team_molly"}  # of a binding in a project
        await there.create(ROLE_BINDING.resource, left, namespace="default")
        await create_with_home(client, cluster)
        bound["roleTemplateName"] = "cluster-member"
        again = obj(CLUSTER_BINDING, "bob-again", "c-m-1", **bound)
        await client.create(CLUSTER_BINDING.resource, again, namespace="c-m-1")

        async def is_guest() -> bool:
            in_projects = (await there.list(ROLE_BINDING.resource, labels=OWNED_BY)).items
            return await subjects(world, "c-m-1") == [guest] and not in_projects

        await world.until(is_guest)
        world.check()


@pytest.mark.parametrize("faults", [NONE, ROUGH], ids=["calm", "rough"])
@pytest.mark.parametrize("seed", [1, 2])
def test_former_members_have_no_rights_in_a_cluster_that_is_imported_again(seed: int, faults: Faults) -> None:
    loop.run(imported_twice(seed, faults))


# --- users who manage the members of their cluster --------------------------------------------------------------------


async def prepared(world: World, *clusters: str) -> None:
    for kind, shipped in ((GLOBAL_ROLE, GLOBAL_ROLES), (ROLE_TEMPLATE, ROLE_TEMPLATES)):
        for role in shipped:
            await world.client.create(kind.resource, role)
    for name in ("cattle-global-data", "fleet-default"):
        await world.client.create(NAMESPACE.resource, obj(NAMESPACE, name))
    for name in clusters:
        await world.workloads.serve(name)
        cluster = obj(MANAGEMENT_CLUSTER, name, spec={})
        cluster["metadata"]["annotations"] = {CONNECTED_SINCE: "2026-01-01T00:00:00Z"}
        await create_with_home(world.client, cluster)


def cluster_binding(name: str, template: str, user: str, **meta: Any) -> Object:
    binding = obj(CLUSTER_BINDING, name, "c-m-1", clusterName="c-m-1", roleTemplateName=template, userName=user)
    return {**binding, "metadata": {**binding["metadata"], **meta}}


async def without_its_finalizer(seed: int, faults: Faults) -> None:
    async with World(seed, CONTROLLERS, crds=[*CRDS, *MANAGEMENT_CRDS], faults=faults) as world:
        await prepared(world, "c-m-1")
        client = world.client
        await client.create(CLUSTER_BINDING.resource, cluster_binding("bob", "cluster-owner", "bob"), namespace="c-m-1")

        async def is_owner() -> bool:
            return bool(await subjects(world, "c-m-1"))

        await world.until(is_owner)
        await client.patch(CLUSTER_BINDING.resource, "bob", {"metadata": {"finalizers": None}}, namespace="c-m-1")
        await client.delete(CLUSTER_BINDING.resource, "bob", namespace="c-m-1")
        await asyncio.sleep(120)
        assert await subjects(world, "c-m-1") == []
        assert (await client.list(CLUSTER_ROLE_BINDING.resource, labels=OWNED_BY)).items == [], "who may reach it"


@pytest.mark.parametrize("faults", [NONE, ROUGH], ids=["calm", "rough"])
def test_rights_end_with_a_binding_that_has_lost_its_finalizer(faults: Faults) -> None:
    """The owner of a cluster who may edit bindings removes it from the own one, again and again."""
    loop.run(without_its_finalizer(1, faults))


async def with_a_taken_name(seed: int, owned: bool) -> None:
    async with World(seed, CONTROLLERS, crds=[*CRDS, *MANAGEMENT_CRDS]) as world:
        await prepared(world, "c-m-1", "c-m-2")
        client = world.client
        admin = obj(GLOBAL_ROLE_BINDING, "root", globalRoleName="admin", userName="root")
        if owned:
            made = await client.create(GLOBAL_ROLE_BINDING.resource, admin)
            reference = {"apiVersion": made["apiVersion"], "kind": made["kind"], "controller": True}
            reference |= {"name": "root", "uid": made["metadata"]["uid"]}
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
def test_nobody_keeps_global_roles_from_clusters_by_taking_a_name(owned: bool) -> None:
    loop.run(with_a_taken_name(1, owned))
