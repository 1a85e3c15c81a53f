"""Pack this installation as files: the herder package and its dependencies, to run elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import herder
from herder.oci import Entry, tar

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
