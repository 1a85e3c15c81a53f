"""The Python that runs this, as a layer of an image: its library, and the system's libraries that all of it is loaded
with. Each file lies where it lies here, so what was compiled for the one fits the other.
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

# Of the library: what is not for servers, and would bring graphics with it.
UNUSED = ("test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "__pycache__")
UNUSED_MODULES = ("_tkinter", "_test", "_curses", "readline", "nis")


def layer() -> bytes:
    program = Path(os.path.realpath(sys.executable))
    library = list(_library(Path(sysconfig.get_path("stdlib"))))
    packages = Path(sysconfig.get_path("platlib"))  # others bring them, but not the system's libraries that they need
    compiled = [path for path in library if path.suffix == ".so"]
    linked = [path for path in _linked([program, *compiled, *packages.rglob("*.so")]) if packages not in path.parents]
    files = [Entry(str(path).lstrip("/"), path) for path in library]
    files += [Entry(str(path).lstrip("/"), path, 0o755) for path in linked]
    files.append(Entry(str(program.with_name("python3")).lstrip("/"), program, 0o755))
    files.append(Entry("tmp/.keep", b""))  # for the directory
    return tar(files)


def variables() -> list[str]:
    """Of the environment of containers: where it is found, and which it is."""
    program = Path(os.path.realpath(sys.executable))
    return [f"PATH={program.parent}", f"PYTHON_VERSION={'.'.join(map(str, sys.version_info[:3]))}"]


def _library(root: Path) -> Iterator[Path]:
    for directory, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name not in UNUSED and not name.startswith("config-"))
        used = (name for name in names if name.endswith((".py", ".so")) and not name.startswith(UNUSED_MODULES))
        yield from (Path(directory) / name for name in sorted(used))


def _linked(programs: Iterable[Path]) -> list[Path]:
    """The libraries that they are loaded with, and the loader itself."""
    output = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return [Path(path) for path in sorted(set(re.findall(r"(/\S+\.so\S*) \(0x", output)))]
