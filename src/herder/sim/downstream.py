"""Simulated provisioned cluster: etcd members, an API while they have quorum, Nodes, and the agent tunnel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import NODE
from herder.api.capi.names import cluster_key
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.names import CONNECTED_SINCE, CONNECTED_TO
from herder.api.rke.strategy import quorum
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, StatusError
from herder.engine.meta.kinds import Object
from herder.sim.nodes import SimulatedNode

LOST_AFTER_SECONDS = 40.0
"""Seconds without a heartbeat after which a Node counts as lost."""
REMOVE, REMOVED = "/remove", "/removed-node-name"
_GATEWAY = "sim"
_TIMER_SLACK = 0.001  # timers may fire slightly early
_HEALTHY = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
_NODE_INFO = (
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion"),
    *("machineID", "operatingSystem", "osImage", "systemUUID"),
)


class Apis(Protocol):
    """Serves the APIs of such clusters, by cluster key."""

    async def serve(self, cluster: str) -> None: ...
    def cut(self, cluster: str) -> None: ...
    def heal(self, cluster: str) -> None: ...
    def client(self, cluster: str) -> Client: ...
    def also_known_as(self, alias: str, cluster: str) -> None: ...


class Downstream:
    """`client` is the manager's API, where gateways record connected agents; this stands in for them."""

    def __init__(
        self,
        workloads: Apis,
        client: Client,
        namespace: str,
        name: str,
        *,
        clock: Callable[[], datetime],
        note: Callable[[str], None],
    ) -> None:
        self.key = cluster_key(namespace, name)
        self.nodes: dict[str, SimulatedNode] = {}  # nodes of existing machines
        self.members: dict[str, SimulatedNode] = {}  # etcd members, running or not
        self.tunnel_is_cut = False
        self.agent_status = ""  # what kubectl prints about the pod of the cluster agent
        self.outages = 0  # how often the manager lost access
        self._reachable = False
        self._workloads = workloads
        self._client = client
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self._note = note
        self._changed = asyncio.Event()
        self._registered: dict[str, int] = {}  # start counter of the service at registration, by Node
        self._lost: set[str] = set()  # Nodes reported as lost
        self._leaving: dict[str, str] = {}  # members to be removed, with the annotation prefix
        self._lost_at: dict[str, float] = {}  # when a silent Node counts as lost
        self._connected = False
        self._served = False
        self._tasks: list[asyncio.Task[None]] = []

    # --- interface for machines -------------------------------------------------------------------------------------

    def enter(self, node: SimulatedNode) -> None:
        self.nodes[node.name] = node
        self.changed()

    def leave(self, node: SimulatedNode) -> None:
        """Remove a machine for good; its etcd member stays, not running, until it is removed."""
        self.nodes.pop(node.name, None)
        self.changed()

    def changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def news(self) -> None:
        await self._changed.wait()

    def begin(self, node: SimulatedNode) -> None:
        self.members = {node.name: node}

    def admits(self, node: SimulatedNode, host: str) -> bool:
        """Add a new etcd member, which counts for quorum immediately."""
        if not self.answers(host):
            return False
        self.members[node.name] = node
        return True

    def is_member(self, node: SimulatedNode) -> bool:
        return self.members.get(node.name) is node

    def answers(self, host: str) -> bool:
        return self.has_quorum and any(
            node.address == host and node.running and not node.is_worker for node in self.nodes.values()
        )

    def members_as_told(self) -> str:
        reported = [
            {"name": node.name, "clientURLs": [f"https://{node.address}:2379"]} for node in self.members.values()
        ]
        return json.dumps({"members": reported}) + "\n"

    @property
    def voters(self) -> list[SimulatedNode]:
        return [node for node in self.members.values() if node.running]

    @property
    def has_quorum(self) -> bool:
        return bool(self.members) and len(self.voters) >= quorum(len(self.members))

    @property
    def has_api(self) -> bool:
        return self.has_quorum and any(node.running and node.has_api for node in self.nodes.values())

    # --- reconciliation ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until canceled."""
        try:
            while True:
                turn = self._changed
                await self._reconcile_api()
                await self._reconcile_nodes()
                await self._remove_members()
                await self._reconcile_tunnel()
                await turn.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _reconcile_api(self) -> None:
        if self.has_api and not self._served:
            await self._workloads.serve(self.key)
            self._served = True
            self._tasks.append(asyncio.ensure_future(self._watch_member_removals()))
        if not self._served:
            return
        reachable = self.has_api and not self.tunnel_is_cut
        if reachable:
            self._workloads.heal(self.key)
        else:
            self._workloads.cut(self.key)
        self.outages += self._reachable and not reachable
        self._reachable = reachable

    async def _reconcile_nodes(self) -> None:
        if not self.has_api:
            return
        now = asyncio.get_running_loop().time()
        for node in list(self.nodes.values()):
            if node.running and self._registered.get(node.name) != node.starts:
                await self._register(node)
            elif not node.running and node.name in self._registered and node.name not in self._lost:
                silent = node.stopped_at + LOST_AFTER_SECONDS
                if now >= silent:
                    await self._mark_lost(node)
                elif self._lost_at.get(node.name) != silent:
                    self._lost_at[node.name] = silent
                    asyncio.get_running_loop().call_at(silent + _TIMER_SLACK, self.changed)

    async def _register(self, node: SimulatedNode) -> None:
        """Register the Node, as a starting kubelet does."""
        starts, client = node.starts, self._workloads.client(self.key)
        obj = _node(node)
        try:
            await client.create(NODE.resource, obj)
        except StatusError:
            spec = {"spec": obj["spec"], "metadata": {"labels": obj["metadata"]["labels"]}}
            await client.patch(NODE.resource, node.name, spec)
        status = {"status": _status(node, "True", self._clock())}
        await client.patch(NODE.resource, node.name, status, subresource="status")
        self._registered[node.name] = starts
        self._lost.discard(node.name)

    async def _mark_lost(self, node: SimulatedNode) -> None:
        self._lost.add(node.name)
        status = {"status": _status(node, "Unknown", self._clock())}
        try:
            await self._workloads.client(self.key).patch(NODE.resource, node.name, status, subresource="status")
        except NotFound:
            self._registered.pop(node.name, None)

    # --- removal of etcd members ------------------------------------------------------------------------------------

    async def _watch_member_removals(self) -> None:
        seen = self._workloads.client(self.key).watch(NODE.resource, initial_events=True)
        async for event in seen:
            name, marks = event.object["metadata"].get("name", ""), event.object["metadata"].get("annotations") or {}
            self._leaving.pop(name, None)
            for mark, value in marks.items() if event.type != "DELETED" else ():
                prefix = mark.removesuffix(REMOVE)
                if mark.endswith(REMOVE) and value == "true" and f"{prefix}{REMOVED}" not in marks:
                    self._leaving[name] = prefix
                    self.changed()

    async def _remove_members(self) -> None:
        """Remove members whose Nodes are annotated, as a server does; retried while etcd refuses."""
        for name, prefix in list(self._leaving.items()):
            if self._can_remove(name):
                await self._remove_member(name, prefix)

    def _can_remove(self, name: str) -> bool:
        """As in etcd: a stopped member at any time, a running one if the rest keeps quorum."""
        if not self.has_api:
            return False
        member = self.members.get(name)
        if member is None or not member.running:
            return True
        return len(self.voters) - 1 >= quorum(len(self.members) - 1)

    async def _remove_member(self, name: str, prefix: str) -> None:
        self._leaving.pop(name)
        member = self.members.pop(name, None)
        if member is not None:
            self._note(f"etcd member {name} of {self.key} taken out")
            member.lose_etcd()
        patch = {"metadata": {"annotations": {f"{prefix}{REMOVED}": name}}}
        with suppress(NotFound):
            await self._workloads.client(self.key).patch(NODE.resource, name, patch)
        self.changed()

    # --- tunnel -----------------------------------------------------------------------------------------------------

    def cut_tunnel(self) -> None:
        self.tunnel_is_cut = True
        self.changed()

    def heal_tunnel(self) -> None:
        self.tunnel_is_cut = False
        self.changed()

    async def _reconcile_tunnel(self) -> None:
        dials = self.has_api and any(node.running and node.has_manifest for node in self.nodes.values())
        wanted = dials and not self.tunnel_is_cut
        if wanted != self._connected and await self.set_tunnel(wanted):
            self._connected = wanted
            self._note(f"tunnel of {self.key} {'there' if wanted else 'gone'}")

    async def set_tunnel(self, wanted: bool) -> bool:
        """Whether it succeeded: the manager must know the cluster."""
        management = await self._management()
        if not management:
            return False
        if wanted:
            self._workloads.also_known_as(management, self.key)
            status = {"status": {"apiEndpoint": "https://10.43.0.1:443"}}
            await self._client.patch(MANAGEMENT_CLUSTER.resource, management, status, subresource="status")
        since = timestamp(self._clock()) if wanted else None
        marks = {CONNECTED_SINCE: since, CONNECTED_TO: _GATEWAY if wanted else None}
        await self._client.patch(MANAGEMENT_CLUSTER.resource, management, {"metadata": {"annotations": marks}})
        return True

    async def _management(self) -> str:
        try:
            found = await self._client.get(PROVISIONING_CLUSTER.resource, self._name, namespace=self._namespace)
        except NotFound:
            return ""
        name = str((found.get("status") or {}).get("clusterName") or "")
        try:
            await self._client.get(MANAGEMENT_CLUSTER.resource, name)
        except NotFound:
            return ""
        return name


def _node(node: SimulatedNode) -> Object:
    runtime = node.disk.installed.runtime if node.disk.installed else ""
    labels = dict(each.partition("=")[::2] for each in node.config.get("node-label") or ())
    roles = [role for role, has in (("control-plane", node.has_api), ("etcd", node.has_etcd)) if has]
    labels |= {f"node-role.kubernetes.io/{role}": "true" for role in roles}
    meta = {"name": node.name, "labels": {"kubernetes.io/hostname": node.name, **labels}}
    return {
        "apiVersion": NODE.api_version,
        "kind": NODE.kind,
        "metadata": meta,
        "spec": {"providerID": f"{runtime}://{node.name}"},
    }


def _status(node: SimulatedNode, ready: str, now: datetime) -> dict[str, Any]:
    version = node.disk.installed.version if node.disk.installed else ""
    fields = {**_HEALTHY, "Ready": ready} if ready == "True" else dict.fromkeys(_HEALTHY, ready)
    moment = timestamp(now)
    return {
        "addresses": [{"type": "InternalIP", "address": node.address}, {"type": "Hostname", "address": node.name}],
        "nodeInfo": {**dict.fromkeys(_NODE_INFO, "sim"), "operatingSystem": "linux", "kubeletVersion": version},
        "conditions": [
            {
                "type": type_,
                "status": status,
                "reason": "Simulated",
                "message": "",
                "lastHeartbeatTime": moment,
                "lastTransitionTime": moment,
            }
            for type_, status in fields.items()
        ],
    }
