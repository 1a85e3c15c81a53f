"""The installer image of kubeadm clusters, from small programs that stand for the large ones."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from herder.kubeadm.installer import PROGRAMS, InstallerError, build, tag

KUBEADM = """#!/bin/sh
for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy coredns/coredns pause etcd; do
    echo "registry.example/$name:$5"
done
"""


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, Path]:
    found = {}
    for name in PROGRAMS:
        found[name] = tmp_path / name
        found[name].write_text(KUBEADM if name == "kubeadm" else f"#!/bin/sh\necho {name}\n")
        found[name].chmod(0o755)
    return found


def layer(blobs: dict[str, bytes], manifest: bytes) -> tarfile.TarFile:
    (only,) = json.loads(manifest)["layers"]
    return tarfile.open(fileobj=io.BytesIO(gzip.decompress(blobs[only["digest"]])))


def test_it_holds_the_programs_and_the_control_plane_as_images(programs: dict[str, Path], tmp_path: Path) -> None:
    made = build("v1.36.3+kubeadm1", programs)
    with layer(dict(made.blobs), made.manifest) as archive:
        names = set(archive.getnames())
        archive.extractall(tmp_path / "root", filter="tar")
    assert {"run.sh", "node_service.py", "VERSION", "bin/kubelet", "images/etcd.tar", "images/pause.tar"} <= names
    assert (tmp_path / "root/VERSION").read_text() == "v1.36.3"
    subprocess.run(["sh", "-n", tmp_path / "root/run.sh"], check=True)
    with tarfile.open(tmp_path / "root/images/kube-apiserver.tar") as image:
        index = json.load(image.extractfile("index.json"))  # type: ignore[arg-type]
    (only,) = index["manifests"]
    assert only["annotations"]["io.containerd.image.name"] == "registry.example/kube-apiserver:v1.36.3"


def test_the_same_programs_give_the_same_image(programs: dict[str, Path]) -> None:
    assert build("v1.36.3+kubeadm1", programs).manifest == build("v1.36.3+kubeadm1", programs).manifest


def test_a_tag_has_no_plus() -> None:
    assert tag("v1.36.3+kubeadm1") == "v1.36.3-kubeadm1"


@pytest.mark.parametrize("version", ["v1.36.3", "v1.36.3+k3s1", "1.36.3+kubeadm1", "v1.36+kubeadm1"])
def test_a_version_of_another_distribution_is_refused(programs: dict[str, Path], version: str) -> None:
    with pytest.raises(InstallerError, match="must be such as"):
        build(version, programs)


def test_a_missing_program_is_named(programs: dict[str, Path]) -> None:
    programs["kubelet"].unlink()
    with pytest.raises(InstallerError, match=r"kubelet: .* no such program"):
        build("v1.36.3+kubeadm1", programs)
