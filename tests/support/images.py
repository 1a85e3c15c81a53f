"""Container images made by hand, and a registry that they are pulled from: nothing comes from elsewhere.

python -m tests.support.images REGISTRY     push them all to one on this machine, in whatever network this is run
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from herder.clusteragent.image import CONFIG, LAYER, MANIFEST, PROCESSORS
from herder.clusteragent.registry import Reference, Repository, digest_of
from herder.machine.host.local import image as machine_image
from tests.support.peers import peer
from tests.support.processes import ended

PAUSE, BUSYBOX, PYTHON = "pause:3.10.2", "busybox:test", "python:test"
APPLETS = ("sh", "cat", "echo", "head", "httpd", "ls", "mkfifo", "rm", "seq", "sha256sum", "sleep", "tar", "test")
# Of Python's library: what is not for servers, and would bring graphics with it.
UNUSED = ("test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "__pycache__")
UNUSED_MODULES = ("_tkinter", "_test", "_curses", "readline", "nis")


@dataclass
class Image:
    """One layer from nothing. `files`: where they are in it, and what is copied there."""

    files: Mapping[str, Path]
    links: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def layer(self) -> bytes:
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            archive.addfile(_entry("tmp", kind=tarfile.DIRTYPE, mode=0o1777))
            for path, source in self.files.items():
                body = source.read_bytes()
                entry = _entry(path, mode=0o755 if os.access(source, os.X_OK) else 0o644)
                entry.size = len(body)
                archive.addfile(entry, io.BytesIO(body))
            for path, target in self.links.items():
                entry = _entry(path, kind=tarfile.SYMTYPE)
                entry.linkname = target
                archive.addfile(entry)
        return content.getvalue()

    def config(self, layer: bytes) -> bytes:
        running = {"Env": [f"{name}={value}" for name, value in self.environment.items()], "Cmd": list(self.command)}
        roots = {"type": "layers", "diff_ids": [digest_of(layer)]}
        processor = PROCESSORS[os.uname().machine]
        return json.dumps({"architecture": processor, "os": "linux", "config": running, "rootfs": roots}).encode()


def _entry(path: str, *, kind: bytes = tarfile.REGTYPE, mode: int = 0o755) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode = kind, mode
    return entry


def pause() -> Image:
    return Image({"pause": peer("pause")}, command=("/pause",))


def busybox() -> Image:
    """With a shell and what `kubectl cp` needs, from the layer that machines have."""
    program = machine_image.kubernetes_layer() / "usr/bin/busybox"
    links = {f"bin/{name}": "busybox" for name in APPLETS}
    return Image({"bin/busybox": program}, links, ("sh",), {"PATH": "/bin"})


def python() -> Image:
    """The interpreter that runs this, where it is here: what is compiled for the one fits the other."""
    program = Path(os.path.realpath(sys.executable))
    files = [program, *_library(Path(sysconfig.get_path("stdlib")))]
    packages = Path(sysconfig.get_path("platlib"))  # others bring them, but not the system's libraries that they need
    linked = _linked([program, *(path for path in files if path.suffix == ".so"), *packages.rglob("*.so")])
    files += [path for path in linked if packages not in path.parents]
    version = ".".join(map(str, sys.version_info[:3]))
    environment = {"PATH": f"{program.parent}:/bin", "PYTHON_VERSION": version}
    return Image(
        {str(path).lstrip("/"): path for path in files}, {"bin/python3": str(program)}, environment=environment
    )


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
            command = [*self.around, "docker-registry", "serve", self.directory / "config.yml"]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        ended(self.process)

    def fill(self) -> None:
        here = Path(__file__).parents[2]
        filling = (sys.executable, "-m", "tests.support.images", f"127.0.0.1:{self.port}")
        subprocess.run([*self.around, *filling], check=True, cwd=here, timeout=120)


async def push(image: Image, reference: str) -> None:
    layer = image.layer()
    config, packed = image.config(layer), gzip.compress(layer, 1, mtime=0)
    async with Repository(Reference.parse(reference)) as repository:
        for body in (packed, config):
            await repository.put_blob(body)
        await repository.put_manifest(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": CONFIG, "digest": digest_of(config), "size": len(config)},
                "layers": [{"mediaType": LAYER, "digest": digest_of(packed), "size": len(packed)}],
            }
        )


async def _push_all(registry: str) -> None:
    for name, image in ((PAUSE, pause()), (BUSYBOX, busybox()), (PYTHON, python())):
        await push(image, f"{registry}/{name}")


if __name__ == "__main__":
    asyncio.run(_push_all(sys.argv[1]))
