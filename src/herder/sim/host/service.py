"""The service of a Kubernetes distribution on a simulated machine: start, join, stop, and failed starts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from herder.agent.core.events import Finished
from herder.sim.host.certificates import AUTHORITIES, issue
from herder.sim.host.disk import STOPPED, Certificate, Installed
from herder.sim.host.etcd import Bootstrap, EncryptionConfig, EtcdData
from herder.sim.host.managed_keys import RUNTIMES, load_keys
from herder.sim.host.trust import RUNTIMES as AUTHORITIES_OF
from herder.sim.host.trust import Trust, loaded_trust

if TYPE_CHECKING:
    from herder.sim.nodes import SimulatedNode

UNITS = {
    "k3s": ("k3s", "k3s-agent"),
    "rke2": ("rke2-server", "rke2-agent"),
    "kubeadm": ("kubelet", "kubelet"),
    "herder": ("herder-server", "herder-node"),
}
"""Unit of servers and of workers."""
NOTIFIES = ("k3s", "rke2-server", "rke2-agent")
"""Units whose start returns when the service is up."""
UNIT_DIRECTORY = "/etc/systemd/system"
_MUST_NOT_EXIST = "ConditionPathExists=!"
_LONGEST_INSTALL = 120.0
_RESTART_SECONDS = 5.0  # between attempts of systemd
_FLAG_SECONDS = 60.0  # until a started server removes its reset flag


class StartFailed(Exception):
    """The service ended with an error; systemd starts it again."""


class Service:
    """One per machine. `running`: the service is up, and is a member of the cluster if it runs etcd."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._task: asyncio.Task[None] | None = None
        self._failed_starts = 0
        self._problem = ""
        self.running = False
        self.starts = 0
        self.stopped_at = 0.0
        self.serving: Installed | None = None  # what runs, or ran last
        self.loaded: EncryptionConfig | None = None  # what the API server has read
        self.trust: Mapping[str, Trust] = {}  # by CA, since the start

    @property
    def unit(self) -> str:
        servers, workers = UNITS[self._node.runtime]
        return workers if self._node.is_worker else servers

    @property
    def state(self) -> str:
        """As `systemctl is-active` prints it."""
        if self.running:
            return "active"
        return "activating" if self._task is not None else "inactive"

    @property
    def is_fenced(self) -> bool:
        """Whether a condition in a drop-in does not hold. A start does nothing then, and succeeds."""
        disk, drop_ins = self._node.disk, f"{UNIT_DIRECTORY}/{self.unit}.service.d"
        if self._node.runtime == "herder" and disk.exists(disk.layout.restore_journal):
            return True  # by a condition in the unit itself
        contents = [disk.files[path] for path in disk.below(drop_ins) if path.endswith(".conf")]
        lines = [line for each in contents if isinstance(each, bytes) for line in each.decode().splitlines()]
        absent = [line.removeprefix(_MUST_NOT_EXIST) for line in lines if line.startswith(_MUST_NOT_EXIST)]
        return any(disk.exists(path) for path in absent)

    # --- start and stop ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        disk = self._node.disk
        if disk.is_stopped or disk.is_only_installed or self.is_fenced:
            return
        if not self.running and self._task is None:
            self._task = asyncio.ensure_future(self._come_up())
            self._task.add_done_callback(self._came_up)

    def stop(self, *, by_plan: bool) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self.running:
            self.running = False
            self.stopped_at = asyncio.get_running_loop().time()
            self._node.context.witness.stopped(self._node, by_plan=by_plan)
        self._node.cluster.changed()

    def crash(self) -> None:
        """The process ends by itself, and systemd starts it again."""
        if self.state == "inactive":
            return
        self.stop(by_plan=False)
        if self.is_fenced:
            return
        self._task = asyncio.ensure_future(self._restart())
        self._task.add_done_callback(self._came_up)

    async def _restart(self) -> None:
        await asyncio.sleep(_RESTART_SECONDS)
        await self._come_up()

    async def wait_up(self, longest: float | None = _LONGEST_INSTALL) -> Finished:
        """Wait until the service is up, fails to start, or takes too long."""
        loop, failed, node = asyncio.get_running_loop(), self._failed_starts, self._node
        deadline = None if longest is None else loop.time() + longest
        if deadline is not None:
            loop.call_at(deadline, node.cluster.changed)
        while not (self.running and (node.is_worker or node.cluster.has_quorum)):
            if self._failed_starts != failed:
                return Finished(1, stderr=f"Job for {self.unit}.service failed\n{self._problem}\n".encode())
            if self.state == "inactive":
                return Finished(1, stderr=f"Job for {self.unit}.service canceled.\n".encode())
            if deadline is not None and loop.time() >= deadline:
                message = f"Job for {self.unit}.service failed because a timeout was exceeded"
                return Finished(1, stderr=message.encode())
            await node.cluster.news()
        return Finished(0)

    async def _come_up(self) -> None:
        node, context = self._node, self._node.context
        while True:
            await asyncio.sleep(context.pace.of(context.pace.start, context.random))
            try:
                while not self._joins():
                    await node.cluster.news()
                self._prepare()
                break
            except StartFailed as error:
                self._failed_starts += 1
                self._problem = str(error)
                node.cluster.changed()
                await asyncio.sleep(_RESTART_SECONDS)
        self.running = node.disk.has_joined = True
        if node.has_etcd and node.disk.etcd is not None:
            node.disk.etcd.cluster.has_served = True
        self.serving = node.disk.installed
        self.starts += 1
        if node.disk.layout.reset_flag in node.disk.files:
            asyncio.get_running_loop().call_later(_FLAG_SECONDS, self._remove_reset_flag, self.starts)
        context.witness.up(node)
        node.cluster.changed()

    def _came_up(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._node.context.failed(error)

    def _remove_reset_flag(self, starts: int) -> None:
        if self.running and self.starts == starts:
            self._node.disk.files.pop(self._node.disk.layout.reset_flag, None)

    # --- joining ----------------------------------------------------------------------------------------------------

    @property
    def _hosts(self) -> list[str]:
        """Servers to join."""
        node = self._node
        if node.runtime == "kubeadm":
            return list(node.config.get("endpoints") or ())
        host = urlsplit(str(node.config.get("server") or "")).hostname
        return [host] if host else []

    @property
    def _begins_cluster(self) -> bool:
        """Whether it creates a cluster if it has no data."""
        installed = self._node.disk.installed
        if installed is not None and installed.runtime == "kubeadm":
            return installed.role == "init"
        return not self._hosts

    def _joins(self) -> bool:
        node, cluster = self._node, self._node.cluster
        if node.has_etcd:
            return self._joins_etcd()
        if node.disk.has_joined:
            return cluster.has_api if node.is_worker else cluster.has_quorum
        answers = any(cluster.answers(host) for host in self._hosts)
        return answers and (not node.is_worker or cluster.has_api)

    def _joins_etcd(self) -> bool:
        node, cluster, disk = self._node, self._node.cluster, self._node.disk
        if disk.layout.tombstone in disk.files:
            self._leave_removed_member()
        data = disk.etcd
        if data is not None:
            return cluster.is_member(node) or cluster.revives(node, data)
        if self._begins_cluster:
            node.context.witness.began_cluster(node)
            disk.files[disk.layout.etcd] = EtcdData(cluster.begin(node), node.new_member_name())
            return True
        if node.runtime == "kubeadm" and disk.has_joined and not disk.rejoins:
            return False  # etcd refuses to bootstrap a member that exists
        if not any(cluster.admits(node, host) for host in self._hosts):
            return False
        assert cluster.etcd is not None
        disk.files[disk.layout.etcd] = EtcdData(cluster.etcd, node.new_member_name())
        disk.remove(STOPPED)
        return True

    def _leave_removed_member(self) -> None:
        node, disk = self._node, self._node.disk
        if not self._hosts:
            raise StartFailed(
                "Error: preparing server: failed to start supervisor listener: tombstone file has been detected but "
                "--server is empty: backup and delete ${datadir}/server/db to create a new cluster, or set --server "
                "to rejoin the cluster"
            )
        disk.move(disk.layout.etcd, f"{disk.layout.etcd}-backup-{int(node.context.wall())}")

    def _prepare(self) -> None:
        """Read what servers share, and issue certificates."""
        node, etcd = self._node, self._node.cluster.etcd
        if etcd is None:
            return
        bootstrap = etcd.bootstrap
        if not node.is_worker:
            token = str(node.config.get("token") or "")
            if bootstrap.token != token and node.runtime != "kubeadm":
                raise StartFailed("Error: bootstrap data already found and encrypted with different token")
            node.disk.files[node.disk.layout.token] = token.encode()
            if bootstrap.encryption is not None:
                node.disk.files[node.disk.layout.encryption] = self.loaded = bootstrap.encryption
                etcd.bootstrap = bootstrap.with_encryption(
                    bootstrap.encryption, *bootstrap.secret_keys, bootstrap.encryption.keys[0]
                )
            if node.runtime in RUNTIMES and (problem := load_keys(node)):
                raise StartFailed(problem)
        issue(node, bootstrap, node.context.serial, node.context.wall())
        if node.runtime in AUTHORITIES_OF:
            self.trust = loaded_trust(node, bootstrap)


def new_bootstrap(node: SimulatedNode) -> Bootstrap:
    """What a server creates together with a cluster. CAs that are on its disk stay the same."""
    encrypts = node.runtime == "rke2" or (node.runtime == "k3s" and bool(node.config.get("secrets-encryption")))
    config = EncryptionConfig() if encrypts else None
    files, tls = node.disk.files, node.disk.layout.tls
    kept = {name: found for name in AUTHORITIES if isinstance(found := files.get(f"{tls}/{name}.crt"), Certificate)}
    new = {name: node.context.serial() for name in AUTHORITIES if name not in kept}
    return Bootstrap(
        str(node.config.get("token") or ""),
        {**new, **{name: each.serial for name, each in kept.items()}},
        config,
        frozenset(config.keys) if config else frozenset(),
        {name: each.roots for name, each in kept.items()},
    )
