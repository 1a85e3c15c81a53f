"""Upstream Cluster API's managers on an engine, outside any cluster: their webhooks listen on loopback."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.api import TIMEOUT, Api
from tests.support.engines import Engine
from tests.support.kube import Authority, free_port
from tests.support.peers import peer
from tests.support.processes import terminate

CONTRACT = {"cluster.x-k8s.io/v1beta1": "v1beta1", "cluster.x-k8s.io/v1beta2": "v1beta2"}


@dataclass(frozen=True)
class Program:
    peer: str
    folder: str  # of its CRDs and webhook configurations, next to the binary
    environment: tuple[tuple[str, str], ...] = ()


CORE = Program("capi-core", "config")
KUBEADM_BOOTSTRAP = Program("capi-kubeadm-bootstrap", "bootstrap/kubeadm/config")
KUBEADM_CONTROL_PLANE = Program("capi-kubeadm-control-plane", "controlplane/kubeadm/config")
DEV = Program("capi-dev", "infrastructure/docker/config", (("POD_IP", "127.0.0.1"),))
PROVIDERS = (KUBEADM_BOOTSTRAP, KUBEADM_CONTROL_PLANE, DEV)


class UpstreamManager:
    def __init__(self, program: Program, engine: Engine, directory: Path, flags: Sequence[str] = ()) -> None:
        self.program = program
        self.engine = engine
        self.directory = directory
        self.flags = flags
        self.webhooks, self.health, self.diagnostics = free_port(), free_port(), free_port()
        self.config = peer(program.peer).parent / program.folder
        self.process: subprocess.Popen[bytes] | None = None

    async def install(self, api: Api) -> None:
        """Install its CRDs and webhook configurations, with loopback URLs instead of Services."""
        authority = Authority(self.directory / "pki")
        certificate, key = authority.issue("webhooks", server=True)
        certificate.rename(certificate.with_name("tls.crt"))
        key.rename(key.with_name("tls.key"))
        self.bundle = base64.b64encode(authority.path.read_bytes()).decode()
        definitions = [load_yaml(path) for path in sorted((self.config / "crd" / "bases").glob("*.yaml"))]
        for (definition,) in definitions:
            definition["metadata"]["labels"] = CONTRACT
            webhook = {"conversionReviewVersions": ["v1"], "clientConfig": self._client("/convert")}
            definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
            await install_definition(api, definition)
        for configuration in load_yaml(self.config / "webhook" / "manifests.yaml"):
            configuration["metadata"]["name"] += f"-{self.program.peer}"
            for webhook in configuration["webhooks"]:
                webhook["clientConfig"] = self._client(webhook["clientConfig"]["service"]["path"])
            plural = configuration["kind"].lower() + "s"
            url = api.cluster(f"admissionregistration.k8s.io/v1/{plural}", configuration["metadata"]["name"])
            (await api.apply(url, configuration)).expect(201)

    async def start(self) -> None:
        with (self.directory / "manager.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    peer(self.program.peer),
                    f"--kubeconfig={self.engine.kubeconfig}",
                    f"--webhook-port={self.webhooks}",
                    f"--webhook-cert-dir={self.directory / 'pki'}",
                    f"--health-addr=127.0.0.1:{self.health}",
                    f"--diagnostics-address=127.0.0.1:{self.diagnostics}",
                    "--insecure-diagnostics",
                    "--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields",
                    *self.flags,
                ],
                stdout=log,
                stderr=log,
                env=os.environ | dict(self.program.environment),
            )
        async with asyncio.timeout(TIMEOUT):
            while not await asyncio.to_thread(self._is_ready):
                if self.process.poll() is not None:
                    raise RuntimeError(f"{self.program.peer} has ended:\n{self.log()[-3000:]}")
                await asyncio.sleep(0.05)

    def log(self) -> str:
        return (self.directory / "manager.log").read_text(errors="replace")

    def stop(self) -> int:
        """Stop the process and return its exit status, 0 after a clean shutdown."""
        return terminate(self.process)

    def _client(self, path: str) -> dict[str, str]:
        return {"url": f"https://127.0.0.1:{self.webhooks}{path}", "caBundle": self.bundle}

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


async def install_definition(api: Api, definition: Any) -> None:
    """Install a CRD by server-side apply, as upstream's installer does, and wait until it is served."""
    url = api.cluster("apiextensions.k8s.io/v1/customresourcedefinitions", definition["metadata"]["name"])
    (await api.apply(url, definition)).expect(201)
    await api.until_object(url, _is_established)


def _is_established(definition: Any) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(entry["type"] == "Established" and entry["status"] == "True" for entry in conditions)


def load_yaml(path: Path) -> list[Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where it exists
    return [document for document in yaml.load_all(path.read_text(), loader) if document]


# --- a cluster of upstream's dev provider --------------------------------------------------------------------------


def dev_cluster(name: str, *, control_planes: int = 1, workers: int = 2, version: str = "v1.35.0") -> list[Any]:
    """All objects of one cluster with an in-memory backend and no simulated delay."""
    cri = {"nodeRegistration": {"criSocket": "unix:///var/run/containerd/containerd.sock"}}
    names = {"clusterConfiguration": {"apiServer": {"certSANs": ["localhost", "127.0.0.1", "0.0.0.0"]}}}
    kubeadm = names | {"initConfiguration": cri, "joinConfiguration": cri}
    infrastructure = {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevMachineTemplate", "name": name}
    control_plane = {
        "replicas": control_planes,
        "version": version,
        "machineTemplate": {"spec": {"infrastructureRef": infrastructure}},
        "kubeadmConfigSpec": kubeadm,
    }
    machine = {
        "clusterName": name,
        "version": version,
        "bootstrap": {
            "configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfigTemplate", "name": name}
        },
        "infrastructureRef": infrastructure,
    }
    cluster = {
        "clusterNetwork": {"services": {"cidrBlocks": ["10.128.0.0/12"]}, "pods": {"cidrBlocks": ["192.168.0.0/16"]}},
        "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevCluster", "name": name},
        "controlPlaneRef": {
            "apiGroup": "controlplane.cluster.x-k8s.io",
            "kind": "KubeadmControlPlane",
            "name": name,
        },
    }
    backend: Any = {"backend": {"inMemory": {}}}
    deployment = {"clusterName": name, "replicas": workers, "template": {"spec": machine}}
    # The in-memory backend fails if a DevCluster has no annotations.
    annotated = {"annotations": {"example.com/present": "true"}}
    return [
        _object("infrastructure.cluster.x-k8s.io/v1beta2", "DevCluster", name, backend, annotated),
        _object("infrastructure.cluster.x-k8s.io/v1beta2", "DevMachineTemplate", name, {"template": {"spec": backend}}),
        _object("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfigTemplate", name, _template(cri)),
        _object("controlplane.cluster.x-k8s.io/v1beta2", "KubeadmControlPlane", name, control_plane),
        _object("cluster.x-k8s.io/v1beta2", "Cluster", name, cluster),
        _object("cluster.x-k8s.io/v1beta2", "MachineDeployment", f"{name}-workers", deployment),
    ]


def _template(join: Any) -> Any:
    return {"template": {"spec": {"joinConfiguration": join}}}


def _object(api_version: str, kind: str, name: str, spec: Any, metadata: Any = None) -> Any:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name} | (metadata or {}), "spec": spec}
