"""The start after a restore, on the real store and API server: clusters are marked before anything reads old data."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from herder.api.capi.crds import CRDS as CORE_CRDS
from herder.api.capi.kinds import CLUSTER, MACHINE, POD
from herder.api.machines.archive import CONFIG_MAP
from herder.api.machines.jobs import JOB
from herder.api.machines.names import INFRA_NAME_LABEL
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.names import SYSTEM_NAMESPACE
from herder.api.observe_only import OBSERVE_ONLY, mark_of
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.api.rke.kinds import PLAN_SECRET
from herder.app.embedded import CONTROLLERS
from herder.app.host.process import wall_clock
from herder.app.install import ensure_namespace, install_kinds
from herder.app.store.restored import RECORD, observe_only_after_restore
from herder.engine.apiserver.build import assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Kind
from herder.engine.store import restore
from tests.support.builders import new_manifest
from tests.unit.controllers.planner.objects import plan_of, plan_secret

NAMESPACE, NAME = "fleet-default", "demo"


class Server:
    """An API server over a data directory."""

    def __init__(self, client: Client, store: Any) -> None:
        self.client, self.store = client, store

    async def prepare(self) -> int | None:
        return await observe_only_after_restore(self.client, self.store.restored, wall_clock())

    async def get(self, kind: Kind, name: str, namespace: str = NAMESPACE) -> Any:
        return await self.client.get(kind.resource, name, namespace=namespace if kind.namespaced else "")

    async def names(self, kind: Kind) -> list[str]:
        return [each["metadata"]["name"] for each in (await self.client.list_all(kind.resource)).items]


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Server]:
    server = await assemble(directory, clock=wall_clock, entropy=os.urandom)
    try:
        yield Server(Client(InProcess(server, CONTROLLERS)), server.deps.store)
    finally:
        await server.stop()


def job(name: str, finished: bool = False) -> Any:
    container = {"name": "machine", "image": "herder/machine"}
    template = {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    status = [{"type": "Complete", "status": "True"}] if finished else []
    return new_manifest(
        JOB,
        name,
        NAMESPACE,
        labels={INFRA_NAME_LABEL: name},
        spec={"template": template},
        status={"conditions": status},
    )


async def fill(client: Client) -> None:
    await install_kinds(client, (*CORE_CRDS, *MANAGEMENT_CRDS, *RKE_CRDS))
    for namespace in (NAMESPACE, "fleet-local"):
        await ensure_namespace(client, namespace)
    spec = {"kubernetesVersion": "v1.36.3+herder1", "rkeConfig": {}}
    pending = plan_secret(
        "a", plan=plan_of(stamp="2"), state="pending", data={"appliedPlan": plan_of().to_json().decode()}
    )
    machine = {
        "clusterName": NAME,
        "bootstrap": {"dataSecretName": "x"},
        "infrastructureRef": {"apiGroup": "x.io", "kind": "XMachine", "name": "a"},
    }
    objects = [
        (PROVISIONING_CLUSTER, new_manifest(PROVISIONING_CLUSTER, NAME, NAMESPACE, spec=spec)),
        (PROVISIONING_CLUSTER, new_manifest(PROVISIONING_CLUSTER, "local", "fleet-local", spec={})),
        (MANAGEMENT_CLUSTER, new_manifest(MANAGEMENT_CLUSTER, "c-m-1", spec={"displayName": NAME})),
        (MANAGEMENT_CLUSTER, new_manifest(MANAGEMENT_CLUSTER, "local", spec={"displayName": "local"})),
        (CLUSTER, new_manifest(CLUSTER, NAME, NAMESPACE, spec={"paused": False})),
        (MACHINE, new_manifest(MACHINE, "a", NAMESPACE, spec=machine)),
        (JOB, job("half")),
        (PLAN_SECRET, pending),
        (PLAN_SECRET, plan_secret("b", plan=plan_of())),
    ]
    for kind, obj in objects:
        obj["metadata"].pop("resourceVersion", None)
        await client.create(kind.resource, obj, namespace=obj["metadata"].get("namespace", ""))
    node_info = {**dict.fromkeys(NODE_INFO, "x"), "kubeletVersion": "v1.36.3+herder1"}
    status = {"status": {"phase": "Running", "nodeInfo": node_info}}
    await client.patch(MACHINE.resource, "a", status, namespace=NAMESPACE, subresource="status")
    pod = {"containers": [{"name": "machine", "image": "herder/machine"}]}
    running = new_manifest(POD, "half-1", NAMESPACE, labels={INFRA_NAME_LABEL: "half"}, spec=pod)
    running["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    await client.create(POD.resource, running, namespace=NAMESPACE)


NODE_INFO = (
    "architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "machineID",
    "operatingSystem", "osImage", "systemUUID",
)  # fmt: skip


async def test_the_first_start_after_a_restore_marks_all_clusters(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    async with serving(data) as server:
        await fill(server.client)
        assert await server.prepare() is None, "a new manager acts"
        await server.store.backup(backup)
    async with serving(data) as server:
        assert await server.prepare() is None, "so does a restarted one"
    restore(backup, data / "store")
    async with serving(data) as server:
        versions = {name: (await server.get(PLAN_SECRET, f"{name}-machine-plan")) for name in "ab"}
        assert await server.prepare() == 1
        marks = {
            mark_of(await server.get(kind, name))
            for kind, name in ((PROVISIONING_CLUSTER, NAME), (MANAGEMENT_CLUSTER, "c-m-1"), (CLUSTER, NAME))
        }
        [mark] = marks
        assert mark is not None
        assert mark.startswith("restored from the backup of 20")
        assert mark_of(await server.get(PROVISIONING_CLUSTER, "local", "fleet-local")) is None
        assert mark_of(await server.get(MANAGEMENT_CLUSTER, "local")) is None
        after = {name: (await server.get(PLAN_SECRET, f"{name}-machine-plan")) for name in "ab"}
        assert after["b"] == versions["b"]
        assert after["a"]["data"]["plan"] == versions["a"]["data"]["appliedPlan"]
        assert "nodeInfo" not in (await server.get(MACHINE, "a"))["status"]
        assert await server.names(JOB) == await server.names(POD) == []
        record = await server.get(CONFIG_MAP, RECORD, SYSTEM_NAMESPACE)
        assert record["data"]["cause"] == mark
        assert await server.prepare() is None, "it is marked once"

        unmark = {"metadata": {"annotations": {OBSERVE_ONLY: None}}}
        await server.client.patch(PROVISIONING_CLUSTER.resource, NAME, unmark, namespace=NAMESPACE)
    async with serving(data) as server:
        assert await server.prepare() is None, "a resumed cluster stays resumed after a restart"
        assert mark_of(await server.get(PROVISIONING_CLUSTER, NAME)) is None


async def test_an_interrupted_start_is_completed(tmp_path: Path) -> None:
    """The record is written last."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    async with serving(data) as server:
        await fill(server.client)
        await server.store.backup(backup)
    for _ in range(2):
        restore(backup, data / "store")
        async with serving(data) as server:
            assert await server.prepare() == 1
            await server.client.delete(CONFIG_MAP.resource, RECORD, namespace=SYSTEM_NAMESPACE)
        async with serving(data) as server:
            assert await server.prepare() == 1


async def test_a_store_without_our_kinds_can_be_restored(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    async with serving(data) as server:
        await server.store.backup(backup)
    restore(backup, data / "store")
    async with serving(data) as server:
        assert await server.prepare() == 0
