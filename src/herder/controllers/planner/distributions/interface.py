"""Interface between the planner and Kubernetes distributions, and the inputs of plans.

Rendering is a pure function: equal inputs give an equal plan, byte for byte. A plan is therefore rendered only if its
inputs have changed, and everything that a plan depends on must be an input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from herder.api.management.manifest import Agent
from herder.api.rke import names
from herder.api.rke.node.plan import Plan
from herder.controllers.planner.distributions.digest import cluster_digest, machine_digest
from herder.controllers.planner.distributions.tasks import Task
from herder.engine.meta.kinds import Object


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
        """A server without a control plane; it may be a worker too."""
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
class EncryptionKeys:
    """Keys that encrypt Secrets of the cluster, by generation, in base64."""

    loaded: tuple[int, ...]  # generations that servers load; the first encrypts
    keys: Mapping[int, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Referenced:
    """Content of a Secret or ConfigMap that the cluster's spec refers to, decoded, by key."""

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
"""Fields of the spec, and annotations, that no plan of a worker contains."""


@dataclass(frozen=True)
class ClusterInputs:
    """Inputs that all machines of a cluster share."""

    namespace: str
    name: str  # of the RKEControlPlane and of the Cluster API Cluster
    management_name: str
    version: str  # spec.kubernetesVersion
    spec: Object = field(repr=False)  # of the RKEControlPlane, without fields that no plan depends on
    annotations: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the RKEControlPlane
    config_generation: int = 0  # status.configGeneration
    initialized: bool = False  # status.initialization.controlPlaneInitialized
    server_token: str = field(default="", repr=False)
    agent_token: str = field(default="", repr=False)
    authorities: Mapping[str, Authority] = field(default_factory=dict)  # by `ca`, `etcd`, `sa`, `proxy`
    agent: Agent | None = None  # how the cluster agent connects
    server_certificates: str = ""  # CA certificates of the manager, in PEM; empty if they are public
    installer_image: str = ""  # setting system-agent-installer-image, a prefix of the distribution's name
    default_registry: str = ""  # setting system-default-registry
    prime: bool = False  # setting rke2-provisioning-prime-default
    referenced: Mapping[Reference, Referenced] = field(default_factory=dict)
    servers: Sequence[str] = ()  # join URLs of all control planes that have one; for distributions that `names_servers`
    encryption: EncryptionKeys | None = None  # for distributions that `manages_keys`

    @property
    def config(self) -> Mapping[str, Any]:
        return self.spec.get("machineGlobalConfig") or {}

    @property
    def is_pre_bootstrap(self) -> bool:
        """Whether only the cluster agent is deployed, until the cluster has its pre-bootstrap Secrets."""
        return self.agent is not None and self.agent.pre_bootstrap

    @cached_property
    def for_workers(self) -> ClusterInputs:
        """The inputs without those for servers only, so that workers are not planned again when these change."""
        spec = {part: value for part, value in self.spec.items() if part not in FOR_SERVERS}
        marks = {mark: value for mark, value in self.annotations.items() if mark not in FOR_SERVERS}
        agent = replace(self.agent, token="", pre_bootstrap=False, customization={}) if self.agent else None
        return replace(self, spec=spec, annotations=marks, agent=agent, encryption=None)

    @property
    def manager(self) -> str:
        """Host and port at which machines reach the manager; empty if they cannot."""
        return urlsplit(self.agent.server_url).netloc if self.agent is not None else ""

    @cached_property
    def digest(self) -> str:
        return cluster_digest(self)


@dataclass(frozen=True)
class MachineInputs:
    """Inputs of a single machine."""

    name: str  # of the Machine
    uid: str
    roles: Roles
    is_init: bool = False
    join_url: str = ""  # the server to join; empty for the init node
    windows: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)  # of the Machine, for machineLabelSelector
    node_name: str = ""  # empty: the machine's host name
    node_labels: Mapping[str, str] = field(default_factory=dict)  # requested by users
    node_taints: Sequence[Mapping[str, str]] = ()
    internal_addresses: Sequence[str] = ()
    external_addresses: Sequence[str] = ()
    ipv6_address: str = ""
    driver: str = ""  # name of the node driver; empty for registered machines
    join_url_autoset_disabled: bool = False  # the user sets the join URL
    reports_agent: bool = False  # it reports why the pod of the cluster agent does not start

    @cached_property
    def digest(self) -> str:
        return machine_digest(self)


class Distribution(Protocol):
    """A Kubernetes distribution, selected by the build suffix of the version."""

    @property
    def name(self) -> str: ...

    @property
    def revision(self) -> int:
        """Increment it if the same inputs must give another plan: all plans are rendered again."""

    @property
    def supervisor_port(self) -> int:
        """Port that joining machines connect to; part of join URLs."""

    @property
    def api_port(self) -> int: ...

    @property
    def names_servers(self) -> bool:
        """Whether plans list every server, so that machines can fail over."""

    @property
    def runs_agent_pod(self) -> bool:
        """Whether the cluster agent is a pod, whose status a server can read."""

    @property
    def schedules_snapshots(self) -> bool:
        """Whether servers take scheduled snapshots by themselves."""

    @property
    def authorities(self) -> Sequence[str]:
        """Which of `ca`, `etcd`, `sa`, `proxy` the manager must create before the first plan."""

    @property
    def manages_keys(self) -> bool:
        """Whether the manager owns the keys that encrypt Secrets. Otherwise servers create and rotate them."""

    def keys_problem(self, spec: Mapping[str, Any]) -> str:
        """Why the manager cannot own the keys of a cluster with this spec; empty if it can."""

    def refusal(self, cluster: ClusterInputs, roles: Roles) -> str:
        """Why a machine cannot have these roles; empty if it can."""

    def references(self, spec: Mapping[str, Any], namespace: str) -> Sequence[Reference]:
        """Secrets and ConfigMaps that the spec refers to and that plans contain."""

    def render(self, cluster: ClusterInputs, machine: MachineInputs) -> Plan:
        """Render the plan of a machine. Raises ConfigError."""

    def task(self, cluster: ClusterInputs, machine: MachineInputs, task: Task) -> Plan:
        """Render the files and instructions of a task, which the engine adds to the machine's plan.

        Raises UnsupportedTask or ConfigError.
        """

    def unit(self, roles: Roles) -> str:
        """The systemd unit that runs on such a machine, for messages that refer to its log."""

    def drain_hash(self, plan: Plan) -> str:
        """A node must be drained between two plans with different hashes."""

    def owns_file(self, cluster: ClusterInputs, path: str) -> bool:
        """Whether only plans write this file, so that it is deleted if no plan contains it any more."""

    def member_removal(self) -> str:
        """Prefix of the Node annotations `<prefix>/remove` and `<prefix>/removed-node-name`, which make servers remove
        an etcd member; empty if the distribution needs no request."""
