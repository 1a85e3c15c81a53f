"""Simulated machines of provisioned clusters: disk, agent with the real core, and a Kubernetes distribution.

Plans take effect as on a real machine: files are written, and instructions are interpreted by what they run
(`host.shell`). A witness observes all of it.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from herder.agent.core.events import Action, Finished
from herder.agent.core.plan import File, Instruction, Probe
from herder.agent.core.protocol import ANONYMOUS, Identity
from herder.engine.client.client import Client
from herder.sim.agents import SimulatedAgent
from herder.sim.host import shell
from herder.sim.host.command import Command, Script
from herder.sim.host.configuration import CONFIG as CONFIG
from herder.sim.host.configuration import MANIFEST as MANIFEST
from herder.sim.host.configuration import read_config
from herder.sim.host.disk import Disk as Disk
from herder.sim.host.disk import Installed as Installed
from herder.sim.host.disk import Snapshot
from herder.sim.host.etcd import Content, EtcdCluster, EtcdData
from herder.sim.host.s3 import SimulatedS3
from herder.sim.host.service import Service
from herder.sim.lines import Line

_RESTART_AGENT = 5.0
_LOG_LINES = 100


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations on a machine in seconds: the maximum; the minimum is a tenth of it."""

    boot: float = 10.0
    pull: float = 10.0
    start: float = 15.0

    def of(self, longest: float, random: Random) -> float:
        return random.uniform(longest / 10, longest)


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Probabilities that the agent dies before an action, and that an installation fails."""

    death: float = 0.0
    failed_install: float = 0.0


NO_AGENT_FAULTS = FaultRates()
AGENT_FAULTS = FaultRates(death=0.01, failed_install=0.1)


class Cluster(Protocol):
    """The cluster as seen by its machines."""

    nodes: dict[str, SimulatedNode]
    etcd: EtcdCluster | None

    def enter(self, node: SimulatedNode) -> None: ...
    def leave(self, node: SimulatedNode) -> None: ...
    def changed(self) -> None: ...
    async def news(self) -> None: ...
    def begin(self, node: SimulatedNode) -> EtcdCluster: ...
    def admits(self, node: SimulatedNode, host: str) -> bool: ...
    def is_member(self, node: SimulatedNode) -> bool: ...
    def revives(self, node: SimulatedNode, data: EtcdData) -> bool: ...
    def replace_etcd(self, node: SimulatedNode, new: EtcdCluster) -> None: ...
    def freeze(self) -> Content: ...
    def answers(self, host: str) -> bool: ...
    def members_as_told(self) -> str: ...
    def snapshots_changed(self, node: SimulatedNode) -> None: ...
    def report_failed_snapshot(self, node: SimulatedNode, name: str, message: str) -> None: ...
    def annotations_changed(self, node: SimulatedNode) -> None: ...

    @property
    def agent_status(self) -> str:
        """What kubectl prints about the cluster agent's pod."""

    @property
    def has_quorum(self) -> bool: ...

    @property
    def has_api(self) -> bool: ...

    @property
    def api(self) -> Client: ...


class NodeObserver:
    """Observer of events on machines, in order. This base class ignores them."""

    def acts(self, node: SimulatedNode, action: Action) -> None:
        """An agent action, before it is executed."""

    def installs(self, node: SimulatedNode, new: Installed) -> None:
        """An installation, before anything is changed."""

    def stopped(self, node: SimulatedNode, *, by_plan: bool) -> None:
        """The service stopped."""

    def began_cluster(self, node: SimulatedNode) -> None:
        """A server without data bootstraps a new cluster; called before it exists."""

    def up(self, node: SimulatedNode) -> None: ...

    def saved(self, node: SimulatedNode, snapshot: Snapshot) -> None:
        """A snapshot was taken."""

    def restored(self, node: SimulatedNode, snapshot: Snapshot) -> None:
        """The data of etcd was replaced by a snapshot; the service is not running yet."""

    def replaced_etcd(self, node: SimulatedNode, old: EtcdCluster | None, new: EtcdCluster) -> None:
        """A cluster begins, or a restore replaced the old one."""

    def revived_etcd(self, node: SimulatedNode, old: EtcdCluster) -> None:
        """Members of a cluster that was replaced have a quorum and serve its data again."""

    def destroyed(self, node: SimulatedNode) -> None:
        """The machine and its disk are deleted."""


@dataclass(slots=True)
class SimulationContext:
    """What all machines of a simulation share."""

    random: Random
    wall: Callable[[], float]
    failed: Callable[[BaseException], None]
    witness: NodeObserver = field(default_factory=NodeObserver)
    pace: Pace = field(default_factory=Pace)
    troubles: FaultRates = NO_AGENT_FAULTS
    scripts: Mapping[str, Script] = field(default_factory=dict)
    """What the shell scripts of plans do, by their text. Scripts that are not listed fail."""
    s3: SimulatedS3 = field(default_factory=SimulatedS3)
    served_agent: Identity = ANONYMOUS
    """The node agent that the manager serves; new machines install it."""
    broken_agents: set[str] = field(default_factory=set)
    """Checksums of agents that do not start."""
    _serials: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def serial(self) -> int:
        """A serial number that no certificate has."""
        return next(self._serials)

    def new_id(self) -> str:
        return f"{self.random.getrandbits(64):016x}"


class SimulatedNode:
    """A machine from `boot` to `destroy`. `secret` is its plan Secret; `client` reaches the manager through `line`."""

    def __init__(
        self,
        name: str,
        address: str,
        *,
        cluster: Cluster,
        client: Client,
        line: Line,
        namespace: str,
        secret: str,
        context: SimulationContext,
    ) -> None:
        self.name = name
        self.address = address
        self.line = line
        self.namespace = namespace
        self.secret = secret
        self.disk = Disk()
        self.powered = False
        self.dead = False
        self.destroyed = False
        self.cluster = cluster
        self.context = context
        self.service = Service(self)
        self.log_lines: deque[str] = deque(maxlen=_LOG_LINES)  # of the service
        self.snapshot_directory = ""  # of the last snapshot command; empty: the default
        self.running_agent = self.disk.agent = context.served_agent
        self._client = client
        self._agent: SimulatedAgent | None = None

    # --- power ------------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        if self.powered or self.dead or self.destroyed:
            return
        self.powered = True
        self.cluster.enter(self)
        self._start_agent()
        if self.disk.installed and not self.disk.disabled:
            self.service.start()

    def power_off(self) -> None:
        self.powered = False
        if self._agent is not None:
            self._agent.kill()
        self.service.stop(by_plan=False)

    def die(self) -> None:
        """Fail permanently, although the provider still has the machine."""
        self.power_off()
        self.dead = True

    def destroy(self) -> None:
        """Delete the machine and its disk."""
        self.destroyed = True
        self.power_off()
        self.cluster.leave(self)
        self.context.witness.destroyed(self)

    # --- agent ------------------------------------------------------------------------------------------------------

    def kill_agent(self) -> None:
        if self._agent is not None:
            self._agent.kill()

    def restart_agent(self) -> None:
        if self._agent is not None and self._agent.alive:
            self._agent.kill()
        else:
            self._agent_died()

    def _start_agent(self) -> None:
        if not self.powered or (self._agent is not None and self._agent.alive):
            return
        if self.disk.agent.checksum in self.context.broken_agents:
            return  # the switch to it starts the previous one again
        self._agent = SimulatedAgent(
            self._client,
            self.namespace,
            self.secret,
            body=self,
            journal=self.disk.journal,
            wall=self.context.wall,
            jitter=self.context.random.random(),
            identity=self.disk.agent,
            died=self._agent_died,
            failed=self.context.failed,
        )
        self.running_agent = self.disk.agent
        self._agent.start()

    @property
    def agent_is_idle(self) -> bool:
        return self._agent is None or not self._agent.alive or self._agent.is_idle

    @property
    def agent_is_confirmed(self) -> bool:
        """Whether the agent on the disk runs, and has reported itself."""
        agent = self._agent
        is_current = agent is not None and agent.alive and self.running_agent == self.disk.agent
        return is_current and agent is not None and agent.is_identified

    def _agent_died(self) -> None:
        asyncio.get_running_loop().call_later(_RESTART_AGENT, self._start_agent)

    def begins(self, action: Action) -> bool:
        if self.context.random.random() < self.context.troubles.death:
            return False
        self.context.witness.acts(self, action)
        return True

    def write_files(self, files: list[File]) -> str:
        for file in files:
            if file.delete:
                self.disk.files.pop(file.path, None)
            elif file.directory:
                self.disk.directories.add(file.path)
            else:
                self.disk.files[file.path] = base64.b64decode(file.content)
            read_config(self.disk, file.path)
        if any(MANIFEST.fullmatch(file.path) for file in files):
            self.cluster.changed()
        return ""

    async def run(self, instruction: Instruction, attempt: int) -> Finished:
        variables = dict(each.partition("=")[::2] for each in instruction.env)
        variables[shell.ATTEMPT] = str(attempt)
        program, arguments = instruction.command, instruction.args
        if not program:  # agents run the script of the image
            program, arguments = "sh", ["-c", "run.sh"]
        command = Command(self, program, arguments, variables, instruction.image)
        try:
            return await asyncio.wait_for(shell.run(command), instruction.timeout or None)
        except TimeoutError:
            return Finished(-1, error=f"did not end within {instruction.timeout} s, and was ended")

    def probe(self, probe: Probe) -> str:
        if not self.running:
            return "connection refused"
        if probe.name.startswith(("etcd", "kube-")) and not self.cluster.has_quorum:
            return "500: etcd has no leader"
        return ""

    # --- service ----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the service of the distribution runs."""
        return self.service.running

    @property
    def starts(self) -> int:
        return self.service.starts

    @property
    def stopped_at(self) -> float:
        return self.service.stopped_at

    @property
    def runtime(self) -> str:
        return self.disk.installed.runtime if self.disk.installed else ""

    @property
    def config(self) -> dict[str, Any]:
        return self.disk.config

    @property
    def is_worker(self) -> bool:
        return self.disk.installed is not None and self.disk.installed.only_worker

    @property
    def has_etcd(self) -> bool:
        return not self.is_worker and not self.config.get("disable-etcd")

    @property
    def has_api(self) -> bool:
        return not self.is_worker and not self.config.get("disable-apiserver")

    @property
    def has_manifest(self) -> bool:
        return any(path.endswith("/cluster-agent.yaml") and content for path, content in self.disk.files.items())

    @property
    def reads_secrets(self) -> bool:
        """Whether its API server has loaded the keys that Secrets are encrypted with."""
        etcd, loaded = self.cluster.etcd, self.service.loaded
        needed = etcd.bootstrap.secret_keys if etcd is not None else frozenset()
        return needed <= set(loaded.keys if loaded is not None else ())

    def lose_etcd(self) -> None:
        """Its etcd member was removed: it serves no more, and joins again when it is started."""
        if self.disk.etcd is not None and self.runtime != "kubeadm":
            self.disk.files[self.disk.layout.tombstone] = b""
        self.service.stop(by_plan=False)

    def new_member_name(self) -> str:
        if self.runtime == "kubeadm":
            return self.name
        return f"{self.name}-{self.context.random.getrandbits(32):08x}"

    def log(self, line: str) -> None:
        self.log_lines.append(line)
