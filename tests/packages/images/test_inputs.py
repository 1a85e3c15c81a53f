"""Inputs of the images: what is not pinned does not get in, and equal inputs give equal images."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from herder import __version__
from herder.api.machines.jobs import USER as MACHINE_USER
from herder.api.management.manifest import Agent, manifest
from herder.api.settings import AGENT_IMAGE, DEFINITIONS, MACHINE_IMAGE
from herder.oci import Image
from tests.packages.images import repacked
from tests.packages.images.conftest import mirror
from tools.deploy_manifests import USER_ID
from tools.images import __main__ as program
from tools.images import base, debian, fetch, sbom, wheels
from tools.images.build import KINDS, ROOT, Built, Inputs, build
from tools.images.errors import BuildError
from tools.images.sbom import Release
from tools.images.tree import Directory, File, Link, Tree
from tools.images.update_pins import NAMES
from tools.images.wheels import Requirement, Wheel

CONTROL = "Package: hello\nVersion: 1:2.0-1\nArchitecture: amd64\nMaintainer: Jane Doe <jane@example.com>\n"
RELEASE = Release("1.2.3", "c" * 40, "2026-11-19T00:00:00Z")


def package(directory: Path, files: dict[str, bytes], name: str = "hello") -> debian.Pin:
    directory.mkdir(parents=True, exist_ok=True)
    control = CONTROL.replace("hello", name)
    return repacked.pinned(name, "1:2.0-1", repacked.deb(control, repacked.plain_tar(files)), directory)


def wheel(name: str, files: dict[str, str]) -> Wheel:
    content = io.BytesIO()
    metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\nLicense-Expression: MIT\n"
    with zipfile.ZipFile(content, "w") as archive:
        for path, text in {**files, f"{name}-1.0.dist-info/METADATA": metadata}.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return Wheel(f"{name}-1.0-py3-none-any.whl", content.getvalue())


def inputs(directory: Path) -> Inputs:
    files = {"./lib/libhello.so": b"library", "./usr/share/ca-certificates/mozilla/Z.crt": b"Z\n"}
    pins = [package(directory, files), package(directory, {"./etc/other": b""}, "other")]
    dependency = wheel("dependency", {"dependency/__init__.py": "VALUE = 1\n"})
    return Inputs(
        RELEASE,
        fetch.packages(pins, directory),
        [(Requirement("dependency", "1.0", frozenset({dependency.sha256})), dependency)],
        wheel("herder", {"herder/__init__.py": ""}),
    )


def without_bytecode(_root: Path, _directories: object) -> Tree:
    return Tree()


def built(directory: Path, **changes: object) -> tuple[list[Built], bytes]:
    return build(dataclasses.replace(inputs(directory), **changes), compiler=without_bytecode)


def config(image: Image) -> dict[str, object]:
    content = image.blobs[json.loads(image.manifest)["config"]["digest"]]
    assert isinstance(content, bytes)
    found: dict[str, object] = json.loads(content)
    return found


def layers(image: Image) -> list[dict[str, tarfile.TarInfo]]:
    found = []
    for layer in json.loads(image.manifest)["layers"]:
        content = image.blobs[layer["digest"]]
        assert isinstance(content, bytes)
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            found.append({member.name: member for member in archive})
    return found


# --- pins -------------------------------------------------------------------------------------------------------------


def test_every_package_that_is_needed_is_pinned() -> None:
    pins = debian.pins()
    assert [pin.name for pin in pins] == sorted(NAMES.split())
    assert all(re.fullmatch(r"[0-9a-f]{64}", pin.sha256) and pin.path.startswith("pool/") for pin in pins)


def test_the_wheels_of_ec2_agree_with_those_that_tests_use() -> None:
    def pinned(name: str) -> set[Requirement]:
        text = (program.packages.ROOT / "requirements" / f"{name}.txt").read_text()
        return set(wheels.requirements(text))

    assert pinned("runtime") | pinned("amazonec2") <= pinned("dev")


def test_a_package_with_another_hash_is_refused(tmp_path: Path) -> None:
    pin = package(tmp_path, {"./etc/hello": b""})
    with (tmp_path / pin.file_name).open("ab") as file:
        file.write(b"!")
    with pytest.raises(BuildError, match=r"hello_2.*is not the pinned hello 1:2.0-1.*delete the file"):
        fetch.packages([pin], tmp_path)


@pytest.mark.parametrize("content", [b"", b"!<arch>\n", b"PK"])
def test_a_file_that_is_no_package_is_refused(tmp_path: Path, content: bytes) -> None:
    pin = repacked.pinned("hello", "1", content, tmp_path)
    with pytest.raises(BuildError, match="is not a Debian package"):
        fetch.packages([pin], tmp_path)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
@pytest.mark.parametrize("compression", ["xz", "gzip", "none"])
def test_packages_of_debians_own_program_are_read(tmp_path: Path, compression: str) -> None:
    """Links stay links, a second name of a file is a file, and programs do not keep the right to change the user."""
    source = tmp_path / "source"
    (source / "DEBIAN").mkdir(parents=True)
    (source / "DEBIAN/control").write_text(CONTROL + "Description: greets\n")
    (source / "usr/bin").mkdir(parents=True)
    (source / "usr/bin/hello").write_text("#!")
    (source / "usr/bin/hello").chmod(0o4755)
    (source / "usr/bin/again").hardlink_to(source / "usr/bin/hello")
    (source / "usr/bin/other").symlink_to("hello")
    (source / "odd").write_text("x")  # dpkg pads members of an odd size
    for directory in (source, source / "DEBIAN", source / "usr", source / "usr/bin"):
        directory.chmod(0o755)
    subprocess.run(
        ["dpkg-deb", f"-Z{compression}", "--root-owner-group", "--build", source, tmp_path / "hello.deb"],
        check=True,
        capture_output=True,
    )
    pin = repacked.pinned("hello", "1:2.0-1", (tmp_path / "hello.deb").read_bytes(), tmp_path)
    (found,) = fetch.packages([pin], tmp_path)
    assert found.fields["Maintainer"] == "Jane Doe <jane@example.com>"
    assert {name.strip("./"): node for name, node in found.nodes()} == {
        "usr": Directory(),
        "usr/bin": Directory(),
        "usr/bin/again": File(b"#!", 0o755),
        "usr/bin/hello": File(b"#!", 0o755),
        "usr/bin/other": Link("hello"),
        "odd": File(b"x"),
    }


needs_apt = pytest.mark.skipif(not Path(fetch.APT_HELPER).exists(), reason="Debian's apt is not installed")


@needs_apt
def test_packages_are_downloaded_from_the_mirror_that_has_them(tmp_path: Path) -> None:
    pin = package(tmp_path / "second/pool/main", {"./etc/hello": b""})
    (tmp_path / "first").mkdir()
    with mirror(tmp_path / "first") as without, mirror(tmp_path / "second") as has_it:
        (found,) = fetch.packages([pin], tmp_path / "cache", [without, has_it])
        assert found.pin == pin
        with pytest.raises(BuildError, match=r"hello 1:2.0-1: no mirror has pool/main/hello.*--mirror"):
            fetch.packages([pin], tmp_path / "empty", [without])
    assert fetch.packages([pin], tmp_path / "cache", []) == [found]


@needs_apt
def test_a_mirror_with_another_package_of_this_name_is_refused(tmp_path: Path) -> None:
    pin = package(tmp_path / "mirror/pool/main", {"./etc/hello": b"as pinned"})
    package(tmp_path / "mirror/pool/main", {"./etc/hello": b"replaced"})
    with mirror(tmp_path / "mirror") as url, pytest.raises(BuildError, match="no mirror has"):
        fetch.packages([pin], tmp_path / "cache", [url])
    assert not list((tmp_path / "cache").iterdir())


def test_mirrors_are_those_of_the_hosts_apt(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb [arch=amd64] http://one.example.com/debian/ bookworm main\n")
    stanza = "Types: deb\nURIs: http://two.example.com/debian\nSuites: bookworm-security\nComponents: main\n"
    (tmp_path / "sources.list.d/debian.sources").write_text(stanza)
    assert fetch.host_mirrors(tmp_path) == ["http://one.example.com/debian", "http://two.example.com/debian"]


def test_a_wheel_without_a_pinned_hash_does_not_count(tmp_path: Path) -> None:
    good, bad = wheel("good", {}), wheel("bad", {})
    for each in (good, bad):
        (tmp_path / each.file_name).write_bytes(each.content)
    text = f"good==1.0 \\\n    --hash=sha256:{good.sha256}\nbad==1.0 \\\n    --hash=sha256:{'0' * 64}\n    # via good\n"
    wanted = wheels.requirements(text)
    assert [(each.name, each.version) for each in wanted] == [("good", "1.0"), ("bad", "1.0")]
    assert wheels.available(wanted, tmp_path) == {"good": good}


def test_a_requirement_without_a_hash_is_refused() -> None:
    with pytest.raises(BuildError, match=r"b==2: the requirements file has no hash"):
        wheels.requirements(f"a==1 --hash=sha256:{'0' * 64}\nb==2\n")


def test_the_tags_are_those_of_the_images_c_library_not_of_the_hosts() -> None:
    tags = fetch.platforms()
    assert tags[0] == "manylinux_2_36_x86_64"
    assert tags.index("manylinux2014_x86_64") == tags.index("manylinux_2_17_x86_64") + 1
    assert tags[-1] == "manylinux1_x86_64"


# --- trees ------------------------------------------------------------------------------------------------------------


def test_both_spellings_of_a_directory_are_one() -> None:
    tree = Tree()
    tree.add_merged_directories()
    tree.add("./lib/x.so", File(b""))
    tree.add("usr/lib/y.so", File(b""))
    nodes = dict(tree)
    assert nodes["lib"] == Link("usr/lib")
    assert {"usr/lib/x.so", "usr/lib/y.so"} <= nodes.keys()


@pytest.mark.parametrize("path", ["", "/", "a/../../etc/passwd", ".."])
def test_paths_outside_of_the_image_are_refused(path: str) -> None:
    with pytest.raises(BuildError, match="is not a path of a file in an image"):
        Tree().add(path, File(b""))


def test_packages_must_not_replace_files_of_others() -> None:
    tree = Tree()
    tree.add("etc/x", File(b"1"))
    tree.add("etc/x", File(b"1"))
    with pytest.raises(BuildError, match=r"/etc/x: two packages contain this file"):
        tree.add("etc/x", File(b"2"))
    with pytest.raises(BuildError, match=r"/etc/x/y: /etc/x is not a directory"):
        tree.add("etc/x/y", Directory())


def test_scripts_of_wheels_are_left_out() -> None:
    files = dict(wheel("tool", {"tool-1.0.data/scripts/tool": "", "tool/__init__.py": ""}).nodes())
    assert "tool/__init__.py" in files
    assert not [path for path in files if ".data/" in path]


def test_wheels_with_other_files_outside_of_site_packages_are_refused() -> None:
    with pytest.raises(BuildError, match="has files outside of site-packages"):
        list(wheel("tool", {"tool-1.0.data/data/etc/tool": ""}).nodes())


# --- images -----------------------------------------------------------------------------------------------------------


def test_the_same_inputs_give_the_same_digests(tmp_path: Path) -> None:
    first, document = built(tmp_path / "first")
    again, other_document = built(tmp_path / "again")
    assert [each.image.manifest for each in first] == [each.image.manifest for each in again]
    assert document == other_document
    changed, _ = built(tmp_path / "again", wheel=wheel("herder", {"herder/__init__.py": "changed = True"}))
    before, after = (json.loads(images[0].image.manifest)["layers"] for images in (first, changed))
    assert before[:2] == after[:2], "layers below Herder are the same for all commits"
    assert before[2] != after[2]


def test_all_images_share_their_layers(tmp_path: Path) -> None:
    images, _ = built(tmp_path)
    assert len({json.dumps(json.loads(each.image.manifest)["layers"]) for each in images}) == 1
    assert len(json.loads(images[0].image.manifest)["layers"]) == 3


def test_images_are_named_as_the_settings_name_them(tmp_path: Path) -> None:
    images, _ = built(tmp_path)
    named = {each.file_name: each.name for each in images}
    assert named["herder"] == "herder/herder:v1.2.3"
    for file_name, setting in (("herder-machine", MACHINE_IMAGE), ("herder-agent", AGENT_IMAGE)):
        assert DEFINITIONS[setting].default == f"{named[file_name].partition(':')[0]}:v{__version__}"


def test_images_do_not_run_as_root(tmp_path: Path) -> None:
    images, _ = built(tmp_path)
    users = {}
    for each in images:
        found = config(each.image)
        assert (found["architecture"], found["os"], found["created"]) == ("amd64", "linux", RELEASE.created)
        running = found["config"]
        assert isinstance(running, dict)
        users[each.file_name] = running["User"]
    assert users == {
        "herder": f"{USER_ID}:{USER_ID}",
        "herder-machine": f"{MACHINE_USER}:{MACHINE_USER}",
        "herder-agent": "0:0",
    }


def test_the_cluster_agent_can_read_its_credentials() -> None:
    """Their mode, as in Rancher's manifest, is for root."""
    objects = manifest(Agent("https://manager.example.com", "token", "checksum", "herder/agent:v1"))
    (deployment,) = [each for each in objects if each["kind"] == "Deployment"]
    (volume,) = (each for each in deployment["spec"]["template"]["spec"]["volumes"] if "secret" in each)
    assert volume["secret"]["defaultMode"] == 0o500
    (agent,) = (kind for kind in KINDS if kind.file_name == "herder-agent")
    assert agent.user == ROOT


def test_everything_belongs_to_root_and_only_tmp_is_writable(tmp_path: Path) -> None:
    for layer in layers(built(tmp_path)[0][0].image):
        assert list(layer) == sorted(layer)
        for name, member in layer.items():
            assert (member.uid, member.gid, member.mtime) == (0, 0, 0), name
            assert member.issym() or name == "tmp" or not member.mode & 0o022, name
            assert not member.mode & 0o6000, name


def test_the_certificates_of_debian_are_trusted(tmp_path: Path) -> None:
    files = {
        "./usr/share/ca-certificates/mozilla/B.crt": b"B\n",
        "./usr/share/ca-certificates/mozilla/A.crt": b"A\n",
        "./usr/share/doc/hello/README": b"unused",
        "./usr/share/doc/hello/copyright": b"license",
        "./usr/lib/python3.11/lib-dynload/nis.cpython-311-x86_64-linux-gnu.so": b"unused",
    }
    nodes = dict(base.tree(fetch.packages([package(tmp_path, files)], tmp_path)))
    assert nodes[base.CA_BUNDLE] == File(b"A\nB\n")
    assert nodes["usr/share/doc/hello/copyright"] == File(b"license")
    assert not [path for path in nodes if path.endswith((".crt", "README", ".so")) and path != base.CA_BUNDLE]
    assert nodes["var/lib/dpkg/status.d/hello"] == File(CONTROL.encode())


def test_the_bill_of_materials_lists_everything_with_its_hash(tmp_path: Path) -> None:
    images, document = built(tmp_path)
    found = json.loads(document)
    assert (found["spdxVersion"], found["creationInfo"]["created"]) == ("SPDX-2.3", RELEASE.created)
    listed = {each["SPDXID"]: each for each in found["packages"]}
    assert listed.keys() == {
        "SPDXRef-Images",
        "SPDXRef-deb-hello",
        "SPDXRef-deb-other",
        "SPDXRef-pypi-dependency",
        "SPDXRef-Herder",
    }
    pin = package(
        tmp_path / "same", {"./lib/libhello.so": b"library", "./usr/share/ca-certificates/mozilla/Z.crt": b"Z\n"}
    )
    assert listed["SPDXRef-deb-hello"]["checksums"] == [{"algorithm": "SHA256", "checksumValue": pin.sha256}]
    assert listed["SPDXRef-deb-hello"]["externalRefs"][0]["referenceLocator"] == (
        "pkg:deb/debian/hello@1%3A2.0-1?arch=amd64&distro=bookworm"
    )
    assert listed["SPDXRef-pypi-dependency"]["licenseDeclared"] == "MIT"
    contained = {
        each["relatedSpdxElement"] for each in found["relationships"] if each["relationshipType"] == "CONTAINS"
    }
    assert contained == listed.keys() - {"SPDXRef-Images"}
    assert sbom.PLACE in layers(images[0].image)[2]


def test_the_archives_are_oci_layouts_with_sums(tmp_path: Path) -> None:
    images, document = built(tmp_path / "inputs")
    program.write(images, document, tmp_path / "out")
    lines = (tmp_path / "out/SHA256SUMS").read_text().splitlines()
    assert {line.partition("  ")[2] for line in lines} == {
        f"{each.file_name}.{kind}" for each in images for kind in ("tar", "spdx.json")
    }
    for line in lines:
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == digest
    with tarfile.open(tmp_path / "out/herder-machine.tar") as archive:
        index = json.load(archive.extractfile("index.json"))  # type: ignore[arg-type]
        (entry,) = index["manifests"]
        assert entry["annotations"]["io.containerd.image.name"] == "docker.io/herder/machine:v1.2.3"
        assert f"blobs/sha256/{entry['digest'].removeprefix('sha256:')}" in archive.getnames()
        assert "oci-layout" in archive.getnames()
