"""Build the k3s installer image from a k3s binary."""

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
    """Build the image for a version such as v1.36.3+k3s1. It refers to files in `scratch`, which must outlive it."""
    if VERSION.fullmatch(version) is None:
        raise InstallerError(f"--version: {version!r} is not a k3s version, such as v1.36.3+k3s1")
    own = resources.files("herder.k3s")
    scripts = [Entry(name, own.joinpath(name).read_bytes(), 0o755) for name in SCRIPTS]
    entries = [Entry("VERSION", version.encode()), *scripts, Entry("k3s", binary, 0o755)]
    return one_layer(entries, scratch)


def version_of(binary: Path) -> str:
    """Return the version that the binary reports; "" if it reports none."""
    asked = [str(binary.absolute()), "--version"]  # an absolute path, so that PATH is not searched
    try:
        output = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    except OSError as problem:
        raise InstallerError(f"{binary}: cannot run it on this host: {problem.strerror}") from None
    except subprocess.TimeoutExpired:
        raise InstallerError(f"{binary}: timed out after 60 s reading its version") from None
    found = VERSION.search(output.stdout)
    return found[0] if found else ""
