"""Build the agent as a zipapp that runs on Python 3.6 and later."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import herder

_HERE = Path(__file__).parent
_NOT_SHIPPED = {"build.py"}
_SHEBANG = b"#!/usr/bin/env python3\n"
_ALWAYS = (1980, 1, 1, 0, 0, 0)  # timestamp of every member: equal sources give equal bytes


def build(path: Path | str) -> None:
    target = Path(path)
    with target.open("wb") as stream:
        stream.write(_SHEBANG)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in _members():
                member = zipfile.ZipInfo(name, _ALWAYS)
                member.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(member, content)
    target.chmod(0o755)


def _members() -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", (_HERE / "__main__.py").read_bytes()
    yield "herder/__init__.py", f'__version__ = "{herder.__version__}"\n'.encode()
    for source in sorted(_HERE.rglob("*.py")):
        if source.name not in _NOT_SHIPPED:
            yield f"herder/agent/{source.relative_to(_HERE).as_posix()}", source.read_bytes()


if __name__ == "__main__":
    build(sys.argv[1])
