"""The real clusterctl reads objects of Herder's CRDs, without `clusterctl init`."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from herder.api.capi.crds import CRDS
from herder.api.capi.inventory import NAMESPACE, PROVIDER_CRD
from herder.api.inmemory.crds import CRDS as PROVIDER_CRDS
from herder.api.inmemory.kinds import IN_MEMORY_CLUSTER, IN_MEMORY_MACHINE
from herder.app.core.detection import register_providers
from herder.app.install import install_kinds
from herder.engine.meta.kinds import Kind
from tests.interop.programs import run
from tests.support.embedded import Embedded
from tests.support.engines import Engine

GOOD = {"status": "True", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
LABELS = {"cluster.x-k8s.io/cluster-name": "c"}


def reference(kind: Kind) -> dict[str, str]:
    return {"apiGroup": kind.group, "kind": kind.kind, "name": "c"}


def stored(api_version: str, kind: str, name: str, spec: Any, *conditions: str, **status: Any) -> Any:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default", "labels": dict(LABELS)},
        "spec": spec,
        "status": {**status, "conditions": [{"type": type_, "reason": type_, **GOOD} for type_ in conditions]},
    }


MACHINE_SPEC = {
    "clusterName": "c",
    "bootstrap": {"dataSecretName": "boot"},
    "infrastructureRef": reference(IN_MEMORY_MACHINE),
}
CORE = "cluster.x-k8s.io/v1beta2"
COUNTS = {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1, "upToDateReplicas": 1}
SET = {
    "clusterName": "c",
    "replicas": 1,
    "selector": {"matchLabels": {"pool": "a"}},
    "template": {"metadata": {"labels": {"pool": "a"}}, "spec": MACHINE_SPEC},
}
OBJECTS = [
    stored(CORE, "Cluster", "c", {"paused": True, "infrastructureRef": reference(IN_MEMORY_CLUSTER)}, "Available"),
    stored(IN_MEMORY_CLUSTER.api_version, IN_MEMORY_CLUSTER.kind, "c", {}, "Ready"),
    stored(CORE, "MachineDeployment", "md", SET, "Available", **COUNTS),
    stored(CORE, "MachineSet", "md-1", SET, **COUNTS),
    stored(CORE, "Machine", "md-1-a", MACHINE_SPEC, "Ready", "Available", "UpToDate"),
]
KUBECONFIG = "apiVersion: v1\nkind: Config\n"
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "c-kubeconfig", "namespace": "default", "labels": LABELS},
    "type": "cluster.x-k8s.io/secret",
    "data": {"value": base64.b64encode(KUBECONFIG.encode()).decode()},
}


@pytest.fixture(scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """A separate server; the cluster is paused, so that no controller changes it."""
    with Embedded(tmp_path_factory.mktemp("embedded")) as server:
        engine = Engine("embedded", server.kubeconfig)
        client = engine.client()
        try:
            await install_kinds(client, [*CRDS, *PROVIDER_CRDS, PROVIDER_CRD])
            engine.kubectl("create", "namespace", NAMESPACE, check=False)
            await register_providers(client, core=True, in_memory=True)
        finally:
            await client.close()
        store(engine, OBJECTS)
        yield engine


def store(engine: Engine, objects: list[Any]) -> None:
    """Create the objects; each is owned by the one before, like deployment, set and Machine."""
    owner: Any = None
    for obj in objects:
        if owner is not None and owner["kind"].startswith("Machine"):
            own = {"apiVersion": CORE, "kind": owner["kind"], "name": owner["metadata"]["name"]}
            obj["metadata"]["ownerReferences"] = [own | {"uid": owner["metadata"]["uid"], "controller": True}]
        engine.kubectl("create", "-f", "-", stdin=json.dumps(obj))
        patched = json.dumps({"status": obj["status"]})
        name = obj["metadata"]["name"]
        response = engine.kubectl(
            "patch", obj["kind"], name, "--subresource=status", "--type=merge", "-p", patched, "-o", "json"
        )
        owner = json.loads(response.stdout)
    engine.kubectl("create", "-f", "-", stdin=json.dumps(SECRET))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERCTL_DISABLE_VERSIONCHECK", "true")


def test_a_cluster_is_described_down_to_its_machines(engine: Engine, tmp_path: Path) -> None:
    output = run(engine, "clusterctl", "describe", "cluster", "c", "--show-machinesets", home=tmp_path).stdout
    names = [line.lstrip("├─└│ ").split("  ")[0] for line in output.splitlines()[1:]]
    assert [name for name in names if name] == [
        "Cluster/c",
        "ClusterInfrastructure - InMemoryCluster/c",
        "Workers",
        "MachineDeployment/md",
        "MachineSet/md-1",
        "Machine/md-1-a",
    ]


def test_get_kubeconfig_prints_the_secret(engine: Engine, tmp_path: Path) -> None:
    assert run(engine, "clusterctl", "get", "kubeconfig", "c", home=tmp_path).stdout.strip() == KUBECONFIG.strip()
