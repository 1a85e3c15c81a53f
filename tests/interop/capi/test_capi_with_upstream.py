"""Cluster API assembled from upstream's parts and Herder's: both sides keep the contract between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.names import CONTROL_PLANE, labels_of
from herder.api.inmemory.manifest import in_memory_cluster
from herder.app.manager import core_controllers
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Kind, Object
from tests.support.api import Api
from tests.support.capi import (
    CORE_KINDS,
    PROVIDER_KINDS,
    TEMPLATE_KINDS,
    TIMEOUT,
    HerderRun,
    all_running,
    condition_status,
    create_objects,
    ensure_namespace,
    none_left,
    wait_for_admission,
    wait_until,
    wait_until_served,
    webhook_flags,
)
from tests.support.checks.comparison import Names, normalized
from tests.support.embedded import Embedded
from tests.support.engines import CONTROLLERS, Engine
from tests.support.kube import RealKube
from tests.support.upstream import CORE, PROVIDERS, Program, UpstreamManager, dev_cluster

NAMESPACE, NAME = "pasture", "merino"


@asynccontextmanager
async def upstream(engine: Engine, programs: tuple[Program, ...], directory: Path) -> AsyncIterator[None]:
    """Upstream's managers running on an engine; they are stopped in order."""
    api, managers = Api(engine.connection), []
    try:
        for program in programs:
            manager_dir = directory / program.peer
            manager_dir.mkdir()
            managers.append(UpstreamManager(program, engine, manager_dir))
            await managers[-1].install(api)
        for manager in managers:
            await manager.start()
        yield
    finally:
        for manager in managers:
            manager.stop()
        await api.close()


async def wait_until_available(client: Client) -> None:
    machines = await wait_until(client, MACHINE, NAMESPACE, all_running(3))
    assert all(machine["status"]["nodeRef"]["name"] for machine in machines)
    await wait_until(
        client, CLUSTER, NAMESPACE, lambda found: [condition_status(each, "Available") for each in found] == ["True"]
    )


async def delete_and_wait(client: Client) -> None:
    await client.delete(CLUSTER.resource, NAME, namespace=NAMESPACE)
    for kind in CORE_KINDS:
        await wait_until(client, kind, NAMESPACE, none_left)


# --- upstream's core, Herder's provider -------------------------------------------------------------------------------


async def test_upstreams_core_runs_a_cluster_of_herders_provider(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    flags = ("--capi-core=external", "--no-machines", "--in-memory")
    async with cluster_of_our_core(tmp_path_factory.mktemp("ours")) as ours:
        with Embedded(tmp_path / "embedded", flags=flags) as server:
            engine = Engine("embedded", server.kubeconfig)
            client = engine.client()
            async with upstream(engine, (CORE,), tmp_path):
                # It would run the core if no other core existed.
                with HerderRun(engine, tmp_path / "disabled", "--capi-core=auto", "--no-machines") as disabled:
                    await wait_until_served(client, *CORE_KINDS, *PROVIDER_KINDS)
                    await ensure_namespace(client, NAMESPACE)
                    await create_objects(client, NAMESPACE, in_memory_cluster(NAME))
                    await wait_until_available(client)
                    await wait_until_equal(client, ours)
                    await assert_core_writes_nothing(client)
                    assert "The built-in core is disabled" in disabled.log()
                    await delete_and_wait(client)
                    for kind in PROVIDER_KINDS:
                        await wait_until(client, kind, NAMESPACE, none_left)
            await client.close()


@asynccontextmanager
async def cluster_of_our_core(directory: Path) -> AsyncIterator[Client]:
    with Embedded(directory, flags=("--capi-core=own", "--no-machines", "--in-memory")) as server:
        client = Engine("embedded", server.kubeconfig).client()
        try:
            await wait_until_served(client, *CORE_KINDS, *PROVIDER_KINDS)
            await ensure_namespace(client, NAMESPACE)
            await create_objects(client, NAMESPACE, in_memory_cluster(NAME))
            await wait_until_available(client)
            yield client
        finally:
            await client.close()


async def everything(client: Client) -> dict[str, Object]:
    """All objects by kind and role; of equal Machines, one."""
    names, found = Names(NAME), {}
    for kind in (*CORE_KINDS, *PROVIDER_KINDS, *TEMPLATE_KINDS):
        for obj in (await client.list_all(kind.resource, namespace=NAMESPACE)).items:
            same = json.loads(normalized(names, {**obj, "metadata": obj["metadata"] | {"managedFields": []}}))
            found[f"{kind.kind} {same['metadata']['name']}"] = same
    return found


ACCEPTED = (
    ".versions[",  # upstream reports versions from 1.14 on
    "annotations.cluster.herder.io/propagated",  # fields that a MachineSet owns: upstream reads managedFields
    # Upstream reads a provider's newer condition list as the older one, which has no such reason.
    "deprecated.v1beta1.conditions[InfrastructureReady].reason",
)


async def wait_until_equal(client: Client, reference: Client) -> None:
    """Both converge at their own pace, and progress reports are debounced."""
    different: list[str] = []
    try:
        async with asyncio.timeout(TIMEOUT):
            while True:
                ours, theirs = await everything(reference), await everything(client)
                if not (different := differences(ours, theirs)):
                    break
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise AssertionError("\n".join(different)) from None
    assert differences(ours, theirs, accepted=()), "the accepted differences exist"


def differences(ours: dict[str, Object], theirs: dict[str, Object], accepted: tuple[str, ...] = ACCEPTED) -> list[str]:
    one, other = dict(leaves(ours)), dict(leaves(theirs))
    return [
        f"{path}: ours {one.get(path)!r}, upstream's {other.get(path)!r}"
        for path in sorted(one.keys() | other.keys())
        if one.get(path) != other.get(path) and not any(each in path for each in accepted)
    ]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its path; list items by their type or kind, if they have one."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            named = item.get("type") or item.get("kind") if isinstance(item, dict) else None
            yield from leaves(item, f"{path}[{named or number}]")
    else:
        yield path, value


async def assert_core_writes_nothing(client: Client) -> None:
    for kind in (CLUSTER, MACHINE_DEPLOYMENT, MACHINE_SET, MACHINE):
        for obj in (await client.list_all(kind.resource, namespace=NAMESPACE)).items:
            if CONTROL_PLANE in labels_of(obj):
                continue  # Herder's provider creates and updates these Machines
            writers = {entry["manager"] for entry in obj["metadata"]["managedFields"]}
            assert not writers & OUR_WRITERS, f"{kind.kind} is written by {writers}"


OUR_WRITERS = {"herder", *(controller.name for controller in core_controllers())}


# --- Herder's core, upstream's providers ------------------------------------------------------------------------------


@pytest.mark.extended
async def test_herders_core_runs_a_cluster_of_upstreams_providers(tmp_path: Path) -> None:
    with RealKube(new_directory(tmp_path / "kube"), controller_manager=True, controllers=CONTROLLERS) as kube:
        engine = Engine("real", kube.kubeconfig)
        client = engine.client()
        with HerderRun(engine, tmp_path / "core", "--capi-core=own", "--no-machines", *webhook_flags()) as core:
            await wait_until_served(client, *CORE_KINDS)
            await wait_for_admission(client)
            async with upstream(engine, PROVIDERS, tmp_path):
                await ensure_namespace(client, NAMESPACE)
                objects = [(kind_of(obj), obj) for obj in dev_cluster(NAME)]
                await create_objects(client, NAMESPACE, objects)
                await wait_until_available(client)
                await delete_and_wait(client)
                for kind, _ in objects:
                    await wait_until(client, kind, NAMESPACE, none_left)
            assert '"level":"error"' not in core.log(), core.log()
        await client.close()


def new_directory(directory: Path) -> Path:
    directory.mkdir()
    return directory


def kind_of(obj: Object) -> Kind:
    group, _, version = obj["apiVersion"].rpartition("/")
    return Kind(group, version, obj["kind"], obj["kind"].lower() + "s")
