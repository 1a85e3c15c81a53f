"""Unpacked images stay on the node: what is there already is not brought there again, and nothing stays for ever."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from herder.agent.images import compression
from herder.agent.images.reference import ImageError
from tests.support.oci import Image, Registry, image, registry
from tests.unit.agent.nodes import StagingNode, archive

TOOL = image({"run.sh": "one", "d/b": "two"})
OTHER = image({"run.sh": "other"})
THIRD = image({"run.sh": "third"})
CONTENT = {"run.sh": "one", "d/b": "two"}


class Node(StagingNode):
    @property
    def kept(self) -> list[str]:
        return sorted("sha256:" + path.name for path in (self.own / "kept").iterdir() if path.is_dir())

    def directory_of(self, of: Image) -> Path:
        return self.own / "kept" / of.manifest.partition(":")[2]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.delenv("HOME", raising=False)
    return Node(tmp_path)


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as found:
        found.push("tool", "v1", TOOL)
        found.push("other", "v1", OTHER)
        found.push("third", "v1", THIRD)
        yield found


def blobs_asked(of: Registry) -> int:
    return sum("/blobs/" in path for path in of.requests)


def test_an_image_is_pulled_once_for_many_plans(node: Node, served: Registry) -> None:
    name = f"{served.host}/tool:v1"
    assert node.stage(name) == CONTENT
    before = blobs_asked(served)
    assert node.stage(name) == CONTENT
    assert blobs_asked(served) == before
    assert node.kept == [TOOL.manifest]


def test_by_digest_nobody_is_asked_at_all(node: Node, served: Registry) -> None:
    name = f"{served.host}/tool@{TOOL.manifest}"
    node.stage(name)
    served.requests.clear()
    assert node.stage(name) == CONTENT
    assert served.requests == []


def test_a_tag_that_moved_is_another_image(node: Node, served: Registry) -> None:
    name = f"{served.host}/tool:v1"
    node.stage(name)
    served.push("tool", "v1", OTHER)
    assert node.stage(name) == {"run.sh": "other"}
    assert node.kept == [OTHER.manifest]


def in_place(node: Node) -> None:
    """Through the directory of a plan, which has the same files."""
    with (node.root / "run.sh").open("r+") as stream:
        stream.write("ONE")


def made_empty(node: Node) -> None:
    (node.directory_of(TOOL) / "run.sh").write_text("")


def made_longer(node: Node) -> None:
    (node.directory_of(TOOL) / "more").write_text("")


def made_runnable(node: Node) -> None:
    (node.directory_of(TOOL) / "run.sh").chmod(0o711)


def made_a_link(node: Node) -> None:
    (node.directory_of(TOOL) / "run.sh").unlink()
    (node.directory_of(TOOL) / "run.sh").symlink_to("/etc/passwd")


def without_a_listing(node: Node) -> None:
    Path(f"{node.directory_of(TOOL)}.json").unlink()


def without_an_index(node: Node) -> None:
    (node.own / "kept" / "index.json").write_text('{"current": 1')


def cut_off(node: Node) -> None:
    """As a daemon that is killed while it unpacks leaves it."""
    unfinished = Path(f"{node.directory_of(TOOL)}.new")
    shutil.copytree(node.directory_of(TOOL), unfinished)
    shutil.rmtree(node.directory_of(TOOL))
    (unfinished / "d" / "b").unlink()


@pytest.mark.parametrize(
    "harm",
    [
        in_place,
        made_empty,
        made_longer,
        made_runnable,
        made_a_link,
        without_a_listing,
        without_an_index,
        cut_off,
    ],
)
def test_what_is_not_as_it_was_unpacked_is_unpacked_again(
    node: Node, served: Registry, harm: Callable[[Node], None]
) -> None:
    name = f"{served.host}/tool:v1"
    node.stage(name)
    harm(node)
    assert node.stage(name) == CONTENT
    assert (os.stat(node.root / "run.sh").st_mode & 0o777, os.path.islink(node.root / "run.sh")) == (0o755, False)
    assert node.kept == [TOOL.manifest]


def test_a_layer_that_lies_is_not_kept(node: Node) -> None:
    (node.images / "x.tar").write_bytes(TOOL.docker_archive("h.test/a:v1").replace(b"one", b"two"))
    for _ in range(2):
        with pytest.raises(ImageError, match="digest of its content"):
            node.stage("h.test/a:v1")
        assert node.kept == []


def test_what_neither_this_plan_nor_the_last_one_has_is_removed(node: Node, served: Registry) -> None:
    tool, other, third = (f"{served.host}/{name}:v1" for name in ("tool", "other", "third"))
    node.stage(tool, (tool, other))
    node.stage(other, (tool, other))
    assert node.kept == sorted([TOOL.manifest, OTHER.manifest])
    node.stage(third)
    assert node.kept == sorted([TOOL.manifest, OTHER.manifest, THIRD.manifest])
    node.stage(third)
    assert len(node.kept) == 3, "the same plan again is not another one"
    node.stage(tool)
    assert node.kept == sorted([TOOL.manifest, THIRD.manifest])


def test_on_another_file_system_it_is_copied(node: Node, served: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    assert node.stage(f"{served.host}/tool:v1") == CONTENT


# --- archives -------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what was decompressed, as often as it was."""
    found: list[str] = []
    original = compression.opened

    def noting(path: str):  # type: ignore[no-untyped-def]
        found.append(os.path.basename(path))
        return original(path)

    monkeypatch.setattr(compression, "opened", noting)
    return found


@pytest.mark.parametrize("form", ["docker", "oci"])
def test_an_archive_is_decompressed_once_and_not_again_for_the_next_plan(
    node: Node, opened: list[str], form: str
) -> None:
    (node.images / "b.tar.gz").write_bytes(gzip.compress(archive(TOOL, form, "h.test/a:v1")))
    (node.images / "a.tar.gz").write_bytes(gzip.compress(OTHER.docker_archive("h.test/other:v1")))
    assert node.stage("h.test/a:v1") == CONTENT
    assert sorted(name for name in opened if name.endswith(".gz")) == ["a.tar.gz", "b.tar.gz"]
    opened.clear()
    assert node.stage("h.test/a:v1") == CONTENT
    assert opened == []


def test_an_archive_that_was_replaced_is_looked_into_again(node: Node) -> None:
    (node.images / "x.tar.gz").write_bytes(gzip.compress(TOOL.docker_archive("h.test/a:v1")))
    node.stage("h.test/a:v1")
    (node.images / "x.tar.gz").write_bytes(gzip.compress(OTHER.docker_archive("h.test/a:v1")))
    assert node.stage("h.test/a:v1") == {"run.sh": "other"}


def test_an_archive_that_came_later_is_found(node: Node) -> None:
    (node.images / "x.tar").write_bytes(TOOL.docker_archive("h.test/a:v1"))
    node.stage("h.test/a:v1")
    (node.images / "y.tar").write_bytes(OTHER.docker_archive("h.test/other:v1"))
    assert node.stage("h.test/other:v1") == {"run.sh": "other"}
