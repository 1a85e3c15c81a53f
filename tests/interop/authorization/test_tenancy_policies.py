"""On API servers without Herder's admission, policies reject what the embedded server rejects by its own rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from herder.api.capi.crds import CRDS as CORE_CRDS
from herder.api.capi.inventory import PROVIDER_CRD, PROVIDERS
from herder.api.capi.kinds import CLUSTER, NAMESPACE
from herder.api.identity.crds import CRDS
from herder.api.identity.tenancy_policies import POLICIES
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.policies import POLICY, POLICY_BINDING
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.app.install import install_kinds, install_tenancy_policies
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, NotFound
from tests.support.api import MERGE, Api, ApiResponse
from tests.support.engines import Engine, remove_kinds
from tests.support.tenancy.case import Case, create_for
from tests.support.tenancy.clusters import IDENTIFIED, MOVED, OWNED, REPORTED, WITHHELD
from tests.support.tenancy.cores import OTHER_WORKLOADS, SIGNS_OF_A_CORE
from tests.support.tenancy.deletions import ORPHANED, OUTLASTING
from tests.support.tenancy.restores import LISTED, RESTORED
from tests.support.tenancy.roles import GRANTED_ROLES, KEPT_ROLES, MACHINE_ROLES, MARKED_BINDINGS, OWN_ROLES
from tests.support.tenancy.secrets import EDITED, OVERWRITTEN, REDIRECTED, TAKEN, UNNAMED
from tests.support.tenancy.users import EDITORS, USER, grant_rights, revoke_rights
from tests.support.tenancy.writes import ACCOUNT, ALLOWED, REFUSED, TOKEN_TYPE

NAMESPACES = ("cattle-global-data", "fleet-default")
ALL = (
    *REFUSED,
    *ALLOWED,
    *ORPHANED,
    *OUTLASTING,
    *REDIRECTED,
    *EDITED,
    *MOVED,
    *WITHHELD,
    *IDENTIFIED,
    REPORTED,
    *RESTORED,
    *LISTED,
    *OVERWRITTEN,
    *TAKEN,
    *UNNAMED,
    *GRANTED_ROLES,
    *MACHINE_ROLES,
    *KEPT_ROLES,
    *MARKED_BINDINGS,
    *OWN_ROLES,
    *SIGNS_OF_A_CORE,
    *OTHER_WORKLOADS,
)
CUSTOM = (
    CLUSTER,
    CONTROL_PLANE,
    ETCD_SNAPSHOT,
    PROJECT,
    PROVISIONING_CLUSTER,
    MANAGEMENT_CLUSTER,
    REGISTRATION_TOKEN,
    PROVIDERS,
)


@pytest.fixture(scope="module")
async def user_api(engine: Engine) -> AsyncIterator[Api]:
    """The user of the table, on a server with all policies enforced."""
    client, api = engine.client(), Api(engine.connection)
    kinds = {f"{kind.plural}.{kind.group}" for kind in CUSTOM}
    definitions = [
        each
        for each in (*CRDS, *MANAGEMENT_CRDS, *CORE_CRDS, *RKE_CRDS, PROVIDER_CRD)
        if each["metadata"]["name"] in kinds
    ]
    await install_kinds(client, definitions)
    await install_tenancy_policies(client)
    await grant_rights(client)
    for name in NAMESPACES:
        with suppress(AlreadyExists):
            meta = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await client.create(NAMESPACE.resource, meta)
    user = api.as_user(USER)
    try:
        await _wait_until_enforced(client, user)
        yield user
    finally:
        for policy, _binding in POLICIES:
            for kind in (POLICY_BINDING, POLICY):
                await client.delete(kind.resource, policy["metadata"]["name"])
        await revoke_rights(client)
        for case in ALL:
            if case.kind not in CUSTOM and "name" in case.meta:
                await _remove(client, case)
        # Other tests of this folder compare the list of all kinds.
        await remove_kinds(client, (each["metadata"]["name"] for each in definitions))
        await api.close()
        await client.close()


async def _wait_until_enforced(client: Client, user: Api) -> None:
    """kube-apiserver loads rights and policies with a delay; all of them arrive in one watch."""
    async with asyncio.timeout(60):
        for case in (
            each for each in (*REFUSED, *SIGNS_OF_A_CORE, *RESTORED) if each.patch is None and "name" in each.meta
        ):
            while b"ValidatingAdmissionPolicy" not in (await _write(client, user, case)).content:
                await _remove(client, case)
                await asyncio.sleep(0.1)


async def _write(client: Client, user: Api, case: Case) -> ApiResponse:
    place = case.meta.get("namespace", "")
    if case.patch is None and case.delete_options is None:
        return await user.post(case.kind.resource.path(place), case.object)
    await create_for(client, case)
    path = case.kind.resource.path(place, case.meta["name"], case.subresource)
    if case.patch is None:
        return await user.delete(path, case.delete_options)
    return await user.send("PATCH", path, case.patch, content_type=MERGE)


async def _remove(client: Client, case: Case) -> None:
    place = case.meta.get("namespace", "")
    with suppress(NotFound):
        if "finalizers" in case.meta or "finalizers" in (case.patch or {}).get("metadata", {}):
            await client.patch(
                case.kind.resource, case.meta["name"], {"metadata": {"finalizers": None}}, namespace=place
            )
        await client.delete(case.kind.resource, case.meta["name"], namespace=place)


async def _assert_rejected(engine: Engine, user_api: Api, case: Case) -> None:
    client = engine.client()
    try:
        answer = await _write(client, user_api, case)
        assert answer.status == 403, answer.text
        assert "ValidatingAdmissionPolicy" in answer.message
    finally:
        await client.close()


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
async def test_users_cannot_write_what_the_manager_trusts(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api, case)


@pytest.mark.parametrize("case", ORPHANED, ids=lambda case: case.id)
async def test_objects_that_grant_rights_are_not_orphaned(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api, case)


@pytest.mark.parametrize("user", EDITORS)
@pytest.mark.parametrize("case", [*OUTLASTING, *REDIRECTED], ids=lambda case: case.id)
async def test_editors_cannot_write_what_the_manager_trusts(
    engine: Engine, user_api: Api, case: Case, user: str
) -> None:
    await _assert_rejected(engine, user_api.as_user(user), case)


@pytest.mark.parametrize("case", EDITED, ids=lambda case: case.id)
async def test_editors_can_write_other_secrets(engine: Engine, user_api: Api, case: Case) -> None:
    client = engine.client()
    try:
        (await _write(client, user_api.as_user(EDITORS[0]), case)).expect(200, 201)
    finally:
        await client.close()


@pytest.mark.parametrize("case", OWNED, ids=lambda case: case.id)
async def test_users_cannot_set_owners_of_clusters(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api, case)


@pytest.mark.parametrize("case", WITHHELD, ids=lambda case: case.id)
async def test_only_administrators_make_clusters_observe_only(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api, case)


@pytest.mark.parametrize("case", IDENTIFIED, ids=lambda case: case.id)
async def test_only_the_manager_names_the_management_cluster(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api, case)


async def test_users_can_write_other_fields_of_the_status_of_clusters(engine: Engine, user_api: Api) -> None:
    client = engine.client()
    try:
        (await _write(client, user_api, REPORTED)).expect(200)
    finally:
        await client.close()


@pytest.mark.parametrize("case", RESTORED, ids=lambda case: case.id)
async def test_only_the_manager_writes_what_a_restore_trusts(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api, case)


@pytest.mark.parametrize("case", MOVED, ids=lambda case: case.id)
async def test_a_cluster_keeps_its_workspace(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api, case)


@pytest.mark.parametrize("case", OVERWRITTEN, ids=lambda case: case.id)
async def test_only_its_creator_writes_a_credential(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api, case)


async def test_administrators_cannot_write_credentials_of_users(engine: Engine, user_api: Api) -> None:
    """A user may have taken the name in advance, and would read the administrator's data."""
    case, admin = OVERWRITTEN[0], user_api.as_user("admin", "system:masters")
    await _assert_rejected(engine, admin, case)
    path = case.kind.resource.path(case.meta["namespace"], case.meta["name"])
    (await admin.send("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE)).expect(200)


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case.id)
async def test_administrators_cannot_add_to_a_secret_of_another_user(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api.as_user("admin", "system:masters"), case)


@pytest.mark.parametrize("case", UNNAMED, ids=lambda case: case.id)
async def test_a_secret_names_its_creator(engine: Engine, user_api: Api, case: Case) -> None:
    """A policy cannot add the annotation, so it rejects the Secret."""
    await _assert_rejected(engine, user_api, case)


@pytest.mark.parametrize("case", GRANTED_ROLES, ids=lambda case: case.id)
async def test_only_the_manager_writes_roles_that_it_fills(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api, case)


@pytest.mark.parametrize("case", MACHINE_ROLES, ids=lambda case: case.id)
async def test_only_the_manager_writes_roles_of_machines(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api, case)


@pytest.mark.parametrize("case", MARKED_BINDINGS, ids=lambda case: case.id)
async def test_no_user_makes_the_manager_wait_for_a_binding(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api, case)


@pytest.mark.parametrize("case", KEPT_ROLES, ids=lambda case: case.id)
async def test_no_user_makes_rights_of_the_manager_outlast_their_end(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api, case)


@pytest.mark.parametrize("case", SIGNS_OF_A_CORE, ids=lambda case: case.id)
async def test_users_cannot_imitate_another_core(engine: Engine, user_api: Api, case: Case) -> None:
    await _assert_rejected(engine, user_api, case)


@pytest.mark.parametrize("case", [*ALLOWED, *OWN_ROLES, *OTHER_WORKLOADS, *LISTED], ids=lambda case: case.id)
async def test_users_can_write_their_own_objects(engine: Engine, user_api: Api, case: Case) -> None:
    client = engine.client()
    try:
        (await _write(client, user_api, case)).expect(200, 201)
    finally:
        await client.close()


async def test_the_server_still_issues_service_account_tokens(engine: Engine, user_api: Api) -> None:
    """The controller that fills such Secrets is exempt; on a real cluster, it is the controller-manager."""
    admin = user_api.as_user("admin", "system:masters").in_namespace("fleet-default")
    meta = {"name": "issued", "annotations": {ACCOUNT: "default"}}
    (await admin.post(admin.at("secrets"), {"metadata": meta, "type": TOKEN_TYPE})).expect(201)
    try:
        await admin.until_object(admin.at("secrets", "issued"), lambda secret: "token" in secret.get("data", {}))
    finally:
        await admin.delete(admin.at("secrets", "issued"))
