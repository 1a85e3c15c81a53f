"""Roles and bindings on a server with admission: the rights they grant, and that no user grants more than they have."""

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
from tests.support.builders import new_manifest
from tests.support.manager.cluster_namespaces import create_with_namespace, namespace_of
from tests.unit.engine.runtime import envtest
from tests.unit.engine.runtime.envtest import Environment

CONTROLLERS = tuple(module.CONTROLLER for module in (creators, global_roles, global_bindings, cluster_bindings))


@pytest.fixture
async def env() -> AsyncIterator[Environment]:
    """A server with the controllers running, an administrator, and two clusters without members."""
    async with envtest.environment() as created, _running_controllers(created):
        await install_kinds(created.outside, [*CRDS, *MANAGEMENT_CRDS])
        install_role_admission(created.server, created.outside)
        for kind, shipped in ((GLOBAL_ROLE, GLOBAL_ROLES), (ROLE_TEMPLATE, ROLE_TEMPLATES)):
            for role in shipped:
                await created.outside.create(kind.resource, role)
        for name in ("cattle-global-data", "fleet-default"):
            await created.outside.create(NAMESPACE.resource, new_manifest(NAMESPACE, name))
        for name in ("c-m-1", "c-m-2"):
            await create_with_namespace(created.outside, new_manifest(MANAGEMENT_CLUSTER, name, spec={}))
        await created.outside.create(GLOBAL_ROLE_BINDING.resource, grb("root", "admin"))
        await wait_until_allowed(created, "root", "get", GLOBAL_ROLE)
        yield created


@asynccontextmanager
async def _running_controllers(server: Environment) -> AsyncIterator[None]:
    manager = Manager(server.outside, list(CONTROLLERS), clock=envtest.now, entropy=Random(3).randbytes)
    running = asyncio.ensure_future(manager.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def grb(user: str, role: str) -> Object:
    return new_manifest(GLOBAL_ROLE_BINDING, f"{user}-{role}", globalRoleName=role, userName=user)


def crtb(user: str, template: str, cluster: str = "c-m-1", **fields: Any) -> Object:
    values = {"clusterName": cluster, "roleTemplateName": template, "userName": user} | fields
    return new_manifest(CLUSTER_BINDING, f"{user}-{template}", cluster, **values)


def client_as(env: Environment, user: str) -> Client:
    return Client(InProcess(env.server, User(user, groups=("system:authenticated",))))


async def is_allowed(env: Environment, user: str, verb: str, kind: Kind, name: str = "", namespace: str = "") -> bool:
    attributes = {"verb": verb, "group": kind.group, "resource": kind.plural, "name": name, "namespace": namespace}
    review = {"spec": {"user": user, "resourceAttributes": attributes}}
    resource = Kind("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False)
    result = await env.outside.create(resource.resource, new_manifest(resource, "") | review)
    return bool(result["status"]["allowed"])


async def wait_until_allowed(
    env: Environment, user: str, verb: str, kind: Kind, name: str = "", namespace: str = ""
) -> None:
    """Wait until the user has the right, which controllers grant a moment later."""
    async with asyncio.timeout(20):
        while not await is_allowed(env, user, verb, kind, name, namespace):
            await asyncio.sleep(0.01)


async def wait_until_denied(env: Environment, user: str, verb: str, kind: Kind, name: str = "") -> None:
    async with asyncio.timeout(20):
        while await is_allowed(env, user, verb, kind, name):
            await asyncio.sleep(0.01)


async def test_a_global_role_grants_rights_in_the_manager_and_its_namespaces_only(env: Environment) -> None:
    await client_as(env, "root").create(GLOBAL_ROLE_BINDING.resource, grb("alice", "clusters-create"))
    await wait_until_allowed(env, "alice", "create", MANAGEMENT_CLUSTER)
    await wait_until_allowed(env, "alice", "create", SECRET, namespace="fleet-default")
    assert not await is_allowed(env, "alice", "get", SECRET, namespace="fleet-default")
    assert not await is_allowed(env, "alice", "create", SECRET, namespace="kube-system")
    await env.outside.delete(GLOBAL_ROLE_BINDING.resource, "alice-clusters-create")
    await wait_until_denied(env, "alice", "create", MANAGEMENT_CLUSTER)


async def test_a_cluster_binding_grants_access_to_that_cluster_and_ends_with_it(env: Environment) -> None:
    await client_as(env, "root").create(CLUSTER_BINDING.resource, crtb("bob", "cluster-member"), namespace="c-m-1")
    await wait_until_allowed(env, "bob", "get", MANAGEMENT_CLUSTER, "c-m-1")
    assert not await is_allowed(env, "bob", "get", MANAGEMENT_CLUSTER, "c-m-2")
    assert not await is_allowed(env, "bob", "list", MANAGEMENT_CLUSTER)
    assert not await is_allowed(env, "bob", "update", MANAGEMENT_CLUSTER, "c-m-1")
    await env.outside.delete(
        MANAGEMENT_CLUSTER.resource, "c-m-1"
    )  # its agent never connected: there is nothing to clean up
    await env.outside.delete(CLUSTER_BINDING.resource, "bob-cluster-member", namespace="c-m-1")
    await wait_until_denied(env, "bob", "get", MANAGEMENT_CLUSTER, "c-m-1")


async def create_role_editor(env: Environment, user: str, *rules: Object, templates: tuple[str, ...] = ()) -> Client:
    """A user who may write all kinds of roles and bindings, and has these rights too."""
    editable = (GLOBAL_ROLE, GLOBAL_ROLE_BINDING, ROLE_TEMPLATE, CLUSTER_BINDING, PROJECT_BINDING)
    kinds = [kind.plural for kind in editable]
    edit_rule = {"apiGroups": ["management.cattle.io"], "resources": kinds, "verbs": ["create", "update", "patch"]}
    role = new_manifest(GLOBAL_ROLE, f"of-{user}", rules=[edit_rule, *rules], inheritedClusterRoles=list(templates))
    root = client_as(env, "root")
    await root.create(GLOBAL_ROLE.resource, role)
    await root.create(GLOBAL_ROLE_BINDING.resource, grb(user, f"of-{user}"))
    await wait_until_allowed(env, user, "create", CLUSTER_BINDING)
    return client_as(env, user)


PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}


async def test_no_user_grants_more_rights_than_they_have(env: Environment) -> None:
    mallory = await create_role_editor(env, "mallory", PODS)
    attempts: list[tuple[Kind, Object]] = [
        (GLOBAL_ROLE, new_manifest(GLOBAL_ROLE, "wide", rules=[NODES])),
        (GLOBAL_ROLE, new_manifest(GLOBAL_ROLE, "wide", rules=[], inheritedClusterRoles=["cluster-owner"])),
        (GLOBAL_ROLE, new_manifest(GLOBAL_ROLE, "wide", rules=[], namespacedRules={"fleet-default": [NODES]})),
        (GLOBAL_ROLE_BINDING, grb("mallory", "admin")),
        (ROLE_TEMPLATE, new_manifest(ROLE_TEMPLATE, "wide", context="cluster", rules=[NODES])),
        (ROLE_TEMPLATE, new_manifest(ROLE_TEMPLATE, "cluster-viewer", context="cluster", external=True)),
        (CLUSTER_BINDING, crtb("mallory", "cluster-owner")),
        (CLUSTER_BINDING, crtb("mallory", "cluster-admin")),
        (CLUSTER_BINDING, crtb("mallory", "cluster-member", clusterName="c-m-2")),
    ]
    for kind, attempt in attempts:
        with pytest.raises((Forbidden, Invalid)):
            await mallory.create(kind.resource, attempt, namespace=attempt["metadata"].get("namespace", ""))
    with pytest.raises(Forbidden, match="it grants rights that you do not have"):
        await mallory.patch(GLOBAL_ROLE.resource, "of-mallory", {"rules": [{**NODES, "verbs": ["*"]}]})
    assert (await mallory.create(GLOBAL_ROLE.resource, new_manifest(GLOBAL_ROLE, "narrow", rules=[PODS])))["rules"] == [
        PODS
    ]


async def test_cluster_owners_grant_only_rights_of_their_cluster(env: Environment) -> None:
    carol = await create_role_editor(env, "carol")
    root = client_as(env, "root")
    await root.create(CLUSTER_BINDING.resource, crtb("carol", "cluster-owner"), namespace="c-m-1")
    await carol.create(CLUSTER_BINDING.resource, crtb("dave", "cluster-member"), namespace="c-m-1")
    for template in ("cluster-member", "cluster-owner"):
        with pytest.raises(Forbidden, match="in cluster c-m-2"):
            await carol.create(CLUSTER_BINDING.resource, crtb("dave", template, "c-m-2"), namespace="c-m-2")


async def test_a_cluster_admin_cannot_grant_ownership(env: Environment) -> None:
    """Owners also have rights on the objects of the cluster in the manager, and thus on its machines."""
    carla = await create_role_editor(env, "carla")
    root = client_as(env, "root")
    await root.create(CLUSTER_BINDING.resource, crtb("carla", "cluster-admin"), namespace="c-m-1")
    with pytest.raises(Forbidden, match="only owners"):
        await carla.create(CLUSTER_BINDING.resource, crtb("carla", "cluster-owner"), namespace="c-m-1")
    await carla.create(CLUSTER_BINDING.resource, crtb("dora", "cluster-member"), namespace="c-m-1")
    await root.create(CLUSTER_BINDING.resource, crtb("carla", "cluster-owner"), namespace="c-m-1")
    await carla.create(CLUSTER_BINDING.resource, crtb("dora", "cluster-owner"), namespace="c-m-1")


def prtb(user: str, template: str, project: str = "p-x", cluster: str = "c-m-1", **fields: Any) -> Object:
    values = {"projectName": f"{cluster}:{project}", "roleTemplateName": template, "userName": user} | fields
    return new_manifest(PROJECT_BINDING, f"{user}-{template}", f"{cluster}-{project}", **values)


async def test_project_members_grant_only_rights_of_their_project(env: Environment) -> None:
    root, carol = client_as(env, "root"), await create_role_editor(env, "carol")
    for namespace in ("c-m-1-p-x", "c-m-1-p-y", "c-m-2-p-x"):
        await env.outside.create(NAMESPACE.resource, new_manifest(NAMESPACE, namespace))
    await root.create(PROJECT_BINDING.resource, prtb("carol", "project-member"), namespace="c-m-1-p-x")
    await carol.create(PROJECT_BINDING.resource, prtb("dave", "read-only"), namespace="c-m-1-p-x")
    for rejected in (
        prtb("dave", "project-owner"),
        prtb("dave", "project-member", "p-y"),
        prtb("dave", "project-member", "p-x", "c-m-2"),
        prtb("dave", "project-member", "p-x", projectName="c-m-1:p-y"),
        prtb("dave", "cluster-owner"),
    ):
        with pytest.raises((Forbidden, Invalid)):
            await carol.create(PROJECT_BINDING.resource, rejected, namespace=rejected["metadata"]["namespace"])
    with pytest.raises(Forbidden, match="in cluster c-m-1"):
        await carol.create(CLUSTER_BINDING.resource, crtb("dave", "cluster-member"), namespace="c-m-1")


async def test_an_external_role_without_rules_grants_nothing_to_pass_on(env: Environment) -> None:
    """The rules of such a role are unknown: binding it needs every right, and holding it counts for nothing."""
    root = client_as(env, "root")
    await root.create(ROLE_TEMPLATE.resource, new_manifest(ROLE_TEMPLATE, "strange", context="cluster", external=True))
    erin = await create_role_editor(env, "erin")
    await root.create(CLUSTER_BINDING.resource, crtb("erin", "strange"), namespace="c-m-1")
    for template in ("strange", "cluster-member"):
        with pytest.raises(Forbidden):
            await erin.create(CLUSTER_BINDING.resource, crtb("frank", template), namespace="c-m-1")


async def test_built_in_roles_cannot_be_changed_or_deleted(env: Environment) -> None:
    root = client_as(env, "root")
    with pytest.raises(Forbidden, match="built in and cannot be changed"):
        await root.patch(GLOBAL_ROLE.resource, "user-base", {"rules": [NODES]})
    with pytest.raises(Forbidden, match="built in and cannot be deleted"):
        await root.delete(ROLE_TEMPLATE.resource, "cluster-owner")


async def test_a_failed_check_rejects_the_grant(env: Environment) -> None:
    """CVE-2023-22651: a check that failed let every request pass."""
    env.wire.down = True

    async def rules_of(_user: User, _namespace: str) -> list[Object]:
        return [PODS]

    error: StatusError | None = await refusal(
        env.client, rules_of, User("x"), GLOBAL_ROLE, None, new_manifest(GLOBAL_ROLE, "r", rules=[PODS])
    )
    assert isinstance(error, InternalError)


# --- creators -------------------------------------------------------------------------------------------------------


async def test_the_creator_of_a_cluster_owns_it_and_cannot_be_forged(env: Environment) -> None:
    await client_as(env, "root").create(GLOBAL_ROLE_BINDING.resource, grb("alice", "clusters-create"))
    await wait_until_allowed(env, "alice", "create", MANAGEMENT_CLUSTER)
    forged = {CREATOR: "mallory", CREATOR_BOUND: "true", CONNECTED_SINCE: "2026-01-01T00:00:00Z", "mine": "too"}
    cluster = new_manifest(MANAGEMENT_CLUSTER, "c-m-3", spec={})
    cluster["metadata"]["annotations"] = forged
    created = await client_as(env, "alice").create(MANAGEMENT_CLUSTER.resource, cluster)
    assert created["metadata"]["annotations"] == {CREATOR: "alice", "mine": "too"}
    await env.outside.create(NAMESPACE.resource, namespace_of(created))
    await wait_until_allowed(env, "alice", "update", MANAGEMENT_CLUSTER, "c-m-3")
    assert not await is_allowed(env, "mallory", "get", MANAGEMENT_CLUSTER, "c-m-3")
    change = {"metadata": {"annotations": {CREATOR: "mallory", CREATOR_BOUND: None}}}
    after = await client_as(env, "alice").patch(MANAGEMENT_CLUSTER.resource, "c-m-3", change)
    assert after["metadata"]["annotations"][CREATOR] == "alice"
    assert CREATOR_BOUND in after["metadata"]["annotations"]
