"""Compile modules ahead of time with the images' own Python: a read-only image cannot keep what it compiles later."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.images.base import PYTHON
from tools.images.errors import BuildError
from tools.images.tree import File, Tree

_LIBRARIES = "usr/lib/x86_64-linux-gnu"


def python(root: Path) -> list[str]:
    """A command that runs the Python below `root` with its own libraries, without a chroot, which would need root."""
    loader = root / _LIBRARIES / "ld-linux-x86-64.so.2"
    return [str(loader), "--inhibit-cache", "--library-path", str(root / _LIBRARIES), str(root / "usr/bin" / PYTHON)]


def compile_below(root: Path, directories: Sequence[str]) -> Tree:
    """Compile the modules in these directories of an unpacked image; return the files that this adds.

    The code refers to the paths in the image. Python never compares it with the source, since neither ever changes.
    The fixed seed determines the order of constant sets, so that equal sources give equal bytes.
    """
    command = [*python(root), "-B", "-S", "-s", "-m", "compileall", "-q", "-f", "-j", "1", "-s", str(root), "-p", "/"]
    command += ["--invalidation-mode", "unchecked-hash", *(str(root / directory) for directory in directories)]
    environment = {"PYTHONHOME": str(root / "usr"), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(f"the images' Python cannot compile the modules: {done.stdout.strip()[-1000:]}")
    added = Tree()
    for directory in directories:
        for file in sorted((root / directory).rglob("__pycache__/*.pyc")):
            added.add(str(file.relative_to(root)), File(file.read_bytes()))
    return added
