"""The installer image, as machines pull it from the gateway."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from herder.embedded.installer import REPOSITORY, InstallerImage
from herder.engine.wire import Request, Response
from herder.gateway.registry.images import Images


@pytest.fixture(scope="module")
def registry() -> Images:
    return Images([InstallerImage()])


async def send(registry: Images, path: str, method: str = "GET") -> Response:
    response = await registry.handle(Request(method, path))
    assert response is not None
    return response


async def content(response: Response) -> bytes:
    return b"".join([piece async for piece in response.stream]) if response.stream else response.content()


async def pull(registry: Images, tag: str, into: Path) -> list[str]:
    """Pull and unpack the image with all digests verified, and return the digests of its layers."""
    manifest = json.loads(await content(await send(registry, f"/v2/{REPOSITORY}/manifests/{tag}")))
    for each in (manifest["config"], *manifest["layers"]):
        blob = await content(await send(registry, f"/v2/{REPOSITORY}/blobs/{each['digest']}"))
        assert f"sha256:{hashlib.sha256(blob).hexdigest()}" == each["digest"]
        assert len(blob) == each["size"]
        if each is not manifest["config"]:
            with tarfile.open(fileobj=io.BytesIO(blob)) as archive:
                archive.extractall(into, filter="tar")
    return [each["digest"] for each in manifest["layers"]]


async def test_the_image_contains_everything_the_distribution_needs(registry: Images, tmp_path: Path) -> None:
    await pull(registry, "v1.36.3-herder1", tmp_path)
    assert (tmp_path / "VERSION").read_text() == "v1.36.3+herder1"
    set_path = f"import sys; sys.path.insert(0, {str(tmp_path / 'payload')!r}); "
    imports = "import herder.embedded.server, herder.clusteragent.agent"
    command = [sys.executable, "-I", "-S", "-c", set_path + imports]
    subprocess.run(command, check=True, timeout=60)
    subprocess.run(["sh", "-n", tmp_path / "run.sh"], check=True, timeout=10)


async def test_servers_install_the_snapshot_program(registry: Images, tmp_path: Path) -> None:
    await pull(registry, "v1.36.3-herder1", tmp_path)
    lines = (tmp_path / "run.sh").read_text().splitlines()
    functions = []
    for name in ("write_if_changed() { # PATH MODE; true if the file changed", "install_program() { # NAME MODULE"):
        start = lines.index(name)
        functions += lines[start : lines.index("}", start) + 1]
    (tmp_path / "payloads").mkdir()
    (tmp_path / "payload").rename(tmp_path / "payloads" / "one")
    variables = f"set -eu\ndata={tmp_path}\npayload=one\npython={sys.executable}"
    subprocess.run(
        ["sh"],
        input="\n".join([variables, *functions, "install_program herder-snapshots herder.snapshots"]),
        text=True,
        check=True,
    )
    program = tmp_path / "bin" / "herder-snapshots"
    done = subprocess.run([program, "list", "--config", "/none"], capture_output=True, text=True, check=False, env={})
    assert (done.returncode, done.stderr) == (1, "/none: No such file or directory; write the configuration first\n")


async def test_versions_share_the_large_layer(registry: Images, tmp_path: Path) -> None:
    one = await pull(registry, "v1.36.3-herder1", tmp_path / "one")
    other = await pull(registry, "v1.36.4-herder2", tmp_path / "other")
    assert one[0] == other[0]
    assert one[1] != other[1]


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v2/", "GET", 200),
        (f"/v2/{REPOSITORY}/manifests/latest", "GET", 404),
        (f"/v2/{REPOSITORY}/manifests/v1.36.3-k3s1", "GET", 404),
        ("/v2/library/busybox/manifests/v1.36.3-herder1", "GET", 404),
        (f"/v2/{REPOSITORY}/blobs/sha256:{'0' * 64}", "GET", 404),
        (f"/v2/{REPOSITORY}/blobs/../../etc/passwd", "GET", 404),
        (f"/v2/{REPOSITORY}/blobs/uploads/", "POST", 405),
    ],
)
async def test_missing_images_are_not_found_and_writes_are_rejected(
    registry: Images, path: str, method: str, status: int
) -> None:
    assert (await send(registry, path, method)).status == status


async def test_other_paths_are_not_handled(registry: Images) -> None:
    assert await registry.handle(Request("GET", "/api/v1/nodes")) is None
