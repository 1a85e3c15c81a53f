"""A minimal OCI registry in this process, and builders of images for it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import ssl
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Link:
    target: str
    hard: bool = False


def layer(files: Mapping[str, bytes | str | Link | None], mode: int = 0o755) -> bytes:
    """A tar archive; None creates a directory."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.mode = mode
            if content is None:
                member.type = tarfile.DIRTYPE
            elif isinstance(content, Link):
                member.type = tarfile.LNKTYPE if content.hard else tarfile.SYMTYPE
                member.linkname = content.target
            data = content.encode() if isinstance(content, str) else content if isinstance(content, bytes) else b""
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


@dataclass
class Image:
    """Layers as they are sent; `contents` are those layers without compression."""

    contents: Sequence[bytes]
    compress: bool = True
    blobs: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sent = [gzip.compress(each, mtime=0) if self.compress else each for each in self.contents]
        self.layers = [self._add(each) for each in sent]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [digest_of(each) for each in self.contents]},
        }
        self.config = self._add(json.dumps(config).encode())
        kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if self.compress else "")
        self.manifest = self._add(
            json.dumps(
                {
                    "schemaVersion": 2,
                    "mediaType": MANIFEST,
                    "config": self._descriptor("application/vnd.oci.image.config.v1+json", self.config),
                    "layers": [
                        self._descriptor(f"application/vnd.oci.image.layer.v1.{kind}", each) for each in self.layers
                    ],
                }
            ).encode()
        )

    def _add(self, content: bytes) -> str:
        self.blobs[digest_of(content)] = content
        return digest_of(content)

    def _descriptor(self, media_type: str, digest: str) -> dict[str, Any]:
        return {"mediaType": media_type, "digest": digest, "size": len(self.blobs[digest])}

    def index(self, **platform: str) -> bytes:
        entry = self._descriptor(MANIFEST, self.manifest) | {"platform": platform}
        return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).encode()

    def docker_archive(self, *tags: str) -> bytes:
        """The image as `docker save` writes it."""
        names = [f"{digest[7:19]}/layer.tar" for digest in self.layers]
        files: dict[str, bytes | str | Link | None] = dict(zip(names, self.contents, strict=True))
        config = f"{self.config[7:]}.json"
        files[config] = self.blobs[self.config]
        files["manifest.json"] = json.dumps([{"Config": config, "RepoTags": list(tags), "Layers": names}])
        return layer(files)

    def oci_archive(self, name: str) -> bytes:
        files: dict[str, bytes | str | Link | None] = {
            f"blobs/sha256/{digest[7:]}": content for digest, content in self.blobs.items()
        }
        entry = self._descriptor(MANIFEST, self.manifest)
        entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        files["oci-layout"] = '{"imageLayoutVersion":"1.0.0"}'
        files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]})
        return layer(files)


def image(*layers: Mapping[str, bytes | str | Link | None], compress: bool = True) -> Image:
    return Image([layer(each) for each in layers], compress)


class Registry:
    """Serves the images that were pushed, and records the paths of requests."""

    def __init__(self) -> None:
        self.manifests: dict[tuple[str, str], bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.credentials: tuple[str, str] | None = None
        self.scheme = "bearer"  # or basic: the scheme of the challenge
        self.redirect_blobs_to = ""
        self.url = ""

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def push(self, repository: str, tag: str, pushed: Image, *, index: bytes | None = None) -> str:
        """Push an image; return the digest that the tag refers to."""
        self.blobs.update(pushed.blobs)
        manifest = pushed.blobs[pushed.manifest]
        self.manifests[repository, pushed.manifest] = manifest
        named = index if index is not None else manifest
        self.manifests[repository, tag] = self.manifests[repository, digest_of(named)] = named
        return digest_of(named)

    def basic(self) -> str:
        return "Basic " + base64.b64encode(":".join(self.credentials or ("", "")).encode()).decode()

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        target = urlsplit(path)
        self.requests.append(path)
        if target.path == "/token":
            if self.credentials and authorization != self.basic():
                return 401, {}, b"{}"
            scope = parse_qs(target.query).get("scope", [""])[0]
            return 200, {}, json.dumps({"token": f"token-for-{scope}"}).encode()
        if self.credentials and not self._is_authorized(authorization):
            realm = f'realm="{self.url}/token",service="tiny"'
            challenge = f"Bearer {realm}" if self.scheme == "bearer" else 'Basic realm="tiny"'
            return 401, {"WWW-Authenticate": challenge}, b'{"errors":[{"code":"UNAUTHORIZED"}]}'
        return self._content(target.path)

    def _is_authorized(self, authorization: str) -> bool:
        if self.scheme == "basic":
            return authorization == self.basic()
        return authorization.startswith("Bearer token-for-repository:")

    def _content(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if path in ("/v2", "/v2/"):
            return 200, {}, b"{}"
        repository, _, rest = path.removeprefix("/v2/").rpartition("/manifests/")
        if repository:
            found = self.manifests.get((repository, rest))
            if found is not None:
                kind = json.loads(found).get("mediaType", MANIFEST)
                return 200, {"Content-Type": kind, "Docker-Content-Digest": digest_of(found)}, found
        _, _, digest = path.rpartition("/blobs/")
        if digest in self.blobs:
            if self.redirect_blobs_to and not path.startswith("/elsewhere"):
                return 307, {"Location": f"{self.redirect_blobs_to}/elsewhere/blobs/{digest}"}, b""
            return 200, {"Content-Type": "application/octet-stream"}, self.blobs[digest]
        return 404, {}, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no such image"}]}'


@contextmanager
def registry(*, certificate: Path | None = None, key: Path | None = None) -> Iterator[Registry]:
    """A registry on loopback; with TLS if there is a certificate."""
    served = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, content = served.answer(self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None and key is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    served.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
