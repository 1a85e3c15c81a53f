"""The snapshot program of kubeadm and embedded servers: save, list, delete, check and restore."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from herder.agent.core.events import Finished
from herder.sim.host.disk import STATIC_PODS, STOPPED, Snapshot
from herder.sim.host.etcd import EtcdCluster, EtcdData
from herder.sim.host.managed_keys import embedded_keys
from herder.sim.host.s3 import S3Error, S3Settings, named
from herder.sim.k3s.invocation import rfc3339
from herder.snapshots.names import ON_DEMAND

if TYPE_CHECKING:
    from herder.sim.nodes import SimulatedNode

RUNTIMES = ("kubeadm", "herder")
_DURATION = 3.0
_STOP_SECONDS = 5.0


class SnapshotFailed(Exception):
    """The message is the first line on stderr."""


@dataclass
class _Journal:
    """Of a restore that is not finished, or neither committed nor undone."""

    run: str
    old: str  # path of the old data; empty if there was none
    is_completed: bool = False


@dataclass(slots=True)
class SnapshotProgram:
    """One run of the program, with its configuration file."""

    node: SimulatedNode
    config: dict[str, Any]
    in_s3: bool
    run_id: str = ""  # of the operation
    accepted: str = ""

    @property
    def directory(self) -> str:
        return str(self.config["directory"]).rstrip("/")

    # --- commands ---------------------------------------------------------------------------------------------------

    async def save(self, name: str, described: dict[str, Any]) -> list[dict[str, Any]]:
        node, etcd = self.node, self.node.disk.etcd
        await self._pause(_DURATION)
        if self.config.get("disabled") and name != ON_DEMAND:
            raise SnapshotFailed(f"snapshot {name}: snapshots are disabled")
        if etcd is None or not node.running or not node.cluster.has_quorum:
            raise SnapshotFailed("etcd: not available; the server must run")
        bucket = self._bucket() if self._settings is not None else None
        seconds = int(node.context.wall())
        given = {**(self.config.get("metadata") or {}), **described}
        metadata = {key: str(value) for key, value in given.items()}
        full = f"{name}-{self.config.get('node') or node.name}-{seconds}"
        snapshot = Snapshot(full, node.name, seconds, node.cluster.freeze(), etcd.cluster.bootstrap, metadata)
        path = f"{self.directory}/{full}"
        if not node.disk.has_space(path):
            raise SnapshotFailed(f"{path}: no space left on device; free space on the server")
        node.disk.files[path] = snapshot
        found = [self._shown(snapshot, f"file://{path}")]
        if bucket is not None and self._settings is not None:
            bucket[self._settings.key(full)] = snapshot
            found.append(self._shown(snapshot, self._settings.location(full)))
        if name != ON_DEMAND:
            self._prune(name, bucket)
        node.context.witness.saved(node, snapshot)
        return found

    async def show(self) -> list[dict[str, Any]]:
        await self._pause(1.0)
        local = self.node.disk.snapshots_in(self.directory)
        found = [self._shown(each, f"file://{self.directory}/{each.name}") for each in local]
        if self._settings is not None:
            bucket = self._bucket()
            for name in sorted(named(bucket, self._settings)):
                found.append(self._shown(bucket[self._settings.key(name)], self._settings.location(name)))
        return found

    async def delete(self, name: str) -> dict[str, Any]:
        await self._pause(1.0)
        if self.in_s3:
            self._bucket().pop(self._key(name), None)
        else:
            self.node.disk.files.pop(f"{self.directory}/{name}", None)
        return {"deleted": name}

    async def check(self, name: str) -> list[dict[str, Any]]:
        await self._pause(1.0)
        snapshot = self._find(name)
        self._check_keys(snapshot)
        where = self._settings.location(name) if self.in_s3 and self._settings else f"file://{self.directory}/{name}"
        return [self._shown(snapshot, where)]

    async def restore(self, name: str) -> dict[str, Any]:
        """Restore as the only member. A run that was killed can be repeated: old data stays beside the new.

        On kubeadm servers it stops and starts the static pods; the server of the embedded distribution must be stopped.
        """
        node, disk, layout = self.node, self.node.disk, self.node.disk.layout
        journal = self._journal
        if self.run_id and journal is not None and (journal.run, journal.is_completed) == (self.run_id, True):
            return {"restored": name}
        if journal is not None and (journal.is_completed or journal.run != self.run_id):
            self._settle()
        snapshot = self._find(name)
        self._check_keys(snapshot)
        self._refuse_running()
        node.service.stop(by_plan=True)
        await self._pause(_STOP_SECONDS)
        journal = self._journal
        if journal is None:
            old = f"{layout.etcd}-old-{int(node.context.wall())}"
            disk.files[self._path] = journal = _Journal(self.run_id, old if disk.etcd is not None else "")
        if journal.old and journal.old not in disk.files:
            disk.move(layout.etcd, journal.old)
        await self._pause(_STOP_SECONDS)
        new = EtcdCluster(node.context.new_id(), {node.name: node}, snapshot.content, snapshot.bootstrap)
        disk.files[layout.etcd] = EtcdData(new, node.new_member_name())
        node.cluster.replace_etcd(node, new)
        node.context.witness.restored(node, snapshot)
        journal.is_completed = True
        if self.run_id:
            return {"restored": name}
        disk.files.pop(self._path)
        if node.runtime == "kubeadm" and disk.has_joined:
            for pod in ("etcd", "kube-apiserver"):
                disk.files.pop(f"{STOPPED}/{pod}.yaml", None)
            node.service.start()  # the manifests are back
        return {"restored": name}

    def _check_keys(self, snapshot: Snapshot) -> None:
        """A snapshot of an embedded server can only be read with the keys that encrypt it."""
        if self.node.runtime == "herder" and (
            missing := snapshot.bootstrap.secret_keys - {*embedded_keys(self.node).keys}
        ):
            raise SnapshotFailed(f"snapshot {snapshot.name}: needs the encryption key {', '.join(sorted(missing))}")

    # --- the server -------------------------------------------------------------------------------------------------

    @property
    def _path(self) -> str:
        return f"{self.directory}/.restore/journal.json"

    @property
    def _journal(self) -> _Journal | None:
        found: _Journal | None = self.node.disk.files.get(self._path)
        return found

    def _settle(self) -> None:
        """Put the old data back, unless the restore is accepted."""
        disk, journal = self.node.disk, self._journal
        if journal is not None and not (journal.is_completed and journal.run and journal.run == self.accepted):
            self._refuse_running()
            if journal.old in disk.files or not journal.old:
                self.node.service.stop(by_plan=True)
                disk.remove(disk.layout.etcd)
                if journal.old:
                    disk.move(journal.old, disk.layout.etcd)
        disk.files.pop(self._path, None)

    def _refuse_running(self) -> None:
        if self.node.runtime == "herder" and self.node.service.state != "inactive":
            raise SnapshotFailed(f"{self.node.disk.layout.etcd}: is in use; stop the server first")

    async def stop(self) -> dict[str, Any]:
        self._refuse_embedded()
        await self._stop_pods()
        return {"done": "stop"}

    async def start(self) -> dict[str, Any]:
        """Start with the old data if a restore was interrupted, or not committed."""
        self._refuse_embedded()
        self._settle()
        self.node.disk.remove(STOPPED)
        self.node.service.start()
        return {"done": "start"}

    async def undo(self) -> dict[str, Any]:
        self._settle()
        return {"done": "undo"}

    async def commit(self) -> dict[str, Any]:
        disk, journal = self.node.disk, self._journal
        if journal is not None and (journal.run, journal.is_completed) != (self.run_id, True):
            raise SnapshotFailed("no restore of this operation has completed here")
        disk.files.pop(self._path, None)
        if self.node.runtime == "kubeadm" and disk.has_joined:
            disk.remove(STOPPED)
            self.node.service.start()
        return {"done": "commit"}

    async def drop(self) -> dict[str, Any]:
        self._refuse_embedded()
        disk = self.node.disk
        await self._stop_pods()
        disk.remove(disk.layout.etcd)
        disk.files.pop(f"{STOPPED}/etcd.yaml", None)
        disk.files.pop(self._path, None)
        return {"done": "drop"}

    async def _stop_pods(self) -> None:
        if self.node.disk.has_joined:
            self.node.disk.files |= {f"{STOPPED}/{pod}.yaml": b"" for pod in STATIC_PODS}
            self.node.service.stop(by_plan=True)
        await self._pause(_STOP_SECONDS)

    def _refuse_embedded(self) -> None:
        if self.node.runtime == "herder":
            raise SnapshotFailed("an embedded server is a service; stop and start the service herder-server")

    # --- S3 ---------------------------------------------------------------------------------------------------------

    @property
    def _settings(self) -> S3Settings | None:
        s3 = self.config.get("s3") or {}
        if not s3:
            return None
        return S3Settings(
            endpoint=str(s3.get("endpoint") or ""),
            bucket=str(s3.get("bucket") or ""),
            folder=str(s3.get("folder") or ""),
            access_key=str(s3.get("accessKey") or ""),
            secret_key=str(s3.get("secretKey") or ""),
            authority=_pem(str(s3.get("endpointCA") or "")),
            skip_verify=bool(s3.get("skipSSLVerify")),
            retention=int(s3.get("retention") or 0),
        )

    def _bucket(self) -> dict[str, Snapshot]:
        if self._settings is None:
            raise SnapshotFailed("s3: not configured")
        try:
            return self.node.context.s3.bucket(self._settings)
        except S3Error as error:
            raise SnapshotFailed(f"s3: {error}") from error

    def _key(self, name: str) -> str:
        return self._settings.key(name) if self._settings is not None else name

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _find(self, name: str) -> Snapshot:
        if self.in_s3:
            if self._settings is None:
                raise SnapshotFailed("s3: not configured")
            try:
                found: object = self.node.context.s3.download(self._settings, name)
            except S3Error as error:
                raise SnapshotFailed(f"s3: {name}: {error}") from error
        else:
            found = self.node.disk.files.get(f"{self.directory}/{name}")
        if not isinstance(found, Snapshot):
            raise SnapshotFailed(f"{name}: does not exist in {self.directory}")
        if found.damage:
            cause = "is truncated" if found.damage == "truncated" else "is corrupt: its hash is wrong"
            raise SnapshotFailed(f"{name}: {cause}; restore another snapshot")
        return found

    def _prune(self, name: str, bucket: dict[str, Snapshot] | None) -> None:
        """A retention of 0 keeps all."""
        kept = int(self.config.get("retention", 5))
        own = [each for each in self.node.disk.snapshots_in(self.directory) if each.name.startswith(f"{name}-")]
        for each in own[:-kept] if kept else ():
            self.node.disk.files.pop(f"{self.directory}/{each.name}")
        if bucket is not None and self._settings is not None and self._settings.retention:
            keys = [self._key(each) for each in named(bucket, self._settings) if each.startswith(f"{name}-")]
            keys.sort(key=lambda key: bucket[key].created)
            for key in keys[: -self._settings.retention]:
                bucket.pop(key)

    def _shown(self, snapshot: Snapshot, location: str) -> dict[str, Any]:
        content = f"{snapshot.name} {snapshot.content.revision}"
        return {
            "name": snapshot.name,
            "nodeName": snapshot.node,
            "location": location,
            "createdAt": rfc3339(snapshot.created),
            "size": snapshot.size,
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
            "revision": snapshot.content.revision,
            "version": "3.6.0" if self.node.runtime == "kubeadm" else "1",
            "unpackedSize": 0,
            "status": "successful",
            "message": "",
            "metadata": snapshot.metadata,
        }

    async def _pause(self, longest: float) -> None:
        await asyncio.sleep(self.node.context.pace.of(longest, self.node.context.random))


def _pem(text: str) -> str:
    """A CA certificate, which is given as PEM or as PEM in base64."""
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return text


_OPTIONS = {
    "save": ("--config", "--name", "--metadata"),
    "check": ("--config", "--sha256"),
    "restore": ("--config", "--sha256", "--run", "--accepted"),
    "start": ("--config", "--accepted"),
    "undo": ("--config", "--accepted"),
    "commit": ("--config", "--run"),
}
_WITHOUT_NAME = ("list", "stop", "start", "undo", "commit", "drop")


async def run(node: SimulatedNode, arguments: Sequence[str]) -> Finished:
    """Run `COMMAND --config FILE [--name NAME] [--metadata FILE] [NAME] [--sha256 HASH] [--s3] [--run ID]`."""
    if node.disk.installed is None or node.runtime not in RUNTIMES:
        return Finished(1, stderr=b"/usr/bin/python3: No module named herder\n")
    command, *rest = arguments or ("",)
    options, names, in_s3 = dict[str, str](), list[str](), False
    iterator = iter(rest)
    for argument in iterator:
        if argument == "--s3":
            in_s3 = True
        elif argument.startswith("--"):
            name, equals, value = argument.partition("=")
            options[name] = value if equals else next(iterator, "")
        else:
            names.append(argument)
    unknown = options.keys() - set(_OPTIONS.get(command, ("--config",)))
    if unknown or len(names) > (0 if command in ("save", *_WITHOUT_NAME) else 1):
        return Finished(2, stderr=b"herder-snapshots: error: unrecognized arguments\n")
    path = options.get("--config", "")
    content = node.disk.files.get(path)
    if not isinstance(content, bytes):
        return Finished(1, stderr=f"{path or '--config'}: No such file or directory\n".encode())
    runs = options.get("--run", ""), options.get("--accepted", "")
    program = SnapshotProgram(node, json.loads(content), in_s3, *runs)
    try:
        described = _described(node, options.get("--metadata", ""))
        found = await _dispatch(program, command, options.get("--name", "") or next(iter(names), ""), described)
    except SnapshotFailed as error:
        return Finished(1, stderr=f"{error}\n".encode())
    return Finished(0, f"{json.dumps(found)}\n".encode())


def _described(node: SimulatedNode, path: str) -> dict[str, Any]:
    content = node.disk.files.get(path) if path else b"{}"
    if not isinstance(content, bytes):
        raise SnapshotFailed(f"{path}: No such file or directory")
    found: dict[str, Any] = json.loads(content)
    return found


async def _dispatch(program: SnapshotProgram, command: str, name: str, described: dict[str, Any]) -> dict[str, Any]:
    if command == "list":
        return {"snapshots": await program.show()}
    if command in _WITHOUT_NAME:
        result: dict[str, Any] = await getattr(program, command)()
        return result
    if not name:
        raise SnapshotFailed(f"usage: {command} --config FILE NAME")
    match command:
        case "save":
            return {"snapshots": await program.save(name, described)}
        case "check":
            return {"snapshots": await program.check(name)}
        case "delete":
            return await program.delete(name)
        case "restore":
            return await program.restore(name)
    raise SnapshotFailed(f"usage: unknown command {command}")
