"""Container images made by hand, and a registry that they are pulled from: nothing comes from elsewhere.

python -m tests.support.images REGISTRY     push them all to one on this machine, in whatever network this is run
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from herder.clusteragent.registry import Reference, Repository
from herder.machine.host.local import image as machine_image
from herder.oci import Entry, Image, Layer, image, tar
from tests.support.peers import peer
from tests.support.processes import ended

PAUSE, BUSYBOX, PYTHON = "pause:3.10.2", "busybox:test", "python:test"
APPLETS = ("sh", "cat", "httpd", "mkfifo", "sha256sum", "sleep", "tar")
# Of Python's library: what is not for servers, and would bring graphics with it.
UNUSED = ("test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "__pycache__")
UNUSED_MODULES = ("_tkinter", "_test", "_curses", "readline", "nis")


def pause() -> Image:
    return image([Layer.packed(tar([Entry("pause", peer("pause"), 0o755)]))], {"Entrypoint": ["/pause"]})


def busybox() -> Image:
    """With a shell and what `kubectl cp` needs, from the layer that machines have."""
    program = machine_image.kubernetes_layer() / "usr/bin/busybox"
    files = [Entry(f"bin/{name}", program, 0o755) for name in APPLETS]
    files.append(Entry("tmp/empty", b""))  # for the directory
    return image([Layer.packed(tar(files))], {"Env": ["PATH=/bin"]})


def python() -> Image:
    """The interpreter that runs this, where it is here: what is compiled for the one fits the other."""
    program = Path(os.path.realpath(sys.executable))
    library = list(_library(Path(sysconfig.get_path("stdlib"))))
    packages = Path(sysconfig.get_path("platlib"))  # others bring them, but not the system's libraries that they need
    compiled = [path for path in library if path.suffix == ".so"]
    linked = [path for path in _linked([program, *compiled, *packages.rglob("*.so")]) if packages not in path.parents]
    files = [Entry(str(path).lstrip("/"), path) for path in library]
    files += [Entry(str(path).lstrip("/"), path, 0o755) for path in linked]
    files.append(Entry(str(program.with_name("python3")).lstrip("/"), program, 0o755))
    version = ".".join(map(str, sys.version_info[:3]))
    running = {"Env": [f"PATH={program.parent}", f"PYTHON_VERSION={version}"]}
    return image([Layer.packed(tar(files))], running)


def _library(root: Path) -> Iterator[Path]:
    for directory, below, names in os.walk(root):
        below[:] = [name for name in below if name not in UNUSED and not name.startswith("config-")]
        used = (name for name in names if name.endswith((".py", ".so")) and not name.startswith(UNUSED_MODULES))
        yield from (Path(directory) / name for name in used)


def _linked(programs: Iterable[Path]) -> list[Path]:
    """The libraries that they are loaded with, and the loader itself."""
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return [Path(path) for path in sorted(set(re.findall(r"(/\S+\.so\S*) \(0x", told)))]


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
    for name, made in ((PAUSE, pause()), (BUSYBOX, busybox()), (PYTHON, python())):
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
