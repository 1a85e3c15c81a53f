"""Simulated provisioned cluster: etcd members, an API while they have quorum, Nodes, and the agent tunnel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Protocol

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import NODE
from herder.api.capi.names import cluster_key
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.names import CONNECTED_SINCE, CONNECTED_TO
from herder.api.rke.distributions import KUBEADM
from herder.api.rke.machines.strategy import quorum
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, StatusError
from herder.engine.meta.kinds import Object
from herder.sim.host.etcd import Content, EtcdCluster, EtcdData
from herder.sim.host.node_object import MEMBER_ADDRESS, MEMBER_NAME, node_annotations, node_object, node_status
from herder.sim.host.service import new_bootstrap
from herder.sim.k3s.snapshot_objects import SnapshotObjects
from herder.sim.nodes import NodeObserver, SimulatedNode

LOST_AFTER_SECONDS = 40.0
"""Seconds without a heartbeat after which a Node counts as lost."""
REMOVE, REMOVED = "/remove", "/removed-node-name"
_GATEWAY = "sim"
_SOON = 0.5
_TIMER_SLACK = 0.001  # timers may fire slightly early


class Apis(Protocol):
    """Serves the APIs of such clusters, by cluster key."""

    async def serve(self, cluster: str) -> None: ...
    def cut(self, cluster: str) -> None: ...
    def heal(self, cluster: str) -> None: ...
    def client(self, cluster: str) -> Client: ...
    def also_known_as(self, alias: str, cluster: str) -> None: ...

    def freeze(self, cluster: str) -> Content:
        """Everything that the cluster stores."""

    async def load(self, cluster: str, content: Content | None) -> None:
        """Replace everything that the cluster stores; None: by what a new cluster has."""

    def restrict_secrets(self, cluster: str, readable: Callable[[], bool]) -> None:
        """Let requests for Secrets fail while they are not readable."""


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
        witness: NodeObserver | None = None,
    ) -> None:
        self.key = cluster_key(namespace, name)
        self.nodes: dict[str, SimulatedNode] = {}  # nodes of existing machines
        self.etcd: EtcdCluster | None = None  # the cluster that began or was restored last
        self.snapshots = SnapshotObjects()
        self._witness = witness or NodeObserver()
        self._loaded: EtcdCluster | None = None  # whose content the API has
        self._answered = 0  # requests for Secrets
        self.tunnel_is_cut = False
        self.api_is_down = False  # no kube-apiserver answers; etcd runs
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
        self._stale_removals: dict[str, str] = {}  # Nodes with a mark of an earlier removal, with the prefix
        self._outdated: set[str] = set()  # Nodes whose annotations changed
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

    def begin(self, node: SimulatedNode) -> EtcdCluster:
        """Create a new cluster, which is empty."""
        new = EtcdCluster(node.context.new_id(), {node.name: node}, None, new_bootstrap(node))
        self.replace_etcd(node, new)
        return new

    def replace_etcd(self, node: SimulatedNode, new: EtcdCluster) -> None:
        old = self.etcd
        if old is not None:
            old.content = self._workloads.freeze(self.key) if self._loaded is old else old.content
            self._note(f"etcd {old.id} of {self.key} replaced by {new.id}")
        self.etcd = new
        self._witness.replaced_etcd(node, old, new)
        self.changed()

    def freeze(self) -> Content:
        """The content of the current cluster."""
        if self._loaded is not None and self._loaded is self.etcd:
            return self._workloads.freeze(self.key)
        known = self.etcd.content if self.etcd is not None else None
        return known or Content(0, ())

    def revives(self, node: SimulatedNode, data: EtcdData) -> bool:
        """Whether a member of a replaced cluster can start: only together with a quorum of that cluster.

        Alone it waits forever, because members of the new cluster ignore its requests: the cluster ID differs. If only
        one of both clusters has ever served, the other one was restored and not started, and this one continues.
        """
        old = data.cluster
        if old is self.etcd:
            return False  # it was removed
        ready = [
            each
            for each in old.members.values()
            if each.disk.etcd is not None and each.disk.etcd.cluster is old and each.service.state != "inactive"
        ]
        if node not in ready or len(ready) < quorum(len(old.members)):
            return False
        if self.etcd is None or not (old.has_served and self.etcd.has_served):
            self.replace_etcd(node, old)
        else:
            self._witness.revived_etcd(node, old)
        return True

    def admits(self, node: SimulatedNode, host: str) -> bool:
        """Add a new etcd member, which counts for quorum immediately."""
        if not self.answers(host):
            return False
        self.members[node.name] = node
        return True

    def is_member(self, node: SimulatedNode) -> bool:
        data = node.disk.etcd
        return self.members.get(node.name) is node and data is not None and data.cluster is self.etcd

    def snapshots_changed(self, node: SimulatedNode) -> None:
        self.snapshots.mark(node)
        self.changed()

    def report_failed_snapshot(self, node: SimulatedNode, name: str, message: str) -> None:
        self.snapshots.add_failure(node, name, message)
        self.changed()

    def annotations_changed(self, node: SimulatedNode) -> None:
        self._outdated.add(node.name)
        self.changed()

    def answers(self, host: str) -> bool:
        return self.has_quorum and any(
            node.address == host and node.running and not node.is_worker for node in self.nodes.values()
        )

    def members_as_told(self) -> str:
        reported = [
            {"name": node.disk.etcd.member, "clientURLs": [f"https://{node.address}:2379"]}
            for node in self.members.values()
            if node.disk.etcd is not None
        ]
        return json.dumps({"members": reported}) + "\n"

    @property
    def members(self) -> dict[str, SimulatedNode]:
        """Etcd members by Node, running or not."""
        return self.etcd.members if self.etcd is not None else {}

    @property
    def voters(self) -> list[SimulatedNode]:
        return self.etcd.voters if self.etcd is not None else []

    @property
    def has_quorum(self) -> bool:
        return self.etcd is not None and self.etcd.has_quorum

    @property
    def has_api(self) -> bool:
        if self.api_is_down or not self.has_quorum:
            return False
        return any(node.running and node.has_api for node in self.nodes.values())

    @property
    def api(self) -> Client:
        """The API of the cluster, for scripts that run kubectl on its servers. No fault is injected."""
        return self._workloads.client(self.key)

    @property
    def is_loaded(self) -> bool:
        """Whether the API has the content of the current etcd cluster."""
        return self.has_api and self._loaded is self.etcd

    # --- reconciliation ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until canceled."""
        try:
            while True:
                turn = self._changed
                await self._reconcile_api()
                await self._reconcile_nodes()
                await self._reconcile_snapshots()
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
            self._loaded = self.etcd if self.etcd is not None and self.etcd.content is None else None
            self._workloads.restrict_secrets(self.key, self._secrets_are_readable)
            self._start_removals()
        if not self._served:
            return
        if self.has_api and self.etcd is not None and self._loaded is not self.etcd:
            await self._load(self.etcd)
        reachable = self.has_api and not self.tunnel_is_cut
        if reachable:
            self._workloads.heal(self.key)
        else:
            self._workloads.cut(self.key)
        self.outages += self._reachable and not reachable
        self._reachable = reachable

    async def _load(self, etcd: EtcdCluster) -> None:
        """Serve the content of another cluster. Its Nodes are those of its time."""
        self._removals.cancel()  # Nodes that the other content lacks were not deleted by anyone
        await self._workloads.load(self.key, etcd.content)
        self._start_removals()
        self._loaded = etcd
        self._lost.clear()
        self._leaving.clear()
        self._stale_removals.clear()
        self.snapshots.forget()
        for node in self.nodes.values():
            self.snapshots.mark(node)
            if node.running:
                await self._reconnect(node)
        self._note(f"etcd {etcd.id} of {self.key} served")

    async def _reconnect(self, node: SimulatedNode) -> None:
        """A kubelet creates its Node only when it starts; later it only updates it. Nodes of the embedded distribution
        register again."""
        status = {"status": node_status(node, "True", self._clock())}
        try:
            await self.api.patch(NODE.resource, node.name, status, subresource="status")
        except NotFound:
            if node.runtime == "herder":
                self._registered.pop(node.name, None)

    def _secrets_are_readable(self) -> bool:
        """Whether the API server that answers the next request can read Secrets; they answer in turn."""
        servers = [node for node in self.nodes.values() if node.running and node.has_api]
        self._answered += 1
        return not servers or servers[self._answered % len(servers)].reads_secrets

    async def _reconcile_snapshots(self) -> None:
        if self.has_api and self.snapshots.is_pending:
            await self.snapshots.reconcile(self.api)
            if self.snapshots.is_pending:
                asyncio.get_running_loop().call_later(_SOON, self.changed)

    async def _reconcile_nodes(self) -> None:
        if not self.has_api:
            return
        now = asyncio.get_running_loop().time()
        for node in list(self.nodes.values()):
            if node.running and self._registered.get(node.name) != node.starts:
                await self._register(node)
            elif node.name in self._outdated:
                await self._annotate(node)
            elif not node.running and node.name in self._registered and node.name not in self._lost:
                silent = node.stopped_at + LOST_AFTER_SECONDS
                if now >= silent:
                    await self._mark_lost(node)
                elif self._lost_at.get(node.name) != silent:
                    self._lost_at[node.name] = silent
                    asyncio.get_running_loop().call_at(silent + _TIMER_SLACK, self.changed)

    async def _register(self, node: SimulatedNode) -> None:
        """Register the Node, as a starting kubelet does."""
        starts, client = node.starts, self.api
        obj = node_object(node)
        try:
            await client.create(NODE.resource, obj)
        except StatusError:
            spec = {"spec": obj["spec"], "metadata": {key: obj["metadata"][key] for key in ("labels", "annotations")}}
            await client.patch(NODE.resource, node.name, spec)
        status = {"status": node_status(node, "True", self._clock())}
        await client.patch(NODE.resource, node.name, status, subresource="status")
        self._registered[node.name] = starts
        self._lost.discard(node.name)
        if node.disk.below(node.disk.layout.snapshots):
            self.snapshots.mark(node)

    async def _annotate(self, node: SimulatedNode) -> None:
        self._outdated.discard(node.name)
        with suppress(NotFound):
            patch = {"metadata": {"annotations": node_annotations(node)}}
            await self.api.patch(NODE.resource, node.name, patch)

    async def _mark_lost(self, node: SimulatedNode) -> None:
        self._lost.add(node.name)
        status = {"status": node_status(node, "Unknown", self._clock())}
        try:
            await self.api.patch(NODE.resource, node.name, status, subresource="status")
        except NotFound:
            self._registered.pop(node.name, None)

    # --- removal of etcd members ------------------------------------------------------------------------------------

    def _start_removals(self) -> None:
        self._removals = asyncio.ensure_future(self._watch_member_removals())
        self._tasks.append(self._removals)

    async def _watch_member_removals(self) -> None:
        seen = self.api.watch(NODE.resource, initial_events=True)
        async for event in seen:
            name, marks = event.object["metadata"].get("name", ""), event.object["metadata"].get("annotations") or {}
            self._leaving.pop(name, None)
            if event.type == "DELETED":
                self._remove_with_node(name, marks)
            for mark, value in marks.items() if event.type != "DELETED" else ():
                prefix = mark.removesuffix(REMOVE)
                if not mark.endswith(REMOVE) or value != "true":
                    continue
                if f"{prefix}{REMOVED}" not in marks:
                    self._leaving[name] = prefix
                elif marks.get(f"{prefix}{MEMBER_NAME}") not in (None, marks[f"{prefix}{REMOVED}"]):
                    self._stale_removals[name] = prefix  # of a member that has joined again since
                self.changed()

    def _remove_with_node(self, name: str, marks: Object) -> None:
        """Servers of K3s and RKE2 remove the member of a deleted Node, unless it has a mark of an earlier removal."""
        member = self.members.get(name)
        if member is None or member.runtime not in ("k3s", "rke2"):
            return
        prefix = f"etcd.{member.runtime}.cattle.io"
        if f"{prefix}{REMOVED}" not in marks:
            self._leaving[name] = prefix
            self.changed()

    async def _remove_members(self) -> None:
        """Remove members whose Nodes are annotated, as a server does; retried while etcd refuses."""
        for name, prefix in list(self._leaving.items()):
            if self._can_remove(name):
                await self._remove_member(name, prefix)
            elif self.has_api and list(self.members) == [name] and prefix != KUBEADM.member_removal:
                # The last member is refused for good, and the request with it.
                self._leaving.pop(name)
                await self._patch_annotations(name, {f"{prefix}{REMOVE}": None})
        for name, prefix in list(self._stale_removals.items()):
            self._stale_removals.pop(name)
            await self._patch_annotations(name, dict.fromkeys((f"{prefix}{REMOVE}", f"{prefix}{REMOVED}")))

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
        removed = member.disk.etcd.member if member is not None and member.disk.etcd is not None else name
        if member is not None:
            self._note(f"etcd member {name} of {self.key} taken out")
            member.lose_etcd()
            await self._report_voter(member)
        marks: dict[str, str | None] = {f"{prefix}{REMOVED}": removed}
        if prefix != KUBEADM.member_removal:
            marks |= dict.fromkeys((f"{prefix}{REMOVE}", f"{prefix}{MEMBER_NAME}", f"{prefix}{MEMBER_ADDRESS}"))
        await self._patch_annotations(name, marks)
        self.changed()

    async def _report_voter(self, member: SimulatedNode) -> None:
        if member.runtime in ("k3s", "rke2"):
            status = node_status(member, "Unknown" if member.name in self._lost else "True", self._clock(), voter=False)
            with suppress(NotFound):
                await self.api.patch(NODE.resource, member.name, {"status": status}, subresource="status")

    async def _patch_annotations(self, name: str, marks: dict[str, str | None]) -> None:
        with suppress(NotFound):
            patch = {"metadata": {"annotations": marks}}
            await self.api.patch(NODE.resource, name, patch)

    # --- faults -----------------------------------------------------------------------------------------------------

    def stop_api(self) -> None:
        """Crash kube-apiserver on all servers, where it is a process of its own."""
        self.api_is_down = True
        self.changed()

    def start_api(self) -> None:
        self.api_is_down = False
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
