"""Scenarios of the upstream suite with machine pools that need several etcd members or servers with a subset of the
roles. Their nodes are simulated.
"""

from __future__ import annotations

from collections.abc import Callable

from herder.api.capi.kinds import MACHINE, MACHINE_SET, NODE
from herder.engine.meta.kinds import Object
from tests.support.capi import condition_status
from tests.support.manager.provisioned import ManagerSite, ProvisionedCluster
from tests.support.manager.simulated_nodes import POD, simulated

ALL_ROLES = {"etcdRole": True, "controlPlaneRole": True, "workerRole": True}
TEMPLATE_HASH = "machine-template-hash"


async def machine_set_delete_policy_oldest_set(site: ManagerSite) -> None:
    one = ALL_ROLES | {"quantity": 1}
    rolling = one | {"rollingUpdate": {"maxUnavailable": "10%", "maxSurge": "10%"}}
    async with simulated(site, "test-machine-set-delete-policy-oldest-set", one, rolling) as (cluster, _):
        await cluster.wait()
        assert [each["spec"]["deletion"]["order"] for each in await cluster.all(MACHINE_SET)] == ["Oldest"] * 2
        cluster.assert_few_conflicts(machines=2)


async def multiple_etcd_nodes_scaled_down_then_delete(site: ManagerSite) -> None:
    control_plane = {"key": "node-role.kubernetes.io/control-plane", "operator": "In", "values": ["true"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [control_plane]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    pools = (
        {"etcdRole": True, "quantity": 2},
        {"controlPlaneRole": True, "workerRole": True, "quantity": 1},
    )
    spec = {"clusterAgentDeploymentCustomization": {"overrideAffinity": affinity}}
    async with simulated(site, "etcd-scaled-down", *pools, spec=spec) as (cluster, _):
        await cluster.wait()
        await _assert_nodes_ready(cluster, 3)
        await cluster.edit(_scaled(0, 1))
        await cluster.wait_until(MACHINE, lambda found: len(found) == 2)
        await cluster.wait()
        await _assert_nodes_ready(cluster, 2)
        await cluster.delete_and_wait(POD.machine)
        cluster.assert_few_conflicts(machines=3)


def _scaled(pool: int, quantity: int) -> Callable[[Object], None]:
    def change(spec: Object) -> None:
        spec["rkeConfig"]["machinePools"][pool]["quantity"] = quantity

    return change


async def _assert_nodes_ready(cluster: ProvisionedCluster, count: int) -> None:
    """Read the Nodes from the cluster's own API, with its kubeconfig."""
    async with cluster.workload() as workload:
        nodes = (await workload.list(NODE.resource)).items
    assert len(nodes) == count
    assert all(condition_status(node, "Ready") == "True" for node in nodes)


async def five_nodes_unique_roles_with_delete(site: ManagerSite) -> None:
    pools = (
        {"etcdRole": True, "quantity": 3},
        {"controlPlaneRole": True, "quantity": 1},
        {"workerRole": True, "quantity": 1},
    )
    await _create_and_delete(site, "test-five-nodes-unique-roles-with-delete", *pools)


async def four_nodes_server_and_worker_roles_with_delete(site: ManagerSite) -> None:
    pools = (
        {"etcdRole": True, "controlPlaneRole": True, "quantity": 3},
        {"workerRole": True, "quantity": 1},
    )
    await _create_and_delete(site, "test-worker-roles-with-delete", *pools)


async def _create_and_delete(site: ManagerSite, name: str, *pools: Object) -> None:
    async with simulated(site, name, *pools) as (cluster, _):
        await cluster.wait()
        await cluster.delete_and_wait(POD.machine)
        cluster.assert_few_conflicts(sum(pool["quantity"] for pool in pools))


async def single_node_all_roles_drain(site: ManagerSite) -> None:
    """A changed config replaces the machine: the new one joins, uncordoned, before the old one is deleted."""
    options = {
        "enabled": True,
        "deleteEmptyDirData": True,
        "disableEviction": False,
        "gracePeriod": -1,
        "force": False,
        "ignoreDaemonSets": True,
        "skipWaitForDeleteTimeoutSeconds": 0,
        "timeout": 120,
    }
    strategy = {
        "controlPlaneDrainOptions": options,
        "controlPlaneConcurrency": "1",
        "workerDrainOptions": options,
        "workerConcurrency": "1",
    }
    pool = ALL_ROLES | {"quantity": 1}
    async with simulated(site, "test-single-node-drain", pool, upgradeStrategy=strategy) as (cluster, _):
        await cluster.wait()
        [first] = await cluster.machines()
        changed = await cluster.new_config(POD.config, userdata="# another")

        def use_changed_config(spec: Object) -> None:
            spec["rkeConfig"]["machinePools"][0]["machineConfigRef"] = changed

        await cluster.edit(use_changed_config)
        machines = await cluster.wait_until(MACHINE, lambda found: any(_is_node(each, other=first) for each in found))
        second = next(each for each in machines if _is_node(each, other=first))
        async with cluster.workload() as workload:
            node = await workload.get(NODE.resource, second["status"]["nodeRef"]["name"])
        assert condition_status(node, "Ready") == "True"
        assert not node["spec"].get("unschedulable")
        [remaining] = await cluster.wait_until(MACHINE, lambda found: len(found) == 1)
        assert remaining["metadata"]["name"] == second["metadata"]["name"]
        await cluster.wait()


def _is_node(machine: Object, *, other: Object) -> bool:
    hashes = [each["metadata"]["labels"][TEMPLATE_HASH] for each in (machine, other)]
    return hashes[0] != hashes[1] and bool((machine.get("status") or {}).get("nodeRef"))


SIMULATED = {
    "Provisioning_MP_MachineSetDeletePolicyOldestSet": machine_set_delete_policy_oldest_set,
    "Provisioning_MP_MultipleEtcdNodesScaledDownThenDelete": multiple_etcd_nodes_scaled_down_then_delete,
    "Provisioning_MP_FiveNodesUniqueRolesWithDelete": five_nodes_unique_roles_with_delete,
    "Provisioning_MP_FourNodesServerAndWorkerRolesWithDelete": four_nodes_server_and_worker_roles_with_delete,
    "Provisioning_Single_Node_All_Roles_Drain": single_node_all_roles_drain,
}
