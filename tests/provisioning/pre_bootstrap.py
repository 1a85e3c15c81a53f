"""Clusters whose Secrets must be synced before anything else is applied, of the upstream suite.

Their nodes are simulated, because the agent that is deployed first is a manifest of K3s and RKE2 servers.
"""

from __future__ import annotations

import base64

from herder.api.capi.kinds import SECRET
from herder.api.management import secret_sync
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.rke import names
from herder.engine.meta.kinds import Object
from tests.provisioning.custom import ALL_ROLES
from tests.support.capi import condition_status
from tests.support.manager.provisioned import ManagerSite, ProvisionedCluster, bare_object
from tests.support.manager.simulated_nodes import simulated


async def generic_secret_sync(site: ManagerSite) -> None:
    await _flow(site, "test-prebootstrap-secret-sync")


async def ace(site: ManagerSite) -> None:
    await _flow(site, "test-prebootstrap-ace", spec={"localClusterAuthEndpoint": {"enabled": True}})


async def _flow(site: ManagerSite, name: str, spec: Object | None = None) -> None:
    async with simulated(site, name, spec=spec) as (cluster, nodes):
        await _create(
            cluster, "sync-me", "hello-ive-been-synced", {"hello": "world", "clusterId": secret_sync.PLACEHOLDER}
        )
        basic = {"username": "admin", "password": "admin"}
        await _create(cluster, "sync-me-basic-auth", "hello-basic-auth", basic, "kubernetes.io/basic-auth")
        await nodes.register("node-0", "10.1.0.1", *ALL_ROLES, "--label", "foobar=bazqux")
        ready = await cluster.wait()
        id_ = ready["status"]["clusterName"]
        management = await cluster.client.get(MANAGEMENT_CLUSTER.resource, id_)
        assert condition_status(management, secret_sync.PRE_BOOTSTRAPPED) == "True"
        async with cluster.workload() as downstream:
            synced = await downstream.get(SECRET.resource, "hello-ive-been-synced", namespace="kube-system")
            assert _decoded(synced) == {"hello": "world", "clusterId": id_}
            assert synced["type"] == "Opaque"
            synced = await downstream.get(SECRET.resource, "hello-basic-auth", namespace="kube-system")
            assert _decoded(synced) == basic
            assert synced["type"] == "kubernetes.io/basic-auth"
        cluster.assert_few_conflicts()


async def _create(
    cluster: ProvisionedCluster, name: str, target: str, data: dict[str, str], type_: str = "Opaque"
) -> None:
    secret = bare_object(SECRET, name, cluster.namespace) | {"stringData": data, "type": type_}
    secret["metadata"]["annotations"] = {
        secret_sync.SYNC_BOOTSTRAP: "true",
        secret_sync.TARGET_NAMESPACE: "kube-system",
        secret_sync.TARGET_NAME: target,
        names.AUTHORIZED_CLUSTERS: cluster.name,
    }
    await cluster.client.create(SECRET.resource, secret, namespace=cluster.namespace)


def _decoded(secret: Object) -> dict[str, str]:
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


SIMULATED = {
    "PreBootstrap_Provisioning_Flow_Generic_Secret_Sync": generic_secret_sync,
    "PreBootstrap_Provisioning_Flow_ACE": ace,
}
