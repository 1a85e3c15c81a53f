"""`kubectl explain` describes the fields of Herder's kinds, on both API servers."""

from __future__ import annotations

import asyncio
from functools import partial

from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.app.install import install_kinds
from herder.engine.client.client import Client
from tests.support.engines import Engine
from tests.support.manager.node_agents import eventually

CLUSTER = "clusters.provisioning.cattle.io"
KINDS = (CLUSTER, "clusters.management.cattle.io", "clusterregistrationtokens")


async def test_kubectl_explains_clusters(engine: Engine, client: Client) -> None:
    await install_kinds(client, MANAGEMENT_CRDS)
    for kind in KINDS:  # an API server publishes the schema of each group some time after it serves the kind
        published = partial(is_published, engine, kind)
        await asyncio.to_thread(eventually, published, f"the schema of {kind} is published", timeout=180)
    pool = engine.kubectl("explain", f"{CLUSTER}.spec.rkeConfig.machinePools").stdout
    assert "lost machines are reported, not replaced" in " ".join(pool.split())
    for kind in KINDS:
        explained = engine.kubectl("explain", kind).stdout
        assert "<no description>" not in explained
    status = engine.kubectl("explain", f"{CLUSTER}.status").stdout
    assert "Whether the condition Ready is True." in status
    assert "display" in engine.kubectl("explain", CLUSTER, "--recursive").stdout


def is_published(engine: Engine, kind: str) -> bool:
    return not engine.kubectl("explain", kind, check=False).returncode
