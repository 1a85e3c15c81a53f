"""The installer image of k3s clusters, made from one binary of k3s as it was built or downloaded."""

from __future__ import annotations

import re
import subprocess
from importlib import resources
from pathlib import Path

from herder.installers import InstallerError, one_layer
from herder.oci import Entry, Image

VERSION = re.compile(r"v[0-9]+\.[0-9]+\.[0-9]+(?:-[0-9a-z.]+)?\+k3s[0-9]+")
SCRIPTS = ("run.sh", "killall.sh", "uninstall.sh")


def build(version: str, binary: Path, scratch: Path) -> Image:
    """`version` is what clusters ask for, such as v1.36.3+k3s1. The image is made of files in `scratch`, and lives as
    long as they do."""
    if VERSION.fullmatch(version) is None:
        raise InstallerError(f"--version: {version!r} is not a k3s version, such as v1.36.3+k3s1")
    own = resources.files("herder.k3s")
    scripts = [Entry(name, own.joinpath(name).read_bytes(), 0o755) for name in SCRIPTS]
    entries = [Entry("VERSION", version.encode()), *scripts, Entry("k3s", binary, 0o755)]
    return one_layer(entries, scratch)


def version_of(binary: Path) -> str:
    """As it tells itself; empty where it does not."""
    asked = [str(binary.absolute()), "--version"]  # a name alone would be looked for among the programs of this machine
    try:
        output = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    except OSError as problem:
        raise InstallerError(f"{binary}: cannot run it on this host: {problem.strerror}") from None
    except subprocess.TimeoutExpired:
        raise InstallerError(f"{binary}: timed out after 60 s reading its version") from None
    found = VERSION.search(output.stdout)
    return found[0] if found else ""
