"""Archives of images beside the manager, as a registry: what is in them and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from herder.engine.wire import Request, Response
from herder.gateway.registry.archives import Archives
from herder.gateway.registry.images import Images
from herder.oci import Entry, Layer, digest_of, image, tar, write_archive

NAME = "herder/system-agent-installer-kubeadm"


def put(directory: Path, content: bytes, name: str, file: str = "one.tar") -> bytes:
    made = image([Layer.packed(tar([Entry("run.sh", content, 0o755)]))])
    with (directory / file).open("wb") as archive:
        write_archive(made, name, archive)
    return made.manifest


async def ask(directory: Path | str, path: str) -> Response:
    answer = await Images([], Archives(lambda: str(directory))).handle(Request("GET", path))
    assert answer is not None
    return answer


async def content(response: Response) -> bytes:
    return b"".join([piece async for piece in response.stream]) if response.stream else response.content()


@pytest.mark.parametrize("host", ["", "docker.io/", "registry.example.com:5000/", "localhost/"])
async def test_an_image_is_served_with_everything_that_it_is_made_of(tmp_path: Path, host: str) -> None:
    manifest = put(tmp_path, b"#!/bin/sh\n" * 300_000, f"{host}{NAME}:v1")
    by_tag = await ask(tmp_path, f"/v2/{NAME}/manifests/v1")
    assert by_tag.content() == manifest
    assert (await ask(tmp_path, f"/v2/{NAME}/manifests/{digest_of(manifest)}")).content() == manifest
    for each in (json.loads(manifest)["config"], *json.loads(manifest)["layers"]):
        blob = await content(await ask(tmp_path, f"/v2/{NAME}/blobs/{each['digest']}"))
        assert digest_of(blob) == each["digest"]


async def test_what_is_put_there_later_is_served_at_once(tmp_path: Path) -> None:
    registry = Images([], Archives(lambda: str(tmp_path)))
    missing = await registry.handle(Request("GET", f"/v2/{NAME}/manifests/v1"))
    assert missing is not None
    assert missing.status == 404
    put(tmp_path, b"one", f"{NAME}:v1")
    replaced = put(tmp_path, b"two and more", f"{NAME}:v1")
    found = await registry.handle(Request("GET", f"/v2/{NAME}/manifests/v1"))
    assert found is not None
    assert found.content() == replaced


async def test_images_of_one_repository_may_lie_in_several_archives(tmp_path: Path) -> None:
    put(tmp_path, b"one", f"{NAME}:v1", "one.tar")
    put(tmp_path, b"two", f"{NAME}:v2", "two.tar")
    for tag in ("v1", "v2"):
        assert (await ask(tmp_path, f"/v2/{NAME}/manifests/{tag}")).status == 200


async def test_no_repository_lends_what_belongs_to_another(tmp_path: Path) -> None:
    manifest = put(tmp_path, b"one", f"{NAME}:v1", "one.tar")
    put(tmp_path, b"two", "other:v1", "two.tar")
    layer = json.loads(manifest)["layers"][0]["digest"]
    assert (await ask(tmp_path, f"/v2/other/blobs/{layer}")).status == 404


@pytest.mark.parametrize("broken", [b"", b"not a tar", tar([Entry("index", b"{}")])])
async def test_what_is_no_archive_is_passed_over(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "broken.tar").write_bytes(broken)
    put(tmp_path, b"one", f"{NAME}:v1")
    assert (await ask(tmp_path, f"/v2/{NAME}/manifests/v1")).status == 200


async def test_without_a_directory_there_is_nothing() -> None:
    assert (await ask("", f"/v2/{NAME}/manifests/v1")).status == 404
