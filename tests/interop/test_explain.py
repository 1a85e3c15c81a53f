"""`kubectl explain` describes the fields of Herder's kinds, on both API servers."""

from __future__ import annotations

import asyncio

from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.app.install import install_kinds
from herder.engine.client.client import Client
from tests.support.engines import Engine
from tests.support.node_agents import eventually

CLUSTER = "clusters.provisioning.cattle.io"


async def test_kubectl_explains_clusters(engine: Engine, client: Client) -> None:
    await install_kinds(client, MANAGEMENT_CRDS)
    # API servers publish the schema some time after the kind is served.
    await asyncio.to_thread(
        eventually, lambda: not engine.kubectl("explain", CLUSTER, check=False).returncode, "the schema is published"
    )
    pool = engine.kubectl("explain", f"{CLUSTER}.spec.rkeConfig.machinePools").stdout
    assert "lost machines are reported, not replaced" in " ".join(pool.split())
    for kind in (CLUSTER, "clusters.management.cattle.io", "clusterregistrationtokens"):
        explained = engine.kubectl("explain", kind).stdout
        assert "<no description>" not in explained
    status = engine.kubectl("explain", f"{CLUSTER}.status").stdout
    assert "Whether the condition Ready is True." in status
    assert "display" in engine.kubectl("explain", CLUSTER, "--recursive").stdout
