"""Install Debian packages: a root directory with mmdebstrap, or a layer on top with apt."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from herder.machine.errors import MachineError
from herder.machine.host.local import rootless
from herder.machine.host.local.debian import layer, recipe, sources

Progress = Callable[[int, str], None]

NO_ERROR_MESSAGE = "the build failed without an error message"


def bootstrap(scratch: Path, progress: Progress) -> Path:
    """Build an archive of the image's files in `scratch`."""
    built = scratch / "image.tar"
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
        command.append(f"--aptopt={_settings(scratch, options)}")
    command += [recipe.SUITE, str(built)]
    for name, text in sources.debian_sources(Path("/etc/apt")).items():
        (scratch / name).write_text(text)
        command.append(str(scratch / name))
    built.touch()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": recipe.EPOCH, "LC_ALL": "C.UTF-8"}
    _run(command, environment, recipe.PACKAGE_COUNT, progress)
    return built


def add_layer(image: Path, directory: Path, scratch: Path, *, as_root: list[str], progress: Progress) -> None:
    """Install the Kubernetes dependencies on top of the image, into `directory`/root."""
    settings = _settings(scratch, layer.apt_settings(layer.merged(directory), sources.fetch_options()))
    words = ["-m", "herder.machine.host.local.debian.layer", str(image), str(directory), str(settings)]
    command = [*as_root, sys.executable, *words, *recipe.KUBERNETES_PACKAGES]
    _run(command, dict(os.environ), recipe.KUBERNETES_PACKAGE_COUNT, progress)


def _settings(scratch: Path, text: str) -> Path:
    """Root's apt settings may contain a proxy password; those readable by ordinary users do not."""
    settings = scratch / "apt.conf"
    settings.touch(mode=0o644 if rootless.needed() else 0o600)
    settings.write_text(text)
    return settings


def _run(command: list[str], environment: dict[str, str], packages: int, progress: Progress) -> None:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            problems = follow(process.stdout, progress, packages)
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise MachineError("cannot install packages", "; ".join(problems[:3]) or NO_ERROR_MESSAGE)


def follow(output: Iterator[str], progress: Progress, packages: int) -> list[str]:
    """Report progress (each package is unpacked, then set up); return error messages."""
    steps, problems, reported = 0, [], -1
    for line in output:
        if line.startswith(("E:", "Err:", "W: ")):
            problems.append(line.strip())
        verb, _, rest = line.partition(" ")
        if line.startswith(("Unpacking ", "Setting up ")):
            steps += 1
            percent = min(94, steps * 94 // (2 * packages))
            if percent != reported:
                reported = percent
                name = rest.removeprefix("up ").split(" ")[0]
                progress(percent, f"{'unpacking' if verb == 'Unpacking' else 'setting up'} {name}")
        elif line.startswith("I: downloading packages"):
            progress(0, "fetching packages")
    return problems
