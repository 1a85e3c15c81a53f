"""The installer image of kubeadm clusters, from small programs that stand for the real ones."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from herder.agent.images.staging import Stager
from herder.api.rke.names import KUBEADM_INSTALLER
from herder.installers import InstallerError, tag
from herder.kubeadm.installer import IN_PODS, ON_MACHINES, PROGRAMS, SCRIPTS, SNAPSHOTS, build
from herder.oci import Image, opened
from tests.support.clusters.kubeadm_clusters import installer_function
from tests.support.embedded import HERDER

KUBEADM = """#!/bin/sh
for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy coredns/coredns pause etcd; do
    echo "registry.example/$name:$5"
done
"""


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, Path]:
    paths = {}
    for name in PROGRAMS:
        paths[name] = tmp_path / name
        paths[name].write_text(KUBEADM if name == "kubeadm" else f"#!/bin/sh\necho {name}\n")
        paths[name].chmod(0o755)
    return paths


def unpack(built: Image, into: Path) -> Path:
    (layer,) = json.loads(built.manifest)["layers"]
    with opened(built.blobs[layer["digest"]]) as content, tarfile.open(fileobj=content, mode="r:gz") as archive:
        archive.extractall(into, filter="tar")
    return into


def test_the_image_contains_the_programs_and_control_plane_images(programs: dict[str, Path], tmp_path: Path) -> None:
    root = unpack(build("v1.36.3+kubeadm1", programs, tmp_path), tmp_path / "root")
    assert (root / "VERSION").read_text() == "v1.36.3+kubeadm1"
    assert {path.name for path in (root / "bin").iterdir()} == {*ON_MACHINES, SNAPSHOTS}
    assert {path.stem for path in (root / "images").iterdir()} == set(IN_PODS)
    subprocess.run(["sh", "-n", root / "run.sh"], check=True)
    with tarfile.open(root / "images/kube-apiserver.tar") as image:
        index = json.load(image.extractfile("index.json"))  # type: ignore[arg-type]
    (entry,) = index["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "registry.example/kube-apiserver:v1.36.3"


def test_the_image_contains_the_scripts_beside_kubernetes(programs: dict[str, Path], tmp_path: Path) -> None:
    root = unpack(build("v1.36.3+kubeadm1", programs, tmp_path), tmp_path / "root")
    script = (root / "run.sh").read_text()
    for name in SCRIPTS:
        assert (root / name).is_file()
        assert f'< "$here/{name}"' in script


@pytest.mark.parametrize("file", ["kubelet-client-current.pem", "kubelet-client.key.tmp"])
def test_a_repeated_join_keeps_the_key_of_the_kubelet(tmp_path: Path, file: str) -> None:
    """kubeadm reset deletes it, and the name of the node is issued to this key."""
    pki, state = tmp_path / "pki", tmp_path / "state"
    pki.mkdir()
    state.mkdir()
    (pki / "kubelet-client-1.pem").write_text("key")
    (pki / file).symlink_to("kubelet-client-1.pem")
    functions = "\n".join(installer_function(name) for name in ("keep_kubelet_key", "restore_kubelet_key"))
    steps = "keep_kubelet_key\nrm -r $kubelet_pki\nkeep_kubelet_key\nrestore_kubelet_key\n" * 2
    script = f"set -eu\nstate={state}\nkubelet_pki={pki}\n{functions}\n{steps}"
    subprocess.run(["sh"], input=script, text=True, check=True)
    assert (pki / file).is_symlink()
    assert (pki / file).read_text() == "key"
    assert {path.stat().st_mode & 0o777 for path in (pki / file, state / "kubelet-pki" / file)} == {0o600}


def test_the_image_is_reproducible(programs: dict[str, Path], tmp_path: Path) -> None:
    manifests = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        manifests.append(build("v1.36.3+kubeadm1", programs, tmp_path / name).manifest)
    assert manifests[0] == manifests[1]


def test_a_tag_has_no_plus() -> None:
    assert tag("v1.36.3+kubeadm1") == "v1.36.3-kubeadm1"


@pytest.mark.parametrize("version", ["v1.36.3", "v1.36.3+k3s1", "1.36.3+kubeadm1", "v1.36+kubeadm1"])
def test_a_version_of_another_distribution_is_rejected(programs: dict[str, Path], tmp_path: Path, version: str) -> None:
    with pytest.raises(InstallerError, match="is not a kubeadm version"):
        build(version, programs, tmp_path)


def test_a_missing_program_is_named(programs: dict[str, Path], tmp_path: Path) -> None:
    programs["kubelet"].unlink()
    with pytest.raises(InstallerError, match=r"kubelet not found .*; pass it with --kubelet or --from"):
        build("v1.36.3+kubeadm1", programs, tmp_path)


# --- herder installer kubeadm ---------------------------------------------------------------------------------------


def herder(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HERDER, "installer", "kubeadm", *arguments], capture_output=True, text=True, check=False)


def test_a_node_agent_installs_from_the_archive(programs: dict[str, Path], tmp_path: Path) -> None:
    images, root = tmp_path / "images", tmp_path / "root"
    images.mkdir()
    root.mkdir()
    result = herder("--version", "v1.36.3+kubeadm1", "--from", tmp_path, "--output", images / "kubeadm.tar")
    assert result.stdout == f"{images / 'kubeadm.tar'}\n", result.stderr
    stager = Stager(str(images), str(tmp_path / "none"), str(tmp_path / "scratch"), print)
    stager.stage(f"{KUBEADM_INSTALLER}:v1.36.3-kubeadm1", str(root))
    assert (root / "bin/kubelet").read_bytes() == programs["kubelet"].read_bytes()


def test_a_flag_replaces_one_program(programs: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("another kubelet")
    arguments = ("--version", "v1.36.3+kubeadm1", "--from", tmp_path, "--kubelet", other)
    assert herder(*arguments, "--output", tmp_path / "made.tar").returncode == 0
    with tarfile.open(tmp_path / "made.tar") as archive:
        layer = max(archive.getmembers(), key=lambda each: each.size)
        with tarfile.open(fileobj=archive.extractfile(layer), mode="r:gz") as content:
            assert content.extractfile("bin/kubelet").read() == b"another kubelet"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "pass exactly one of --output and --push"),
        (("--output", "x", "--push", "127.0.0.1:1/x"), "pass exactly one of --output and --push"),
        (("--push", "127.0.0.1:1/x", "--username", "u"), "--username and --password-file must be used together"),
        (("--output", "x"), "kubeadm not found (no path); pass it with --kubeadm or --from"),
    ],
)
def test_invalid_options_are_reported(arguments: tuple[str, ...], message: str) -> None:
    result = herder("--version", "v1.36.3+kubeadm1", *arguments)
    assert message in result.stderr
    assert result.returncode
    assert "Traceback" not in result.stderr
