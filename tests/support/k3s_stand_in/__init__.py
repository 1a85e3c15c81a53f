"""A stand-in for k3s: one file that accepts its command line and configuration, serves an API, registers Nodes and
responds to probes where k3s does. It runs no pods, and its etcd is Herder's store on the first server; further servers
forward to that one.

`build` writes the file; the other modules run in it, on machines.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from herder.embedded.installer import NEEDED
from herder.packing import files

_HERE = Path(__file__).parent
_START = b"#!/usr/bin/env python3\n"


def build(path: Path, version: str) -> Path:
    """Write the file. Like k3s, it unpacks itself at its first start."""
    with path.open("wb") as file:
        file.write(_START)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.write(_HERE / "start.py", "__main__.py")
            archive.writestr("VERSION", version)
            for module in sorted(_HERE.glob("*.py")):
                name = "__init__.py" if module == Path(__file__) else module.name
                archive.writestr(f"payload/k3s_stand_in/{name}", b"" if name == "__init__.py" else module.read_bytes())
            for name, source in sorted(files(NEEDED)):
                archive.write(source, f"payload/{name}")
    path.chmod(0o755)
    return path
