"""Ours and upstream's Cluster API, put together from parts of both: the contract between them is kept on both sides."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET, SECRET
from herder.api.inmemory.kinds import IN_MEMORY_MACHINE
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Kind, Object
from tests.support.api import Api
from tests.support.capi import (
    CORE_KINDS,
    PROVIDED_KINDS,
    HerderRun,
    all_running,
    make_namespace,
    none_left,
    put_up,
    said,
    served,
    until,
)
from tests.support.embedded import Embedded
from tests.support.engines import Engine
from tests.support.inmemory import in_memory_cluster
from tests.support.upstream import CORE, UpstreamManager

NAMESPACE = "pasture"


@dataclass
class Stage:
    engine: Engine
    client: Client
    ours: HerderRun


# --- upstream's core, our provider ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def their_core(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """Our provider in the server's own process; beside it one of ours that would be the core if no other was there."""
    with Embedded(tmp_path_factory.mktemp("embedded"), flags=("--capi-core=external", "--in-memory")) as server:
        engine = Engine("embedded", server.kubeconfig)
        api, client = Api(engine.connection), engine.client()
        manager = UpstreamManager(CORE, engine, tmp_path_factory.mktemp("core"))
        ours = HerderRun(engine, tmp_path_factory.mktemp("ours"), "--capi-core=auto")
        try:
            await manager.install(api)
            await manager.start()
            ours.start()
            await served(client, *CORE_KINDS, *PROVIDED_KINDS)
            await make_namespace(client, NAMESPACE)
            yield Stage(engine, client, ours)
        finally:
            ours.stop()
            manager.stop()
            await client.close()
            await api.close()


async def test_their_core_brings_a_cluster_of_our_provider_to_running_and_takes_it_apart(their_core: Stage) -> None:
    client = their_core.client
    await put_up(client, NAMESPACE, in_memory_cluster("merino", workers=2))
    machines = await until(client, MACHINE, NAMESPACE, all_running(3))
    assert all(machine["status"]["nodeRef"]["name"] == machine["metadata"]["name"] for machine in machines)
    await until(client, CLUSTER, NAMESPACE, lambda found: [said(each, "Available") for each in found] == ["True"])

    await client.delete(CLUSTER.resource, "merino", namespace=NAMESPACE)
    for kind in (*CORE_KINDS, *PROVIDED_KINDS):
        await until(client, kind, NAMESPACE, none_left)
