"""API servers that do not call us refuse by policies what the embedded server refuses by its own rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from herder.api.capi.inventory import PROVIDER_CRD, PROVIDERS
from herder.api.capi.kinds import NAMESPACE
from herder.api.identity.crds import CRDS
from herder.api.identity.tenancy_policies import POLICIES
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.policies import POLICY, POLICY_BINDING
from herder.app.install import install_kinds, install_tenancy_policies
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, NotFound
from tests.support import tenancy
from tests.support.api import MERGE, Answer, Api
from tests.support.engines import Engine, remove_kinds
from tests.support.tenancy import (
    ALLOWED,
    GRANTED_ROLES,
    MACHINE_ROLES,
    MOVED,
    ORPHANED,
    OTHER_WORKLOADS,
    OVERWRITTEN,
    OWN_ROLES,
    OWNED,
    REFUSED,
    SIGNS_OF_A_CORE,
    Case,
)

PLACES = ("cattle-global-data", "fleet-default")
ALL = (
    *REFUSED,
    *ALLOWED,
    *ORPHANED,
    *MOVED,
    *OVERWRITTEN,
    *GRANTED_ROLES,
    *MACHINE_ROLES,
    *OWN_ROLES,
    *SIGNS_OF_A_CORE,
    *OTHER_WORKLOADS,
)
CUSTOM = (PROJECT, PROVISIONING_CLUSTER, MANAGEMENT_CLUSTER, REGISTRATION_TOKEN, PROVIDERS)


@pytest.fixture(scope="module")
async def judged(engine: Engine) -> AsyncIterator[Api]:
    """The user of the table, on a server with all policies in force."""
    client, api = engine.client(), Api(engine.connection)
    kinds = {f"{kind.plural}.{kind.group}" for kind in CUSTOM}
    definitions = [each for each in (*CRDS, *MANAGEMENT_CRDS, PROVIDER_CRD) if each["metadata"]["name"] in kinds]
    await install_kinds(client, definitions)
    await install_tenancy_policies(client)
    await tenancy.give_rights(client)
    for name in PLACES:
        with suppress(AlreadyExists):
            meta = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await client.create(NAMESPACE.resource, meta)
    user = api.as_user(tenancy.USER)
    try:
        await _until_in_force(client, user)
        yield user
    finally:
        for policy, _binding in POLICIES:
            for kind in (POLICY_BINDING, POLICY):
                await client.delete(kind.resource, policy["metadata"]["name"])
        await tenancy.take_rights(client)
        for case in ALL:
            if case.kind not in CUSTOM and "name" in case.meta:
                await _remove(client, case)
        # Others of this folder compare all kinds that there are.
        await remove_kinds(client, (each["metadata"]["name"] for each in definitions))
        await api.close()
        await client.close()


async def _until_in_force(client: Client, user: Api) -> None:
    """A real server learns of rights and policies a moment later; all of them come in one watch."""
    async with asyncio.timeout(60):
        for case in (each for each in (*REFUSED, *SIGNS_OF_A_CORE) if each.patch is None and "name" in each.meta):
            while b"ValidatingAdmissionPolicy" not in (await _write(client, user, case)).content:
                await _remove(client, case)
                await asyncio.sleep(0.1)


async def _write(client: Client, user: Api, case: Case) -> Answer:
    place = case.meta.get("namespace", "")
    if case.patch is None and case.delete_options is None:
        return await user.post(case.kind.resource.path(place), case.object)
    with suppress(AlreadyExists):
        await client.create(case.kind.resource, case.object, namespace=place)
    path = case.kind.resource.path(place, case.meta["name"], case.subresource)
    if case.patch is None:
        return await user.delete(path, case.delete_options)
    return await user.send("PATCH", path, case.patch, content_type=MERGE)


async def _remove(client: Client, case: Case) -> None:
    place = case.meta.get("namespace", "")
    with suppress(NotFound):
        if "finalizers" in case.meta:
            await client.patch(
                case.kind.resource, case.meta["name"], {"metadata": {"finalizers": None}}, namespace=place
            )
        await client.delete(case.kind.resource, case.meta["name"], namespace=place)


async def _check_refused(engine: Engine, judged: Api, case: Case) -> None:
    client = engine.client()
    try:
        answer = await _write(client, judged, case)
        assert answer.status == 403, answer.text
        assert "ValidatingAdmissionPolicy" in answer.message
    finally:
        await client.close()


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
async def test_what_the_manager_trusts_is_not_for_users_to_write(engine: Engine, judged: Api, case: Case) -> None:
    await _check_refused(engine, judged, case)


@pytest.mark.parametrize("case", ORPHANED, ids=lambda case: case.id)
async def test_nothing_that_grants_rights_outlives_its_object(engine: Engine, judged: Api, case: Case) -> None:
    await _check_refused(engine, judged, case)


@pytest.mark.parametrize("case", OWNED, ids=lambda case: case.id)
async def test_no_former_owner_deletes_a_cluster_by_an_object_of_its_own(
    engine: Engine, judged: Api, case: Case
) -> None:
    await _check_refused(engine, judged, case)


@pytest.mark.parametrize("case", MOVED, ids=lambda case: case.id)
async def test_a_cluster_keeps_its_workspace(engine: Engine, judged: Api, case: Case) -> None:
    await _check_refused(engine, judged, case)


@pytest.mark.parametrize("case", OVERWRITTEN, ids=lambda case: case.id)
async def test_a_credential_is_written_by_its_creator_alone(engine: Engine, judged: Api, case: Case) -> None:
    await _check_refused(engine, judged, case)


async def test_administrators_do_not_write_what_the_creator_of_a_credential_reads(engine: Engine, judged: Api) -> None:
    """A user may have taken the name in advance."""
    case, admin = OVERWRITTEN[0], judged.as_user("admin", "system:masters")
    await _check_refused(engine, admin, case)
    path = case.kind.resource.path(case.meta["namespace"], case.meta["name"])
    (await admin.send("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE)).expect(200)


@pytest.mark.parametrize("case", GRANTED_ROLES, ids=lambda case: case.id)
async def test_roles_that_the_manager_fills_are_the_managers_alone(engine: Engine, judged: Api, case: Case) -> None:
    await _check_refused(engine, judged, case)


@pytest.mark.parametrize("case", MACHINE_ROLES, ids=lambda case: case.id)
async def test_roles_of_machines_are_the_managers_alone(engine: Engine, judged: Api, case: Case) -> None:
    await _check_refused(engine, judged, case)


@pytest.mark.parametrize("case", SIGNS_OF_A_CORE, ids=lambda case: case.id)
async def test_no_user_makes_it_seem_that_another_core_is_installed(engine: Engine, judged: Api, case: Case) -> None:
    await _check_refused(engine, judged, case)


@pytest.mark.parametrize("case", [*ALLOWED, *OWN_ROLES, *OTHER_WORKLOADS], ids=lambda case: case.id)
async def test_their_own_objects_are(engine: Engine, judged: Api, case: Case) -> None:
    client = engine.client()
    try:
        (await _write(client, judged, case)).expect(200, 201)
    finally:
        await client.close()


async def test_the_server_still_issues_tokens_of_accounts(engine: Engine, judged: Api) -> None:
    """Whoever fills in such Secrets is no user: on a real cluster, its controller-manager."""
    admin = judged.as_user("admin", "system:masters").within("fleet-default")
    meta = {"name": "issued", "annotations": {tenancy.ACCOUNT: "default"}}
    (await admin.post(admin.at("secrets"), {"metadata": meta, "type": tenancy.TOKEN_TYPE})).expect(201)
    try:
        await admin.until_object(admin.at("secrets", "issued"), lambda secret: "token" in secret.get("data", {}))
    finally:
        await admin.delete(admin.at("secrets", "issued"))
