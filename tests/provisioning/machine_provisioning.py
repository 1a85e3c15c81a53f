"""Clusters whose machines the manager makes, of the upstream suite: those that one server can be."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from herder.api.capi.kinds import NODE, SECRET
from herder.api.machines.kinds import CONFIG_GROUP
from herder.api.rke import names
from herder.engine.meta.kinds import Object
from tests.support.provisioned import PROCESS, Asked, Site
from tests.support.simulated_nodes import simulated

ALL_ROLES = {"etcdRole": True, "controlPlaneRole": True, "workerRole": True}
SERVER_ROLES = {"etcdRole": True, "controlPlaneRole": True}
WORKER_ROLE = {"workerRole": True}
CLONED_FROM_KIND = "cluster.x-k8s.io/cloned-from-groupkind"
CLONED_FROM_NAME = "cluster.x-k8s.io/cloned-from-name"
EXCLUDE_DRAINING = "machine.cluster.x-k8s.io/exclude-node-draining"


async def single_node_all_roles_with_delete(site: Site) -> None:
    cluster = await site.ask_for("test-single-node-all-roles-with-delete", ALL_ROLES | {"quantity": 1})
    await cluster.wait()
    [machine] = await cluster.machines()
    async with cluster.workload() as workload:
        node = await workload.get(NODE.resource, machine["status"]["nodeRef"]["name"])
    assert len(json.loads(node["metadata"]["annotations"]["herder.io/node-args"])) > 10
    assert len(machine["status"]["addresses"]) == 2
    await cluster.delete_and_wait(PROCESS.machine)
    cluster.assert_few_conflicts()


async def machine_template_cloned_annotations(site: Site) -> None:
    cluster = await site.ask_for("test-machine-template-cloned-annotations", ALL_ROLES | {"quantity": 1})
    [pool] = (await cluster.wait())["spec"]["rkeConfig"]["machinePools"]
    [infrastructure] = await cluster.all(PROCESS.machine)
    marks = infrastructure["metadata"]["annotations"]
    assert marks[CLONED_FROM_KIND] == f"{PROCESS.template.kind}.{PROCESS.template.group}"
    template = await site.client.get(PROCESS.template.resource, marks[CLONED_FROM_NAME], namespace=cluster.namespace)
    marks = template["metadata"]["annotations"]
    assert marks[names.CLONED_FROM_VERSION] == f"{CONFIG_GROUP}/v1"
    assert marks[names.CLONED_FROM_KIND] == pool["machineConfigRef"]["kind"]
    assert marks[names.CLONED_FROM_NAME] == pool["machineConfigRef"]["name"]
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


async def drain(site: Site) -> None:
    """Pools that do not say how many have one machine."""
    strategy = {"controlPlaneDrainOptions": DRAIN_OPTIONS, "workerDrainOptions": DRAIN_OPTIONS}
    cluster = await site.ask_for("test-drain", SERVER_ROLES, WORKER_ROLE, upgradeStrategy=strategy)
    await cluster.wait()
    machines = await cluster.machines()
    assert len(machines) == 2

    def reconcile_all_again(spec: Object) -> None:
        spec["rkeConfig"]["provisionGeneration"] = 1

    await cluster.edit(reconcile_all_again)
    done = await asyncio.gather(*(_answer_hooks(cluster, machine) for machine in machines))
    await cluster.wait()
    assert done == [True, True]
    cluster.assert_few_conflicts(machines=2)


async def _answer_hooks(cluster: Asked, machine: Object) -> bool:
    """As those do whom the hooks are for: once before its drain, and once after it."""
    for asked, hooks in ((names.PRE_DRAIN, PRE_HOOKS), (names.POST_DRAIN, POST_HOOKS)):
        name = (await cluster.plan_secret(machine))["metadata"]["name"]

        def is_asked(secrets: list[Object], name: str = name, asked: str = asked) -> bool:
            return any(each["metadata"]["name"] == name and _mark(each, asked) for each in secrets)

        secrets = await cluster.until(SECRET, is_asked)
        value = next(_mark(each, asked) for each in secrets if each["metadata"]["name"] == name)
        answer = {"metadata": {"annotations": dict.fromkeys(hooks, value)}}
        await cluster.client.patch(SECRET.resource, name, answer, namespace=cluster.namespace)
    return True


def _mark(secret: Object, name: str) -> Any:
    return (secret["metadata"].get("annotations") or {}).get(name)


async def drain_no_delete(site: Site) -> None:
    """Only machines of the pool that says so are drained before they are deleted; machines are listed by name."""
    servers, workers = SERVER_ROLES | {"quantity": 1}, WORKER_ROLE | {"quantity": 1}
    cluster = await site.ask_for(
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


async def data_directories(site: Site) -> None:
    """On a real machine, but for the directory that only k3s and RKE2 have something for: that one by simulation."""
    pool = ALL_ROLES | {"quantity": 1}
    cluster = await site.ask_for("test-mp-data-directories", pool, dataDirectories=DIRECTORIES)
    await cluster.wait()
    [machine] = await cluster.machines()
    root = site.root_of(machine["spec"]["infrastructureRef"]["name"])
    for path in (DIRECTORIES["systemAgent"], DIRECTORIES["k8sDistro"]):
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
