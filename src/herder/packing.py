"""Pack this installation, to run elsewhere: the herder package and its dependencies, or one package as a zipapp."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import herder
from herder.oci import Entry, tar

_SHEBANG = b"#!/usr/bin/env python3\n"
_ALWAYS = (1980, 1, 1, 0, 0, 0)  # timestamp of every member: equal sources give equal bytes
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def packed(place: str, needed: Iterable[str]) -> bytes:
    """Return a deterministic tar of the installation below `place`."""
    return tar(Entry(f"{place}/{path}", source) for path, source in sorted(files(needed)))


def files(needed: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield target and source paths of all files; `needed` are distributions, including their dependencies."""
    own = Path(herder.__file__).parent
    for file in own.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            yield f"herder/{file.relative_to(own)}", file
    for distribution in _with_requirements(needed, set()):
        for listed in distribution.files or ():
            source = Path(str(distribution.locate_file(listed)))
            if ".." not in listed.parts and "__pycache__" not in listed.parts and source.is_file():
                yield str(listed), source


def _with_requirements(wanted: Iterable[str], seen: set[str]) -> Iterator[metadata.Distribution]:
    """Yield these distributions and their requirements, without extras."""
    for name in wanted:
        one_spelling = name.replace("_", "-").replace(".", "-")
        if one_spelling in seen:
            continue
        seen.add(one_spelling)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform or version
        yield distribution
        yield from _with_requirements(_required(distribution), seen)


def _required(distribution: metadata.Distribution) -> Iterator[str]:
    for requirement in distribution.requires or ():
        words, _, marker = requirement.partition(";")
        found = _NAME.match(words.strip())
        if found and "extra" not in marker:
            yield found[0].lower()


def write_zipapp(package: str, path: Path, *, without: Iterable[str] = ()) -> None:
    """Write `herder.<package>` as one program that needs only Python. `without` are modules that it does not import."""
    source = Path(herder.__file__).parent / package
    members = {
        "__main__.py": (source / "__main__.py").read_bytes(),
        "herder/__init__.py": f'__version__ = "{herder.__version__}"\n'.encode(),
    }
    for file in sorted(source.rglob("*.py")):
        if file.name not in without:
            members[f"herder/{package}/{file.relative_to(source).as_posix()}"] = file.read_bytes()
    with path.open("wb") as stream:
        stream.write(_SHEBANG)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                member = zipfile.ZipInfo(name, _ALWAYS)
                member.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(member, content)
    path.chmod(0o755)
