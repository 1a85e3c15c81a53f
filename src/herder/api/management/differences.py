"""Differences between the stored state of a cluster and the state that its Nodes and agents report.

After a manager was restored from a backup, they show what happened since. A difference *blocks* if a manager that acts
on the stored state could delete, replace or downgrade something. `herder resume` refuses to go on then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from herder.api.capi.names import is_deleting, labels_of
from herder.api.capi.nodes import SERVER_ROLES
from herder.api.management.dropped_operations import pending_requests
from herder.api.rke import names
from herder.api.rke.distributions import Release, release_of
from herder.api.rke.node.held_plan import HELD_PLAN
from herder.api.rke.node.plan_secret import PlanSecret
from herder.api.rke.operations import TITLES, active_run
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable

IN_PROGRESS, REQUESTED = OPERATION_REASONS = ("OperationInProgress", "OperationRequested")
_MAX_NAME = 253


class Difference(NamedTuple):
    reason: str  # in CamelCase
    subject: str
    message: str
    blocks: bool = False


@dataclass(frozen=True)
class ClusterState:
    """What is stored about a cluster, and the Nodes that it has. `nodes` is None if they cannot be read."""

    cluster: Object
    control_plane: Object | None
    machines: Sequence[Object]
    plans: Sequence[Object]
    nodes: Sequence[Object] | None
    unreachable: str = ""
    ids: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", frozenset(each["metadata"]["uid"] for each in self.machines))

    @property
    def wanted(self) -> str:
        return str((self.cluster.get("spec") or {}).get("kubernetesVersion") or "")


def differences(state: ClusterState) -> list[Difference]:
    found = [*_deletions(state), *_operation(state)]
    if state.nodes is None:
        why = f"its Nodes cannot be read: {state.unreachable}; wait for its agent to connect"
        return [*found, Difference("NotComparable", "cluster", why, True), *_plans(state)]
    return [*found, *_versions(state), *_unknown_nodes(state), *_missing_nodes(state), *_plans(state)]


# --- stored intent ----------------------------------------------------------------------------------------------------


def _deletions(state: ClusterState) -> Iterator[Difference]:
    if is_deleting(state.cluster):
        message = "its deletion was requested before the backup; after the resume, it is deleted with its machines"
        yield Difference("Deleting", "cluster", message, True)
    for machine in state.machines:
        if is_deleting(machine):
            message = "its deletion was requested before the backup; after the resume, it is deleted"
            yield Difference("Deleting", _machine(machine), message, True)


def _operation(state: ClusterState) -> Iterator[Difference]:
    meta = state.cluster["metadata"]
    drop = f"herder resume cluster {meta['name']} -n {meta.get('namespace', '')} --drop-operations"
    run = active_run(state.control_plane)
    if run is not None:
        title = f"{TITLES.get(run.kind, run.kind)} {run.generation or ''}".strip()
        message = f"{title} was in progress at the backup, in phase {run.phase}; unless it must go on: {drop}"
        yield Difference(IN_PROGRESS, "cluster", message, True)
    for each in pending_requests(state.cluster, state.control_plane):
        message = f"{each.title} is requested, and may have run since the backup; unless it must run again: {drop}"
        yield Difference(REQUESTED, "cluster", message, True)


# --- Nodes ------------------------------------------------------------------------------------------------------------


def _versions(state: ClusterState) -> Iterator[Difference]:
    """A worker alone does not block: it can report any version, and guards refuse to lower that of a machine.

    In an upgrade, servers come first: without a newer server, there was none.
    """
    has_servers = any(map(is_server, state.nodes or ()))
    for node in state.nodes or ():
        if _is_newer(node, state):
            message = f"runs {_kubelet(node)}, spec.kubernetesVersion is {state.wanted}: "
            blocks = is_server(node) or not has_servers
            message += "it was upgraded since the backup" if blocks else "a worker; its version is not lowered"
            yield Difference("NewerVersion", _node(node), message, blocks)


def _is_newer(node: Object, state: ClusterState) -> bool:
    wanted, running = release_of(state.wanted), _release(node)
    return wanted is not None and running is not None and running > wanted


def _unknown_nodes(state: ClusterState) -> Iterator[Difference]:
    named = {_node_name(machine) for machine in state.machines}
    for node in state.nodes or ():
        uid = labels_of(node).get(names.MACHINE_UID)
        if uid in state.ids or node["metadata"].get("name") in named:
            continue
        role = "server" if is_server(node) else "worker"
        message = f"is a {role} without a Machine: it was added since the backup, and is left alone"
        if is_server(node):
            message += "; its etcd member is not counted by the manager"
        yield Difference("UnknownNode", _node(node), message, is_server(node))


def _missing_nodes(state: ClusterState) -> Iterator[Difference]:
    present, renamed = {node["metadata"].get("name") for node in state.nodes or ()}, _with_renamed_nodes(state)
    for machine in state.machines:
        name = _node_name(machine)
        if name and name not in present and machine["metadata"]["uid"] not in renamed:
            message = f"its Node {printable(name, _MAX_NAME)} is gone: health checks may replace it after the resume"
            yield Difference("MissingNode", _machine(machine), message, True)


def _with_renamed_nodes(state: ClusterState) -> set[str]:
    """UIDs of Machines whose Nodes may have other names now.

    A worker can label its own Node with any Machine, to hide that the Node of that Machine is gone.
    """
    named = {_node_name(machine) for machine in state.machines}
    others = [node for node in state.nodes or () if node["metadata"].get("name") not in named]
    plans = [PlanSecret(secret) for secret in state.plans]
    servers = {plan.labels.get(names.MACHINE_NAME) for plan in plans if plan.is_etcd or plan.is_control_plane}
    ids = {each["metadata"]["uid"] for each in state.machines if each["metadata"]["name"] in servers}
    found = ((labels_of(node).get(names.MACHINE_UID, ""), is_server(node)) for node in others)
    return {uid for uid, of_server in found if of_server or uid not in ids}


def is_server(node: Object) -> bool:
    return any(role in labels_of(node) for role in SERVER_ROLES)


# --- plans ------------------------------------------------------------------------------------------------------------


def _plans(state: ClusterState) -> Iterator[Difference]:
    """A newer version of the servers explains a newer plan. Without one, configuration, certificates or keys have
    changed: a worker that reports a version does not hide that."""
    upgraded = any(_is_newer(node, state) for node in state.nodes or () if is_server(node))
    for secret in state.plans:
        plan = PlanSecret(secret)
        machine = f"Machine {plan.labels.get(names.MACHINE_NAME, plan.name)}"
        if newer := plan.newer_applied:
            message = f"has applied plan {newer[:12]}, which is newer than the stored one"
            if not upgraded:
                message += ": configuration, certificates or keys have changed since the backup"
            yield Difference("NewerPlan", machine, message, not upgraded)
        if held := plan.annotations.get(HELD_PLAN):
            message = (
                f"plan {held[:12]} was unfinished at the backup and is withdrawn; a new one follows if it is needed"
            )
            yield Difference("HeldPlan", machine, message)


# --- versions ---------------------------------------------------------------------------------------------------------


def observed_version(state: ClusterState) -> str:
    """Return the version to raise the spec to, so that no server is downgraded; "" if it is high enough.

    Only servers count: a worker could report any version. A kubelet of kubeadm does not report the distribution.
    """
    wanted = release_of(state.wanted)
    servers = [node for node in state.nodes or () if is_server(node) and _release(node) is not None]
    newest = max(servers, key=lambda node: _release(node) or Release(0, 0, 0), default=None)
    release = _release(newest) if newest is not None else None
    if newest is None or wanted is None or release is None or release <= wanted:
        return ""
    kubelet, build = _kubelet(newest), state.wanted.partition("+")[2]
    return kubelet if "+" in kubelet or not build else f"{kubelet}+{build}"


def _release(node: Object) -> Release | None:
    return release_of(_kubelet(node))


def _kubelet(node: Object) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return printable(str(info.get("kubeletVersion") or ""), _MAX_NAME)


def _node_name(machine: Object) -> str:
    return str(((machine.get("status") or {}).get("nodeRef") or {}).get("name") or "")


def _node(node: Object) -> str:
    return f"Node {printable(str(node['metadata'].get('name', '')), _MAX_NAME)}"


def _machine(machine: Object) -> str:
    return f"Machine {machine['metadata']['name']}"
