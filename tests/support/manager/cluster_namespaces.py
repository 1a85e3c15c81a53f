"""Management Clusters with the namespace of the same name, as their controller creates it."""

from __future__ import annotations

from herder.api.capi.kinds import NAMESPACE
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.writes import owner_reference
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object


def namespace_of(cluster: Object) -> Object:
    """The namespace of a Cluster that the server has stored."""
    owners = [owner_reference(MANAGEMENT_CLUSTER, cluster, controller=True)]
    meta = {"name": cluster["metadata"]["name"], "ownerReferences": owners}
    return {"apiVersion": NAMESPACE.api_version, "kind": NAMESPACE.kind, "metadata": meta}


async def create_with_namespace(client: Client, cluster: Object) -> None:
    await client.create(NAMESPACE.resource, namespace_of(await client.create(MANAGEMENT_CLUSTER.resource, cluster)))
