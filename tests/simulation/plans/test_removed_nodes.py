"""The name of a removed kubeadm worker is marked in its cluster, also if a new machine replaces it at once."""

from __future__ import annotations

from herder.api.capi.names import labels_of
from herder.api.machines.archive import CONFIG_MAP
from herder.api.rke import names
from tests.simulation.plans.operations.operated_cluster import OperatedCluster, run


def test_the_name_of_a_removed_worker_is_marked() -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        removed = cluster.first_worker
        await cluster.simulation.delete_machine(cluster.simulation.machine_of(removed))
        await cluster.simulation.until_settled()
        records = (await cluster.workload.list_all(CONFIG_MAP.resource, namespace="kube-system")).items
        marked = {each["metadata"]["name"] for each in records if names.REMOVED_NODE in labels_of(each)}
        assert marked == {f"kubelet-certificate.{removed.name}"}

    run("v1.34.1+kubeadm1", scenario, servers=1)
