"""Scenarios of the upstream suite with custom machines. Those with several servers are simulated."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from herder.api.capi.kinds import MACHINE, NODE
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.names import MANAGEMENT_NAME
from herder.api.rke import names
from herder.api.rke.kinds import CUSTOM_MACHINE
from herder.engine.meta.kinds import Object
from herder.machine.host.kinds import Place
from tests.support.capi import condition_status, none_left, wait_until
from tests.support.engines import unique
from tests.support.manager.provisioned import ManagerSite, ProvisionedCluster
from tests.support.manager.simulated_nodes import SimulatedNodes, simulated
from tests.unit.machine.process.machine_ssh import run

ALL_ROLES = ("--worker", "--etcd", "--controlplane")
OWN = "its own address"


async def one_node_with_delete(site: ManagerSite) -> None:
    cluster = await site.create_cluster("test-custom-one-node")
    flags = (*ALL_ROLES, "--label", "foo=bar", "--label", "ball=life")
    await _register(site, cluster, "custom-one", *flags)
    await cluster.wait()
    [machine] = await cluster.machines()
    assert _roles(machine) == set(names.ROLES)
    assert len(machine["status"]["addresses"]) == 2
    secret = await cluster.plan_secret(machine)
    assert _annotation(secret, names.LABELS) == {"cattle.io/os": "linux", "foo": "bar", "ball": "life"}
    await _assert_every_flag_reaches_the_node(site, cluster)
    await cluster.delete_and_wait(CUSTOM_MACHINE)
    cluster.assert_few_conflicts(machines=2)


async def _assert_every_flag_reaches_the_node(site: ManagerSite, cluster: ProvisionedCluster) -> None:
    """Beyond the upstream scenario: a worker that is registered with every flag."""
    flags = ("--worker", "--node-name", "sheep-1", "--label", "colour=black", "--taint", "wool=thick:PreferNoSchedule")
    place = await _register(site, cluster, "custom-two", *flags, "--address", "203.0.113.9", "--internal-address", OWN)
    machines = await cluster.wait_until(
        MACHINE, lambda found: len([each for each in found if "nodeRef" in each["status"]]) == 2
    )
    [machine] = [each for each in machines if each["metadata"]["labels"].get(names.NODE_NAME) == "sheep-1"]
    async with cluster.workload() as workload:
        node = await workload.get(NODE.resource, "sheep-1")
    labels = node["metadata"]["labels"]
    assert labels["colour"] == "black"
    assert labels[names.MACHINE_UID] == machine["metadata"]["uid"]
    assert {"key": "wool", "value": "thick", "effect": "PreferNoSchedule"} in node["spec"]["taints"]
    addresses = {each["type"]: each["address"] for each in machine["status"]["addresses"]}
    assert (addresses["InternalIP"], addresses["ExternalIP"]) == (place.address, "203.0.113.9")
    assert machine["spec"]["providerID"] == node["spec"]["providerID"]


async def _register(site: ManagerSite, cluster: ProvisionedCluster, name: str, *flags: str) -> Place:
    """Run the registration command in the shell of an existing machine; `OWN` stands for its address."""
    await asyncio.to_thread(site.custom_host.start)
    place = await asyncio.to_thread(site.custom_host.create, name)
    command, token = await cluster.registration()
    shell_command = command.replace("{token}", token).replace("| sudo sh", "| sh")  # process machines have no sudo
    result = await run(place, " ".join((shell_command, *(place.address if flag == OWN else flag for flag in flags))))
    assert result.exit_status == 0, result.stderr
    return place


async def recreate_with_same_management_cluster_name(site: ManagerSite) -> None:
    """The first node keeps running with its agent; a new cluster of the same name must reject both."""
    name, management = "test-custom-recreate-same-mgmt-cluster-name", unique("c-m")
    annotations = {MANAGEMENT_NAME: management}
    first = await site.create_cluster(name, annotations=annotations)
    first_registration = await first.registration()
    await _register(site, first, "custom-before", *ALL_ROLES)
    assert (await first.wait())["status"]["clusterName"] == management
    old = await site.client.get(MANAGEMENT_CLUSTER.resource, management)
    await site.client.delete(PROVISIONING_CLUSTER.resource, name, namespace=first.namespace)
    await first.wait_until(PROVISIONING_CLUSTER, none_left)

    second = await site.create_cluster(name, annotations=annotations, namespace=first.namespace)

    def is_recreated(found: list[Object]) -> bool:
        others = [each for each in found if each["metadata"]["name"] == management and _uid(each) != _uid(old)]
        return any(condition_status(each, "BackingNamespaceCreated") == "True" for each in others)

    await wait_until(site.client, MANAGEMENT_CLUSTER, "", is_recreated)
    second_registration = await second.registration()
    assert second_registration != first_registration, "the token is a new one"
    await asyncio.sleep(3)  # time for the first agent to reconnect, which it tries every second
    new = await site.client.get(MANAGEMENT_CLUSTER.resource, management)
    assert condition_status(new, "Connected") == "False", "no node was registered yet"
    await _register(site, second, "custom-after", *ALL_ROLES)
    assert (await second.wait())["status"]["clusterName"] == management
    new = await site.client.get(MANAGEMENT_CLUSTER.resource, management)
    assert new["status"]["caCert"] != old["status"]["caCert"]
    assert len(await second.machines()) == 1
    async with second.workload() as workload:
        assert len((await workload.list(NODE.resource)).items) == 1


def _uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])


async def three_node(site: ManagerSite) -> None:
    async with simulated(site, "test-custom-three-node") as (cluster, nodes):
        await _register_three(nodes)
        await cluster.wait()
        machines = await cluster.machines()
        assert [_roles(each) for each in machines] == [set(names.ROLES)] * 3
        for machine in machines:
            secret = await cluster.plan_secret(machine)
            assert _annotation(secret, names.LABELS) == {"cattle.io/os": "linux", "rancher": "awesome"}
        cluster.assert_few_conflicts(machines=3)


async def three_node_with_taints(site: ManagerSite) -> None:
    async with simulated(site, "test-custom-three-node-with-taints") as (cluster, nodes):
        await _register_three(nodes, "--taint", "key=value:NoExecute")
        await cluster.wait()
        machines = await cluster.machines()
        assert [_roles(each) for each in machines] == [set(names.ROLES)] * 3
        secrets = [await cluster.plan_secret(each) for each in machines]
        assert all(
            _annotation(each, names.LABELS) == {"cattle.io/os": "linux", "rancher": "awesome"} for each in secrets
        )
        tainted = [taints for each in secrets if (taints := _annotation(each, names.TAINTS))]
        assert tainted == [[{"key": "key", "value": "value", "effect": "NoExecute"}]]
        cluster.assert_few_conflicts(machines=3)


async def _register_three(nodes: SimulatedNodes, *flags_of_one: str) -> None:
    flags = (*ALL_ROLES, "--label", "rancher=awesome")
    more: tuple[tuple[str, ...], ...] = ((), flags_of_one, ())
    registering = (
        nodes.register(f"node-{number}", f"10.1.0.{number + 1}", *flags, *each) for number, each in enumerate(more)
    )
    await asyncio.gather(*registering)


async def unique_roles(site: ManagerSite) -> None:
    async with simulated(site, "test-custom-unique-roles") as (cluster, nodes):
        wanted = ("--etcd", "--etcd", "--etcd", "--controlplane", "--worker")
        registering = (
            nodes.register(f"node-{number}", f"10.1.0.{number + 1}", role) for number, role in enumerate(wanted)
        )
        await asyncio.gather(*registering)
        await cluster.wait()
        roles = [role for machine in await cluster.machines() for role in _roles(machine)]
        assert sorted(roles) == sorted([*[names.ETCD_ROLE] * 3, names.CONTROL_PLANE_ROLE, names.WORKER_ROLE])
        cluster.assert_few_conflicts(machines=5)


def _roles(machine: Object) -> set[str]:
    labels = machine["metadata"]["labels"]
    return {role for role in names.ROLES if labels.get(role) == "true"}


def _annotation(secret: Object, name: str) -> Any:
    return json.loads(secret["metadata"]["annotations"].get(name) or "null")


SCENARIOS = {
    "Provisioning_Custom_OneNodeWithDelete": one_node_with_delete,
    "Provisioning_Custom_RecreateWithSameManagementClusterName": recreate_with_same_management_cluster_name,
}
SIMULATED = {
    "Provisioning_Custom_ThreeNode": three_node,
    "Provisioning_Custom_UniqueRoles": unique_roles,
    "Provisioning_Custom_ThreeNodeWithTaints": three_node_with_taints,
}
