"""Driver programs that others publish: fetched, checked against their hash, and made ready to be run."""

from __future__ import annotations

import hashlib
import hmac
import io
import re
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from herder.machine.errors import MachineError

PREFIX = "docker-machine-driver-"
LARGEST = 512 << 20
FETCH_SECONDS = 120.0


def install(url: str, checksum: str, directory: Path) -> Path:
    """The program, executable, in a directory of ours; its name is what the Go program looks for on PATH."""
    content = _fetched(url)
    if checksum and not hmac.compare_digest(hashlib.sha256(content).hexdigest(), checksum.lower()):
        raise MachineError(f"downloaded file {url} failed sha256 checksum", "correct the NodeDriver's url or checksum")
    name, program = _program(content, url)
    path = directory / f"{PREFIX}{_driver(name)}"
    path.write_bytes(program)
    path.chmod(0o755)
    return path


def _fetched(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise MachineError(f"the driver's address {url} cannot be fetched", "it must begin with https:// or http://")
    try:
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as answer:  # noqa: S310 - http and https alone
            content: bytes = answer.read(LARGEST + 1)
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        raise MachineError(
            f"download of driver from {url} failed: {reason}", "see that the address is right"
        ) from error
    if len(content) > LARGEST:
        raise MachineError(f"the driver at {url} is larger than {LARGEST >> 20} MB")
    return content


def _program(content: bytes, url: str) -> tuple[str, bytes]:
    """From the file itself, or from the archive that it is."""
    try:
        if content.startswith(b"\x7fELF"):
            return url.rsplit("/", 1)[-1].partition("?")[0], content
        if content.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                name = _chosen(archive.namelist(), url)
                return name, archive.read(name)
        if content.startswith(b"\x1f\x8b"):
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
                name = _chosen([entry.name for entry in archive if entry.isfile()], url)
                stream = archive.extractfile(name)
                assert stream is not None
                return name, stream.read()
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as error:
        raise MachineError(f"the driver at {url} is a damaged archive: {error}") from error
    raise MachineError(
        f"the file at {url} does not seem to be in an accepted format",
        "publish a Linux program, a zip or a tar.gz of one",
    )


def _chosen(names: list[str], url: str) -> str:
    for name in names:
        if name.rsplit("/", 1)[-1].startswith(PREFIX):
            return name
    raise MachineError(f"the archive at {url} holds no {PREFIX}…", "name the program so")


def _driver(name: str) -> str:
    """`docker-machine-driver-linode_linux-amd64` → `linode`."""
    name = name.rsplit("/", 1)[-1]
    if not name.startswith(PREFIX):
        raise MachineError(f"{name} is not named {PREFIX}…", "correct the NodeDriver's url: it must end in that name")
    return re.split(r"[-_.]", name.removeprefix(PREFIX), maxsplit=1)[0]
