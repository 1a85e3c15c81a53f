"""Simulated machines of provisioned clusters: a disk, an agent with the real core, and a distribution that a plan makes
run there.

What a plan asks for happens as a real machine would do it: files are written, `install` restarts the services when its
stamp is new, a server with no data begins a cluster unless it is told whom to join. A witness sees all of it.
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

from herder.agent.events import Action, Finished
from herder.agent.plan import File, Instruction, Probe
from herder.engine.client.client import Client
from herder.sim.agents import Journal, SimulatedAgent
from herder.sim.lines import Line

CONFIG = re.compile(r"/etc/rancher/(k3s|rke2)/config\.yaml\.d/50-rancher\.yaml")
MANIFEST = re.compile(r".*/server/manifests/rancher/cluster-agent\.yaml")
_IMAGE = re.compile(r".*system-agent-installer-(?P<runtime>k3s|rke2):(?P<release>v[\d.]+)-(?P<build>.+)")
_BLOCKS = ("k3s",)  # whose installer waits until the service is up
_LONGEST_INSTALL = 120.0
_RESTART_AGENT = 5.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take on a machine, in seconds: the longest, and no less than a tenth of it."""

    boot: float = 10.0
    pull: float = 10.0
    start: float = 15.0

    def of(self, longest: float, random: Random) -> float:
        return random.uniform(longest / 10, longest)


@dataclass(frozen=True, slots=True)
class Troubles:
    """Probabilities: that the agent dies before an action, and that an installation fails on the way."""

    death: float = 0.0
    failed_install: float = 0.0


NO_TROUBLES = Troubles()
TROUBLES = Troubles(death=0.01, failed_install=0.1)


@dataclass(frozen=True, slots=True)
class Installed:
    runtime: str
    version: str  # of Kubernetes, as the node's kubelet tells it
    stamp: str
    only_worker: bool


@dataclass(slots=True)
class Disk:
    """What outlives everything but the machine itself."""

    files: dict[str, bytes] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)  # of the distribution, as its file says it
    journal: Journal = field(default_factory=Journal)
    installed: Installed | None = None
    has_etcd_data: bool = False
    has_joined: bool = False


class Cluster(Protocol):
    """What machines are nodes of, as each of them sees it."""

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
    def has_quorum(self) -> bool: ...

    @property
    def has_api(self) -> bool: ...


class Witness:
    """Told of what happens on machines, in the order in which it happens. This one does not mind anything."""

    def acts(self, node: SimulatedNode, action: Action) -> None:
        """Of the agent, before it is carried out."""

    def installs(self, node: SimulatedNode, new: Installed) -> None:
        """Before anything is changed."""

    def stopped(self, node: SimulatedNode, *, by_plan: bool) -> None:
        """What ran there runs no more."""

    def began_cluster(self, node: SimulatedNode) -> None:
        """It has no data and joins nobody; told before there is another cluster."""

    def up(self, node: SimulatedNode) -> None: ...

    def destroyed(self, node: SimulatedNode) -> None:
        """The machine is gone, and its disk."""


@dataclass(slots=True)
class Surroundings:
    """What all machines of a simulation have in common."""

    random: Random
    wall: Callable[[], float]
    failed: Callable[[BaseException], None]
    witness: Witness = field(default_factory=Witness)
    pace: Pace = field(default_factory=Pace)
    troubles: Troubles = NO_TROUBLES


class SimulatedNode:
    """From `boot` to `destroy`. `secret` is its plan's name; `client` uses `line` to reach the manager's API."""

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
        around: Surroundings,
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
        self.running = False  # the distribution's service
        self.starts = 0  # of the service
        self.stopped_at = 0.0
        self._cluster = cluster
        self._client = client
        self._around = around
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
        """For good, though its provider still has it."""
        self.power_off()
        self.dead = True

    def destroy(self) -> None:
        """With its disk."""
        self.destroyed = True
        self.power_off()
        self._cluster.leave(self)
        self._around.witness.destroyed(self)

    # --- the agent --------------------------------------------------------------------------------------------------

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
            wall=self._around.wall,
            jitter=self._around.random.random(),
            died=self._agent_died,
            failed=self._around.failed,
        )
        self._agent.start()

    def _agent_died(self) -> None:
        asyncio.get_running_loop().call_later(_RESTART_AGENT, self._start_agent)

    def begins(self, action: Action) -> bool:
        if self._around.random.random() < self._around.troubles.death:
            return False
        self._around.witness.acts(self, action)
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
        return Finished(0)

    def probe(self, probe: Probe) -> str:
        if not self.running:
            return "connection refused"
        if probe.name.startswith(("etcd", "kube-")) and not self._cluster.has_quorum:
            return "500: etcd has no leader"
        return ""

    # --- what a plan installs ---------------------------------------------------------------------------------------

    async def _install(self, instruction: Instruction) -> Finished:
        around = self._around
        await asyncio.sleep(around.pace.of(around.pace.pull, around.random))
        if around.random.random() < around.troubles.failed_install:
            return Finished(1, stderr=b"the image cannot be pulled")
        new = _installed(instruction)
        if new is None:
            return Finished(127, stderr=b"run.sh: not found")
        before, self.disk.installed = self.disk.installed, new
        around.witness.installs(self, new)
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

    # --- the service ------------------------------------------------------------------------------------------------

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
            self._around.witness.stopped(self, by_plan=by_plan)
        self._cluster.changed()

    async def _come_up(self) -> None:
        await asyncio.sleep(self._around.pace.of(self._around.pace.start, self._around.random))
        while not self._joins():
            await self._cluster.news()
        self.running = self.disk.has_joined = True
        self.starts += 1
        self._around.witness.up(self)
        self._cluster.changed()

    def _came_up(self, task: asyncio.Task[None]) -> None:
        if self._coming_up is task:
            self._coming_up = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._around.failed(error)

    def _joins(self) -> bool:
        host = urlsplit(str(self.config.get("server") or "")).hostname or ""
        if self.has_etcd:
            if self.disk.has_etcd_data:
                return self._cluster.is_member(self)
            if not host:
                self._around.witness.began_cluster(self)
                self._cluster.begin(self)
            elif not self._cluster.admits(self, host):
                return False
            self.disk.has_etcd_data = True
            return True
        if self.disk.has_joined:
            return self._cluster.has_api if self.is_worker else self._cluster.has_quorum
        return self._cluster.answers(host) and (not self.is_worker or self._cluster.has_api)

    def lose_etcd(self) -> None:
        """Its member was taken out: what ran on its data ends, and stays so."""
        self._stop(by_plan=False)


def _installed(instruction: Instruction) -> Installed | None:
    image = _IMAGE.fullmatch(instruction.image)
    if image is None:
        return None
    variables = dict(each.partition("=")[::2] for each in instruction.env)
    only_worker = variables.get(f"INSTALL_{image['runtime'].upper()}_EXEC") == "agent"
    version = f"{image['release']}+{image['build']}"
    return Installed(image["runtime"], version, variables.get("RESTART_STAMP", ""), only_worker)
