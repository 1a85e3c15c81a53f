"""The Python interpreter of this installation as an image layer, with its standard library and shared libraries.

Files keep their paths, so that compiled extensions work.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from herder.oci import Entry, tar

# Parts of the standard library that servers do not need, some of which depend on graphics.
UNUSED = ("test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "__pycache__")
UNUSED_MODULES = ("_tkinter", "_test", "_curses", "readline", "nis")


def layer() -> bytes:
    program = Path(os.path.realpath(sys.executable))
    library = list(_library(Path(sysconfig.get_path("stdlib"))))
    # packages are added by others, but not the shared libraries they need
    packages = Path(sysconfig.get_path("platlib"))
    compiled = [path for path in library if path.suffix == ".so"]
    linked = [path for path in _linked([program, *compiled, *packages.rglob("*.so")]) if packages not in path.parents]
    files = [Entry(str(path).lstrip("/"), path) for path in library]
    files += [Entry(str(path).lstrip("/"), path, 0o755) for path in linked]
    files.append(Entry(str(program.with_name("python3")).lstrip("/"), program, 0o755))
    files.append(Entry("tmp/.keep", b""))  # creates the directory
    return tar(files)


def variables() -> list[str]:
    """Environment variables of the image: PATH and the Python version."""
    program = Path(os.path.realpath(sys.executable))
    return [f"PATH={program.parent}", f"PYTHON_VERSION={'.'.join(map(str, sys.version_info[:3]))}"]


def _library(root: Path) -> Iterator[Path]:
    for directory, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name not in UNUSED and not name.startswith("config-"))
        used = (name for name in names if name.endswith((".py", ".so")) and not name.startswith(UNUSED_MODULES))
        yield from (Path(directory) / name for name in sorted(used))


def _linked(programs: Iterable[Path]) -> list[Path]:
    """Return the shared libraries of these programs, including the loader."""
    output = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return [Path(path) for path in sorted(set(re.findall(r"(/\S+\.so\S*) \(0x", output)))]
