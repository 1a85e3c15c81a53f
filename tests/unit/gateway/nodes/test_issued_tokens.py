"""Which tokens of machines count, on both engines: those that the manager issued, as the API server confirms."""

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
from tests.support.engines import Engine, remove_kinds, unique

NAME = "pool-1-abc"


@pytest.fixture(scope="module")
async def kinds(engine: Engine) -> AsyncIterator[None]:
    """Those that were not there before are removed: others compare all kinds that there are."""
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
    """A Machine and its RKEBootstrap in a namespace of the test's own."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.namespace = unique("issued")

    async def create(self, kind: Kind, obj: Object) -> Object:
        return await self.client.create(kind.resource, obj, namespace=self.namespace)

    async def prepare(self) -> None:
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        await self.client.create(NAMESPACE.resource, space)
        reference = {"apiGroup": BOOTSTRAP.group, "kind": BOOTSTRAP.kind, "name": NAME}
        infra = {"apiGroup": "rke-machine.cattle.io", "kind": "ProcessMachine", "name": NAME}
        spec = {"clusterName": "meadow", "bootstrap": {"configRef": reference}, "infrastructureRef": infra}
        meta = {"name": NAME, "namespace": self.namespace}
        self.machine = await self.create(MACHINE, _object(MACHINE, meta, spec))
        owner = owner_reference(MACHINE, self.machine, controller=True)
        owned = {**meta, "ownerReferences": [owner]}
        self.bootstrap = await self.create(BOOTSTRAP, _object(BOOTSTRAP, owned, {"clusterName": "meadow"}))
        account = objects.bootstrap_account(self.bootstrap, self.machine)
        self.account = await self.create(SERVICE_ACCOUNT, account)

    async def secret(self, name: str = "", token: bytes = b"", *, owned: bool = True) -> Object:
        """As the manager makes it, but for what is told otherwise; once it holds a token."""
        made = objects.token_secret(self.bootstrap, self.machine, self.account)
        made["metadata"]["name"] = name or made["metadata"]["name"]
        if token:
            made["data"] = {"token": base64.b64encode(token).decode()}
        if not owned:
            del made["metadata"]["ownerReferences"]
        await self.create(SECRET, made)
        async with asyncio.timeout(60):
            while True:
                found = await self.client.get(SECRET.resource, made["metadata"]["name"], namespace=self.namespace)
                if (found.get("data") or {}).get("token") and objects.TOKEN_OF_UID in found["metadata"]["annotations"]:
                    return found
                await asyncio.sleep(0.05)

    async def counts(self, secret: Object) -> bool:
        issued = await MachineAccounts(self.client).issued_to(_redacted(secret), names.ACCOUNT_FOR_BOOTSTRAP)
        return issued is not None and issued.machine["metadata"]["uid"] == self.machine["metadata"]["uid"]


@pytest.fixture
async def machines(kinds: None, client: Client) -> AsyncIterator[Machines]:
    made = Machines(client)
    await made.prepare()
    try:
        yield made
    finally:
        with suppress(NotFound):
            await client.delete(MACHINE.resource, NAME, namespace=made.namespace)
        await client.delete(NAMESPACE.resource, made.namespace)


async def test_a_token_that_the_manager_issued_counts_and_no_other(machines: Machines) -> None:
    genuine = await machines.secret()
    assert await machines.counts(genuine)
    assert not await machines.counts(await machines.secret("a-copy")), "another Secret of the same account"
    assert not await machines.counts(await machines.secret("forged", b"mine")), "a token of its author's own"


async def test_a_forged_token_under_the_right_name_does_not_count(machines: Machines) -> None:
    assert not await machines.counts(await machines.secret(token=b"mine"))


async def test_a_token_in_a_secret_without_its_owner_does_not_count(machines: Machines) -> None:
    assert not await machines.counts(await machines.secret(owned=False))


def _object(kind: Kind, meta: Object, spec: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": spec}
