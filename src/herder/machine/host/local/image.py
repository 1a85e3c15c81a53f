"""Images of local machines: built once from Debian packages, or unpacked once from an archive, then shared.

`python -m herder.machine.host.local.image [--kubernetes] [ARCHIVE]` builds them ahead of time. The daemon runs the same
program, because it may take minutes. Lines on stdout are progress, `PERCENT TEXT`; the last line of stderr is the
error. The Kubernetes dependencies are a separate, optional layer; archives must contain them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from herder.machine.errors import MachineError, PreCreateFailed
from herder.machine.host.kinds import Report
from herder.machine.host.local import rootless
from herder.machine.host.local.debian import build, recipe
from herder.machine.host.local.debian.build import NO_ERROR_MESSAGE, Progress
from herder.machine.progress import Screen, progress_line


def location(archive: str = "") -> Path:
    """Return the path of the unpacked files, whether they exist or not."""
    return _cache() / (_digest_of(Path(archive)) if archive else recipe.digest()) / "root"


def kubernetes_layer() -> Path:
    """Return the path of the Kubernetes layer."""
    return _cache() / f"kubernetes-{recipe.kubernetes_digest()}" / "root"


def layers(archive: str, *, kubernetes: bool) -> list[Path]:
    """Return the layers of a machine's root, topmost first."""
    return [*([kubernetes_layer()] if kubernetes and not archive else []), location(archive)]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "herder" / "images"


def check(archive: str = "", *, kubernetes: bool = False) -> None:
    """Raise `PreCreateFailed` if the image neither exists nor can be built."""
    if archive and not Path(archive).is_file():
        raise PreCreateFailed(
            f"--local-image: {archive} is not a file", "pass a tar archive of a Debian root directory"
        )
    if all(layer.is_dir() for layer in layers(archive, kubernetes=kubernetes)):
        return
    if not archive and shutil.which("mmdebstrap") is None:
        raise PreCreateFailed(
            "mmdebstrap is not installed, but building the image of local machines requires it",
            "install the package mmdebstrap, or pass a tar archive of a Debian root directory with --local-image",
        )


IMAGE = "Image of local machines"


async def ensure(archive: str, report: Report, *, kubernetes: bool) -> list[Path]:
    """Return the image's layers; build them if necessary."""
    wanted = layers(archive, kubernetes=kubernetes)
    if all(layer.is_dir() for layer in wanted):
        return wanted
    command = [sys.executable, "-m", "herder.machine.host.local.image", *(["--kubernetes"] if kubernetes else [])]
    command += ["--", archive] if archive else []
    maker = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        errors = asyncio.create_task(_read_all(maker.stderr))
        assert maker.stdout is not None
        async for line in maker.stdout:
            report(line.decode().rstrip())
        code = await maker.wait()
        said = (await errors).strip().splitlines()
    finally:
        if maker.returncode is None:
            os.killpg(maker.pid, signal.SIGTERM)
            await maker.wait()
    if code != 0:
        raise MachineError("cannot build the image of local machines", said[-1] if said else NO_ERROR_MESSAGE)
    return wanted


async def _read_all(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    return (await stream.read()).decode(errors="replace")


def make(archive: str, progress: Progress, *, kubernetes: bool = False) -> Path:
    """Build in this process; concurrent builds wait. Returns the base image, the lowest layer."""
    image = _once(location(archive), lambda directory: _fill(directory, archive, progress))
    if kubernetes and not archive:
        _once(kubernetes_layer(), lambda directory: _fill_layer(image, directory, progress))
    progress(100, "is ready")
    return image


def _once(root: Path, fill: Callable[[Path], None]) -> Path:
    root.parents[1].mkdir(parents=True, exist_ok=True, mode=0o755)
    with _alone(root.parent.with_suffix(".lock")):
        if not root.is_dir():
            unfinished = root.parent.with_suffix(".unfinished")
            delete(unfinished)  # left over from a killed build
            try:
                unfinished.mkdir()
                (unfinished / "root").mkdir(mode=0o755)
                fill(unfinished)
                unfinished.rename(root.parent)
            finally:
                delete(unfinished)
    return root


def _fill(directory: Path, archive: str, progress: Progress) -> None:
    if archive:
        progress(0, f"unpacking {archive}")
        _unpack(Path(archive), directory / "root", "./dev/*")
        if not os.path.lexists(directory / "root/sbin/init"):
            raise MachineError(f"{archive} has no /sbin/init", "pass a tar archive of a root directory with systemd")
        return
    with _scratch() as scratch:
        built = build.bootstrap(scratch, progress)
        progress(95, "unpacking the image")
        _unpack(built, directory / "root", *recipe.LEFT_OUT)
        _extract_over(directory / "root", recipe.cleanup_script(), scratch)


def _fill_layer(image: Path, directory: Path, progress: Progress) -> None:
    progress(0, "adding the dependencies of Kubernetes")
    with _scratch() as scratch:
        build.add_layer(image, directory, scratch, as_root=_as_root_of_machines(), progress=progress)
        for used in ("merged", "work"):
            delete(directory / used)
        _extract_over(directory / "root", recipe.kubernetes_settings(), scratch)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="herder-image-") as scratch:
        os.chmod(scratch, 0o755)  # noqa: S103 - other UIDs of the user namespace read it; it contains no secrets
        yield Path(scratch)


def _extract_over(root: Path, content: bytes, scratch: Path) -> None:
    (scratch / "over.tar").write_bytes(content)
    _unpack(scratch / "over.tar", root)


def _unpack(archive: Path, root: Path, *left_out: str) -> None:
    """Unpack as the machines' root: files keep their owners."""
    command = ["tar", "--extract", "--preserve-permissions", "--numeric-owner", "--xattrs", "--xattrs-include=*"]
    command += [
        "--file",
        str(archive),
        "--directory",
        str(root),
        "--anchored",
        *(f"--exclude={path}" for path in left_out),
    ]
    done = subprocess.run([*_as_root_of_machines(), *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineError(f"cannot unpack {archive}", " ".join(done.stderr.split()[-40:]))


def delete(directory: Path) -> None:
    if directory.exists():
        subprocess.run([*_as_root_of_machines(), "rm", "-rf", "--one-file-system", str(directory)], check=True)


def _as_root_of_machines() -> list[str]:
    return [sys.executable, "-m", "herder.machine.host.local.rootless"] if rootless.needed() else []


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest_of(archive: Path) -> str:
    """Digest of the file's identity, because hashing its content would take longer than booting."""
    try:
        seen = archive.stat()
    except OSError:
        return "missing"
    identity = f"{archive.resolve()} {seen.st_ino} {seen.st_size} {seen.st_mtime_ns}"
    return "archive-" + hashlib.sha256(identity.encode()).hexdigest()[:16]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m herder.machine.host.local.image",
        description="Build or unpack the image of local machines before the first machine needs it.",
        epilog="examples:\n"
        "  python -m herder.machine.host.local.image --kubernetes\n"
        "  python -m herder.machine.host.local.image debian.tar",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "archive", nargs="?", default="", help="tar archive of a root directory (default: build a Debian image)"
    )
    parser.add_argument(
        "--kubernetes", action="store_true", help="also build the layer with the dependencies of Kubernetes"
    )
    return parser


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("interrupted"))
    wanted, screen = _parser().parse_args(), Screen()

    def show(percent: int, doing: str) -> None:
        screen.show(progress_line(IMAGE, percent, doing))

    try:
        root = make(wanted.archive, show, kubernetes=wanted.kubernetes)
    except MachineError as error:
        sys.exit(f"{error}")
    screen.show(f"{IMAGE}: {root}")


if __name__ == "__main__":
    main()
