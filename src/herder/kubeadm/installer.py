"""Build the kubeadm installer image from Kubernetes binaries.

Machines get the binaries as files and the control plane as images that their container runtime imports, so nothing is
pulled. The contents are hundreds of MB, so they are written to files.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path

from herder.installers import InstallerError, one_layer
from herder.oci import Entry, Image, Layer, image, write_archive, write_tar
from herder.packing import write_zipapp

ON_MACHINES = ("kubeadm", "kubectl", "kubelet", "kube-proxy", "etcdctl", "etcdutl")
IN_PODS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd", "pause")
SCRIPTS = ("node_service.py", "csr_approver.py", "reencrypt.py")
SNAPSHOTS = "herder-snapshots"
PROGRAMS = tuple(dict.fromkeys((*ON_MACHINES, *IN_PODS)))
_VERSION = re.compile(r"(v[0-9]+\.[0-9]+\.[0-9]+)\+kubeadm[0-9]+")


def build(version: str, programs: Mapping[str, Path], scratch: Path) -> Image:
    """Build the image for a version such as v1.36.3+kubeadm1; `programs` are the paths of PROGRAMS.

    It refers to files in `scratch`, which must outlive it.
    """
    known = _VERSION.fullmatch(version)
    if known is None:
        raise InstallerError(f"--version: {version!r} is not a kubeadm version, such as v1.36.3+kubeadm1")
    for name in PROGRAMS:
        if name not in programs or not programs[name].is_file():
            raise InstallerError(f"{name} not found ({programs.get(name, 'no path')}); pass it with --{name} or --from")
    entries = [
        *_setting_up(version),
        *_programs(programs),
        _snapshots(scratch / SNAPSHOTS),
        *_images(known[1], programs, scratch),
    ]
    return one_layer(entries, scratch)


def _setting_up(version: str) -> Iterator[Entry]:
    own = resources.files("herder.kubeadm")
    yield Entry("VERSION", version.encode())
    yield Entry("run.sh", own.joinpath("run.sh").read_bytes(), 0o755)
    for name in SCRIPTS:
        yield Entry(name, own.joinpath(name).read_bytes())


def _programs(programs: Mapping[str, Path]) -> Iterator[Entry]:
    for name in ON_MACHINES:
        yield Entry(f"bin/{name}", programs[name], 0o755)


def _snapshots(path: Path) -> Entry:
    write_zipapp("snapshots", path, without=("embedded.py",))
    return Entry(f"bin/{SNAPSHOTS}", path, 0o755)


def _images(kubernetes: str, programs: Mapping[str, Path], scratch: Path) -> Iterator[Entry]:
    called = _names_of_images(programs["kubeadm"], kubernetes)
    for name in IN_PODS:
        made = _image(name, programs, scratch)
        archive = scratch / f"{name}.archive.tar"
        with archive.open("wb") as file:
            write_archive(made, called[name], file)
        yield Entry(f"images/{name}.tar", archive)


def _image(name: str, programs: Mapping[str, Path], scratch: Path) -> Image:
    """Uncompressed: the outer layer is compressed once."""
    files = [Entry(f"bin/{name}", programs[name], 0o755)]
    running: dict[str, object] = {"Env": ["PATH=/bin"]}
    if name == "etcd":
        files.append(Entry("bin/etcdctl", programs["etcdctl"], 0o755))
    if name == "pause":
        running["Entrypoint"] = ["/bin/pause"]
    return image([Layer.plain(_tar(files, scratch / f"{name}.layer.tar"))], running)


def _tar(entries: list[Entry], path: Path) -> Path:
    with path.open("wb") as file:
        write_tar(entries, file)
    return path


def _names_of_images(kubeadm: Path, kubernetes: str) -> dict[str, str]:
    """Return the image names that this kubeadm expects."""
    command = [str(kubeadm), "config", "images", "list", "--kubernetes-version", kubernetes]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except OSError as problem:
        raise InstallerError(f"{kubeadm}: cannot run it on this host: {problem.strerror}") from None
    if listed.returncode:
        raise InstallerError(f"{kubeadm}: cannot list its images: {listed.stderr.strip()[-300:]}")
    names = {line.partition(":")[0].rpartition("/")[2]: line for line in listed.stdout.split()}
    for name in IN_PODS:
        if name not in names:
            raise InstallerError(f"{kubeadm}: its image list has no {name}")
    return names
