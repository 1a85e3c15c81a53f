"""The files that machines start from: built once from Debian packages, or unpacked once from an archive, then shared.

`python -m herder.machine.host.local.image [ARCHIVE]` does it ahead of time. The daemon runs just that too, in a process
of its own: it may take minutes. Each line it says is progress, `PERCENT TEXT`; what went wrong is the last of stderr.
"""

from __future__ import annotations

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
from herder.machine.host.kinds import Tell
from herder.machine.host.local import recipe, rootless, sources
from herder.machine.progress import Screen, progress_line

Progress = Callable[[int, str], None]

_DIED_WITHOUT_A_WORD = "the program that builds it ended without saying why"


def location(archive: str = "") -> Path:
    """Where the unpacked files are, or will be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "herder" / "images"
    return cache / (_digest_of(Path(archive)) if archive else recipe.digest()) / "root"


def check(archive: str = "") -> None:
    """Whether there is, or can be, such an image. Raises `PreCreateFailed`."""
    if archive and not Path(archive).is_file():
        raise PreCreateFailed(f"--local-image {archive} is not a file", "give the path of a tar of a Debian root")
    if location(archive).is_dir():
        return
    if not archive and shutil.which("mmdebstrap") is None:
        raise PreCreateFailed(
            "mmdebstrap is not installed, and the image of local machines is not built yet",
            "install the package mmdebstrap, or give a tar of a Debian root as --local-image",
        )


IMAGE = "Image of local machines"


async def ensure(archive: str, tell: Tell) -> Path:
    """The image's files; made first where they are not there yet."""
    root = location(archive)
    if root.is_dir():
        return root
    command = [sys.executable, "-m", "herder.machine.host.local.image", *([archive] if archive else [])]
    maker = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        errors = asyncio.create_task(_read_all(maker.stderr))
        assert maker.stdout is not None
        async for line in maker.stdout:
            tell(line.decode().rstrip())
        code = await maker.wait()
        said = (await errors).strip().splitlines()
    finally:
        if maker.returncode is None:
            os.killpg(maker.pid, signal.SIGTERM)
            await maker.wait()
    if code != 0:
        raise MachineError("the image of local machines could not be made", said[-1] if said else _DIED_WITHOUT_A_WORD)
    return root


async def _read_all(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    return (await stream.read()).decode(errors="replace")


def make(archive: str, progress: Progress) -> Path:
    """In this process; whoever comes second waits for the first."""
    root = location(archive)
    root.parents[1].mkdir(parents=True, exist_ok=True, mode=0o755)
    with _alone(root.parent.with_suffix(".lock")):
        if not root.is_dir():
            unfinished = root.parent.with_suffix(".unfinished")
            delete(unfinished)  # of one that was killed
            try:
                _fill(unfinished, archive, progress)
                unfinished.rename(root.parent)
            finally:
                delete(unfinished)
    progress(100, "is ready")
    return root


def _fill(directory: Path, archive: str, progress: Progress) -> None:
    directory.mkdir()
    (directory / "root").mkdir(mode=0o755)
    if archive:
        progress(0, f"unpacking {archive}")
        _unpack(Path(archive), directory / "root", "./dev/*")
        if not os.path.lexists(directory / "root/sbin/init"):
            raise MachineError(f"{archive} has no /sbin/init", "give a tar of a root directory with systemd in it")
        return
    with tempfile.TemporaryDirectory(prefix="herder-image-") as scratch:
        os.chmod(scratch, 0o755)  # noqa: S103 - other ids of the user namespace read it; nothing in it is secret
        built, tidying = Path(scratch) / "image.tar", Path(scratch) / "tidying.tar"
        _build(Path(scratch), built, progress)
        progress(95, "unpacking the image")
        _unpack(built, directory / "root", *recipe.LEFT_OUT)
        tidying.write_bytes(recipe.tidying())
        _unpack(tidying, directory / "root")


def _build(scratch: Path, built: Path, progress: Progress) -> None:
    mode = "unshare" if rootless.needed() else "root"
    command = [
        "mmdebstrap",
        "--verbose",
        f"--mode={mode}",
        "--variant=minbase",
        f"--include={','.join(recipe.PACKAGES)}",
    ]
    command += ['--aptopt=APT::Install-Recommends "false"']
    if options := sources.fetch_options():
        settings = scratch / "apt.conf"
        # Root may know a proxy's password; what an ordinary user can read of apt's settings, everybody can.
        settings.touch(mode=0o644 if rootless.needed() else 0o600)
        settings.write_text(options)
        command.append(f"--aptopt={settings}")
    command += [recipe.SUITE, str(built)]
    for name, text in sources.debian_sources(Path("/etc/apt")).items():
        (scratch / name).write_text(text)
        command.append(str(scratch / name))
    built.touch()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": recipe.EPOCH, "LC_ALL": "C.UTF-8"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, errors="replace"
    )
    assert process.stdout is not None
    try:
        problems = follow(process.stdout, progress)
        if process.wait() != 0:
            raise MachineError("mmdebstrap failed", "; ".join(problems[:3]) or _DIED_WITHOUT_A_WORD)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def follow(output: Iterator[str], progress: Progress) -> list[str]:
    """Every package is unpacked, then set up; returns what went wrong on the way."""
    steps, problems, told = 0, [], -1
    for line in output:
        if line.startswith(("E:", "Err:", "W: ")):
            problems.append(line.strip())
        verb, _, rest = line.partition(" ")
        if line.startswith(("Unpacking ", "Setting up ")):
            steps += 1
            percent = min(94, steps * 94 // (2 * recipe.PACKAGE_COUNT))
            if percent != told:
                told = percent
                name = rest.removeprefix("up ").split(" ")[0]
                progress(percent, f"{'unpacking' if verb == 'Unpacking' else 'setting up'} {name}")
        elif line.startswith("I: downloading packages"):
            progress(0, "fetching packages")
    return problems


def _unpack(archive: Path, root: Path, *left_out: str) -> None:
    """As root of machines: files keep their owners."""
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
        raise MachineError(f"{archive} could not be unpacked", " ".join(done.stderr.split()[-40:]))


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
    """Of which file it is rather than of what is in it, which would take longer than to boot."""
    try:
        seen = archive.stat()
    except OSError:
        return "missing"
    identity = f"{archive.resolve()} {seen.st_ino} {seen.st_size} {seen.st_mtime_ns}"
    return "archive-" + hashlib.sha256(identity.encode()).hexdigest()[:16]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("interrupted"))
    archive, screen = sys.argv[1] if len(sys.argv) > 1 else "", Screen()
    try:
        root = make(archive, lambda percent, doing: screen.show(progress_line(IMAGE, percent, doing)))
    except MachineError as error:
        sys.exit(f"{error}")
    screen.show(f"{IMAGE}: {root}")


if __name__ == "__main__":
    main()
