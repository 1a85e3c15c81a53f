"""The cache of unpacked images: cached images are not pulled again, and unused ones are deleted."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from herder.agent.images import compression
from herder.agent.images.reference import ImageError
from tests.support.registry.oci import Image, Registry, image, registry
from tests.unit.agent.nodes import StagingNode, image_archive

TOOL = image({"run.sh": "one", "d/b": "two"})
OTHER = image({"run.sh": "other"})
THIRD = image({"run.sh": "third"})
CONTENT = {"run.sh": "one", "d/b": "two"}


class Node(StagingNode):
    @property
    def cached(self) -> list[str]:
        return sorted("sha256:" + path.name for path in (self.own / "kept").iterdir() if path.is_dir())

    def directory_of(self, image: Image) -> Path:
        return self.own / "kept" / image.manifest.partition(":")[2]


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


def blob_requests(registry: Registry) -> int:
    return sum("/blobs/" in path for path in registry.requests)


def test_an_image_is_pulled_once_for_many_plans(node: Node, served: Registry) -> None:
    name = f"{served.host}/tool:v1"
    assert node.stage(name) == CONTENT
    before = blob_requests(served)
    assert node.stage(name) == CONTENT
    assert blob_requests(served) == before
    assert node.cached == [TOOL.manifest]


def test_a_cached_digest_needs_no_request(node: Node, served: Registry) -> None:
    name = f"{served.host}/tool@{TOOL.manifest}"
    node.stage(name)
    served.requests.clear()
    assert node.stage(name) == CONTENT
    assert served.requests == []


def test_a_moved_tag_is_another_image(node: Node, served: Registry) -> None:
    name = f"{served.host}/tool:v1"
    node.stage(name)
    served.push("tool", "v1", OTHER)
    assert node.stage(name) == {"run.sh": "other"}
    assert node.cached == [OTHER.manifest]


def edit_in_place(node: Node) -> None:
    """Write through the directory of a plan, whose files are hard links to the cache."""
    with (node.root / "run.sh").open("r+") as stream:
        stream.write("ONE")


def truncate_file(node: Node) -> None:
    (node.directory_of(TOOL) / "run.sh").write_text("")


def add_file(node: Node) -> None:
    (node.directory_of(TOOL) / "more").write_text("")


def change_mode(node: Node) -> None:
    (node.directory_of(TOOL) / "run.sh").chmod(0o711)


def replace_with_link(node: Node) -> None:
    (node.directory_of(TOOL) / "run.sh").unlink()
    (node.directory_of(TOOL) / "run.sh").symlink_to("/etc/passwd")


def delete_listing(node: Node) -> None:
    Path(f"{node.directory_of(TOOL)}.json").unlink()


def corrupt_index(node: Node) -> None:
    (node.own / "kept" / "index.json").write_text('{"current": 1')


def interrupt_unpacking(node: Node) -> None:
    """Leave the cache as an agent does that is killed while it unpacks."""
    unfinished = Path(f"{node.directory_of(TOOL)}.new")
    shutil.copytree(node.directory_of(TOOL), unfinished)
    shutil.rmtree(node.directory_of(TOOL))
    (unfinished / "d" / "b").unlink()


@pytest.mark.parametrize(
    "corrupt",
    [
        edit_in_place,
        truncate_file,
        add_file,
        change_mode,
        replace_with_link,
        delete_listing,
        corrupt_index,
        interrupt_unpacking,
    ],
)
def test_a_modified_cached_image_is_unpacked_again(
    node: Node, served: Registry, corrupt: Callable[[Node], None]
) -> None:
    name = f"{served.host}/tool:v1"
    node.stage(name)
    corrupt(node)
    assert node.stage(name) == CONTENT
    assert (os.stat(node.root / "run.sh").st_mode & 0o777, os.path.islink(node.root / "run.sh")) == (0o755, False)
    assert node.cached == [TOOL.manifest]


def test_a_corrupt_layer_is_not_cached(node: Node) -> None:
    (node.images / "x.tar").write_bytes(TOOL.docker_archive("h.test/a:v1").replace(b"one", b"two"))
    for _ in range(2):
        with pytest.raises(ImageError, match="digest of its content"):
            node.stage("h.test/a:v1")
        assert node.cached == []


def test_images_unused_by_the_last_two_plans_are_deleted(node: Node, served: Registry) -> None:
    tool, other, third = (f"{served.host}/{name}:v1" for name in ("tool", "other", "third"))
    node.stage(tool, (tool, other))
    node.stage(other, (tool, other))
    assert node.cached == sorted([TOOL.manifest, OTHER.manifest])
    node.stage(third)
    assert node.cached == sorted([TOOL.manifest, OTHER.manifest, THIRD.manifest])
    node.stage(third)
    assert len(node.cached) == 3, "the same plan again is not another one"
    node.stage(tool)
    assert node.cached == sorted([TOOL.manifest, THIRD.manifest])


def test_images_are_copied_across_file_systems(node: Node, served: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_link(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", fail_to_link)
    assert node.stage(f"{served.host}/tool:v1") == CONTENT


# --- archives -------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the name of every decompressed file."""
    found: list[str] = []
    original = compression.opened

    def recording(path: str):  # type: ignore[no-untyped-def]
        found.append(os.path.basename(path))
        return original(path)

    monkeypatch.setattr(compression, "opened", recording)
    return found


@pytest.mark.parametrize("layout", ["docker", "oci"])
def test_an_archive_is_decompressed_only_once(node: Node, opened: list[str], layout: str) -> None:
    (node.images / "b.tar.gz").write_bytes(gzip.compress(image_archive(TOOL, layout, "h.test/a:v1")))
    (node.images / "a.tar.gz").write_bytes(gzip.compress(OTHER.docker_archive("h.test/other:v1")))
    assert node.stage("h.test/a:v1") == CONTENT
    assert sorted(name for name in opened if name.endswith(".gz")) == ["a.tar.gz", "b.tar.gz"]
    opened.clear()
    assert node.stage("h.test/a:v1") == CONTENT
    assert opened == []


def test_a_replaced_archive_is_read_again(node: Node) -> None:
    (node.images / "x.tar.gz").write_bytes(gzip.compress(TOOL.docker_archive("h.test/a:v1")))
    node.stage("h.test/a:v1")
    (node.images / "x.tar.gz").write_bytes(gzip.compress(OTHER.docker_archive("h.test/a:v1")))
    assert node.stage("h.test/a:v1") == {"run.sh": "other"}


def test_an_archive_added_later_is_found(node: Node) -> None:
    (node.images / "x.tar").write_bytes(TOOL.docker_archive("h.test/a:v1"))
    node.stage("h.test/a:v1")
    (node.images / "y.tar").write_bytes(OTHER.docker_archive("h.test/other:v1"))
    assert node.stage("h.test/other:v1") == {"run.sh": "other"}
