"""Writes by which a user could become more than they are, on the embedded server with its own admission."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from herder.api.capi.inventory import PROVIDER_CRD
from herder.api.capi.kinds import NAMESPACE
from herder.api.identity import tenancy as rules
from herder.api.identity.crds import CRDS
from herder.api.identity.creators import CREATOR_BOUND
from herder.api.identity.roles import CLUSTER_ROLE_BINDING, OWNED_BY
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import CLUSTER_BINDING, MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.names import REMOVE_MANAGEMENT, REMOVE_PROVISIONING
from herder.app.admission.kinds import install_role_admission
from herder.app.admission.tenancy import install_tenancy_admission
from herder.app.install import install_kinds
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, Forbidden, Invalid, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.wire import User
from tests.support import tenancy
from tests.support.homes import create_with_home
from tests.support.tenancy import Case
from tests.unit.engine.runtime import world as worlds
from tests.unit.engine.runtime.world import World
from tests.unit.gateway.identity.test_grants import acting, allowed, crtb, here, may, obj  # noqa: F401


@pytest.fixture(scope="module")
async def judged() -> AsyncIterator[World]:
    """A server with all rules in force and the user of the table."""
    async with worlds.world() as made:
        await install_kinds(made.outside, [*CRDS, *MANAGEMENT_CRDS, PROVIDER_CRD])
        install_role_admission(made.server, made.outside)
        install_tenancy_admission(made.server, made.outside)
        for name in ("cattle-global-data", "cattle-system", "fleet-default"):
            await made.outside.create(NAMESPACE.resource, obj(NAMESPACE, name))
        await tenancy.give_rights(made.outside)
        yield made


async def write(judged: World, case: Case) -> Object:
    user = Client(InProcess(judged.server, User(tenancy.USER, groups=("system:authenticated",))))
    place = case.meta.get("namespace", "")
    if case.patch is None and case.delete_options is None:
        return await user.create(case.kind.resource, case.object, namespace=place)
    with suppress(AlreadyExists):
        await judged.outside.create(case.kind.resource, case.object, namespace=place)
    if case.patch is None:
        path = f"{case.kind.resource.path(place)}/{case.meta['name']}"
        answer = await user.raw(
            "DELETE", path, body=json.dumps(case.delete_options).encode(), headers={"content-type": "application/json"}
        )
        told: Object = json.loads(answer.content() or b"{}")
        if answer.status >= 400:
            raise StatusError.from_status(told, answer.status)
        return told
    name, part = case.meta["name"], case.subresource
    return await user.patch(case.kind.resource, name, case.patch, namespace=place, subresource=part)


@pytest.mark.parametrize("case", tenancy.REFUSED, ids=lambda case: case.id)
async def test_what_the_manager_trusts_is_not_for_users_to_write(judged: World, case: Case) -> None:
    with pytest.raises((Forbidden, Invalid)):
        await write(judged, case)


@pytest.mark.parametrize("case", tenancy.ALLOWED, ids=lambda case: case.id)
async def test_their_own_objects_are(judged: World, case: Case) -> None:
    made = (await write(judged, case))["metadata"]["name"]
    assert made == case.meta.get("name", made)


@pytest.mark.parametrize("case", tenancy.ORPHANED, ids=lambda case: case.id)
async def test_nothing_that_grants_rights_outlives_its_object(judged: World, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(judged, case)


@pytest.mark.parametrize("case", tenancy.OWNED, ids=lambda case: case.id)
async def test_no_former_owner_deletes_a_cluster_by_an_object_of_its_own(judged: World, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(judged, case)


@pytest.mark.parametrize("case", tenancy.MOVED, ids=lambda case: case.id)
async def test_a_cluster_keeps_its_workspace(judged: World, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(judged, case)


@pytest.mark.parametrize("case", tenancy.OVERWRITTEN, ids=lambda case: case.id)
async def test_a_credential_is_written_by_its_creator_alone(judged: World, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(judged, case)


async def test_administrators_do_not_write_what_the_creator_of_a_credential_reads(judged: World) -> None:
    """A user may have taken the name in advance."""
    case = tenancy.OVERWRITTEN[0]
    with suppress(AlreadyExists):
        await judged.outside.create(case.kind.resource, case.object, namespace=case.meta["namespace"])
    place = {"namespace": case.meta["namespace"]}
    with pytest.raises(Forbidden, match="somebody"):
        await judged.outside.patch(case.kind.resource, "held", case.patch or {}, **place)
    await judged.outside.patch(case.kind.resource, "held", {"metadata": {"labels": {"a": "b"}}}, **place)


@pytest.mark.parametrize("case", tenancy.GRANTED_ROLES, ids=lambda case: case.id)
async def test_roles_that_the_manager_fills_are_the_managers_alone(judged: World, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(judged, case)


@pytest.mark.parametrize("case", tenancy.MACHINE_ROLES, ids=lambda case: case.id)
async def test_roles_of_machines_are_the_managers_alone(judged: World, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(judged, case)


@pytest.mark.parametrize("case", tenancy.OWN_ROLES, ids=lambda case: case.id)
async def test_other_roles_are_not(judged: World, case: Case) -> None:
    await write(judged, case)


@pytest.mark.parametrize("case", tenancy.SIGNS_OF_A_CORE, ids=lambda case: case.id)
async def test_no_user_makes_it_seem_that_another_core_is_installed(judged: World, case: Case) -> None:
    with pytest.raises(Forbidden):
        await write(judged, case)


@pytest.mark.parametrize("case", tenancy.OTHER_WORKLOADS, ids=lambda case: case.id)
async def test_other_workloads_are_not_affected(judged: World, case: Case) -> None:
    await write(judged, case)


async def test_a_namespace_that_exists_is_no_clusters(judged: World) -> None:
    await judged.outside.create(NAMESPACE.resource, obj(NAMESPACE, "c-taken"))
    with pytest.raises(Forbidden, match="namespace c-taken exists"):
        await write(judged, Case("", MANAGEMENT_CLUSTER, {"name": "c-taken"}, {"spec": {}}))


async def test_only_the_cluster_local_is_the_managers_own(here: World) -> None:  # noqa: F811
    """Also where admission let it through: on a server whose policies were removed."""
    internal = obj(MANAGEMENT_CLUSTER, "c-m-9", spec={"internal": True})
    await create_with_home(here.outside, internal)
    await acting(here, "root").create(
        CLUSTER_BINDING.resource, crtb("mallory", "cluster-owner", "c-m-9"), namespace="c-m-9"
    )
    await allowed(here, "mallory", "update", MANAGEMENT_CLUSTER, "c-m-9")
    assert not await may(here, "mallory", "get", NAMESPACE)
    bindings = (await here.outside.list_all(CLUSTER_ROLE_BINDING.resource, labels=OWNED_BY)).items
    theirs = [each for each in bindings if each["subjects"][0]["name"] == "mallory"]
    assert {each["roleRef"]["name"] for each in theirs} == {"c-m-9-clusterowner"}


@pytest.mark.parametrize(
    ("kind", "finalizer", "granting"),
    [
        (PROVISIONING_CLUSTER, REMOVE_PROVISIONING, {"status": {"clusterName": "c-m-1"}}),
        (MANAGEMENT_CLUSTER, REMOVE_MANAGEMENT, {}),
    ],
    ids=["provisioning", "management"],
)
def test_users_do_not_take_the_finalizer_that_ends_rights(kind: Kind, finalizer: str, granting: Object) -> None:
    """Neither while the cluster is deleted, nor before: then it cannot be deleted until the manager restored it."""

    def of(*finalizers: str, **meta: object) -> Object:
        known = {"name": "c-one", "namespace": "fleet-default", "annotations": {CREATOR_BOUND: "true"}}
        return obj(kind, "c-one", **granting) | {"metadata": {**known, "finalizers": [*finalizers], **meta}}

    def nobody(*_: object, **__: object) -> bool:
        return False

    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert rules.refusal(kind, of(finalizer, "x", **going), of("x", **going), "mallory", nobody)
    assert not rules.refusal(kind, of(finalizer, "x", **going), of(finalizer, **going), "mallory", nobody)
    assert rules.deletion_refusal(kind, of(), {}, "mallory", nobody)
    assert not rules.deletion_refusal(kind, of(finalizer), {}, "mallory", nobody)
    assert not rules.deletion_refusal(kind, of(), {}, "system:serviceaccount:kube-system:namespace-controller", nobody)
