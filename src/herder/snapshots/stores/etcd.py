"""The data of a kubeadm server: a member of etcd that runs as a static pod.

A restore creates a cluster with one member. Its token is random, so its cluster ID is new: members of the old cluster
that still run somewhere can never join it, even if name and address of the member are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from herder.snapshots.commands import run, succeed
from herder.snapshots.config import EtcdConfig
from herder.snapshots.data import Content
from herder.snapshots.errors import SnapshotError
from herder.snapshots.files import PIECE, remove, sync, sync_tree
from herder.snapshots.stores.static_pods import StaticPods, process_lookup

MIN_BUMP = 1_000_000_000
MAX_REVISIONS_PER_SECOND = 50_000
"""More than etcd can commit; bounds the revisions that any earlier state of the cluster can have assigned."""
KEPT = 3  # former data directories
HASH = 32  # bytes of SHA-256 that etcd appends to a snapshot
PAGE = 512
HEALTH_SECONDS = 5
_OLD = "member-old-"
_STAGED = "restore-"


class EtcdData:
    def __init__(self, config: EtcdConfig, pods: StaticPods | None = None) -> None:
        self._config = config
        self._pods = pods or StaticPods(
            config.manifests, config.aside, config.timeout, process_lookup(config.data, config.endpoint)
        )

    def size(self) -> int:
        """A snapshot is a copy of the database, with its hash."""
        try:
            return (self._member / "snap" / "db").stat().st_size + HASH
        except OSError:
            return 0  # `save` says what is wrong with etcd

    def save(self, target: Path) -> None:
        problem = self._health()  # without it, `snapshot save` waits forever for an etcd that does not run
        if problem:
            raise SnapshotError(f"etcd at {self._config.endpoint}: {problem}")
        succeed(target.name, self._etcdctl("snapshot", "save", str(target)), self._config.timeout)

    def verify(self, file: Path) -> Content:
        """Check the hash that etcd appended, then the structure of the database.

        `etcdutl hashkv` is not used: it opens the file for writing, which invalidates the appended hash.
        """
        _check_appended_hash(file)
        printed = succeed(
            f"snapshot {file.name}",
            [self._config.etcdutl, "snapshot", "status", str(file), "--write-out=json"],
            self._config.timeout,
        )
        try:
            status = json.loads(printed)
            content = Content(int(status["revision"]), str(status.get("version") or ""))
        except (ValueError, KeyError, TypeError):
            raise SnapshotError(f"snapshot {file.name}: etcdutl reports no revision; the file is corrupt") from None
        self._check_version(file, content.version)
        return content

    # --- restore ----------------------------------------------------------------------------------------------------

    def stage(self, file: Path, identity: str, revision: int) -> dict[str, Any]:
        self._pods.check()
        staged = self._staged(identity)
        self._config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in self._config.data.glob(f"{_STAGED}*"):
            remove(each)
        succeed(f"snapshot {file.name}", self._restore_command(file, identity, revision), self._config.timeout)
        sync_tree(staged)
        sync(self._config.data)
        return {"hadMember": self._member.exists()}

    def stop(self) -> None:
        if self._pods.exist:
            self._pods.stop()

    def replace(self, file: Path, identity: str, staged: dict[str, Any]) -> None:
        new, old = self._staged(identity) / "member", self._old(identity)
        if new.exists():  # otherwise it is in place
            if self._member.exists() and not old.exists():
                self._member.rename(old)
                sync(self._config.data)
            new.rename(self._member)
            sync(self._config.data)

    def start(self) -> None:
        """On a new server, kubeadm starts etcd with the restored data later."""
        if not self._pods.exist:
            return
        self._pods.start()
        self._wait_until_healthy()

    def probe(self) -> None:
        """Start etcd alone: nothing must serve the new data yet."""
        if self._pods.exist:
            self._pods.start_etcd()
            self._wait_until_healthy()
            self.stop()

    def _wait_until_healthy(self) -> None:
        end = time.monotonic() + self._config.timeout
        while problem := self._health():
            if time.monotonic() > end:
                raise SnapshotError(f"etcd at {self._config.endpoint}: is not healthy after the restore: {problem}")
            time.sleep(1)

    def undo(self, identity: str, staged: dict[str, Any]) -> None:
        old = self._old(identity)
        in_place = not (self._staged(identity) / "member").exists() and staged
        if old.exists() or (in_place and not staged.get("hadMember", True)):
            self.stop()
            remove(self._staged(identity))
            if self._member.exists():
                self._member.rename(self._staged(identity))
            if old.exists():
                old.rename(self._member)
            sync(self._config.data)
        remove(self._staged(identity))

    def resume(self) -> None:
        self._pods.start()

    def clean(self, identity: str) -> None:
        remove(self._staged(identity))
        for each in sorted(self._config.data.glob(f"{_OLD}*"))[:-KEPT]:
            remove(each)

    # --- the server -------------------------------------------------------------------------------------------------

    def stop_server(self) -> None:
        self._pods.stop_all()

    def start_server(self) -> None:
        self._pods.start_all()

    def drop(self) -> None:
        """Remove the data of the member, which can then join another cluster."""
        self._pods.stop_all()
        remove(self._member)
        for each in self._config.data.glob(f"{_STAGED}*"):
            remove(each)
        if self._config.data.is_dir():
            sync(self._config.data)
        self._pods.forget_etcd()

    def _restore_command(self, file: Path, identity: str, revision: int) -> list[str]:
        config = self._config
        return [
            *(config.etcdutl, "snapshot", "restore", str(file)),
            f"--data-dir={self._staged(identity)}",
            f"--name={config.name}",
            f"--initial-cluster={config.name}={config.peer_url}",
            f"--initial-advertise-peer-urls={config.peer_url}",
            f"--initial-cluster-token=restore-{identity}-{os.urandom(8).hex()}",
            f"--bump-revision={bump(revision, time.time())}",
            "--mark-compacted",
        ]

    # --- helpers ----------------------------------------------------------------------------------------------------

    @property
    def _member(self) -> Path:
        return self._config.data / "member"

    def _old(self, identity: str) -> Path:
        return self._config.data / f"{_OLD}{identity}"

    def _staged(self, identity: str) -> Path:
        return self._config.data / f"{_STAGED}{identity}"

    def _health(self) -> str:
        """Return why etcd cannot be used; empty if it can."""
        command = self._etcdctl("endpoint", "health", f"--command-timeout={HEALTH_SECONDS}s")
        output = run(command, HEALTH_SECONDS * 2)
        if output.code == 0:
            return ""
        return f"is not healthy ({output.problem}); check that etcd runs and that its certificates are valid"

    def _etcdctl(self, *words: str) -> list[str]:
        config = self._config
        flags = [f"--endpoints={config.endpoint}"]
        if config.endpoint.startswith("https://"):
            flags += [f"--cacert={config.ca}", f"--cert={config.cert}", f"--key={config.key}"]
        return [config.etcdctl, *flags, *words]

    def _check_version(self, file: Path, version: str) -> None:
        printed = succeed("etcdutl", [self._config.etcdutl, "version"], self._config.timeout).decode("utf-8", "replace")
        own = printed.partition("etcdutl version:")[2].split()
        if own and version and _minor(version) > _minor(own[0]):
            raise SnapshotError(f"snapshot {file.name}: is of etcd {version}, newer than {own[0]} on this node")


def bump(revision: int, now: float) -> int:
    """Return by how much a restore raises the revision.

    A constant is not enough: two restores of one snapshot would assign the same revisions, and clients that saw the
    first would not notice the second. The result is beyond all revisions that can have been assigned before `now`.
    """
    return max(MIN_BUMP, int(now) * MAX_REVISIONS_PER_SECOND - revision)


def _check_appended_hash(file: Path) -> None:
    size = file.stat().st_size
    if size <= HASH or size % PAGE != HASH:
        raise SnapshotError(f"snapshot {file.name}: has no hash at its end; it is truncated or no snapshot of etcd")
    hashed, left = hashlib.sha256(), size - HASH
    with file.open("rb") as stream:
        while left:
            piece = stream.read(min(PIECE, left))
            if not piece:
                break
            left -= len(piece)
            hashed.update(piece)
        if stream.read(HASH) != hashed.digest():
            raise SnapshotError(f"snapshot {file.name}: its content does not match its hash; the file is corrupt")


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
