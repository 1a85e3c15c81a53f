"""The agent's image in a registry that knows who asks, on a base of its own."""

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
    """As much of a registry as an image needs; with tokens, which it gives to who knows the password."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    host: str = ""
    lies: bool = False

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/token", self.token),
            web.get("/v2/{name:.+}/manifests/{version}", self.manifest),
            web.put("/v2/{name:.+}/manifests/{version}", self.manifest),
            web.get("/v2/{name:.+}/blobs/{digest}", self.blob),  # HEAD too
            web.post("/v2/{name:.+}/blobs/uploads/", self.begin),
            web.put("/v2/{name:.+}/blobs/uploads/{number}", self.finish),
        ]

    def known(self, request: web.Request) -> None:
        if request.headers.get("Authorization") != "Bearer good":
            told = {"WWW-Authenticate": f'Bearer realm="http://{self.host}/token",service="test",scope="repository:x"'}
            raise web.HTTPUnauthorized(headers=told)

    async def token(self, request: web.Request) -> web.Response:
        pair = base64.b64encode(f"{LOGIN.username}:{LOGIN.password}".encode()).decode()
        if request.headers.get("Authorization") != f"Basic {pair}":
            raise web.HTTPForbidden
        return web.json_response({"token": "good"})

    async def manifest(self, request: web.Request) -> web.Response:
        self.known(request)
        version = request.match_info["version"]
        if request.method == "PUT":
            body = await request.read()
            for each in (json.loads(body)["config"], *json.loads(body)["layers"]):
                assert each["digest"] in self.blobs, "a manifest comes after what it names"
            self.manifests[version] = body
            return web.Response(status=201)
        if version not in self.manifests:
            raise web.HTTPNotFound
        return web.Response(body=self.manifests[version])

    async def blob(self, request: web.Request) -> web.Response:
        self.known(request)
        found = self.blobs.get(request.match_info["digest"])
        if found is None:
            raise web.HTTPNotFound
        return web.Response(body=found + b"!" if self.lies else found)

    async def begin(self, request: web.Request) -> web.Response:
        self.known(request)
        return web.Response(status=202, headers={"Location": f"{request.path}1?state=x"})

    async def finish(self, request: web.Request) -> web.Response:
        self.known(request)
        body = await request.read()
        assert digest_of(body) == request.query["digest"]
        self.blobs[request.query["digest"]] = body
        return web.Response(status=201)

    def keep(self, content: bytes) -> dict[str, Any]:
        self.blobs[digest_of(content)] = content
        return {"digest": digest_of(content), "size": len(content)}

    def add_base(self, python: str = VERSION, *, processor: str = "") -> None:
        config = {"config": {"Env": [f"PYTHON_VERSION={python}"]}, "rootfs": {"diff_ids": ["sha256:base"]}}
        tar = {"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", **self.keep(gzip.compress(b"base"))}
        manifest = {"config": self.keep(json.dumps(config).encode()), "layers": [tar]}
        body = json.dumps(manifest).encode()
        self.manifests[digest_of(body)] = body
        place = {"os": "linux", "architecture": processor or oci.processor()}
        index = {"mediaType": INDEXES[0], "manifests": [{"digest": digest_of(body), "platform": place}]}
        self.manifests["3"] = json.dumps(index).encode()


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    made, app = Registry(), web.Application(client_max_size=1 << 30)
    app.add_routes(made.routes())
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.host = f"127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def pushed(registry: Registry, login: Login | None = LOGIN) -> dict[str, Any]:
    await image.push(f"{registry.host}/library/python:3", f"{registry.host}/herder/agent:v1", login)
    found: dict[str, Any] = json.loads(registry.manifests["v1"])
    return found


async def test_the_image_is_the_base_and_a_layer_in_which_the_agent_runs(registry: Registry, tmp_path: Path) -> None:
    registry.add_base()
    manifest = await pushed(registry)
    base, ours = manifest["layers"]
    assert gzip.decompress(registry.blobs[base["digest"]]) == b"base"
    plain = gzip.decompress(registry.blobs[ours["digest"]])
    config = json.loads(registry.blobs[manifest["config"]["digest"]])
    assert config["rootfs"]["diff_ids"] == ["sha256:base", digest_of(plain)]
    assert config["config"]["Entrypoint"] == ["python3", "-m", "herder.clusteragent"]
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        archive.extractall(tmp_path, filter="data")
    # Without site, nothing of this installation is found but Python's own library.
    asked = [sys.executable, "-S", "-m", "herder.clusteragent", "--help"]
    told = subprocess.run(
        asked, env={"PYTHONPATH": str(tmp_path / "opt/herder")}, capture_output=True, text=True, timeout=60, check=True
    )
    assert "--ca-checksum" in told.stdout


async def test_the_same_program_makes_the_same_image(registry: Registry) -> None:
    assert image.layer() == image.layer()


async def test_a_base_with_another_python_is_refused(registry: Registry) -> None:
    registry.add_base("3.4.0")
    with pytest.raises(RegistryError, match=r"has Python 3\.4\.0"):
        await pushed(registry)


async def test_a_base_for_another_processor_is_refused(registry: Registry) -> None:
    registry.add_base(processor="mips")
    with pytest.raises(RegistryError, match="no image for linux/"):
        await pushed(registry)


async def test_what_the_registry_sends_is_checked(registry: Registry) -> None:
    registry.add_base()
    registry.lies = True
    with pytest.raises(RegistryError, match="does not match the digest"):
        await pushed(registry)


@pytest.mark.parametrize("login", [None, Login("shepherd", "guessed")])
async def test_nobody_pushes_without_the_right_password(registry: Registry, login: Login | None) -> None:
    registry.add_base()
    with pytest.raises(RegistryError, match="refused") as refused:
        await pushed(registry, login)
    assert "guessed" not in f"{refused.value} {login!r}"


@pytest.mark.parametrize(
    "text", ["python", "python:3", "host/UPPER:1", "host/a b:1", "host/name", "http://host/name:1"]
)
def test_a_reference_names_its_registry_and_its_version(text: str) -> None:
    with pytest.raises(RegistryError, match="REGISTRY/NAME:TAG"):
        Reference.parse(text)


async def test_a_password_goes_to_no_other_registry(registry: Registry) -> None:
    """The base comes from one that hands out no token without it."""
    registry.add_base()
    with pytest.raises(RegistryError, match="refused"):
        await image.push(f"{registry.host}/library/python:3", "localhost:1/herder/agent:v1", LOGIN)


async def test_the_command_pushes_the_image(registry: Registry, tmp_path: Path) -> None:
    registry.add_base()
    (tmp_path / "password").write_text(f"{LOGIN.password}\n")
    words = [
        "agent",
        "image",
        "--base",
        f"{registry.host}/library/python:3",
        "--push",
        f"{registry.host}/herder/agent:v1",
    ]
    words += ["--username", LOGIN.username, "--password-file", str(tmp_path / "password")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "herder.cli", *words, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    assert said.decode().strip() == f"{registry.host}/herder/agent:v1@{digest_of(registry.manifests['v1'])}"


def test_without_a_base_the_agent_runs_on_this_interpreter_alone(tmp_path: Path) -> None:
    made = image.whole()
    for each in json.loads(made.manifest)["layers"]:
        content = made.blobs[each["digest"]]
        assert isinstance(content, bytes)
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as archive:
            archive.extractall(tmp_path, filter="tar")
    config = json.loads(bytes(made.blobs[json.loads(made.manifest)["config"]["digest"]]))["config"]
    environment = dict(each.split("=", 1) for each in config["Env"])
    program = tmp_path / environment["PATH"].lstrip("/") / "python3"
    assert program.exists()
    assert (tmp_path / environment["PYTHONPATH"].lstrip("/") / "herder/clusteragent/__main__.py").exists()
    if os.geteuid() == 0:  # only who may enter another root can see that nothing else is needed
        inside = [
            "/usr/sbin/chroot",
            str(tmp_path),
            f"{environment['PATH']}/python3",
            *config["Entrypoint"][1:],
            "--help",
        ]
        done = subprocess.run(inside, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "--ca-checksum" in done.stdout
