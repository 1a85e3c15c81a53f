"""Scenarios of the upstream suite with machine pools, for which one server suffices."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from cryptography import x509

from herder.api.capi.kinds import NODE, SECRET
from herder.api.machines.kinds import CONFIG_GROUP
from herder.api.rke import names, operations
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.engine.meta.kinds import Object
from tests.support.builders import new_manifest
from tests.support.manager.provisioned import PROCESS, ManagerSite, ProvisionedCluster
from tests.support.manager.simulated_nodes import simulated

ALL_ROLES = {"etcdRole": True, "controlPlaneRole": True, "workerRole": True}
SERVER_ROLES = {"etcdRole": True, "controlPlaneRole": True}
WORKER_ROLE = {"workerRole": True}
CLONED_FROM_KIND = "cluster.x-k8s.io/cloned-from-groupkind"
CLONED_FROM_NAME = "cluster.x-k8s.io/cloned-from-name"
EXCLUDE_DRAINING = "machine.cluster.x-k8s.io/exclude-node-draining"


async def single_node_all_roles_with_delete(site: ManagerSite) -> None:
    cluster = await site.create_cluster("test-single-node-all-roles-with-delete", ALL_ROLES | {"quantity": 1})
    await cluster.wait()
    [machine] = await cluster.machines()
    async with cluster.workload() as workload:
        node = await workload.get(NODE.resource, machine["status"]["nodeRef"]["name"])
    assert len(json.loads(node["metadata"]["annotations"]["herder.io/node-args"])) > 10
    assert len(machine["status"]["addresses"]) == 2
    await cluster.delete_and_wait(PROCESS.machine)
    cluster.assert_few_conflicts()


async def snapshots_on_demand(site: ManagerSite) -> None:
    """Not of the upstream suite: each request saves one more snapshot, and the server is not restarted."""
    cluster = await site.create_cluster("test-snapshots-on-demand", ALL_ROLES | {"quantity": 1})
    await cluster.wait()
    [machine] = await cluster.machines()
    for generation in (1, 2):
        await cluster.edit(partial(_request_snapshot, generation))
        await cluster.wait_until(CONTROL_PLANE, partial(_is_saved, generation))
        snapshots = await cluster.all(ETCD_SNAPSHOT)
        assert len(snapshots) == generation
    for each in snapshots:
        path = site.root_of(machine["metadata"]["name"]) / each["snapshotFile"]["location"].removeprefix("file:///")
        assert path.stat().st_size == each["snapshotFile"]["size"] > 0
        assert [owner["uid"] for owner in each["metadata"]["ownerReferences"]] == [machine["metadata"]["uid"]]
    await cluster.wait()
    cluster.assert_few_conflicts()


def _request_snapshot(generation: int, spec: Object) -> None:
    spec["rkeConfig"]["etcdSnapshotCreate"] = {"generation": generation}


def _is_saved(generation: int, found: list[Object]) -> bool:
    status = found[0].get("status") or {}
    wanted = {"generation": generation}
    return (status.get("etcdSnapshotCreate"), status.get("etcdSnapshotCreatePhase")) == (wanted, "Finished")


async def rotations(site: ManagerSite) -> None:
    """Not of the upstream suite: both rotations, each judged by the files of the server and by a client."""
    cluster = await site.create_cluster("test-rotations", ALL_ROLES | {"quantity": 1})
    await cluster.wait()
    [machine] = await cluster.machines()
    server = site.root_of(machine["metadata"]["name"]) / "var/lib/rancher/herder/server"
    async with cluster.workload() as workload:
        secret = new_manifest(SECRET, "rotated", "default") | {"stringData": {"value": "wool"}}
        await workload.create(SECRET.resource, secret, namespace="default")
    before, serials = key_ids(server), certificate_serials(server)
    assert len(before) == 1
    await cluster.edit(partial(_request, operations.ENCRYPTION_KEYS, {"generation": 1}))
    await cluster.wait_until(CONTROL_PLANE, partial(_has_ended, operations.ENCRYPTION_KEYS, "Done"))
    assert len(key_ids(server)) == 1
    assert not key_ids(server) & before
    assert certificate_serials(server) == serials
    await cluster.edit(partial(_request, operations.CERTIFICATES, {"generation": 1}))
    await cluster.wait_until(CONTROL_PLANE, partial(_has_ended, operations.CERTIFICATES, "Finished"))
    rotated = certificate_serials(server)
    assert not rotated & serials
    await cluster.edit(partial(_request, operations.CERTIFICATES, {"generation": 2, "services": ["admin"]}))
    await cluster.wait_until(CONTROL_PLANE, partial(_has_ended, operations.CERTIFICATES, "Finished", generation=2))
    assert len(certificate_serials(server) & rotated) == 1
    await cluster.wait()
    async with cluster.workload() as workload:
        found = await workload.get(SECRET.resource, "rotated", namespace="default")
    assert base64.b64decode(found["data"]["value"]) == b"wool"
    cluster.assert_few_conflicts()


def key_ids(server: Path) -> set[str]:
    """IDs of the keys with which values in the store are encrypted."""
    with closing(sqlite3.connect(f"file:{server}/db/store/store.db?mode=ro", uri=True)) as connection:
        values = connection.execute("SELECT value FROM revisions WHERE sealed = 1").fetchall()
    return {bytes(value[:16]).decode() for (value,) in values}


def certificate_serials(server: Path) -> set[int]:
    files = [server / "tls" / f"{name}.crt" for name in ("serving", "admin")]
    return {x509.load_pem_x509_certificate(file.read_bytes()).serial_number for file in files}


def _request(kind: str, request: Object, spec: Object) -> None:
    spec["rkeConfig"][kind] = request


def _has_ended(kind: str, phase: str, found: list[Object], generation: int = 1) -> bool:
    run = operations.Run.of(found[0])
    ended = run is not None and (run.kind, run.generation) == (kind, generation) and not run.is_active
    assert not ended or run is None or run.phase == phase, run.message
    return ended


async def machine_template_cloned_annotations(site: ManagerSite) -> None:
    cluster = await site.create_cluster("test-machine-template-cloned-annotations", ALL_ROLES | {"quantity": 1})
    [pool] = (await cluster.wait())["spec"]["rkeConfig"]["machinePools"]
    [infrastructure] = await cluster.all(PROCESS.machine)
    annotations = infrastructure["metadata"]["annotations"]
    assert annotations[CLONED_FROM_KIND] == f"{PROCESS.template.kind}.{PROCESS.template.group}"
    template = await site.client.get(
        PROCESS.template.resource, annotations[CLONED_FROM_NAME], namespace=cluster.namespace
    )
    annotations = template["metadata"]["annotations"]
    assert annotations[names.CLONED_FROM_VERSION] == f"{CONFIG_GROUP}/v1"
    assert annotations[names.CLONED_FROM_KIND] == pool["machineConfigRef"]["kind"]
    assert annotations[names.CLONED_FROM_NAME] == pool["machineConfigRef"]["name"]
    cluster.assert_few_conflicts()


# --- drains ---------------------------------------------------------------------------------------------------------

PRE_HOOKS, POST_HOOKS = ("test.io/pre-hook1", "test.io/pre-hook2"), ("test.io/post-hook1", "test.io/post-hook2")
DRAIN_OPTIONS = {
    "enabled": True,
    "force": True,
    "ignoreDaemonSets": True,
    "deleteEmptyDirData": True,
    "gracePeriod": 5,
    "skipWaitForDeleteTimeoutSeconds": 30,
    "preDrainHooks": [{"annotation": hook} for hook in PRE_HOOKS],
    "postDrainHooks": [{"annotation": hook} for hook in POST_HOOKS],
}


async def drain(site: ManagerSite) -> None:
    """Pools without a quantity have one machine."""
    strategy = {"controlPlaneDrainOptions": DRAIN_OPTIONS, "workerDrainOptions": DRAIN_OPTIONS}
    cluster = await site.create_cluster("test-drain", SERVER_ROLES, WORKER_ROLE, upgradeStrategy=strategy)
    await cluster.wait()
    machines = await cluster.machines()
    assert len(machines) == 2

    def bump_generation(spec: Object) -> None:
        spec["rkeConfig"]["provisionGeneration"] = 1

    await cluster.edit(bump_generation)
    done = await asyncio.gather(*(_confirm_hooks(cluster, machine) for machine in machines))
    await cluster.wait()
    assert done == [True, True]
    cluster.assert_few_conflicts(machines=2)


async def _confirm_hooks(cluster: ProvisionedCluster, machine: Object) -> bool:
    """Confirm the drain hooks as their controllers do: before and after the drain."""
    for request, hooks in ((names.PRE_DRAIN, PRE_HOOKS), (names.POST_DRAIN, POST_HOOKS)):
        name = (await cluster.plan_secret(machine))["metadata"]["name"]

        def is_requested(secrets: list[Object], name: str = name, request: str = request) -> bool:
            return any(each["metadata"]["name"] == name and _annotation(each, request) for each in secrets)

        secrets = await cluster.wait_until(SECRET, is_requested)
        value = next(_annotation(each, request) for each in secrets if each["metadata"]["name"] == name)
        confirmation = {"metadata": {"annotations": dict.fromkeys(hooks, value)}}
        await cluster.client.patch(SECRET.resource, name, confirmation, namespace=cluster.namespace)
    return True


def _annotation(secret: Object, name: str) -> Any:
    return (secret["metadata"].get("annotations") or {}).get(name)


async def drain_no_delete(site: ManagerSite) -> None:
    """Only machines of the pool that requests it are drained before deletion; machines are listed by name."""
    servers, workers = SERVER_ROLES | {"quantity": 1}, WORKER_ROLE | {"quantity": 1}
    cluster = await site.create_cluster(
        "test-drain-no-delete", servers | {"drainBeforeDelete": False}, workers | {"drainBeforeDelete": True}
    )
    await cluster.wait()
    server, worker = await cluster.machines()
    assert server["metadata"]["annotations"][EXCLUDE_DRAINING] == "true"
    assert EXCLUDE_DRAINING not in (worker["metadata"].get("annotations") or {})
    cluster.assert_few_conflicts(machines=2)


DIRECTORIES = {
    "systemAgent": "/var/lib/rancher/testing/system-agent",
    "provisioning": "/var/lib/rancher/testing/provisioning",
    "k8sDistro": "/var/lib/rancher/testing/k8s-distro",
}


async def data_directories(site: ManagerSite) -> None:
    """On a real machine, except the directory that only k3s and RKE2 use: that one is simulated."""
    pool = ALL_ROLES | {"quantity": 1}
    supported = {name: path for name, path in DIRECTORIES.items() if name != "provisioning"}
    cluster = await site.create_cluster("test-mp-data-directories", pool, dataDirectories=supported)
    await cluster.wait()
    [machine] = await cluster.machines()
    root = site.root_of(machine["spec"]["infrastructureRef"]["name"])
    for path in supported.values():
        assert (root / path.lstrip("/")).is_dir(), path
    async with simulated(site, "test-mp-data-directories", pool, dataDirectories=DIRECTORIES) as (cluster, nodes):
        await cluster.wait()
        [node] = nodes.downstream.nodes.values()
        for path in (DIRECTORIES["provisioning"], DIRECTORIES["k8sDistro"]):
            assert any(file.startswith(f"{path}/") for file in node.disk.files), path


SCENARIOS = {
    "Provisioning_MP_SingleNodeAllRolesWithDelete": single_node_all_roles_with_delete,
    "Provisioning_MP_MachineTemplateClonedAnnotations": machine_template_cloned_annotations,
    "Provisioning_MP_Drain": drain,
    "Provisioning_MP_DrainNoDelete": drain_no_delete,
    "Operation_SetC_MP_DataDirectories": data_directories,
}
OWN_SCENARIOS = {"SnapshotsOnDemand": snapshots_on_demand, "Rotations": rotations}
"""Scenarios that the upstream suite does not have."""
