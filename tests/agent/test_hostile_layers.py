"""Images of a hostile registry: nothing outside of the unpack root changes, and neither memory nor disk is filled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from herder.agent.images.reference import ImageError
from tests.agent.nodes import StagingNode
from tests.support.oci import Image, Registry, image, layer, registry

SOUND = image({"run.sh": "sound"})


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as found:
        found.push("team/sound", "v1", SOUND)
        yield found


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StagingNode:
    monkeypatch.setenv("HOME", str(tmp_path))
    return StagingNode(tmp_path)


def staged(node: StagingNode, served: Registry, *contents: bytes) -> str:
    """The error of the image with these layers; empty where it was unpacked."""
    served.push("team/hostile", "v1", Image(contents))
    names = (f"{served.host}/team/sound:v1", f"{served.host}/team/hostile:v1")
    assert node.stage(names[0], names) == {"run.sh": "sound"}
    before = tree(node.directory)
    try:
        node.stage(names[1], names)
    except ImageError as error:
        found = str(error)
    else:
        found = ""
    after = tree(node.directory)
    assert {path: after.get(path) for path in before} == before, "something outside of the image has changed"
    return found


def tree(directory: Path) -> dict[str, str]:
    """Everything below it, but for what stages write about themselves."""
    return {
        str(path.relative_to(directory)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in sorted(directory.rglob("*"))
        if (path.is_file() or path.is_symlink()) and path.name != "index.json"
    }


@pytest.mark.xfail(strict=True, reason="a whiteout of .. deletes the directory above")
@pytest.mark.parametrize("name", [".wh...", "d/.wh...", ".wh..", "d/.wh..", ".wh.", "d/.wh."])
def test_a_whiteout_names_an_entry_of_its_directory(node: StagingNode, served: Registry, name: str) -> None:
    assert "whiteout" in staged(node, served, layer({"a": "1", "d/b": "2", name: ""}))
