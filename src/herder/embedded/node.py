"""The Node object of a machine: registered, kept alive, and recreated if deleted."""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime

from herder import __version__
from herder.api.rke.names import MACHINE_UID
from herder.embedded.configuration import Configuration
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import AlreadyExists, NotFound, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object

log = get_logger(__name__)

ARGUMENTS = "herder.io/node-args"  # annotation of the Node: its arguments, as in k3s
NODES = GroupVersionResource("", "v1", "nodes")
LEASES = GroupVersionResource("coordination.k8s.io", "v1", "leases")
LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
RENEW_EVERY = 10.0
RETRY_AFTER = 0.5
_PRESSURES = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "nothing runs here that could use it up"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "nothing runs here that could use it up"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "nothing runs here that could use it up"),
)
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}


class Node:
    def __init__(self, client: Client, configuration: Configuration, *, server: bool) -> None:
        self._client = client
        self._configuration = configuration
        self._server = server
        self._ready_since = _now()
        self._uid = ""
        self.registered = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled, with retries while the control plane is unreachable."""
        while True:
            try:
                if not self.registered.is_set():
                    await self._register()
                await self._renew_lease()
                pause = RENEW_EVERY
            except NotFound:
                self.registered.clear()  # the Node was deleted
                pause = 0.0
            except (StatusError, OSError) as problem:
                log.warning("cannot reach the control plane", node=self._configuration.node_name, problem=str(problem))
                pause = RETRY_AFTER
            await asyncio.sleep(pause)

    # --- Node
    # -----------------------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        name = self._configuration.node_name
        try:
            node = await self._client.create(NODES, self._node())
        except AlreadyExists:
            status = {"labels": self._labels(), "annotations": self._annotations()}
            node = await self._client.patch(NODES, name, {"metadata": status})
        self._uid = node["metadata"]["uid"]
        await self._client.patch(NODES, name, {"status": self._status()}, subresource="status")
        self.registered.set()
        log.info("registered", node=name)

    def _node(self) -> Object:
        taints = [{"key": k, "effect": e, **({"value": v} if v else {})} for k, v, e in self._configuration.taints]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self._configuration.node_name,
                "labels": self._labels(),
                "annotations": self._annotations(),
            },
            "spec": {
                "providerID": f"herder://{self._configuration.node_name}",
                **({"taints": taints} if taints else {}),
            },
        }

    def _annotations(self) -> dict[str, str]:
        return {ARGUMENTS: json.dumps(["server" if self._server else "agent", *self._configuration.arguments])}

    def _labels(self) -> dict[str, str]:
        system = {"os": "linux", "arch": _processor()}
        roles = ("control-plane", "etcd") if self._server else ()
        return {
            **{f"kubernetes.io/{key}": value for key, value in system.items()},
            "kubernetes.io/hostname": self._configuration.node_name,
            **{f"node-role.kubernetes.io/{role}": "true" for role in roles},
            **dict(self._configuration.labels),
        }

    def _status(self) -> Object:
        resources = {
            "cpu": str(os.cpu_count() or 1),
            "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 1024}Ki",
            "pods": "0",
        }
        addresses = [("InternalIP", each) for each in self._configuration.addresses]
        addresses += [("ExternalIP", each) for each in self._configuration.external_addresses]
        addresses.append(("Hostname", self._configuration.node_name))
        return {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [{"type": type_, "address": address} for type_, address in addresses],
            "conditions": [*(self._condition(*each) for each in _PRESSURES), self._ready()],
            "nodeInfo": {
                "machineID": _machine_id(),
                "systemUUID": "",
                "bootID": _first_line("/proc/sys/kernel/random/boot_id"),
                "kernelVersion": platform.release(),
                "osImage": _operating_system(),
                "containerRuntimeVersion": "none://",
                "kubeletVersion": self._configuration.version or f"v{__version__}",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": _processor(),
            },
        }

    def _ready(self) -> Object:
        return self._condition("Ready", "True", "KubeletReady", "the node is up; it runs no pods")

    def _condition(self, type_: str, status: str, reason: str, message: str) -> Object:
        return {
            "type": type_,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": _now(),
            "lastTransitionTime": self._ready_since,
        }

    # --- heartbeat
    # ------------------------------------------------------------------------------------------------------

    async def _renew_lease(self) -> None:
        lease: Object = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self._configuration.node_name,
                "namespace": LEASE_NAMESPACE,
                "labels": {key: value for key, value in self._configuration.labels if key == MACHINE_UID},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": self._configuration.node_name, "uid": self._uid}
                ],
            },
            "spec": {
                "holderIdentity": self._configuration.node_name,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
        await self._client.apply(LEASES, lease)
        await self._recover()

    async def _recover(self) -> None:
        """Report Ready again after the Node was marked unreachable; raises NotFound if the Node was deleted."""
        node = await self._client.get(NODES, self._configuration.node_name)
        found = next((each for each in node["status"].get("conditions") or () if each["type"] == "Ready"), None)
        if found is None or found["status"] != "True":
            self._ready_since = _now()
            await self._client.patch(
                NODES, self._configuration.node_name, {"status": self._status()}, subresource="status"
            )


async def serve_health(address: str, port: int, healthy: Callable[[], bool]) -> asyncio.Server:
    """Serve the health endpoint, like a kubelet."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5.0):
                await reader.readuntil(b"\r\n\r\n")
            status, text = ("200 OK", "ok") if healthy() else ("503 Service Unavailable", "not registered")
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n{text}".encode())
        except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(answer, address, port, limit=16 * 1024)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _processor() -> str:
    return PROCESSORS.get(platform.machine(), platform.machine())


def _machine_id() -> str:
    return _first_line("/etc/machine-id")


def _operating_system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def _first_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""
