"""Disk of a simulated machine: one tree of files, of which those that programs interpret are Python objects."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from herder.agent.core.protocol import ANONYMOUS, Identity
from herder.sim.agents import Journal
from herder.sim.host.etcd import Bootstrap, Content, EncryptionConfig, EtcdData


@dataclass(frozen=True, slots=True)
class Installed:
    """An installed distribution."""

    runtime: str  # k3s, rke2, kubeadm or herder
    version: str  # Kubernetes version that the kubelet reports
    stamp: str
    only_worker: bool
    role: str = ""  # of kubeadm machines: init, server or agent


@dataclass(frozen=True, slots=True)
class Certificate:
    subject: str
    usage: str
    issuer: str
    issuer_serial: int
    serial: int
    expires: float  # seconds since 1970
    roots: frozenset[int] = frozenset()
    """Serials of the CAs that the certificates beside it in its file lead to; for a CA: those that its file trusts."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot file, on a disk or in a bucket."""

    name: str
    node: str
    created: int
    content: Content
    bootstrap: Bootstrap
    metadata: dict[str, str] = field(default_factory=dict)
    compressed: bool = False
    damage: str = ""  # "text": not a snapshot at all, "bytes": some bytes changed, "truncated"

    @property
    def size(self) -> int:
        if self.damage == "text":
            return 6
        return self.content.size // (8 if self.compressed else 1) // (2 if self.damage == "truncated" else 1)

    @property
    def sha256(self) -> str:
        """Hash of the file on the disk of a K3s or RKE2 server."""
        return hashlib.sha256(f"{self.name} {self.created} {self.content.revision} {self.damage}".encode()).hexdigest()


STOPPED = "/etc/kubernetes/stopped-manifests"
"""Manifests of a kubeadm server that an operation has stopped."""
STATIC_PODS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
RESTORED = "/var/lib/rancher/kubeadm/restored"
"""Lets kubeadm begin with the data of a snapshot."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of a distribution on its machines."""

    data: str = "/var/lib/rancher"
    database: str = "/var/lib/rancher/server/db"  # everything about etcd
    etcd: str = "/var/lib/rancher/server/db/etcd"
    tls: str = "/var/lib/rancher/server/tls"

    @property
    def tombstone(self) -> str:
        return f"{self.etcd}/tombstone"

    @property
    def reset_flag(self) -> str:
        return f"{self.database}/reset-flag"

    @property
    def snapshots(self) -> str:
        return f"{self.database}/snapshots"

    @property
    def encryption(self) -> str:
        return f"{self.data}/server/cred/encryption-config.json"

    @property
    def token(self) -> str:
        return f"{self.data}/server/token"

    @property
    def restore_journal(self) -> str:
        """Of the snapshot program of embedded servers."""
        return f"{self.database}/snapshots/.restore/journal.json"


def layout_of(runtime: str, data: str = "") -> Layout:
    data = data or f"/var/lib/rancher/{runtime}"
    if runtime == "kubeadm":
        return Layout(data, "/var/lib/etcd", "/var/lib/etcd/member", "/etc/kubernetes/pki")
    database = f"{data}/server/db"
    # The embedded distribution has one store, which is the whole directory.
    etcd = f"{database}/store" if runtime == "herder" else f"{database}/etcd"
    return Layout(data, database, etcd, f"{data}/server/tls")


@dataclass(slots=True)
class Disk:
    """State that survives everything but the deletion of the machine."""

    files: dict[str, Any] = field(default_factory=dict)  # by absolute path
    directories: set[str] = field(default_factory=set)  # created empty
    config: dict[str, Any] = field(default_factory=dict)  # parsed configuration of the distribution
    layout: Layout = field(default_factory=Layout)
    journal: Journal = field(default_factory=Journal)
    installed: Installed | None = None
    agent: Identity = ANONYMOUS  # the program of the node agent; one without a name reports nothing
    previous_agent: Identity | None = None  # kept when the agent was replaced
    has_joined: bool = False
    disabled: bool = False  # the unit of the service, which then does not start with the machine
    full_directories: set[str] = field(default_factory=set)  # file systems without free space

    @property
    def etcd(self) -> EtcdData | None:
        return self.files.get(self.layout.etcd)

    @property
    def encryption(self) -> EncryptionConfig | None:
        return self.files.get(self.layout.encryption)

    @property
    def is_stopped(self) -> bool:
        """Whether an operation has stopped a kubeadm server with its data."""
        return f"{STOPPED}/etcd.yaml" in self.files

    @property
    def rejoins(self) -> bool:
        """Whether a stopped kubeadm server has dropped its data."""
        return bool(self.below(STOPPED)) and not self.is_stopped

    @property
    def is_only_installed(self) -> bool:
        """Whether the installer of kubeadm or of the embedded distribution has created no service yet."""
        installed = self.installed
        return installed is not None and installed.runtime in ("kubeadm", "herder") and not installed.stamp

    def below(self, directory: str) -> list[str]:
        """Paths in a directory, at any depth."""
        prefix = f"{directory.rstrip('/')}/"
        return [path for path in self.files if path.startswith(prefix)]

    def is_directory(self, path: str) -> bool:
        return path in self.directories or path == "/" or bool(self.below(path)) or path == self.layout.etcd

    def exists(self, path: str) -> bool:
        return path in self.files or self.is_directory(path)

    def remove(self, path: str) -> None:
        """Remove a file, or a directory and everything in it."""
        path = path.rstrip("/")
        for each in (path, *self.below(path)):
            self.files.pop(each, None)
        self.directories = {each for each in self.directories if each != path and not each.startswith(f"{path}/")}

    def move(self, path: str, target: str) -> None:
        for each in (path, *self.below(path)):
            if each in self.files:
                self.files[target + each[len(path) :]] = self.files.pop(each)

    def snapshots_in(self, directory: str) -> list[Snapshot]:
        """Snapshots of a directory, the oldest first."""
        paths = [path for path in self.below(directory) if path.rpartition("/")[0] == directory.rstrip("/")]
        found = [self.files[path] for path in paths]
        return sorted(
            (each for each in found if isinstance(each, Snapshot)), key=lambda each: (each.created, each.name)
        )

    def has_space(self, path: str) -> bool:
        return not any(path.startswith(f"{directory}/") for directory in self.full_directories)
