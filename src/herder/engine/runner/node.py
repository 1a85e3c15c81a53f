"""Node object of this runner, with status and Lease heartbeats."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from herder import __version__
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import AlreadyExists, NotFound, StatusError
from herder.engine.meta.kinds import Object
from herder.engine.runner.kinds import LEASES, NAMESPACES, NODES, Clock, micro_timestamp, timestamp

log = get_logger(__name__)

LABEL = "herder.io/runner"
TAINT = {"key": LABEL, "value": "true", "effect": "NoSchedule"}
LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
RENEW_EVERY = 10.0
STATUS_EVERY = 300.0
MAX_PODS = 110
_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "the runner has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "the runner has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "the runner has sufficient PID available"),
)


class Node:
    """Registers the Node and keeps its status and Lease current."""

    def __init__(
        self, client: Client, name: str, *, address: str, port: int, clock: Clock, isolation: str, capacity_pods: int
    ) -> None:
        self._client = client
        self._name = name
        self._address = address
        self._port = port
        self._clock = clock
        self._isolation = isolation
        self._pods = capacity_pods
        self._ready_since = timestamp(clock())
        self.registered = asyncio.Event()

    @property
    def labels(self) -> dict[str, str]:
        return node_labels(self._name)

    async def run(self) -> None:
        """Register, then send heartbeats; recreate the Node or Lease if it was deleted."""
        last_status = None
        while True:
            try:
                now = self._clock()
                if last_status is None or (now - last_status).total_seconds() >= STATUS_EVERY:
                    await self._write_status()
                    last_status = now
                await self._renew_lease()
                self.registered.set()
                pause = RENEW_EVERY
            except NotFound:
                last_status, pause = None, 0.2  # the Node was deleted
                await self._register()
            except (StatusError, OSError) as error:
                log.warning("heartbeat failed", node=self._name, error=str(error))
                pause = 2.0
            await asyncio.sleep(pause)

    async def _register(self) -> None:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self._name, "labels": self.labels},
            "spec": {"taints": [TAINT]},
        }
        try:
            await self._client.create(NODES, node)
        except AlreadyExists:
            pass
        except (StatusError, OSError) as error:
            log.warning("node not registered", node=self._name, error=str(error))

    async def _write_status(self) -> None:
        await self._client.patch(NODES, self._name, {"status": self._status()}, subresource="status")
        answer = await self._client.patch(NODES, self._name, {"metadata": {"labels": self.labels}})
        taints = answer["spec"].get("taints") or []
        if not any(taint.get("key") == TAINT["key"] for taint in taints):
            await self._client.patch(NODES, self._name, {"spec": {"taints": [*taints, TAINT]}})

    def _status(self) -> Object:
        resources = {
            "cpu": str(os.cpu_count() or 1),
            "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 1024}Ki",
            "pods": str(self._pods),
        }
        return {
            "capacity": resources,
            "allocatable": resources,
            "conditions": self._conditions(),
            # No Hostname address: API servers prefer it by default, but the node's name does not resolve.
            "addresses": [{"type": "InternalIP", "address": self._address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "nodeInfo": _node_info(),
        }

    def _conditions(self) -> list[Object]:
        now = timestamp(self._clock())
        messages = [(name, "False", reason, message) for name, reason, message in _PRESSURES]
        messages.append(("Ready", "True", "KubeletReady", f"the runner is ready; {self._isolation}"))
        return [
            {
                "type": name,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": self._ready_since,
            }
            for name, status, reason, message in messages
        ]

    async def _renew_lease(self) -> None:
        now = micro_timestamp(self._clock())
        spec = {"holderIdentity": self._name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        try:
            await self._client.patch(LEASES, self._name, {"spec": spec}, namespace=LEASE_NAMESPACE)
        except NotFound:
            await self._create_lease(spec)

    async def _create_lease(self, spec: Mapping[str, object]) -> None:
        node = await self._client.get(NODES, self._name)
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": node["metadata"]["uid"]}
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
            "spec": spec,
        }
        try:
            await self._client.create(LEASES, lease, namespace=LEASE_NAMESPACE)
        except AlreadyExists:
            pass
        except NotFound:
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}}
            await self._client.create(NAMESPACES, space)
            await self._client.create(LEASES, lease, namespace=LEASE_NAMESPACE)


def node_labels(name: str) -> dict[str, str]:
    return {
        LABEL: "true",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": architecture(),
    }


def architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _node_info() -> Object:
    return {
        "architecture": architecture(),
        "bootID": _first_line("/proc/sys/kernel/random/boot_id"),
        "containerRuntimeVersion": f"herder://{__version__}",
        "kernelVersion": platform.release(),
        "kubeProxyVersion": "",
        "kubeletVersion": f"v{__version__}",
        "machineID": _first_line("/etc/machine-id"),
        "operatingSystem": "linux",
        "osImage": _os_name(),
        "systemUUID": "",
    }


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
