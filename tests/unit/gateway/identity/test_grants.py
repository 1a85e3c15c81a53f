"""Roles and bindings on a server that judges them: what users get, and that nobody gives more than they have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.identity.builtin_roles import GLOBAL_ROLES, ROLE_TEMPLATES
from herder.api.identity.crds import CRDS
from herder.api.identity.creators import CREATOR_BOUND
from herder.api.machines.credentials import CREATOR
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    GLOBAL_ROLE,
    GLOBAL_ROLE_BINDING,
    MANAGEMENT_CLUSTER,
    PROJECT_BINDING,
    ROLE_TEMPLATE,
)
from herder.api.management.names import CONNECTED_SINCE
from herder.app.admission.kinds import install_role_admission
from herder.app.install import install_kinds
from herder.controllers.identity import cluster_bindings, creators, global_bindings, global_roles
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, InternalError, Invalid, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.manager import Manager
from herder.engine.wire import User
from herder.gateway.identity.grants import refusal
from tests.support.homes import create_with_home, home_of
from tests.unit.engine.runtime import world as worlds
from tests.unit.engine.runtime.world import World

CONTROLLERS = tuple(module.CONTROLLER for module in (creators, global_roles, global_bindings, cluster_bindings))


def obj(kind: Kind, name: str, namespace: str = "", **fields: Any) -> Object:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **fields}


@pytest.fixture
async def here() -> AsyncIterator[World]:
    """With the controllers at work, an admin, and two clusters with nobody in them."""
    async with worlds.world() as made, _managed(made):
        await install_kinds(made.outside, [*CRDS, *MANAGEMENT_CRDS])
        install_role_admission(made.server, made.outside)
        for kind, shipped in ((GLOBAL_ROLE, GLOBAL_ROLES), (ROLE_TEMPLATE, ROLE_TEMPLATES)):
            for role in shipped:
                await made.outside.create(kind.resource, role)
        for name in ("cattle-global-data", "fleet-default"):
            await made.outside.create(NAMESPACE.resource, obj(NAMESPACE, name))
        for name in ("c-m-1", "c-m-2"):
            await create_with_home(made.outside, obj(MANAGEMENT_CLUSTER, name, spec={}))
        await made.outside.create(GLOBAL_ROLE_BINDING.resource, grb("root", "admin"))
        await allowed(made, "root", "get", GLOBAL_ROLE)
        yield made


@asynccontextmanager
async def _managed(made: World) -> AsyncIterator[None]:
    manager = Manager(made.outside, list(CONTROLLERS), clock=worlds.now, entropy=Random(3).randbytes)
    running = asyncio.ensure_future(manager.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def grb(user: str, role: str) -> Object:
    return obj(GLOBAL_ROLE_BINDING, f"{user}-{role}", globalRoleName=role, userName=user)


def crtb(user: str, template: str, cluster: str = "c-m-1", **fields: Any) -> Object:
    named = {"clusterName": cluster, "roleTemplateName": template, "userName": user} | fields
    return obj(CLUSTER_BINDING, f"{user}-{template}", cluster, **named)


def acting(here: World, user: str) -> Client:
    return Client(InProcess(here.server, User(user, groups=("system:authenticated",))))


async def may(here: World, user: str, verb: str, kind: Kind, name: str = "", namespace: str = "") -> bool:
    wish = {"verb": verb, "group": kind.group, "resource": kind.plural, "name": name, "namespace": namespace}
    review = {"spec": {"user": user, "resourceAttributes": wish}}
    resource = Kind("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False)
    found = await here.outside.create(resource.resource, obj(resource, "") | review)
    return bool(found["status"]["allowed"])


async def allowed(here: World, user: str, verb: str, kind: Kind, name: str = "", namespace: str = "") -> None:
    """Until they may: controllers take a moment."""
    async with asyncio.timeout(20):
        while not await may(here, user, verb, kind, name, namespace):
            await asyncio.sleep(0.01)


async def refused_soon(here: World, user: str, verb: str, kind: Kind, name: str = "") -> None:
    async with asyncio.timeout(20):
        while await may(here, user, verb, kind, name):
            await asyncio.sleep(0.01)


async def test_a_global_role_gives_its_rights_here_and_in_its_namespaces_alone(here: World) -> None:
    await acting(here, "root").create(GLOBAL_ROLE_BINDING.resource, grb("alice", "clusters-create"))
    await allowed(here, "alice", "create", MANAGEMENT_CLUSTER)
    await allowed(here, "alice", "create", SECRET, namespace="fleet-default")
    assert not await may(here, "alice", "get", SECRET, namespace="fleet-default")
    assert not await may(here, "alice", "create", SECRET, namespace="kube-system")
    await here.outside.delete(GLOBAL_ROLE_BINDING.resource, "alice-clusters-create")
    await refused_soon(here, "alice", "create", MANAGEMENT_CLUSTER)


async def test_a_binding_in_a_cluster_lets_one_reach_that_cluster_and_ends_with_it(here: World) -> None:
    await acting(here, "root").create(CLUSTER_BINDING.resource, crtb("bob", "cluster-member"), namespace="c-m-1")
    await allowed(here, "bob", "get", MANAGEMENT_CLUSTER, "c-m-1")
    assert not await may(here, "bob", "get", MANAGEMENT_CLUSTER, "c-m-2")
    assert not await may(here, "bob", "list", MANAGEMENT_CLUSTER)
    assert not await may(here, "bob", "update", MANAGEMENT_CLUSTER, "c-m-1")
    await here.outside.delete(MANAGEMENT_CLUSTER.resource, "c-m-1")  # its agent never came: nothing is left there
    await here.outside.delete(CLUSTER_BINDING.resource, "bob-cluster-member", namespace="c-m-1")
    await refused_soon(here, "bob", "get", MANAGEMENT_CLUSTER, "c-m-1")


async def let(here: World, user: str, *rules: Object, templates: tuple[str, ...] = ()) -> Client:
    """Somebody who may write all kinds of roles and bindings, and has these rights besides."""
    written = (GLOBAL_ROLE, GLOBAL_ROLE_BINDING, ROLE_TEMPLATE, CLUSTER_BINDING, PROJECT_BINDING)
    kinds = [kind.plural for kind in written]
    writing = {"apiGroups": ["management.cattle.io"], "resources": kinds, "verbs": ["create", "update", "patch"]}
    role = obj(GLOBAL_ROLE, f"of-{user}", rules=[writing, *rules], inheritedClusterRoles=list(templates))
    root = acting(here, "root")
    await root.create(GLOBAL_ROLE.resource, role)
    await root.create(GLOBAL_ROLE_BINDING.resource, grb(user, f"of-{user}"))
    await allowed(here, user, "create", CLUSTER_BINDING)
    return acting(here, user)


PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}


async def test_nobody_gives_more_than_they_have_in_whatever_way(here: World) -> None:
    mallory = await let(here, "mallory", PODS)
    attempts: list[tuple[Kind, Object]] = [
        (GLOBAL_ROLE, obj(GLOBAL_ROLE, "wide", rules=[NODES])),
        (GLOBAL_ROLE, obj(GLOBAL_ROLE, "wide", rules=[], inheritedClusterRoles=["cluster-owner"])),
        (GLOBAL_ROLE, obj(GLOBAL_ROLE, "wide", rules=[], namespacedRules={"fleet-default": [NODES]})),
        (GLOBAL_ROLE_BINDING, grb("mallory", "admin")),
        (ROLE_TEMPLATE, obj(ROLE_TEMPLATE, "wide", context="cluster", rules=[NODES])),
        (ROLE_TEMPLATE, obj(ROLE_TEMPLATE, "cluster-viewer", context="cluster", external=True)),
        (CLUSTER_BINDING, crtb("mallory", "cluster-owner")),
        (CLUSTER_BINDING, crtb("mallory", "cluster-admin")),
        (CLUSTER_BINDING, crtb("mallory", "cluster-member", clusterName="c-m-2")),
    ]
    for kind, attempt in attempts:
        with pytest.raises((Forbidden, Invalid)):
            await mallory.create(kind.resource, attempt, namespace=attempt["metadata"].get("namespace", ""))
    with pytest.raises(Forbidden, match="it grants rights that you do not have"):
        await mallory.patch(GLOBAL_ROLE.resource, "of-mallory", {"rules": [{**NODES, "verbs": ["*"]}]})
    assert (await mallory.create(GLOBAL_ROLE.resource, obj(GLOBAL_ROLE, "narrow", rules=[PODS])))["rules"] == [PODS]


async def test_owners_of_one_cluster_hand_out_its_rights_and_no_others(here: World) -> None:
    carol = await let(here, "carol")
    root = acting(here, "root")
    await root.create(CLUSTER_BINDING.resource, crtb("carol", "cluster-owner"), namespace="c-m-1")
    await carol.create(CLUSTER_BINDING.resource, crtb("dave", "cluster-member"), namespace="c-m-1")
    for template in ("cluster-member", "cluster-owner"):
        with pytest.raises(Forbidden, match="in cluster c-m-2"):
            await carol.create(CLUSTER_BINDING.resource, crtb("dave", template, "c-m-2"), namespace="c-m-2")


async def test_an_administrator_of_a_cluster_makes_nobody_its_owner(here: World) -> None:
    """Owners also have rights on the objects of the cluster in the manager, and so on its machines."""
    carla = await let(here, "carla")
    root = acting(here, "root")
    await root.create(CLUSTER_BINDING.resource, crtb("carla", "cluster-admin"), namespace="c-m-1")
    with pytest.raises(Forbidden, match="only owners"):
        await carla.create(CLUSTER_BINDING.resource, crtb("carla", "cluster-owner"), namespace="c-m-1")
    await carla.create(CLUSTER_BINDING.resource, crtb("dora", "cluster-member"), namespace="c-m-1")
    await root.create(CLUSTER_BINDING.resource, crtb("carla", "cluster-owner"), namespace="c-m-1")
    await carla.create(CLUSTER_BINDING.resource, crtb("dora", "cluster-owner"), namespace="c-m-1")


def prtb(user: str, template: str, project: str = "p-x", cluster: str = "c-m-1", **fields: Any) -> Object:
    named = {"projectName": f"{cluster}:{project}", "roleTemplateName": template, "userName": user} | fields
    return obj(PROJECT_BINDING, f"{user}-{template}", f"{cluster}-{project}", **named)


async def test_members_of_one_project_hand_out_its_rights_and_no_others(here: World) -> None:
    root, carol = acting(here, "root"), await let(here, "carol")
    for place in ("c-m-1-p-x", "c-m-1-p-y", "c-m-2-p-x"):
        await here.outside.create(NAMESPACE.resource, obj(NAMESPACE, place))
    await root.create(PROJECT_BINDING.resource, prtb("carol", "project-member"), namespace="c-m-1-p-x")
    await carol.create(PROJECT_BINDING.resource, prtb("dave", "read-only"), namespace="c-m-1-p-x")
    for refused in (
        prtb("dave", "project-owner"),
        prtb("dave", "project-member", "p-y"),
        prtb("dave", "project-member", "p-x", "c-m-2"),
        prtb("dave", "project-member", "p-x", projectName="c-m-1:p-y"),
        prtb("dave", "cluster-owner"),
    ):
        with pytest.raises((Forbidden, Invalid)):
            await carol.create(PROJECT_BINDING.resource, refused, namespace=refused["metadata"]["namespace"])
    with pytest.raises(Forbidden, match="in cluster c-m-1"):
        await carol.create(CLUSTER_BINDING.resource, crtb("dave", "cluster-member"), namespace="c-m-1")


async def test_a_role_of_others_that_says_nothing_gives_its_holder_nothing_to_hand_out(here: World) -> None:
    """What such a role has is not known: to be bound to it takes everything, to hold it counts for nothing."""
    root = acting(here, "root")
    await root.create(ROLE_TEMPLATE.resource, obj(ROLE_TEMPLATE, "strange", context="cluster", external=True))
    erin = await let(here, "erin")
    await root.create(CLUSTER_BINDING.resource, crtb("erin", "strange"), namespace="c-m-1")
    for template in ("strange", "cluster-member"):
        with pytest.raises(Forbidden):
            await erin.create(CLUSTER_BINDING.resource, crtb("frank", template), namespace="c-m-1")


async def test_built_in_roles_stay_as_they_are(here: World) -> None:
    root = acting(here, "root")
    with pytest.raises(Forbidden, match="built in and cannot be changed"):
        await root.patch(GLOBAL_ROLE.resource, "user-base", {"rules": [NODES]})
    with pytest.raises(Forbidden, match="built in and cannot be deleted"):
        await root.delete(ROLE_TEMPLATE.resource, "cluster-owner")


async def test_where_it_cannot_be_told_nothing_is_handed_out(here: World) -> None:
    """CVE-2023-22651: a check that did not work let everything pass."""
    here.wire.down = True

    async def rules_of(_user: User, _namespace: str) -> list[Object]:
        return [PODS]

    found: StatusError | None = await refusal(
        here.client, rules_of, User("x"), GLOBAL_ROLE, None, obj(GLOBAL_ROLE, "r", rules=[PODS])
    )
    assert isinstance(found, InternalError)


# --- creators -------------------------------------------------------------------------------------------------------


async def test_who_makes_a_cluster_owns_it_and_nobody_can_say_that_another_did(here: World) -> None:
    await acting(here, "root").create(GLOBAL_ROLE_BINDING.resource, grb("alice", "clusters-create"))
    await allowed(here, "alice", "create", MANAGEMENT_CLUSTER)
    forged = {CREATOR: "mallory", CREATOR_BOUND: "true", CONNECTED_SINCE: "2026-01-01T00:00:00Z", "mine": "too"}
    wanted = obj(MANAGEMENT_CLUSTER, "c-m-3", spec={})
    wanted["metadata"]["annotations"] = forged
    made = await acting(here, "alice").create(MANAGEMENT_CLUSTER.resource, wanted)
    assert made["metadata"]["annotations"] == {CREATOR: "alice", "mine": "too"}
    await here.outside.create(NAMESPACE.resource, home_of(made))
    await allowed(here, "alice", "update", MANAGEMENT_CLUSTER, "c-m-3")
    assert not await may(here, "mallory", "get", MANAGEMENT_CLUSTER, "c-m-3")
    change = {"metadata": {"annotations": {CREATOR: "mallory", CREATOR_BOUND: None}}}
    after = await acting(here, "alice").patch(MANAGEMENT_CLUSTER.resource, "c-m-3", change)
    assert after["metadata"]["annotations"][CREATOR] == "alice"
    assert CREATOR_BOUND in after["metadata"]["annotations"]
