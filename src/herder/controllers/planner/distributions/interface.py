"""What the planner asks of a distribution of Kubernetes, and all that a distribution is told.

A distribution is pure: equal inputs give an equal plan, byte for byte. So a plan is rendered only when its inputs have
changed, and whatever a plan depends on is among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from herder.api.management.manifest import Agent
from herder.api.rke import names
from herder.api.rke.plan import Plan
from herder.controllers.planner.distributions.digest import cluster_digest, machine_digest
from herder.engine.meta.kinds import Object


class ConfigError(ValueError):
    """What the user asked for cannot be rendered. The message names the field and what to do."""


@dataclass(frozen=True, slots=True)
class Roles:
    etcd: bool = False
    control_plane: bool = False
    worker: bool = False

    @property
    def is_server(self) -> bool:
        return self.etcd or self.control_plane

    @property
    def only_worker(self) -> bool:
        return self.worker and not self.is_server

    @property
    def only_etcd(self) -> bool:
        """Of what makes a server; it may be a worker too."""
        return self.etcd and not self.control_plane

    @property
    def only_control_plane(self) -> bool:
        return self.control_plane and not self.etcd

    def __str__(self) -> str:
        named = {"etcd": self.etcd, "control plane": self.control_plane, "worker": self.worker}
        return " + ".join(name for name, has in named.items() if has) or "no role"


@dataclass(frozen=True, slots=True)
class Authority:
    """A cluster's certificate authority (for `sa`: a key pair), both in PEM."""

    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Referenced:
    """A Secret or ConfigMap that the cluster's spec names, as it is now: contents decoded, by key."""

    annotations: Mapping[str, str]
    data: Mapping[str, bytes] = field(repr=False)
    type: str = ""


class Reference(NamedTuple):
    kind: str  # "Secret" or "ConfigMap"
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


FOR_SERVERS = ("additionalManifest", "chartValues", "etcd", names.CLUSTER_SPEC)
"""Of the spec and of the annotations: what is in no plan of a worker."""


@dataclass(frozen=True)
class ClusterInputs:
    """What is the same for all machines of a cluster."""

    namespace: str
    name: str  # of the RKEControlPlane and of the Cluster API Cluster
    management_name: str
    version: str  # spec.kubernetesVersion
    spec: Object = field(repr=False)  # of the RKEControlPlane, but for what no plan depends on
    annotations: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the RKEControlPlane
    config_generation: int = 0  # status.configGeneration
    initialized: bool = False  # the control plane has answered once
    server_token: str = field(default="", repr=False)
    agent_token: str = field(default="", repr=False)
    authorities: Mapping[str, Authority] = field(default_factory=dict)  # by `ca`, `etcd`, `sa`, `proxy`
    agent: Agent | None = None  # what the cluster agent dials with
    server_certificates: str = ""  # the CA of the manager's own front, in PEM; empty for a public one
    installer_image: str = ""  # setting system-agent-installer-image: what the distribution's name is appended to
    default_registry: str = ""  # setting system-default-registry
    prime: bool = False  # setting rke2-provisioning-prime-default
    referenced: Mapping[Reference, Referenced] = field(default_factory=dict)
    servers: Sequence[str] = ()  # join URLs of all control planes that have one; for distributions that `names_servers`

    @property
    def config(self) -> Mapping[str, Any]:
        return self.spec.get("machineGlobalConfig") or {}

    @property
    def has_agent_first(self) -> bool:
        """The cluster is to have its agent, and nothing else that is applied to it, until it has what that brings."""
        return self.agent is not None and self.agent.comes_first

    @cached_property
    def for_workers(self) -> ClusterInputs:
        """Without what servers alone are told: a worker's plan cannot depend on it, so it need not be looked at when
        that changes."""
        spec = {part: value for part, value in self.spec.items() if part not in FOR_SERVERS}
        marks = {mark: value for mark, value in self.annotations.items() if mark not in FOR_SERVERS}
        agent = replace(self.agent, token="", comes_first=False) if self.agent else None
        return replace(self, spec=spec, annotations=marks, agent=agent)

    @property
    def manager(self) -> str:
        """Host and port of the manager, as machines reach it; empty where they cannot."""
        return urlsplit(self.agent.server_url).netloc if self.agent is not None else ""

    @cached_property
    def digest(self) -> str:
        return cluster_digest(self)


@dataclass(frozen=True)
class MachineInputs:
    """What is one machine's own."""

    name: str  # of the Machine
    uid: str
    roles: Roles
    is_init: bool = False
    join_url: str = ""  # the server to join; empty for the init node
    windows: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)  # of the Machine: selectors look at them
    node_name: str = ""  # empty: the machine's own host name
    node_labels: Mapping[str, str] = field(default_factory=dict)  # that users want on the Node
    node_taints: Sequence[Mapping[str, str]] = ()
    internal_addresses: Sequence[str] = ()
    external_addresses: Sequence[str] = ()
    ipv6_address: str = ""
    driver: str = ""  # the node driver's name; empty for machines that others made
    join_url_by_hand: bool = False  # nobody is to find out how this machine is joined

    @cached_property
    def digest(self) -> str:
        return machine_digest(self)


class Distribution(Protocol):
    """One distribution of Kubernetes; chosen by the version string."""

    @property
    def name(self) -> str: ...

    @property
    def revision(self) -> int:
        """Counted up when the same inputs are to give another plan: every machine is rendered again."""

    @property
    def supervisor_port(self) -> int:
        """Where joining machines ask; part of join URLs."""

    @property
    def api_port(self) -> int: ...

    @property
    def names_servers(self) -> bool:
        """Whether plans name every server, so that machines find another when one is gone."""

    @property
    def authorities(self) -> Sequence[str]:
        """Which of `ca`, `etcd`, `sa`, `proxy` must have been made before the first plan."""

    def refusal(self, cluster: ClusterInputs, roles: Roles) -> str:
        """Why a machine cannot have these roles, in words for its owner; empty where it can."""

    def references(self, spec: Mapping[str, Any], namespace: str) -> Sequence[Reference]:
        """The Secrets and ConfigMaps that plans are made of, besides those that every cluster has."""

    def render(self, cluster: ClusterInputs, machine: MachineInputs) -> Plan:
        """ConfigError for what cannot be rendered."""

    def unit(self, roles: Roles) -> str:
        """The service that runs on such a machine, for people who look into its log."""

    def drain_hash(self, plan: Plan) -> str:
        """Two plans between which this differs must not follow each other on a node that has not been drained."""

    def is_ours(self, cluster: ClusterInputs, path: str) -> bool:
        """Whether what lies there is of plans alone, so that it goes when no plan names it any more."""

    def member_removal(self) -> str:
        """The prefix of the Node annotations `<prefix>/remove` and `<prefix>/removed-node-name`, by which servers take
        a member out of etcd; empty where members go by themselves."""
