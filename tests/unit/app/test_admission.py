"""Admission in the embedded server for a kind that is also served in another version than the rules'."""

from __future__ import annotations

import copy
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from herder.api.capi.crds import CRDS
from herder.api.capi.kinds import MACHINE as KIND
from herder.app.admission.kinds import install_admission
from herder.app.install import install_kinds
from herder.engine.apiserver.build import assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.apiserver.pki import Pki
from herder.engine.client.client import Client
from herder.engine.meta.errors import Invalid
from herder.engine.meta.kinds import Object
from herder.engine.wire import User
from tests.unit.api.capi.admission.objects import MACHINE, changed

ADMIN = User("admin", groups=("system:masters", "system:authenticated"))
OLDER = KIND._replace(version="v1beta1")


def now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def serving(definition: Object) -> AsyncIterator[Client]:
    server = await assemble(None, clock=now, entropy=os.urandom, pki=Pki.load_or_create(None, now=now()))
    install_admission(server)
    client = Client(InProcess(server, ADMIN))
    try:
        await install_kinds(client, [definition])
        yield client
    finally:
        await server.stop()


def with_two_versions(*, newer_served: bool) -> Object:
    """A definition of two versions that differ only in their names, so that no converter is needed."""
    definition: Object = copy.deepcopy(next(crd for crd in CRDS if crd["spec"]["names"]["kind"] == KIND.kind))
    (newer,) = definition["spec"]["versions"]
    older = {**copy.deepcopy(newer), "name": OLDER.version, "storage": False}
    definition["spec"]["versions"] = [{**newer, "served": newer_served}, older]
    return definition


def machine(**changes: object) -> Object:
    return changed(MACHINE, {"apiVersion": OLDER.api_version, "metadata.labels": {}, **changes})


async def create(client: Client, obj: Object) -> Object:
    return await client.create(OLDER.resource, obj, namespace="default")


async def test_a_write_in_another_version_is_admitted_and_returned_in_its_own() -> None:
    async with serving(with_two_versions(newer_served=True)) as client:
        created = await create(client, machine())
        assert created["apiVersion"] == OLDER.api_version
        assert created["metadata"]["labels"] == {"cluster.x-k8s.io/cluster-name": "prod"}
        with pytest.raises(Invalid, match=r"spec\.bootstrap"):
            await create(client, machine(spec={**MACHINE["spec"], "bootstrap": {}}))


async def test_rules_do_not_apply_if_their_version_is_not_served() -> None:
    async with serving(with_two_versions(newer_served=False)) as client:
        assert "labels" not in (await create(client, machine()))["metadata"]
