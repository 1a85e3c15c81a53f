"""Download driver plugins, verify their checksum and install them."""

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
_ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}


def install(url: str, checksum: str, directory: Path) -> Path:
    """Install the plugin executable into a directory, under the name that rancher-machine looks for on PATH."""
    if not checksum and url.startswith("http://"):
        raise MachineError(
            f"the driver URL {url} does not use TLS", "set a checksum in the NodeDriver, or use an https:// URL"
        )
    content = _fetched(url)
    if checksum:
        _check(content, checksum.strip().lower(), url)
    name, program = _program(content, url)
    path = directory / f"{PREFIX}{_driver(name)}"
    path.write_bytes(program)
    path.chmod(0o755)
    return path


def _fetched(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise MachineError(f"unsupported driver URL {url}", "it must start with https:// or http://")
    try:
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as answer:  # noqa: S310 - http and https alone
            return _bounded(answer.read(LARGEST + 1), url)
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        raise MachineError(f"download of driver from {url} failed: {reason}", "check the URL") from error


def _bounded(content: bytes, url: str) -> bytes:
    """Check that at most one byte more than allowed was read."""
    if len(content) > LARGEST:
        raise MachineError(f"the driver at {url} is larger than {LARGEST >> 20} MB", "check the URL")
    return content


def _check(content: bytes, checksum: str, url: str) -> None:
    """The algorithm follows from the checksum's length; older NodeDrivers have weak ones."""
    algorithm = _ALGORITHMS.get(len(checksum))
    if algorithm is None:
        raise MachineError(
            f"the checksum of {url} has {len(checksum)} digits", "use an MD5, SHA-1, SHA-256 or SHA-512 checksum"
        )
    if not hmac.compare_digest(hashlib.new(algorithm, content, usedforsecurity=False).hexdigest(), checksum):
        raise MachineError(
            f"downloaded file {url} failed {algorithm} checksum", "correct the NodeDriver's url or checksum"
        )


def _program(content: bytes, url: str) -> tuple[str, bytes]:
    """Extract the program, from the file itself or from an archive."""
    try:
        if content.startswith(b"\x7fELF"):
            return url.rsplit("/", 1)[-1].partition("?")[0], content
        if content.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                name = _chosen(archive.namelist(), url)
                with archive.open(name) as packed:
                    return name, _bounded(packed.read(LARGEST + 1), url)
        if content.startswith(b"\x1f\x8b") or content[257:262] == b"ustar":
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:*") as archive:
                name = _chosen([entry.name for entry in archive if entry.isfile()], url)
                stream = archive.extractfile(name)
                assert stream is not None
                return name, _bounded(stream.read(LARGEST + 1), url)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as error:
        raise MachineError(f"the driver at {url} is a damaged archive: {error}") from error
    raise MachineError(
        f"the file at {url} does not seem to be in an accepted format",
        "publish a Linux binary, or a zip or tar archive with one",
    )


def _chosen(names: list[str], url: str) -> str:
    for name in names:
        if name.rsplit("/", 1)[-1].startswith(PREFIX):
            return name
    raise MachineError(f"the archive at {url} contains no program named {PREFIX}…", "rename the program")


def _driver(name: str) -> str:
    """`docker-machine-driver-linode_linux-amd64` → `linode`."""
    name = name.rsplit("/", 1)[-1]
    if not name.startswith(PREFIX):
        raise MachineError(
            f"{name} is not named {PREFIX}…", "correct the url of the NodeDriver; it must end with that name"
        )
    return re.split(r"[-_.]", name.removeprefix(PREFIX), maxsplit=1)[0]
