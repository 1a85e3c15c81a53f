"""Download the pinned packages and wheels into a cache. Hashes are verified before anything is unpacked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from herder.machine.host.local.debian import sources
from tools.images import debian, wheels
from tools.images.debian import Package, Pin
from tools.images.errors import BuildError
from tools.images.wheels import Requirement, Wheel

PYTHON, GLIBC = "3.11", 36  # of the Debian release that the pins are from: 2.36
APT_HELPER = "/usr/lib/apt/apt-helper"
_URI = re.compile(r"https?://[^\s\]]+")


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "herder" / "image-packages"


# --- Debian packages --------------------------------------------------------------------------------------------------


def packages(pins: Iterable[Pin], directory: Path, mirrors: Sequence[str] = ()) -> list[Package]:
    """Read the packages; download those that are missing, by default from the Debian mirrors of this host."""
    directory.mkdir(parents=True, exist_ok=True)
    return [_package(pin, directory, mirrors) for pin in pins]


def _package(pin: Pin, directory: Path, mirrors: Sequence[str]) -> Package:
    if not (directory / pin.file_name).exists():
        _download(pin, directory, mirrors or host_mirrors())
    return debian.read(pin, directory)


def host_mirrors(etc_apt: Path = Path("/etc/apt")) -> list[str]:
    """The mirrors that apt of this host uses for our Debian release."""
    found = (uri.rstrip("/") for text in sources.debian_sources(etc_apt).values() for uri in _uris(text))
    return list(dict.fromkeys(found))


def _uris(text: str) -> Iterable[str]:
    for line in text.splitlines():
        if line.startswith("deb ") or line.lower().startswith("uris:"):
            yield from _URI.findall(re.sub(r"\[.*?\]", "", line))


def _download(pin: Pin, directory: Path, mirrors: Sequence[str]) -> None:
    """With apt's own downloader, because it knows the host's proxies and certificates."""
    if not os.access(APT_HELPER, os.X_OK):
        raise BuildError(f"{APT_HELPER} is missing, to download {pin.file_name}; put the file into {directory}")
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=directory) as scratch:
        file = Path(scratch) / pin.file_name
        for mirror in mirrors:
            command = [APT_HELPER, "-o", "APT::Sandbox::User=root", "download-file"]
            command += [f"{mirror.rstrip('/')}/{pin.path}", str(file), f"SHA256:{pin.sha256}"]
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode == 0 and file.exists():
                pin.check(file.read_bytes(), file)
                file.rename(directory / pin.file_name)
                return
            problems += [line for line in done.stderr.splitlines() if line.startswith("E:")]
    raise BuildError(
        f"{pin.name} {pin.version}: no mirror has {pin.path}: {'; '.join(problems) or 'no mirror is known'}; "
        "pass --mirror with a mirror or an archive of Debian that has it, or update the pins"
    )


# --- wheels -----------------------------------------------------------------------------------------------------------


def distributions(files: Iterable[Path], directory: Path) -> list[tuple[Requirement, Wheel]]:
    """Read the wheels of these requirements files; pip downloads those that are missing, as it is configured here."""
    directory.mkdir(parents=True, exist_ok=True)
    return [found for file in files for found in _distributions(file, directory)]


def _distributions(requirements_file: Path, directory: Path) -> list[tuple[Requirement, Wheel]]:
    wanted = wheels.requirements(requirements_file.read_text())
    found = wheels.available(wanted, directory)
    if len(found) < len(wanted):
        _pip_download(requirements_file, directory)
        found = wheels.available(wanted, directory)
    if missing := [f"{each.name}=={each.version}" for each in wanted if each.name not in found]:
        raise BuildError(f"{', '.join(missing)}: no wheel in {directory} has a pinned hash")
    return [(each, found[each.name]) for each in wanted]


def platforms() -> list[str]:
    """Tags of wheels that run on the images' C library, best first. The host's do not matter."""
    named = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    tags = []
    for minor in range(GLIBC, 4, -1):
        tags.append(f"manylinux_2_{minor}_x86_64")
        if minor in named:
            tags.append(f"{named[minor]}_x86_64")
    return tags


def _pip_download(requirements_file: Path, directory: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation=cp"]
    command += [f"--python-version={PYTHON}", *(f"--platform={tag}" for tag in platforms())]
    command += ["--requirement", str(requirements_file), "--dest", str(directory)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"pip cannot download the wheels of {requirements_file.name}: {done.stdout.strip()[-500:]}")
