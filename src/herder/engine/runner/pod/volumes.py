"""Pod volumes as directories on the host, readable only by the pod's user and removed with the pod.

Containers can modify a volume at any time, so all access below its root uses file descriptors. Host directories are
volumes only if the runner's configuration lists them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from herder.engine.runner.isolation import HostUser
from herder.engine.runner.kinds import SERVICE_ACCOUNTS, parse_time
from herder.engine.runner.pod import downward
from herder.engine.runner.pod.sources import NotReady, Sources
from herder.engine.runner.shim.beneath import closing, components, make_directories, open_beneath, write_file

_DEFAULT_MODE = 0o644
_DEFAULT_TOKEN_SECONDS = 3600
_WRITABLE = {"emptyDir", "hostPath"}
_CONFIG_ERROR = "CreateContainerConfigError"
_MOUNT_ERROR = "ContainerCreating"  # what a pod shows while the kubelet waits for a volume


@dataclass(frozen=True, slots=True)
class File:
    """File to write into a volume."""

    path: str  # inside the volume
    content: bytes
    mode: int = _DEFAULT_MODE


class Volumes:
    """Volumes of one pod."""

    def __init__(
        self,
        client: Client,
        pod: Object,
        directory: Path,
        *,
        user: HostUser | None,
        node: str,
        address: str,
        host_paths: tuple[Path, ...] = (),
    ) -> None:
        self._client = client
        self._pod = pod
        self._directory = directory
        self._user = user
        self._node = node
        self._address = address
        self._host_paths = host_paths
        self.refresh_at: datetime | None = None  # when the first token must be renewed

    async def prepare(self, sources: Sources, now: datetime) -> None:
        """Create every volume of the pod. A repeated call renews projected volumes and leaves the rest."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.refresh_at = None
        with closing(os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)) as root:
            for volume in self._pod["spec"].get("volumes") or ():
                if "hostPath" in volume:
                    self._check_host_path(volume["hostPath"], volume["name"])
                elif "projected" in volume or volume["name"] not in os.listdir(root):
                    await self._fill(root, volume, sources, now)

    async def _fill(self, root: int, volume: Object, sources: Sources, now: datetime) -> None:
        files = await self._files(volume, sources, now)
        mode = 0o777 if "emptyDir" in volume else 0o755
        try:
            with closing(
                make_directories(root, _directory_name(volume["name"]), mode=mode, owner=self._owner)
            ) as place:
                for file in files:
                    write_file(place, file.path, file.content, mode=file.mode, owner=self._owner)
        except OSError as error:
            raise NotReady(_MOUNT_ERROR, f'volume "{volume["name"]}": {error.strerror}') from error

    def mounts(self, container: Object) -> list[dict[str, Any]]:
        """Return the mounts of a container. The shim opens each `sub_path` again, beneath its volume."""
        found = []
        for mount in container.get("volumeMounts") or ():
            volume = self._volume(mount["name"])
            self._check_sub_path(mount, volume)
            if "hostPath" in volume:
                source = self._check_host_path(volume["hostPath"], mount["name"])
            else:
                source = self._directory / _directory_name(mount["name"])
            # Content written by the node is always mounted read-only.
            read_only = bool(mount.get("readOnly")) or not _WRITABLE & volume.keys()
            sub_path = mount.get("subPath") or ""
            found.append(
                {"source": str(source), "sub_path": sub_path, "target": mount["mountPath"], "read_only": read_only}
            )
        return found

    def _check_sub_path(self, mount: Object, volume: Object) -> None:
        """Create a missing subPath. The shim detects changes that a container makes before the mount."""
        if mount.get("subPathExpr"):
            raise NotReady(_CONFIG_ERROR, f'volume "{mount["name"]}": subPathExpr is not supported; use subPath')
        if not (sub_path := mount.get("subPath")):
            return
        if "hostPath" in volume:
            raise NotReady(_CONFIG_ERROR, f'volume "{mount["name"]}": subPath of a hostPath is not supported')
        try:
            with closing(
                os.open(self._directory / _directory_name(mount["name"]), os.O_RDONLY | os.O_DIRECTORY)
            ) as root:
                try:
                    os.close(open_beneath(root, sub_path))
                except FileNotFoundError:
                    os.close(make_directories(root, sub_path, mode=0o777, owner=self._owner))
        except OSError as error:
            raise NotReady(
                _CONFIG_ERROR, f'subPath "{sub_path}" leaves the volume or is not a directory: {error.strerror}'
            ) from error

    def _check_host_path(self, source: Object, name: str) -> Path:
        """Return the host directory if the runner's configuration allows it."""
        path, kind = Path(os.path.normpath(source.get("path", ""))), source.get("type") or ""
        if path not in self._host_paths:
            known = ", ".join(map(str, self._host_paths)) or "none"
            message = f"hostPath {path} is not allowed by this runner (allowed: {known})"
        elif kind not in {"", "Directory"}:
            message = f'hostPath type "{kind}" is not supported; omit it or use "Directory"'
        elif not path.is_dir():
            message = f"hostPath {path} is not a directory on this host"
        else:
            return path
        raise NotReady(_MOUNT_ERROR, f'volume "{name}": {message}')

    # --- contents -----------------------------------------------------------------------------------------------

    async def _files(self, volume: Object, sources: Sources, now: datetime) -> list[File]:
        if "emptyDir" in volume:
            return []
        if source := volume.get("secret"):
            content = await sources.secret(source.get("secretName", ""), optional=bool(source.get("optional")))
            return _select_files(content, source, _mode(source), volume["name"])
        if source := volume.get("configMap"):
            content = await sources.config_map(source.get("name", ""), optional=bool(source.get("optional")))
            return _select_files(content, source, _mode(source), volume["name"])
        if source := volume.get("downwardAPI"):
            return self._downward_files(source, _mode(source))
        if source := volume.get("projected"):
            return await self._projected(source, sources, now, volume["name"])
        kinds = ", ".join(key for key in volume if key != "name")
        raise NotReady(_MOUNT_ERROR, f'volume "{volume["name"]}": volume type {kinds} is not supported')

    async def _projected(self, projected: Object, sources: Sources, now: datetime, name: str) -> list[File]:
        files, mode = [], _mode(projected)
        for source in projected.get("sources") or ():
            if part := source.get("secret"):
                content = await sources.secret(part.get("name", ""), optional=bool(part.get("optional")))
                files += _select_files(content, part, mode, name)
            elif part := source.get("configMap"):
                content = await sources.config_map(part.get("name", ""), optional=bool(part.get("optional")))
                files += _select_files(content, part, mode, name)
            elif part := source.get("downwardAPI"):
                files += self._downward_files(part, mode)
            elif part := source.get("serviceAccountToken"):
                # Only the pod needs to read it, and the pod's user owns the file.
                files.append(File(part["path"], await self._token(part, now), 0o600))
            else:
                raise NotReady(_MOUNT_ERROR, f'volume "{name}": cannot project {", ".join(source)}')
        return files

    async def _token(self, source: Object, now: datetime) -> bytes:
        meta, account = self._pod["metadata"], self._pod["spec"].get("serviceAccountName") or "default"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        spec: Object = {
            "expirationSeconds": source.get("expirationSeconds") or _DEFAULT_TOKEN_SECONDS,
            "boundObjectRef": bound,
        }
        if source.get("audience"):
            spec["audiences"] = [source["audience"]]
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        try:
            answer = await self._client.create(
                SERVICE_ACCOUNTS, request, namespace=meta["namespace"], name=account, subresource="token"
            )
        except StatusError as error:
            raise NotReady(_MOUNT_ERROR, f'no token for service account "{account}": {error}') from error
        expires = parse_time(answer["status"]["expirationTimestamp"])
        renew = now + (expires - now) * 0.8
        self.refresh_at = renew if self.refresh_at is None else min(self.refresh_at, renew)
        return str(answer["status"]["token"]).encode()

    def _downward_files(self, source: Object, mode: int) -> list[File]:
        files = []
        for item in source.get("items") or ():
            try:
                if reference := item.get("fieldRef"):
                    text = downward.field(self._pod, reference["fieldPath"], node=self._node, address=self._address)
                else:
                    text = downward.resource(self._pod, item.get("resourceFieldRef") or {})
            except downward.UnsupportedField as error:
                raise NotReady(_MOUNT_ERROR, str(error)) from error
            files.append(File(item["path"], text.encode(), _item_mode(item, mode)))
        return files

    @property
    def _owner(self) -> tuple[int, int] | None:
        return (self._user.uid, self._user.gid) if self._user is not None else None

    def _volume(self, name: str) -> Object:
        volumes = self._pod["spec"].get("volumes") or ()
        return next((volume for volume in volumes if volume["name"] == name), {})


def _directory_name(name: str) -> str:
    """Return the name of a volume as a directory name."""
    if components(name) != [name]:
        raise NotReady(_MOUNT_ERROR, f'volume "{name}": not a valid name')
    return name


def _select_files(content: dict[str, bytes], source: Object, mode: int, volume: str) -> list[File]:
    items = source.get("items")
    if not items:
        return [File(key, value, mode) for key, value in content.items()]
    files = []
    for item in items:
        if item["key"] in content:
            files.append(File(item["path"], content[item["key"]], _item_mode(item, mode)))
        elif not source.get("optional"):
            raise NotReady(_MOUNT_ERROR, f'volume "{volume}" references non-existent key: {item["key"]}')
    return files


def _mode(source: Object) -> int:
    mode = source.get("defaultMode")
    return _DEFAULT_MODE if mode is None else int(mode) & 0o777


def _item_mode(item: Object, default: int) -> int:
    return default if item.get("mode") is None else int(item["mode"]) & 0o777
