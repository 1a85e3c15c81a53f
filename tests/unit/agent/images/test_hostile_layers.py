"""Images of a hostile registry: nothing outside of the unpack root changes, and neither memory nor disk is filled."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from herder.agent.images import blobs, layers, trees
from herder.agent.images.reference import ImageError
from tests.support.registry.oci import Image, Link, Registry, image, layer, registry
from tests.unit.agent.nodes import StagingNode

VALID = image({"run.sh": "sound"})


@pytest.fixture(scope="module")
def served() -> Iterator[Registry]:
    with registry() as found:
        found.push("team/sound", "v1", VALID)
        yield found


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StagingNode:
    monkeypatch.setenv("HOME", str(tmp_path))
    return StagingNode(tmp_path)


def stage_layers(node: StagingNode, served: Registry, *contents: bytes) -> str:
    """Stage an image with these layers; return the error message, or an empty string on success."""
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
    """Return all files below a directory, except the stager's own indexes."""
    return {
        str(path.relative_to(directory)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in sorted(directory.rglob("*"))
        if (path.is_file() or path.is_symlink()) and path.name != "index.json"
    }


@pytest.mark.parametrize("name", [".wh...", "d/.wh...", ".wh..", "d/.wh..", ".wh.", "d/.wh."])
def test_a_whiteout_must_name_an_entry_of_its_directory(node: StagingNode, served: Registry, name: str) -> None:
    assert "whiteout" in stage_layers(node, served, layer({"a": "1", "d/b": "2", name: ""}))


def entry(name: str, kind: bytes = tarfile.REGTYPE, *, size: int = 0, link: str = "", **pax: str) -> bytes:
    """Return the header of one entry, which claims this size."""
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname, member.pax_headers = kind, size, link, pax
    return member.tobuf(tarfile.PAX_FORMAT)


def sparse(name: str, size: int) -> bytes:
    """Return a 512-byte sparse file, in GNU tar format, that claims a larger size."""
    pax = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(size), "GNU.sparse.map": "0,512"}
    return entry(name, size=512, **pax) + bytes(512)


END = bytes(1024)
FAR = "/".join(["d"] * 101)
OUTSIDE = {
    "a path with dots": layer({"../x": "no"}),
    "an absolute path": layer({"/x": "no"}),
    "a link to the root, and a file below it": layer({"out": Link("/"), "out/x": "no"}),
    "a link up, and a whiteout below it": layer({"up": Link("../.."), "up/.wh.kept": ""}),
    "a link up, and an opaque whiteout": layer({"up": Link(".."), "up/.wh..wh..opq": ""}),
    "a link to a link that leads up": layer({"a": Link("b"), "b": Link("../.."), "a/kept/x": "no"}),
    "a link in a circle": layer({"a": Link("b"), "b": Link("a"), "a/x": "no"}),
    "a hard link with dots": layer({"x": Link("../../secret", hard=True)}),
    "a hard link to nothing": layer({"x": Link("", hard=True)}),
    "a hard link through a link": layer({"out": Link("/etc"), "x": Link("out/hostname", hard=True)}),
    "a hard link to its own parent": layer({"a/b": "1", "a": Link("a/b", hard=True)}),
    "a file where a directory was, twice": layer({"a/b": "1", "a": "2", "a/c": "3"}),
    "a name of 300 characters": layer({"x" * 300: "no"}),
    "a name with a zero": entry("x", path="a\0b") + END,
    "101 directories": layer({f"{FAR}/x": "no"}),
    "101 directories by links": layer(
        {"/".join(["d"] * 60) + "/x": "1", "l": Link("/".join(["d"] * 60)), "l/" + "/".join(["e"] * 60): "2"}
    ),
    "devices, pipes and what is unknown": b"".join(
        entry(f"x{kind!r}", kind) for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"Z")
    )
    + END,
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_no_entry_changes_anything_outside_of_its_image(node: StagingNode, served: Registry, case: str) -> None:
    stage_layers(node, served, OUTSIDE[case])
    assert not Path("/x").exists()


LARGE = {
    "a file that claims a terabyte": entry("x", size=1 << 40) + END,
    "a sparse file of a terabyte": sparse("x", 1 << 40) + END,
    "a header of 32 MiB": entry("x", comment="c" * (32 << 20)) + END,
    "a negative size": entry("x").replace(b"00000000000\x00", b"\xff" * 12, 1) + END,
    "a map of what is not a number": sparse("x", 512).replace(b"=0,512", b"=0,x12"),
    "headers of headers": b"".join(entry("x", tarfile.XHDTYPE, size=0) for _ in range(5000)) + END,
}


@pytest.mark.parametrize("case", LARGE)
def test_oversized_entries_are_rejected_before_they_are_written(node: StagingNode, served: Registry, case: str) -> None:
    tracemalloc.start()
    try:
        assert stage_layers(node, served, LARGE[case])
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert not (node.own / "scratch").exists()
    assert [path for path in (node.own / "kept").iterdir() if path.name.endswith(".new")] == []


def test_all_layers_of_an_image_share_one_budget(tmp_path: Path) -> None:
    budget = layers.Budget(size=10, entries=3)
    layers.unpack(io.BytesIO(layer({"a": "12345678"})), str(tmp_path), "", budget)
    with pytest.raises(ImageError, match="larger than"):
        layers.unpack(io.BytesIO(layer({"b": "12345678"})), str(tmp_path), "", budget)
    with pytest.raises(ImageError, match="more than 3 files"):
        layers.unpack(io.BytesIO(layer(dict.fromkeys("abcd"))), str(tmp_path), "", layers.Budget(size=10, entries=3))


@pytest.mark.parametrize("stated", [True, False], ids=["stated size", "no size"])
def test_all_layers_of_an_image_are_downloaded_within_one_limit(
    node: StagingNode, served: Registry, monkeypatch: pytest.MonkeyPatch, stated: bool
) -> None:
    """What follows the end of a tar is not unpacked, so the limits of unpacking do not count it."""
    monkeypatch.setattr(blobs, "LARGEST_IMAGE", 1 << 20)
    padded = [layer({f"file-{number}": "x"}) + bytes([number]) * (400 << 10) for number in range(3)]
    hostile = Image(padded, compress=False)
    if not stated:
        manifest = json.loads(hostile.blobs[hostile.manifest])
        for each in manifest["layers"]:
            del each["size"]
        hostile.manifest = hostile._add(json.dumps(manifest).encode())
    served.push("team/padded", "v1", hostile)
    with pytest.raises(ImageError, match="its image is larger than 1 MiB"):
        node.stage(f"{served.host}/team/padded:v1")


def test_a_decompression_bomb_is_rejected_while_it_is_read(tmp_path: Path) -> None:
    second = layer({"a": "1"})[:1024] + entry("x", comment="c" * (4 << 20))
    bomb = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(second)))
    with pytest.raises(ImageError, match="header"):
        layers.unpack(bomb, str(tmp_path))  # type: ignore[arg-type]


def test_an_opaque_whiteout_hides_lower_layers_in_any_order(tmp_path: Path) -> None:
    layers.unpack(io.BytesIO(layer({"o/old": "1", "o/d/old": "1", "o/e/old": "1"})), str(tmp_path))
    layers.unpack(io.BytesIO(layer({"o/new": "2", "o/d/new": "2", "o/.wh..wh..opq": ""})), str(tmp_path))
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert found == ["o", "o/d", "o/d/new", "o/new"]


def test_a_hard_link_to_itself_keeps_the_file(tmp_path: Path) -> None:
    layers.unpack(io.BytesIO(layer({"a": "1"})), str(tmp_path))
    layers.unpack(io.BytesIO(layer({"a": Link("./a", hard=True)})), str(tmp_path))
    assert (tmp_path / "a").read_text() == "1"


def test_manifest_limits_are_enforced(node: StagingNode, served: Registry) -> None:
    many = Image([layer({})] * 300)
    served.push("team/many", "v1", many)
    with pytest.raises(ImageError, match="300 layers"):
        node.stage(f"{served.host}/team/many:v1")
    with pytest.raises(ImageError, match="not JSON"):
        blobs.parsed(b'{"manifests":' + b"[" * 100_000, "manifest v1")


@pytest.mark.parametrize("name", ["a:b", "a\\b", "NUL", "con.txt", "a.", "a ", "..", "a/b", "x\x1f"])
def test_special_windows_names_are_rejected(name: str) -> None:
    with pytest.raises(trees.BadName):
        trees.WindowsDirectory.check(name)


def test_no_links_are_created_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "KIND", trees.WindowsDirectory)
    layers.unpack(
        io.BytesIO(layer({"out": Link("/"), "out/x": "1", "d/a": "2", "d/.wh.a": "", "h": Link("out/x", hard=True)})),
        str(tmp_path),
    )
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert found == ["d", "h", "out", "out/x"]
