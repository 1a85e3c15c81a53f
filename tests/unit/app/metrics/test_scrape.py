"""Processes expose what the catalogue of metrics documents, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from herder.app.metrics import gateway, store
from herder.app.metrics.catalogue import FAMILIES
from herder.engine.client import kubeconfig
from tests.support.api import Api
from tests.support.embedded import Embedded
from tests.support.kube import free_port
from tests.unit.cli.commands import replica

ONLY_EMBEDDED = {family.name for family in (*store.FAMILIES, *store.BACKUP_FAMILIES)}
ONLY_GATEWAY = {family.name for family in (*gateway.TUNNEL_FAMILIES, *gateway.NODE_FAMILIES, *gateway.HTTP_FAMILIES)}


def check(text: str) -> set[str]:
    """Every exposed metric has the type, help and labels of its definition. Returns the names."""
    found = set()
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name.endswith("_created"):
            continue  # added by the Prometheus client
        assert name in FAMILIES, f"{name} is not in herder.app.metrics.catalogue"
        definition = FAMILIES[name]
        assert (family.type, family.documentation) == (definition.type.value, definition.help)
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels <= set(definition.labels), name
        found.add(name)
    return found


async def test_the_embedded_server_exposes_every_metric(tmp_path: Path) -> None:
    flags = ("--gateway", "--capi-core=external", "--no-machines", "--no-runner", "--backup-schedule", "@daily")
    with Embedded(tmp_path, flags=flags) as server:
        api = Api(kubeconfig.load(server.kubeconfig))
        needed = set(FAMILIES) - {"leader_election_master_status"}
        found: set[str] = set()
        async with asyncio.timeout(90):
            while not needed <= found:
                response = await api.get("/metrics")
                found = check(response.text) if response.status == 200 else set()
                await asyncio.sleep(0.1)
        text = response.text
        await api.close()
    assert 'herder_store_objects{resource="namespaces"}' in text
    assert 'herder_cache_objects{kind="Cluster.v1.provisioning.cattle.io"}' in text
    assert 'herder_operations_total{kind="etcdSnapshotRestore",result="failed"} 0.0' in text
    assert "herder_store_failed 0.0" in text


async def test_a_manager_exposes_all_but_those_of_the_store(tmp_path: Path) -> None:
    metrics, listen = free_port(), free_port()
    needed = set(FAMILIES) - ONLY_EMBEDDED
    with Embedded(tmp_path / "server", flags=("--capi-core=external", "--no-machines", "--no-runner")) as server:
        flags = (
            *("--no-webhooks", "--data-dir", str(tmp_path / "data"), "--metrics-listen", f"127.0.0.1:{metrics}"),
            *("--gateway-listen", f"127.0.0.1:{listen}"),
        )
        with replica(server.kubeconfig, tmp_path / "log", *flags):
            found: set[str] = set()
            async with asyncio.timeout(90):
                while not needed <= found:
                    await asyncio.sleep(0.1)
                    found = await asyncio.to_thread(scraped, metrics)
    assert found == needed
    assert found >= ONLY_GATEWAY


def scraped(port: int) -> set[str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            return check(response.read().decode())
    except OSError:
        return set()
