"""Kubernetes installer for the demo's Debian machines: a given archive, or one built from local binaries."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from herder.api.rke.names import KUBEADM_INSTALLER
from herder.installers import InstallerError, tag
from herder.kubeadm.installer import PROGRAMS

BUILD = Path(__file__).parents[4] / "peers" / "build.py"  # in a source checkout
NEEDED = (
    f"kubeadm needs the binaries {', '.join(PROGRAMS)} (from the releases of Kubernetes and etcd and from the pause "
    "image); pass a directory with all of them: --programs DIRECTORY"
)


@dataclass(frozen=True)
class Installer:
    archive: Path
    version: str  # Kubernetes version that clusters request


def given(archive: Path) -> Installer:
    """Use an existing archive; its tag contains the version, but cannot contain a plus sign."""
    with suppress(OSError, tarfile.TarError, KeyError, ValueError), tarfile.open(archive, "r:") as opened:
        member = opened.extractfile("index.json")
        assert member is not None
        (only,) = json.load(member)["manifests"]
        reported = str(only["annotations"]["org.opencontainers.image.ref.name"]).rpartition(":")[2]
        if "-kubeadm" in reported:
            return Installer(archive, reported.replace("-kubeadm", "+kubeadm"))
    raise click.ClickException(
        f"--installer: {archive} is not an archive written by `herder installer kubeadm --output`"
    )


def made(directory: Path | None, target: Path, say: Callable[[str], None]) -> Installer:
    """Build an archive from the binaries in `directory`, or from those found on this host."""
    from herder.kubeadm.installer import build
    from herder.oci import write_archive

    where, programs = _all_in(directory) if directory else _found()
    version = f"{_version(programs['kubeadm'])}+kubeadm1"
    say(f"Build an installer image of {version} from the binaries {where}")
    with tempfile.TemporaryDirectory(prefix="installer-", dir=target.parent) as scratch:
        try:
            image = build(version, programs, Path(scratch))
        except InstallerError as problem:
            raise click.ClickException(str(problem)) from None
        with target.open("wb") as file:
            write_archive(image, f"{KUBEADM_INSTALLER}:{tag(version)}", file)
    return Installer(target, version)


# --- programs -------------------------------------------------------------------------------------------------------


def _all_in(directory: Path) -> tuple[str, Mapping[str, Path]]:
    programs = {name: directory / name for name in PROGRAMS if (directory / name).is_file()}
    if missing := _missing(programs):
        raise click.ClickException(f"--programs: {directory} does not contain {missing}")
    return f"in {directory}", programs


def _found() -> tuple[str, Mapping[str, Path]]:
    """All binaries from one source, because versions must match."""
    lines = [NEEDED]
    for where, programs in _places():
        missing = _missing(programs)
        if not missing:
            return where, programs
        lines.append(f"  {where}: {f'missing {missing}' if programs else 'found none'}")
    if BUILD.exists():
        lines.append(f"  to build them with Go, run: python3 {os.path.relpath(BUILD)} {' '.join(PROGRAMS)}")
    raise click.ClickException("\n".join(lines))


def _places() -> Iterator[tuple[str, Mapping[str, Path]]]:
    yield "in PATH", {name: Path(path) for name in PROGRAMS if (path := shutil.which(name))}
    if BUILD.exists():
        yield "built in this checkout", _built()


def _built() -> Mapping[str, Path]:
    listed = subprocess.run([sys.executable, BUILD, "--list"], capture_output=True, text=True, check=False, timeout=60)
    paths = dict(line.split("\t") for line in listed.stdout.splitlines())  # empty without Go
    return {name: Path(paths[name]) for name in PROGRAMS if name in paths and Path(paths[name]).is_file()}


def _missing(programs: Mapping[str, Path]) -> str:
    return ", ".join(name for name in PROGRAMS if name not in programs)


def _version(kubeadm: Path) -> str:
    with suppress(OSError, subprocess.TimeoutExpired):
        output = subprocess.run(
            [kubeadm, "version", "--output=short"], capture_output=True, text=True, check=False, timeout=60
        )
        if output.returncode == 0 and output.stdout.startswith("v"):
            return output.stdout.strip()
    raise click.ClickException(
        f"{kubeadm}: cannot read the version; use a kubeadm binary for the architecture of this host"
    )
