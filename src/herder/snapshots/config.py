"""The configuration file: JSON with mode 0600, because it contains the secret key of S3.

Unknown keys are ignored: a newer manager may write them for an older program.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from herder.snapshots.errors import SnapshotError
from herder.snapshots.names import check_name

LIMIT = 4 << 20
DEFAULT_RETENTION = 5
PKI = "/etc/kubernetes/pki/etcd"


@dataclass(frozen=True)
class S3Config:
    endpoint: str  # host[:port]
    bucket: str
    region: str
    folder: str
    access_key: str
    secret_key: str = field(repr=False)
    endpoint_ca: str = ""  # PEM; the CAs of the system if empty
    skip_ssl_verify: bool = False
    retention: int = 0
    timeout: float = 60.0  # seconds without progress


@dataclass(frozen=True)
class EtcdConfig:
    """A member of etcd that the kubelet runs as a static pod."""

    name: str
    peer_url: str
    endpoint: str
    ca: str
    cert: str
    key: str
    etcdctl: str
    etcdutl: str
    data: Path
    manifests: Path
    aside: Path  # manifests of stopped pods; on the same file system
    timeout: float  # seconds that a command, a stop or a start may take


@dataclass(frozen=True)
class StoreConfig:
    """The data directory of an embedded API server."""

    store: Path
    encryption_key: Path


@dataclass(frozen=True)
class Config:
    distribution: str
    directory: Path
    node: str
    retention: int
    compress: bool
    metadata: dict[str, Any]
    s3: S3Config | None
    etcd: EtcdConfig | None
    store: StoreConfig | None
    disabled: bool = False  # only snapshots on demand are saved


def load(path: Path) -> Config:
    try:
        content = _read_private(path)
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror}; write the configuration first") from None
    try:
        document = json.loads(content)
    except ValueError:  # the message of the parser could quote a secret
        raise SnapshotError(f"{path}: is not valid JSON") from None
    return _parse(_Section("", document))


def load_s3(path: Path) -> S3Config:
    """Read a file whose content is the section `s3` alone."""
    try:
        return _s3(_Section("s3", json.loads(_read_private(path))))
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise SnapshotError(f"{path}: is not valid JSON") from None


def load_metadata(path: Path) -> dict[str, Any]:
    """Read a file with an object that is stored with a snapshot."""
    try:
        return _Section("metadata", json.loads(_read_private(path))).content
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise SnapshotError(f"{path}: is not valid JSON") from None


def _read_private(path: Path) -> bytes:
    with path.open("rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise SnapshotError(f"{path}: other users can read it; set its mode to 0600")
        content = file.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise SnapshotError(f"{path}: is larger than {LIMIT >> 20} MiB")
    return content


class _Section:
    """Typed access to a JSON object. Errors name the key, never the value."""

    def __init__(self, path: str, content: object) -> None:
        if not isinstance(content, dict):
            raise SnapshotError(f"{path or 'configuration'}: must be an object")
        self._path = f"{path}." if path else ""
        self.content: dict[str, Any] = content

    def text(self, key: str, default: str | None = None) -> str:
        value = self.content.get(key, default)
        if not isinstance(value, str) or (default is None and not value):
            raise SnapshotError(f"{self._path}{key}: must be a text")
        return value or default or ""

    def number(self, key: str, default: float) -> float:
        value = self.content.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise SnapshotError(f"{self._path}{key}: must be a number that is not negative")
        return value

    def boolean(self, key: str) -> bool:
        value = self.content.get(key, False)
        if not isinstance(value, bool):
            raise SnapshotError(f"{self._path}{key}: must be true or false")
        return value

    def section(self, key: str) -> _Section | None:
        value = self.content.get(key)
        return None if value is None else _Section(f"{self._path}{key}", value)

    def path(self, key: str, default: str | None = None) -> Path:
        value = Path(self.text(key, default))
        if not value.is_absolute():
            raise SnapshotError(f"{self._path}{key}: must be an absolute path")
        return value


def _parse(root: _Section) -> Config:
    distribution = root.text("distribution")
    if distribution not in ("kubeadm", "embedded"):
        raise SnapshotError(f"distribution: {distribution[:40]!r} is neither kubeadm nor embedded")
    metadata, s3 = root.section("metadata"), root.section("s3")
    own = root.section(distribution) or _Section(distribution, {})
    return Config(
        distribution=distribution,
        directory=root.path("directory"),
        node=check_name("node", root.text("node")),
        retention=int(root.number("retention", DEFAULT_RETENTION)),
        disabled=root.boolean("disabled"),
        compress=root.boolean("compress"),
        metadata=metadata.content if metadata else {},
        s3=_s3(s3) if s3 and s3.content else None,
        etcd=_etcd(own) if distribution == "kubeadm" else None,
        store=_store(own) if distribution == "embedded" else None,
    )


def _s3(section: _Section) -> S3Config:
    endpoint = section.text("endpoint", "s3.amazonaws.com")
    scheme, separator, host = endpoint.rpartition("://")
    if separator and scheme != "https":
        raise SnapshotError("s3.endpoint: must be HTTPS; snapshots contain all Secrets of the cluster")
    if "/" in host.rstrip("/") or "@" in host or not host.strip("/"):
        raise SnapshotError("s3.endpoint: must be HOST or HOST:PORT")
    bucket = section.text("bucket")
    if "/" in bucket:
        raise SnapshotError("s3.bucket: must not contain a slash; set s3.folder instead")
    folder = section.text("folder", "").strip("/")
    if any(part in ("", ".", "..") for part in folder.split("/")) and folder:
        raise SnapshotError("s3.folder: must be a path without empty parts, . and ..")
    return S3Config(
        endpoint=host.rstrip("/"),
        endpoint_ca=_pem(section.text("endpointCA", "")),
        skip_ssl_verify=section.boolean("skipSSLVerify"),
        bucket=bucket,
        region=section.text("region", "us-east-1"),
        folder=folder,
        access_key=section.text("accessKey"),
        secret_key=section.text("secretKey"),
        retention=int(section.number("retention", 0)),
        timeout=section.number("timeout", 60) or 60.0,
    )


def _pem(text: str) -> str:
    """Accept PEM, or the base64 encoding of PEM, as upstream does."""
    if not text or "-----BEGIN" in text:
        return text
    try:
        decoded = base64.b64decode(text, validate=False).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        decoded = ""
    if "-----BEGIN" not in decoded:
        raise SnapshotError("s3.endpointCA: is neither a PEM certificate nor the base64 encoding of one")
    return decoded


def _etcd(section: _Section) -> EtcdConfig:
    return EtcdConfig(
        name=check_name("kubeadm.name", section.text("name")),
        peer_url=section.text("peerUrl"),
        endpoint=section.text("endpoint", "https://127.0.0.1:2379"),
        ca=section.text("ca", f"{PKI}/ca.crt"),
        cert=section.text("cert", f"{PKI}/healthcheck-client.crt"),
        key=section.text("key", f"{PKI}/healthcheck-client.key"),
        etcdctl=section.text("etcdctl", "/usr/local/bin/etcdctl"),
        etcdutl=section.text("etcdutl", "/usr/local/bin/etcdutl"),
        data=section.path("dataDirectory", "/var/lib/etcd"),
        manifests=section.path("manifests", "/etc/kubernetes/manifests"),
        aside=section.path("stoppedManifests", "/etc/kubernetes/stopped-manifests"),
        timeout=section.number("timeout", 300) or 300.0,
    )


def _store(section: _Section) -> StoreConfig:
    store = section.path("store", "/var/lib/rancher/herder/server/db/store")
    key = section.path("encryptionKey", str(store.parent / "encryption.key"))
    return StoreConfig(store=store, encryption_key=key)
