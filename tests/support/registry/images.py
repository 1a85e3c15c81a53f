"""Container images built by the tests, and a registry to pull them from: nothing is downloaded.

python -m tests.support.registry.images REGISTRY     push all images to a registry on this host, in the current network
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from herder.clusteragent import interpreter
from herder.clusteragent.registry import Reference, Repository
from herder.machine.host.local import image as machine_image
from herder.oci import Entry, Image, Layer, image, tar
from tests.support.peers import peer
from tests.support.processes import terminate

PAUSE, BUSYBOX, PYTHON = "pause:3.10.2", "busybox:test", "python:test"
DEBIAN_PAUSE = "pause:3.6"  # the default of Debian's containerd
APPLETS = ("sh", "cat", "httpd", "mkfifo", "nc", "sha256sum", "sleep", "tar")


def pause() -> Image:
    return image([Layer.packed(tar([Entry("pause", peer("pause"), 0o755)]))], {"Entrypoint": ["/pause"]})


def busybox() -> Image:
    """A shell and what `kubectl cp` needs, from the layer of `local` machines."""
    program = machine_image.kubernetes_layer() / "usr/bin/busybox"
    files = [Entry(f"bin/{name}", program, 0o755) for name in APPLETS]
    files.append(Entry("tmp/empty", b""))  # for the directory
    return image([Layer.packed(tar(files))], {"Env": ["PATH=/bin"]})


def python() -> Image:
    """The interpreter that runs the tests, so that compiled modules fit."""
    return image([Layer.packed(interpreter.layer())], {"Env": interpreter.variables()})


# --- registry ---------------------------------------------------------------------------------------------------------


class Registry:
    """Debian's docker-registry, in the network that the command prefix `command_prefix` enters; by default on all of
    its addresses."""

    def __init__(self, directory: Path, port: int, command_prefix: tuple[str, ...] = (), address: str = "") -> None:
        self.address = address
        self.directory, self.port, self.command_prefix = directory, port, command_prefix
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Registry:
        self.directory.mkdir()
        settings = {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self.directory / "blobs")}},
            "http": {"addr": f"{self.address}:{self.port}"},
        }
        (self.directory / "config.yml").write_text(json.dumps(settings))
        with (self.directory / "registry.log").open("wb") as log:
            command: list[str | Path] = [
                *self.command_prefix,
                "docker-registry",
                "serve",
                self.directory / "config.yml",
            ]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        terminate(self.process)

    @contextmanager
    def hidden(self, name: str) -> Iterator[None]:
        """Serve the image `name` only after the block."""
        repository, _, tag = name.partition(":")
        tags = self.directory / "blobs/docker/registry/v2/repositories" / repository / "_manifests/tags"
        hidden = (tags / tag).rename(self.directory / "hidden-tag")
        try:
            yield
        finally:
            hidden.rename(tags / tag)

    def push_images(self) -> None:
        here = Path(__file__).parents[3]
        command = (sys.executable, "-m", "tests.support.registry.images", f"127.0.0.1:{self.port}")
        subprocess.run([*self.command_prefix, *command], check=True, cwd=here, timeout=120)


async def push(built: Image, reference: str) -> None:
    async with Repository(Reference.parse(reference)) as repository:
        await repository.put_image(built)


async def _push_all(registry: str) -> None:
    await _wait_for_registry(*registry.split(":"))
    for name, built in ((PAUSE, pause()), (DEBIAN_PAUSE, pause()), (BUSYBOX, busybox()), (PYTHON, python())):
        await push(built, f"{registry}/{name}")


async def _wait_for_registry(host: str, port: str) -> None:
    """Wait until the registry accepts connections."""
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


if __name__ == "__main__":
    asyncio.run(_push_all(sys.argv[1]))
