"""Machine tokens are accepted only if the manager issued them and the API server confirms it, on both engines."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from herder.api.capi.crds import CRDS as CAPI_CRDS
from herder.api.capi.kinds import DEFINITION, MACHINE, NAMESPACE, SECRET
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.api.rke import names
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.api.rke.kinds import BOOTSTRAP
from herder.api.writes import owner_reference
from herder.app.install import install_kinds
from herder.controllers.bootstrap import objects
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.gateway.nodes.machine_accounts import MachineAccounts, _redacted
from tests.support.builders import new_manifest
from tests.support.engines import Engine, remove_kinds, unique

NAME = "pool-1-abc"


@pytest.fixture(scope="module")
async def kinds(engine: Engine) -> AsyncIterator[None]:
    """Kinds that the server did not have before are removed at the end: other tests compare all kinds."""
    client = engine.client()
    wanted = {f"{kind.plural}.{kind.group}" for kind in (MACHINE, BOOTSTRAP)}
    definitions = [each for each in (*CAPI_CRDS, *RKE_CRDS) if each["metadata"]["name"] in wanted]
    known = {each["metadata"]["name"] for each in (await client.list_all(DEFINITION.resource)).items}
    await install_kinds(client, definitions)
    try:
        yield
    finally:
        await remove_kinds(client, wanted - known)
        await client.close()


class Machines:
    """A Machine and its RKEBootstrap in a namespace of this test."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.namespace = unique("issued")

    async def create(self, kind: Kind, obj: Object) -> Object:
        return await self.client.create(kind.resource, obj, namespace=self.namespace)

    async def prepare(self) -> None:
        await self.client.create(NAMESPACE.resource, new_manifest(NAMESPACE, self.namespace))
        reference = {"apiGroup": BOOTSTRAP.group, "kind": BOOTSTRAP.kind, "name": NAME}
        infra = {"apiGroup": "rke-machine.cattle.io", "kind": "ProcessMachine", "name": NAME}
        spec = {"clusterName": "meadow", "bootstrap": {"configRef": reference}, "infrastructureRef": infra}
        self.machine = await self.create(MACHINE, new_manifest(MACHINE, NAME, self.namespace, spec=spec))
        owner = owner_reference(MACHINE, self.machine, controller=True)
        owned = new_manifest(BOOTSTRAP, NAME, self.namespace, owners=[owner], spec={"clusterName": "meadow"})
        self.bootstrap = await self.create(BOOTSTRAP, owned)
        account = objects.bootstrap_account(self.bootstrap, self.machine)
        self.account = await self.create(SERVICE_ACCOUNT, account)

    async def secret(self, name: str = "", token: bytes = b"", *, owned: bool = True) -> Object:
        """Create a token Secret as the manager does, with the given differences, and wait until it has a token."""
        obj = objects.token_secret(self.bootstrap, self.machine, self.account)
        obj["metadata"]["name"] = name or obj["metadata"]["name"]
        if token:
            obj["data"] = {"token": base64.b64encode(token).decode()}
        if not owned:
            del obj["metadata"]["ownerReferences"]
        await self.create(SECRET, obj)
        async with asyncio.timeout(60):
            while True:
                stored = await self.client.get(SECRET.resource, obj["metadata"]["name"], namespace=self.namespace)
                if (stored.get("data") or {}).get("token") and objects.TOKEN_OF_UID in stored["metadata"][
                    "annotations"
                ]:
                    return stored
                await asyncio.sleep(0.05)

    async def is_accepted(self, secret: Object) -> bool:
        issued = await MachineAccounts(self.client).issued_to(_redacted(secret), names.ACCOUNT_FOR_BOOTSTRAP)
        return issued is not None and issued.machine["metadata"]["uid"] == self.machine["metadata"]["uid"]


@pytest.fixture
async def machines(kinds: None, client: Client) -> AsyncIterator[Machines]:
    machines = Machines(client)
    await machines.prepare()
    try:
        yield machines
    finally:
        with suppress(NotFound):
            await client.delete(MACHINE.resource, NAME, namespace=machines.namespace)
        await client.delete(NAMESPACE.resource, machines.namespace)


async def test_only_the_token_that_the_manager_issued_is_accepted(machines: Machines) -> None:
    genuine = await machines.secret()
    assert await machines.is_accepted(genuine)
    assert not await machines.is_accepted(await machines.secret("a-copy")), "another Secret of the same account"
    assert not await machines.is_accepted(await machines.secret("forged", b"mine")), "a token that its author chose"


async def test_a_forged_token_under_the_right_name_is_rejected(machines: Machines) -> None:
    assert not await machines.is_accepted(await machines.secret(token=b"mine"))


async def test_a_token_in_a_secret_without_owner_is_rejected(machines: Machines) -> None:
    assert not await machines.is_accepted(await machines.secret(owned=False))
