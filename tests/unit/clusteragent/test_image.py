"""The agent's image: pushed to a registry with authentication, on a base image or without one."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from herder import oci
from herder.clusteragent import image
from herder.clusteragent.registry import INDEXES, Login, Reference, RegistryError
from herder.oci import digest_of

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}.0"
LOGIN = Login("shepherd", "a-password")


@dataclass
class Registry:
    """The parts of a registry that an image needs, with tokens for clients that know the password."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    host: str = ""
    corrupts: bool = False

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/token", self.token),
            web.get("/v2/{name:.+}/manifests/{version}", self.manifest),
            web.put("/v2/{name:.+}/manifests/{version}", self.manifest),
            web.get("/v2/{name:.+}/blobs/{digest}", self.blob),  # HEAD too
            web.post("/v2/{name:.+}/blobs/uploads/", self.begin),
            web.put("/v2/{name:.+}/blobs/uploads/{number}", self.finish),
        ]

    def require_token(self, request: web.Request) -> None:
        if request.headers.get("Authorization") != "Bearer good":
            challenge = {
                "WWW-Authenticate": f'Bearer realm="http://{self.host}/token",service="test",scope="repository:x"'
            }
            raise web.HTTPUnauthorized(headers=challenge)

    async def token(self, request: web.Request) -> web.Response:
        pair = base64.b64encode(f"{LOGIN.username}:{LOGIN.password}".encode()).decode()
        if request.headers.get("Authorization") != f"Basic {pair}":
            raise web.HTTPForbidden
        return web.json_response({"token": "good"})

    async def manifest(self, request: web.Request) -> web.Response:
        self.require_token(request)
        version = request.match_info["version"]
        if request.method == "PUT":
            body = await request.read()
            for each in (json.loads(body)["config"], *json.loads(body)["layers"]):
                assert each["digest"] in self.blobs, "blobs are pushed before the manifest"
            self.manifests[version] = body
            return web.Response(status=201)
        if version not in self.manifests:
            raise web.HTTPNotFound
        return web.Response(body=self.manifests[version])

    async def blob(self, request: web.Request) -> web.Response:
        self.require_token(request)
        content = self.blobs.get(request.match_info["digest"])
        if content is None:
            raise web.HTTPNotFound
        return web.Response(body=content + b"!" if self.corrupts else content)

    async def begin(self, request: web.Request) -> web.Response:
        self.require_token(request)
        return web.Response(status=202, headers={"Location": f"{request.path}1?state=x"})

    async def finish(self, request: web.Request) -> web.Response:
        self.require_token(request)
        body = await request.read()
        assert digest_of(body) == request.query["digest"]
        self.blobs[request.query["digest"]] = body
        return web.Response(status=201)

    def store_blob(self, content: bytes) -> dict[str, Any]:
        self.blobs[digest_of(content)] = content
        return {"digest": digest_of(content), "size": len(content)}

    def add_base(self, python: str = VERSION, *, processor: str = "") -> None:
        config = {"config": {"Env": [f"PYTHON_VERSION={python}"]}, "rootfs": {"diff_ids": ["sha256:base"]}}
        tar = {
            "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
            **self.store_blob(gzip.compress(b"base")),
        }
        manifest = {"config": self.store_blob(json.dumps(config).encode()), "layers": [tar]}
        body = json.dumps(manifest).encode()
        self.manifests[digest_of(body)] = body
        platform = {"os": "linux", "architecture": processor or oci.processor()}
        index = {"mediaType": INDEXES[0], "manifests": [{"digest": digest_of(body), "platform": platform}]}
        self.manifests["3"] = json.dumps(index).encode()


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    created, app = Registry(), web.Application(client_max_size=1 << 30)
    app.add_routes(created.routes())
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    created.host = f"127.0.0.1:{runner.addresses[0][1]}"
    yield created
    await runner.cleanup()


async def push(registry: Registry, login: Login | None = LOGIN) -> dict[str, Any]:
    await image.push(f"{registry.host}/library/python:3", f"{registry.host}/herder/agent:v1", login)
    manifest: dict[str, Any] = json.loads(registry.manifests["v1"])
    return manifest


async def test_the_image_is_the_base_and_a_layer_with_the_agent(registry: Registry, tmp_path: Path) -> None:
    registry.add_base()
    manifest = await push(registry)
    base, agent_layer = manifest["layers"]
    assert gzip.decompress(registry.blobs[base["digest"]]) == b"base"
    plain = gzip.decompress(registry.blobs[agent_layer["digest"]])
    config = json.loads(registry.blobs[manifest["config"]["digest"]])
    assert config["rootfs"]["diff_ids"] == ["sha256:base", digest_of(plain)]
    assert config["config"]["Entrypoint"] == ["python3", "-m", "herder.clusteragent"]
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        archive.extractall(tmp_path, filter="data")
    # Without site-packages, only Python's standard library of this installation is available.
    command = [sys.executable, "-S", "-m", "herder.clusteragent", "--help"]
    result = subprocess.run(
        command,
        env={"PYTHONPATH": str(tmp_path / "opt/herder")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "--ca-checksum" in result.stdout


async def test_the_layer_is_reproducible(registry: Registry) -> None:
    assert image.layer() == image.layer()


async def test_a_base_with_another_python_is_rejected(registry: Registry) -> None:
    registry.add_base("3.4.0")
    with pytest.raises(RegistryError, match=r"has Python 3\.4\.0"):
        await push(registry)


async def test_a_base_for_another_architecture_is_rejected(registry: Registry) -> None:
    registry.add_base(processor="mips")
    with pytest.raises(RegistryError, match="no image for linux/"):
        await push(registry)


async def test_digests_of_downloaded_blobs_are_verified(registry: Registry) -> None:
    registry.add_base()
    registry.corrupts = True
    with pytest.raises(RegistryError, match="does not match the digest"):
        await push(registry)


@pytest.mark.parametrize("login", [None, Login("shepherd", "guessed")])
async def test_a_push_needs_the_right_password(registry: Registry, login: Login | None) -> None:
    registry.add_base()
    with pytest.raises(RegistryError, match="refused") as error:
        await push(registry, login)
    assert "guessed" not in f"{error.value} {login!r}"


@pytest.mark.parametrize(
    "text", ["python", "python:3", "host/UPPER:1", "host/a b:1", "host/name", "http://host/name:1"]
)
def test_a_reference_needs_a_registry_and_a_tag(text: str) -> None:
    with pytest.raises(RegistryError, match="REGISTRY/NAME:TAG"):
        Reference.parse(text)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("docker.io/rancher/mirrored-pause:3.6", "https://index.docker.io/v2/rancher/mirrored-pause"),
        ("docker.io/busybox:1", "https://index.docker.io/v2/library/busybox"),
        ("registry.example:5000/busybox:1", "https://registry.example:5000/v2/busybox"),
    ],
)
def test_docker_hub_has_its_api_on_another_host(text: str, url: str) -> None:
    assert Reference.parse(text).url == url


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        ("localhost:5000", "http"),
        ("127.0.0.1:5000", "http"),
        ("127.9.9.9", "http"),
        ("[::1]:5000", "http"),
        ("127.example.com:5000", "https"),
        ("localhost.example.com", "https"),
        ("10.0.0.1:5000", "https"),
        ("[2001:db8::1]:5000", "https"),
    ],
)
def test_only_loopback_addresses_are_reached_without_tls(host: str, scheme: str) -> None:
    assert Reference.parse(f"{host}/herder/agent:v1").url == f"{scheme}://{host}/v2/herder/agent"


async def test_the_password_is_not_sent_to_another_registry(registry: Registry) -> None:
    """The base is in a registry that needs the password for a token."""
    registry.add_base()
    with pytest.raises(RegistryError, match="refused"):
        await image.push(f"{registry.host}/library/python:3", "localhost:1/herder/agent:v1", LOGIN)


async def test_the_command_pushes_the_image(registry: Registry, tmp_path: Path) -> None:
    registry.add_base()
    (tmp_path / "password").write_text(f"{LOGIN.password}\n")
    arguments = [
        "agent",
        "image",
        "--base",
        f"{registry.host}/library/python:3",
        "--push",
        f"{registry.host}/herder/agent:v1",
    ]
    arguments += ["--username", LOGIN.username, "--password-file", str(tmp_path / "password")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "herder.cli", *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert output.decode().strip() == f"{registry.host}/herder/agent:v1@{digest_of(registry.manifests['v1'])}"


def test_without_a_base_the_image_contains_this_interpreter(tmp_path: Path) -> None:
    created = image.whole()
    for each in json.loads(created.manifest)["layers"]:
        content = created.blobs[each["digest"]]
        assert isinstance(content, bytes)
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as archive:
            archive.extractall(tmp_path, filter="tar")
    config = json.loads(bytes(created.blobs[json.loads(created.manifest)["config"]["digest"]]))["config"]
    environment = dict(each.split("=", 1) for each in config["Env"])
    program = tmp_path / environment["PATH"].lstrip("/") / "python3"
    assert program.exists()
    assert (tmp_path / environment["PYTHONPATH"].lstrip("/") / "herder/clusteragent/__main__.py").exists()
    if os.geteuid() == 0:  # chroot needs root; it shows that nothing else is needed
        chroot_command = [
            "/usr/sbin/chroot",
            str(tmp_path),
            f"{environment['PATH']}/python3",
            *config["Entrypoint"][1:],
            "--help",
        ]
        result = subprocess.run(
            chroot_command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert result.returncode == 0, result.stderr
        assert "--ca-checksum" in result.stdout
