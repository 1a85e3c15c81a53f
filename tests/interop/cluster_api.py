"""Upstream Cluster API's core manager on an engine, outside any cluster: its webhooks are called on loopback."""

from __future__ import annotations

import asyncio
import base64
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.support.api import PATIENCE, Api
from tests.support.engines import Engine
from tests.support.kube import Authority, free_port
from tests.support.peers import peer

CONTRACT = {"cluster.x-k8s.io/v1beta1": "v1beta1", "cluster.x-k8s.io/v1beta2": "v1beta2"}


class CoreManager:
    def __init__(self, engine: Engine, directory: Path) -> None:
        self.engine = engine
        self.directory = directory
        self.webhooks, self.health, self.diagnostics = free_port(), free_port(), free_port()
        self.config = peer("capi-core").parent / "config"
        self.process: subprocess.Popen[bytes] | None = None

    async def install(self, api: Api) -> None:
        """Its definitions and webhook configurations, rewritten from a service in the cluster to an address here."""
        authority = Authority(self.directory / "pki")
        certificate, key = authority.issue("webhooks", server=True)
        certificate.rename(certificate.with_name("tls.crt"))
        key.rename(key.with_name("tls.key"))
        self.bundle = base64.b64encode(authority.path.read_bytes()).decode()
        definitions = [_load(path) for path in sorted((self.config / "crd" / "bases").glob("*.yaml"))]
        for (definition,) in definitions:
            definition["metadata"]["labels"] = CONTRACT
            webhook = {"conversionReviewVersions": ["v1"], "clientConfig": self._client("/convert")}
            definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
            await install_definition(api, definition)
        for configuration in _load(self.config / "webhook" / "manifests.yaml"):
            for webhook in configuration["webhooks"]:
                webhook["clientConfig"] = self._client(webhook["clientConfig"]["service"]["path"])
            plural = configuration["kind"].lower() + "s"
            url = api.cluster(f"admissionregistration.k8s.io/v1/{plural}", configuration["metadata"]["name"])
            (await api.apply(url, configuration)).expect(201)

    async def start(self) -> None:
        with (self.directory / "manager.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    peer("capi-core"),
                    f"--kubeconfig={self.engine.kubeconfig}",
                    f"--webhook-port={self.webhooks}",
                    f"--webhook-cert-dir={self.directory / 'pki'}",
                    f"--health-addr=127.0.0.1:{self.health}",
                    f"--diagnostics-address=127.0.0.1:{self.diagnostics}",
                    "--insecure-diagnostics",
                ],
                stdout=log,
                stderr=log,
            )
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(self._is_ready):
                if self.process.poll() is not None:
                    raise RuntimeError(f"the manager has ended:\n{self.log()[-3000:]}")
                await asyncio.sleep(0.05)

    def log(self) -> str:
        return (self.directory / "manager.log").read_text(errors="replace")

    def stop(self) -> int:
        """Its exit status, 0 after an orderly end."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _client(self, path: str) -> dict[str, str]:
        return {"url": f"https://127.0.0.1:{self.webhooks}{path}", "caBundle": self.bundle}

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


async def install_definition(api: Api, definition: Any) -> None:
    """By server-side apply, as its own installer does; until it is served."""
    url = api.cluster("apiextensions.k8s.io/v1/customresourcedefinitions", definition["metadata"]["name"])
    (await api.apply(url, definition)).expect(201)
    await api.until_object(url, _is_established)


def _is_established(definition: Any) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(entry["type"] == "Established" and entry["status"] == "True" for entry in conditions)


def _load(path: Path) -> list[Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where it exists
    return [document for document in yaml.load_all(path.read_text(), loader) if document]
