"""Writes by which users could extend their rights, on the embedded server with its own admission."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from herder.api.capi.crds import CRDS as CORE_CRDS
from herder.api.capi.inventory import PROVIDER_CRD
from herder.api.capi.kinds import NAMESPACE
from herder.api.identity.crds import CRDS
from herder.api.identity.creators import CREATOR_BOUND
from herder.api.identity.roles import CLUSTER_ROLE_BINDING, OWNED_BY, RBAC, cluster_role_binding
from herder.api.identity.tenancy import rules
from herder.api.machines.credentials import CREATOR
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import CLUSTER_BINDING, MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.names import REMOVE_MANAGEMENT, REMOVE_PROVISIONING
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.app.admission.kinds import install_role_admission
from herder.app.admission.tenancy import install_tenancy_admission
from herder.app.install import install_kinds
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, Forbidden, Invalid, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.wire import User
from tests.support.builders import new_manifest
from tests.support.manager.cluster_namespaces import create_with_namespace
from tests.support.tenancy.case import Case, create_for
from tests.support.tenancy.clusters import IDENTIFIED, MOVED, OWNED, REPORTED, WITHHELD
from tests.support.tenancy.cores import OTHER_WORKLOADS, SIGNS_OF_A_CORE
from tests.support.tenancy.deletions import ORPHANED, OUTLASTING
from tests.support.tenancy.restores import LISTED, RESTORED
from tests.support.tenancy.roles import GRANTED_ROLES, KEPT_ROLES, MACHINE_ROLES, MARKED_BINDINGS, OWN_ROLES
from tests.support.tenancy.secrets import EDITED, OVERWRITTEN, REDIRECTED, TAKEN, UNNAMED
from tests.support.tenancy.users import EDITORS, USER, WRITER_ROLE, grant_rights
from tests.support.tenancy.writes import ALLOWED, REFUSED
from tests.unit.engine.runtime import envtest
from tests.unit.engine.runtime.envtest import Environment
from tests.unit.gateway.identity.test_grants import client_as, crtb, env, is_allowed, wait_until_allowed  # noqa: F401


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Environment]:
    """A server with all rules in force, and the user of the cases."""
    async with envtest.environment() as created:
        await install_kinds(created.outside, [*CRDS, *MANAGEMENT_CRDS, *CORE_CRDS, *RKE_CRDS, PROVIDER_CRD])
        install_role_admission(created.server, created.outside)
        install_tenancy_admission(created.server, created.outside)
        for name in ("cattle-global-data", "cattle-system", "fleet-default"):
            await created.outside.create(NAMESPACE.resource, new_manifest(NAMESPACE, name))
        await grant_rights(created.outside)
        yield created


async def write(server: Environment, case: Case, as_user: str = USER) -> Object:
    user = Client(InProcess(server.server, User(as_user, groups=("system:authenticated",))))
    namespace = case.meta.get("namespace", "")
    if case.patch is None and case.delete_options is None:
        return await user.create(case.kind.resource, case.object, namespace=namespace)
    await create_for(server.outside, case)
    if case.patch is None:
        path = f"{case.kind.resource.path(namespace)}/{case.meta['name']}"
        response = await user.raw(
            "DELETE", path, body=json.dumps(case.delete_options).encode(), headers={"content-type": "application/json"}
        )
        body: Object = json.loads(response.content() or b"{}")
        if response.status >= 400:
            raise StatusError.from_status(body, response.status)
        return body
    name, subresource = case.meta["name"], case.subresource
    return await user.patch(case.kind.resource, name, case.patch, namespace=namespace, subresource=subresource)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
async def test_users_cannot_write_objects_that_the_manager_trusts(server: Environment, case: Case) -> None:
    with pytest.raises((Forbidden, Invalid)):
        await write(server, case)


@pytest.mark.parametrize("case", ALLOWED, ids=lambda case: case.id)
async def test_users_can_write_their_own_objects(server: Environment, case: Case) -> None:
    name = (await write(server, case))["metadata"]["name"]
    assert name == case.meta.get("name", name)


@pytest.mark.parametrize("case", ORPHANED, ids=lambda case: case.id)
async def test_objects_cannot_be_deleted_with_their_rights_left_behind(server: Environment, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(server, case)


@pytest.mark.parametrize("user", EDITORS)
@pytest.mark.parametrize("case", OUTLASTING, ids=lambda case: case.id)
async def test_editors_cannot_leave_rights_of_a_creator_behind(server: Environment, case: Case, user: str) -> None:
    with pytest.raises(Forbidden):
        await write(server, case, user)


@pytest.mark.parametrize("user", EDITORS)
@pytest.mark.parametrize("case", REDIRECTED, ids=lambda case: case.id)
async def test_editors_cannot_change_the_credential_of_a_machine(server: Environment, case: Case, user: str) -> None:
    with pytest.raises(Forbidden):
        await write(server, case, user)


@pytest.mark.parametrize("user", EDITORS[:1])
@pytest.mark.parametrize("case", EDITED, ids=lambda case: case.id)
async def test_editors_can_write_other_secrets(server: Environment, case: Case, user: str) -> None:
    await write(server, case, user)


@pytest.mark.parametrize("case", OWNED, ids=lambda case: case.id)
async def test_a_former_owner_cannot_delete_a_cluster_with_an_own_object(server: Environment, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(server, case)


@pytest.mark.parametrize("case", WITHHELD, ids=lambda case: case.id)
async def test_only_administrators_make_clusters_observe_only(server: Environment, case: Case) -> None:
    """Otherwise an owner who marks the own cluster keeps all rights in it when they are reduced."""
    with pytest.raises(Forbidden, match="the manager withholds all changes of such a cluster"):
        await write(server, case)


@pytest.mark.parametrize("case", IDENTIFIED, ids=lambda case: case.id)
async def test_only_the_manager_names_the_management_cluster(server: Environment, case: Case) -> None:
    with pytest.raises(Forbidden, match=r"status\.clusterName: the manager"):
        await write(server, case)


async def test_users_can_write_other_fields_of_the_status_of_clusters(server: Environment) -> None:
    await write(server, REPORTED)


@pytest.mark.parametrize("case", RESTORED, ids=lambda case: case.id)
async def test_only_the_manager_writes_what_a_restore_trusts(server: Environment, case: Case) -> None:
    with pytest.raises(Forbidden, match=r"the manager (copies|generates|records|lists)"):
        await write(server, case)


@pytest.mark.parametrize("case", LISTED, ids=lambda case: case.id)
async def test_users_can_write_other_fields_of_control_planes(server: Environment, case: Case) -> None:
    await write(server, case)


async def test_a_snapshot_can_be_deleted(server: Environment) -> None:
    case = LISTED[-1]
    await create_for(server.outside, case)
    user = Client(InProcess(server.server, User(USER, groups=("system:authenticated",))))
    await user.delete(case.kind.resource, case.meta["name"], namespace=case.meta["namespace"])


@pytest.mark.parametrize("case", MOVED, ids=lambda case: case.id)
async def test_a_cluster_keeps_its_workspace(server: Environment, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(server, case)


@pytest.mark.parametrize("case", OVERWRITTEN, ids=lambda case: case.id)
async def test_only_the_creator_of_a_credential_can_write_it(server: Environment, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(server, case)


async def test_administrators_cannot_overwrite_the_credential_of_a_user(server: Environment) -> None:
    """A user may have created the name in advance, and would read the secret."""
    case = OVERWRITTEN[0]
    with suppress(AlreadyExists):
        await server.outside.create(case.kind.resource, case.object, namespace=case.meta["namespace"])
    options = {"namespace": case.meta["namespace"]}
    with pytest.raises(Forbidden, match="somebody"):
        await server.outside.patch(case.kind.resource, "held", case.patch or {}, **options)
    await server.outside.patch(case.kind.resource, "held", {"metadata": {"labels": {"a": "b"}}}, **options)


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case.id)
async def test_administrators_cannot_add_to_a_secret_of_another_user(server: Environment, case: Case) -> None:
    resource, namespace, name = case.kind.resource, case.meta["namespace"], case.meta["name"]
    await server.outside.create(resource, case.object, namespace=namespace)
    with pytest.raises(Forbidden, match="somebody"):
        await server.outside.patch(resource, name, case.patch or {}, namespace=namespace)
    await server.outside.delete(resource, name, namespace=namespace)


@pytest.mark.parametrize("case", UNNAMED, ids=lambda case: case.id)
async def test_a_secret_names_its_creator(server: Environment, case: Case) -> None:
    """Not if the user can change all Secrets of the namespace."""
    assert (await write(server, case))["metadata"]["annotations"] == {CREATOR: USER}
    meta = {**case.meta, "name": f"{case.meta['name']}-2"}
    created = await server.outside.create(
        case.kind.resource, {**case.object, "metadata": meta}, namespace=meta["namespace"]
    )
    assert "annotations" not in created["metadata"]


@pytest.mark.parametrize("case", GRANTED_ROLES, ids=lambda case: case.id)
async def test_only_the_manager_writes_its_roles(server: Environment, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(server, case)


@pytest.mark.parametrize("case", MACHINE_ROLES, ids=lambda case: case.id)
async def test_only_the_manager_writes_roles_of_machines(server: Environment, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(server, case)


@pytest.mark.parametrize("case", MARKED_BINDINGS, ids=lambda case: case.id)
async def test_no_user_makes_the_manager_wait_for_a_binding(server: Environment, case: Case) -> None:
    with pytest.raises(Forbidden, match="the manager finds the bindings of a member by it"):
        await write(server, case)


@pytest.mark.parametrize("case", KEPT_ROLES, ids=lambda case: case.id)
async def test_no_user_makes_rights_of_the_manager_outlast_their_end(server: Environment, case: Case) -> None:
    """Admins of a namespace may change Roles and RoleBindings there; API servers check only rules and subjects."""
    with pytest.raises(Forbidden, match=r"metadata\.finalizers, metadata\.ownerReferences: the manager grants rights"):
        await write(server, case)


async def test_the_garbage_collector_changes_finalizers_and_owners_of_roles(server: Environment) -> None:
    case = KEPT_ROLES[0]
    collector = {"kind": "User", "name": "system:serviceaccount:kube-system:generic-garbage-collector"}
    binding = cluster_role_binding("collector", WRITER_ROLE, {"apiGroup": RBAC, **collector})
    await server.outside.apply(CLUSTER_ROLE_BINDING.resource, binding)
    await write(server, case, collector["name"])


@pytest.mark.parametrize("case", OWN_ROLES, ids=lambda case: case.id)
async def test_users_can_write_other_roles(server: Environment, case: Case) -> None:
    await write(server, case)


@pytest.mark.parametrize("case", SIGNS_OF_A_CORE, ids=lambda case: case.id)
async def test_users_cannot_fake_another_cluster_api_core(server: Environment, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(server, case)


@pytest.mark.parametrize("case", OTHER_WORKLOADS, ids=lambda case: case.id)
async def test_other_workloads_are_not_affected(server: Environment, case: Case) -> None:
    await write(server, case)


async def test_a_cluster_cannot_have_the_name_of_an_existing_namespace(server: Environment) -> None:
    await server.outside.create(NAMESPACE.resource, new_manifest(NAMESPACE, "c-taken"))
    with pytest.raises(Forbidden, match="namespace c-taken exists"):
        await write(server, Case("", MANAGEMENT_CLUSTER, {"name": "c-taken"}, {"spec": {}}))


async def test_only_the_cluster_local_is_internal(env: Environment) -> None:  # noqa: F811
    """Even if admission let it through, on a server whose policies were removed."""
    internal = new_manifest(MANAGEMENT_CLUSTER, "c-m-9", spec={"internal": True})
    await create_with_namespace(env.outside, internal)
    await client_as(env, "root").create(
        CLUSTER_BINDING.resource, crtb("mallory", "cluster-owner", "c-m-9"), namespace="c-m-9"
    )
    await wait_until_allowed(env, "mallory", "update", MANAGEMENT_CLUSTER, "c-m-9")
    assert not await is_allowed(env, "mallory", "get", NAMESPACE)
    bindings = (await env.outside.list_all(CLUSTER_ROLE_BINDING.resource, labels=OWNED_BY)).items
    bindings_of_user = [each for each in bindings if each["subjects"][0]["name"] == "mallory"]
    assert {each["roleRef"]["name"] for each in bindings_of_user} == {"c-m-9-clusterowner"}


@pytest.mark.parametrize(
    ("kind", "finalizer", "granting"),
    [
        (PROVISIONING_CLUSTER, REMOVE_PROVISIONING, {"status": {"clusterName": "c-m-1"}}),
        (MANAGEMENT_CLUSTER, REMOVE_MANAGEMENT, {}),
    ],
    ids=["provisioning", "management"],
)
def test_users_cannot_remove_the_finalizer_that_ends_rights(kind: Kind, finalizer: str, granting: Object) -> None:
    """Neither while the cluster is deleted nor before: then it cannot be deleted until the manager restores it."""

    def cluster_with(*finalizers: str, **meta: object) -> Object:
        meta_defaults = {"name": "c-one", "namespace": "fleet-default", "annotations": {CREATOR_BOUND: "true"}}
        return new_manifest(kind, "c-one", **granting) | {
            "metadata": {**meta_defaults, "finalizers": [*finalizers], **meta}
        }

    def no_rights(*_: object, **__: object) -> bool:
        return False

    deleting = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert rules.refusal(
        kind, cluster_with(finalizer, "x", **deleting), cluster_with("x", **deleting), "mallory", no_rights
    )
    assert not rules.refusal(
        kind, cluster_with(finalizer, "x", **deleting), cluster_with(finalizer, **deleting), "mallory", no_rights
    )
    assert rules.deletion_refusal(kind, cluster_with(), {}, "mallory", no_rights)
    assert not rules.deletion_refusal(kind, cluster_with(finalizer), {}, "mallory", no_rights)
    assert not rules.deletion_refusal(
        kind, cluster_with(), {}, "system:serviceaccount:kube-system:namespace-controller", no_rights
    )
