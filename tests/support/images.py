"""Container images made by hand, and a registry that they are pulled from: nothing comes from elsewhere.

python -m tests.support.images REGISTRY     push them all to one on this machine, in whatever network this is run
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from herder.clusteragent import interpreter
from herder.clusteragent.registry import Reference, Repository
from herder.machine.host.local import image as machine_image
from herder.oci import Entry, Image, Layer, image, tar
from tests.support.peers import peer
from tests.support.processes import ended

PAUSE, BUSYBOX, PYTHON = "pause:3.10.2", "busybox:test", "python:test"
DEBIAN_PAUSE = "pause:3.6"  # what containerd of Debian asks for, unless it is told otherwise
APPLETS = ("sh", "cat", "httpd", "mkfifo", "nc", "sha256sum", "sleep", "tar")


def pause() -> Image:
    return image([Layer.packed(tar([Entry("pause", peer("pause"), 0o755)]))], {"Entrypoint": ["/pause"]})


def busybox() -> Image:
    """With a shell and what `kubectl cp` needs, from the layer that machines have."""
    program = machine_image.kubernetes_layer() / "usr/bin/busybox"
    files = [Entry(f"bin/{name}", program, 0o755) for name in APPLETS]
    files.append(Entry("tmp/empty", b""))  # for the directory
    return image([Layer.packed(tar(files))], {"Env": ["PATH=/bin"]})


def python() -> Image:
    """The interpreter that runs this: what is compiled for the one fits the other."""
    return image([Layer.packed(interpreter.layer())], {"Env": interpreter.variables()})


# --- where they are pulled from ---------------------------------------------------------------------------------------


class Registry:
    """Debian's, on all addresses of the network that `around` enters."""

    def __init__(self, directory: Path, port: int, around: tuple[str, ...]) -> None:
        self.directory, self.port, self.around = directory, port, around
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Registry:
        self.directory.mkdir()
        settings = {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self.directory / "blobs")}},
            "http": {"addr": f":{self.port}"},
        }
        (self.directory / "config.yml").write_text(json.dumps(settings))
        with (self.directory / "registry.log").open("wb") as log:
            command: list[str | Path] = [*self.around, "docker-registry", "serve", self.directory / "config.yml"]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        ended(self.process)

    def fill(self) -> None:
        here = Path(__file__).parents[2]
        filling = (sys.executable, "-m", "tests.support.images", f"127.0.0.1:{self.port}")
        subprocess.run([*self.around, *filling], check=True, cwd=here, timeout=120)


async def push(made: Image, reference: str) -> None:
    async with Repository(Reference.parse(reference)) as repository:
        await repository.put_image(made)


async def _push_all(registry: str) -> None:
    await _answers(*registry.split(":"))
    for name, made in ((PAUSE, pause()), (DEBIAN_PAUSE, pause()), (BUSYBOX, busybox()), (PYTHON, python())):
        await push(made, f"{registry}/{name}")


async def _answers(host: str, port: str) -> None:
    """It was started a moment ago."""
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
