"""Image archives beside the manager, served as a registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from herder.engine.wire import Request, Response
from herder.gateway.registry.archives import Archives
from herder.gateway.registry.images import Images
from herder.oci import Entry, Layer, digest_of, image, tar, write_archive

NAME = "herder/system-agent-installer-kubeadm"


def write_image(directory: Path, content: bytes, name: str, file: str = "one.tar") -> bytes:
    built = image([Layer.packed(tar([Entry("run.sh", content, 0o755)]))])
    with (directory / file).open("wb") as archive:
        write_archive(built, name, archive)
    return built.manifest


async def get(directory: Path | str, path: str) -> Response:
    response = await Images([], Archives(lambda: str(directory))).handle(Request("GET", path))
    assert response is not None
    return response


async def content(response: Response) -> bytes:
    return b"".join([piece async for piece in response.stream]) if response.stream else response.content()


@pytest.mark.parametrize("host", ["", "docker.io/", "registry.example.com:5000/", "localhost/"])
async def test_an_image_is_served_with_its_manifest_and_blobs(tmp_path: Path, host: str) -> None:
    manifest = write_image(tmp_path, b"#!/bin/sh\n" * 300_000, f"{host}{NAME}:v1")
    by_tag = await get(tmp_path, f"/v2/{NAME}/manifests/v1")
    assert by_tag.content() == manifest
    assert (await get(tmp_path, f"/v2/{NAME}/manifests/{digest_of(manifest)}")).content() == manifest
    for each in (json.loads(manifest)["config"], *json.loads(manifest)["layers"]):
        blob = await content(await get(tmp_path, f"/v2/{NAME}/blobs/{each['digest']}"))
        assert digest_of(blob) == each["digest"]


async def test_a_new_archive_is_served_at_once(tmp_path: Path) -> None:
    registry = Images([], Archives(lambda: str(tmp_path)))
    missing = await registry.handle(Request("GET", f"/v2/{NAME}/manifests/v1"))
    assert missing is not None
    assert missing.status == 404
    write_image(tmp_path, b"one", f"{NAME}:v1")
    replaced = write_image(tmp_path, b"two and more", f"{NAME}:v1")
    found = await registry.handle(Request("GET", f"/v2/{NAME}/manifests/v1"))
    assert found is not None
    assert found.content() == replaced


async def test_images_of_one_repository_may_be_in_several_archives(tmp_path: Path) -> None:
    write_image(tmp_path, b"one", f"{NAME}:v1", "one.tar")
    write_image(tmp_path, b"two", f"{NAME}:v2", "two.tar")
    for tag in ("v1", "v2"):
        assert (await get(tmp_path, f"/v2/{NAME}/manifests/{tag}")).status == 200


async def test_blobs_of_another_repository_are_not_found(tmp_path: Path) -> None:
    manifest = write_image(tmp_path, b"one", f"{NAME}:v1", "one.tar")
    write_image(tmp_path, b"two", "other:v1", "two.tar")
    layer = json.loads(manifest)["layers"][0]["digest"]
    assert (await get(tmp_path, f"/v2/other/blobs/{layer}")).status == 404


@pytest.mark.parametrize("broken", [b"", b"not a tar", tar([Entry("index", b"{}")])])
async def test_an_invalid_archive_is_skipped(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "broken.tar").write_bytes(broken)
    write_image(tmp_path, b"one", f"{NAME}:v1")
    assert (await get(tmp_path, f"/v2/{NAME}/manifests/v1")).status == 200


async def test_without_a_directory_there_are_no_images() -> None:
    assert (await get("", f"/v2/{NAME}/manifests/v1")).status == 404
