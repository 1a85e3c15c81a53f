"""Simulated machines of provisioned clusters: disk, agent with the real core, and a Kubernetes distribution.

Plans take effect as on a real machine: files are written, `install` restarts the service if its stamp changed, and a
server without data bootstraps a cluster unless it is configured to join one. A witness observes all of it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol
from urllib.parse import urlsplit

from herder.agent.core.events import Action, Finished
from herder.agent.core.plan import File, Instruction, Probe
from herder.api.rke.node import plan as plans
from herder.engine.client.client import Client
from herder.sim.agents import Journal, SimulatedAgent
from herder.sim.lines import Line

CONFIG = re.compile(r"/etc/rancher/(k3s|rke2)/config\.yaml\.d/50-rancher\.yaml")
MANIFEST = re.compile(r".*/server/manifests/rancher/cluster-agent\.yaml")
_IMAGE = re.compile(r".*system-agent-installer-(?P<runtime>k3s|rke2):(?P<release>v[\d.]+)-(?P<build>.+)")
_BLOCKS = ("k3s",)  # runtimes whose installer waits for the service
_LONGEST_INSTALL = 120.0
_RESTART_AGENT = 5.0


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


@dataclass(frozen=True, slots=True)
class Installed:
    """An installed distribution."""

    runtime: str
    version: str  # Kubernetes version that the kubelet reports
    stamp: str
    only_worker: bool


@dataclass(slots=True)
class Disk:
    """State that survives everything but the deletion of the machine."""

    files: dict[str, bytes] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)  # parsed config file of the distribution
    journal: Journal = field(default_factory=Journal)
    installed: Installed | None = None
    has_etcd_data: bool = False
    has_joined: bool = False


class Cluster(Protocol):
    """The cluster as seen by its machines."""

    def enter(self, node: SimulatedNode) -> None: ...
    def leave(self, node: SimulatedNode) -> None: ...
    def changed(self) -> None: ...
    async def news(self) -> None: ...
    def begin(self, node: SimulatedNode) -> None: ...
    def admits(self, node: SimulatedNode, host: str) -> bool: ...
    def is_member(self, node: SimulatedNode) -> bool: ...
    def answers(self, host: str) -> bool: ...
    def members_as_told(self) -> str: ...

    @property
    def agent_status(self) -> str:
        """What kubectl prints about the cluster agent's pod."""

    @property
    def has_quorum(self) -> bool: ...

    @property
    def has_api(self) -> bool: ...


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
        self.running = False  # the service of the distribution is running
        self.starts = 0  # start counter of the service
        self.stopped_at = 0.0
        self._cluster = cluster
        self._client = client
        self._context = context
        self._agent: SimulatedAgent | None = None
        self._coming_up: asyncio.Task[None] | None = None

    # --- power ------------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        if self.powered or self.dead or self.destroyed:
            return
        self.powered = True
        self._cluster.enter(self)
        self._start_agent()
        if self.disk.installed:
            self._start()

    def power_off(self) -> None:
        self.powered = False
        if self._agent is not None:
            self._agent.kill()
        self._stop(by_plan=False)

    def die(self) -> None:
        """Fail permanently, although the provider still has the machine."""
        self.power_off()
        self.dead = True

    def destroy(self) -> None:
        """Delete the machine and its disk."""
        self.destroyed = True
        self.power_off()
        self._cluster.leave(self)
        self._context.witness.destroyed(self)

    # --- agent ------------------------------------------------------------------------------------------------------

    def kill_agent(self) -> None:
        if self._agent is not None:
            self._agent.kill()

    def _start_agent(self) -> None:
        if not self.powered or (self._agent is not None and self._agent.alive):
            return
        self._agent = SimulatedAgent(
            self._client,
            self.namespace,
            self.secret,
            body=self,
            journal=self.disk.journal,
            wall=self._context.wall,
            jitter=self._context.random.random(),
            died=self._agent_died,
            failed=self._context.failed,
        )
        self._agent.start()

    def _agent_died(self) -> None:
        asyncio.get_running_loop().call_later(_RESTART_AGENT, self._start_agent)

    def begins(self, action: Action) -> bool:
        if self._context.random.random() < self._context.troubles.death:
            return False
        self._context.witness.acts(self, action)
        return True

    def write_files(self, files: list[File]) -> str:
        for file in files:
            if file.delete:
                self.disk.files.pop(file.path, None)
            elif not file.directory:
                self.disk.files[file.path] = base64.b64decode(file.content)
            if CONFIG.fullmatch(file.path):
                self.disk.config = json.loads(self.disk.files.get(file.path, b"{}"))
        if any(MANIFEST.fullmatch(file.path) for file in files):
            self._cluster.changed()
        return ""

    async def run(self, instruction: Instruction, attempt: int) -> Finished:
        match instruction.name:
            case "install":
                return await self._install(instruction)
            case "capture-address":
                up = self.running and self._cluster.has_quorum
                return Finished(0, self._cluster.members_as_told().encode()) if up else Finished(1, stderr=b"no answer")
            case "etcd-name":
                return Finished(0, f"{self.name}\n".encode()) if self.disk.has_etcd_data else Finished(1)
            case plans.AGENT_STATUS:
                up = self.running and self._cluster.has_api
                return Finished(0, self._cluster.agent_status.encode()) if up else Finished(1, stderr=b"no answer")
        return Finished(0)

    def probe(self, probe: Probe) -> str:
        if not self.running:
            return "connection refused"
        if probe.name.startswith(("etcd", "kube-")) and not self._cluster.has_quorum:
            return "500: etcd has no leader"
        return ""

    # --- installation -----------------------------------------------------------------------------------------------

    async def _install(self, instruction: Instruction) -> Finished:
        context = self._context
        await asyncio.sleep(context.pace.of(context.pace.pull, context.random))
        if context.random.random() < context.troubles.failed_install:
            return Finished(1, stderr=b"the image cannot be pulled")
        new = _installed(instruction)
        if new is None:
            return Finished(127, stderr=b"run.sh: not found")
        before, self.disk.installed = self.disk.installed, new
        context.witness.installs(self, new)
        if before != new:
            self._stop(by_plan=True)
        if not self.running and self._coming_up is None:
            self._start()
        return await self._up() if new.runtime in _BLOCKS else Finished(0)

    async def _up(self) -> Finished:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LONGEST_INSTALL
        loop.call_at(deadline, self._cluster.changed)
        while not (self.running and (self.is_worker or self._cluster.has_quorum)):
            if loop.time() >= deadline:
                return Finished(1, stderr=b"Job for k3s.service failed because a timeout was exceeded")
            await self._cluster.news()
        return Finished(0)

    # --- service ----------------------------------------------------------------------------------------------------

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
        return any(MANIFEST.fullmatch(path) and content for path, content in self.disk.files.items())

    def _start(self) -> None:
        self._coming_up = asyncio.ensure_future(self._come_up())
        self._coming_up.add_done_callback(self._came_up)

    def _stop(self, *, by_plan: bool) -> None:
        if self._coming_up is not None:
            self._coming_up.cancel()
            self._coming_up = None
        if self.running:
            self.running = False
            self.stopped_at = asyncio.get_running_loop().time()
            self._context.witness.stopped(self, by_plan=by_plan)
        self._cluster.changed()

    async def _come_up(self) -> None:
        await asyncio.sleep(self._context.pace.of(self._context.pace.start, self._context.random))
        while not self._joins():
            await self._cluster.news()
        self.running = self.disk.has_joined = True
        self.starts += 1
        self._context.witness.up(self)
        self._cluster.changed()

    def _came_up(self, task: asyncio.Task[None]) -> None:
        if self._coming_up is task:
            self._coming_up = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._context.failed(error)

    def _joins(self) -> bool:
        host = urlsplit(str(self.config.get("server") or "")).hostname or ""
        if self.has_etcd:
            if self.disk.has_etcd_data:
                return self._cluster.is_member(self)
            if not host:
                self._context.witness.began_cluster(self)
                self._cluster.begin(self)
            elif not self._cluster.admits(self, host):
                return False
            self.disk.has_etcd_data = True
            return True
        if self.disk.has_joined:
            return self._cluster.has_api if self.is_worker else self._cluster.has_quorum
        return self._cluster.answers(host) and (not self.is_worker or self._cluster.has_api)

    def lose_etcd(self) -> None:
        """Its etcd member was removed: the service stops for good."""
        self._stop(by_plan=False)


def _installed(instruction: Instruction) -> Installed | None:
    image = _IMAGE.fullmatch(instruction.image)
    if image is None:
        return None
    variables = dict(each.partition("=")[::2] for each in instruction.env)
    only_worker = variables.get(f"INSTALL_{image['runtime'].upper()}_EXEC") == "agent"
    version = f"{image['release']}+{image['build']}"
    return Installed(image["runtime"], version, variables.get("RESTART_STAMP", ""), only_worker)
