"""`herder image save`: archives of images that a registry has, as a manager serves them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from herder.engine.wire import Request
from herder.gateway.registry.archives import Archives
from herder.gateway.registry.images import Images
from tests.support.registry.oci import MANIFEST, Image, Registry, digest_of, image, registry
from tests.unit.cli.commands import expect_failure, herder

NAME, TAG = "team/app", "v1"


@pytest.fixture
def source() -> Iterator[Registry]:
    with registry() as running:
        yield running


@pytest.fixture
def pushed(source: Registry) -> Image:
    pushed = image({"bin/app": "#!/bin/sh\n"}, {"etc/app": "one\n" * 100_000})
    source.push(NAME, TAG, pushed, index=pushed.index(os="linux", architecture="arm64"))
    return pushed


def save(source: Registry, output: Path, *flags: str | Path) -> None:
    herder("image", "save", f"{source.host}/{NAME}:{TAG}", "--output", output, *flags)


def served(directory: Path, path: str) -> bytes:
    """Content of a path in the registry of a manager whose setting image-archives is this directory."""

    async def get() -> bytes:
        response = await Images([], Archives(lambda: str(directory))).handle(Request("GET", f"/v2/{NAME}/{path}"))
        assert response is not None
        assert response.status == 200, path
        stream = response.stream
        return b"".join([piece async for piece in stream]) if stream is not None else response.content()

    return asyncio.run(get())


def test_a_manager_serves_the_saved_image(source: Registry, pushed: Image, tmp_path: Path) -> None:
    save(source, tmp_path / "app.tar", "--architecture", "arm64")
    assert digest_of(served(tmp_path, f"manifests/{TAG}")) == pushed.manifest
    for digest in (pushed.config, *pushed.layers):
        assert served(tmp_path, f"blobs/{digest}") == pushed.blobs[digest]
    assert [each.name for each in tmp_path.iterdir()] == ["app.tar"]


def test_a_password_is_sent_to_the_registry_only(source: Registry, pushed: Image, tmp_path: Path) -> None:
    source.credentials, source.scheme = ("shepherd", "a-password"), "basic"
    (tmp_path / "password").write_text("a-password\n")
    login = ("--username", "shepherd", "--password-file", tmp_path / "password")
    save(source, tmp_path / "app.tar", "--architecture", "arm64", *login)
    assert digest_of(served(tmp_path, f"manifests/{TAG}")) == pushed.manifest
    assert all("a-password" not in path for path in source.requests)


def test_images_of_docker_are_served_as_oci(source: Registry, pushed: Image, tmp_path: Path) -> None:
    manifest = json.loads(pushed.blobs[pushed.manifest])
    docker = "application/vnd.docker"
    manifest["mediaType"] = f"{docker}.distribution.manifest.v2+json"
    manifest["config"]["mediaType"] = f"{docker}.container.image.v1+json"
    for layer in manifest["layers"]:
        layer["mediaType"] = f"{docker}.image.rootfs.diff.tar.gzip"
    source.manifests[NAME, TAG] = json.dumps(manifest).encode()
    save(source, tmp_path / "app.tar")
    converted = json.loads(served(tmp_path, f"manifests/{TAG}"))
    assert converted["mediaType"] == MANIFEST
    types = {each["mediaType"] for each in (converted["config"], *converted["layers"])}
    assert types == {"application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip"}
    assert [each["digest"] for each in converted["layers"]] == pushed.layers


@pytest.mark.parametrize(
    ("reference", "flags", "message"),
    [
        (f"app:{TAG}", (), "must be REGISTRY/NAME:TAG"),
        (f"{NAME}:{TAG}", (), "names no registry; write for example docker.io/team/app:v1"),
        (f"HOST/{NAME}@sha256:{'0' * 64}", (), "archives name images by tag"),
        (f"HOST/{NAME}:v2", (), "team/app v2: not found in the registry"),
        (f"HOST/{NAME}:{TAG}", ("--architecture", "amd64"), "no image for linux/amd64; it exists for: arm64"),
        (f"HOST/{NAME}:{TAG}", ("--username", "shepherd"), "--username and --password-file must be used together"),
    ],
)
def test_mistakes_are_named_and_leave_no_file(
    source: Registry, pushed: Image, tmp_path: Path, reference: str, flags: tuple[str, ...], message: str
) -> None:
    arguments = ("image", "save", reference.replace("HOST", source.host), "--output", tmp_path / "app.tar", *flags)
    assert message in expect_failure(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_layer_is_refused(source: Registry, pushed: Image, tmp_path: Path) -> None:
    source.blobs[pushed.layers[1]] = source.blobs[pushed.layers[0]]
    arguments = ("image", "save", f"{source.host}/{NAME}:{TAG}", "--output", tmp_path / "app.tar")
    assert "does not match the digest" in expect_failure(*arguments, "--architecture", "arm64")
    assert list(tmp_path.iterdir()) == []
