"""The program of kubeadm servers is one file that needs only the standard library of Python 3.9 or later."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from herder.kubeadm.installer import SNAPSHOTS, _snapshots
from tests.support.cloud.s3 import S3Server
from tests.support.clusters.kubeadm_clusters import installer_function
from tests.support.snapshots import SnapshotProgram

SOURCE = Path(__file__).parents[3] / "src" / "herder" / "snapshots"
SHIPPED = sorted(path for path in SOURCE.rglob("*.py") if path.name != "embedded.py")
OLDEST = (3, 9)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_program_uses_only_python_3_9_and_its_standard_library(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(), feature_version=OLDEST)):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        for module in modules:
            assert module.split(".")[0] in sys.stdlib_module_names or module.startswith("herder.snapshots"), module


def interpreters() -> list[str]:
    """Return the oldest Python of this host that is new enough, and the system's."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = {
        tuple(int(part) for part in path.parts[-3].split(".")[:2]): str(path)
        for path in versions.glob("3.*/bin/python3")
    }
    usable = [found[version] for version in sorted(found) if version >= OLDEST]
    system = [path for path in ("/usr/bin/python3",) if os.path.exists(path)]
    return list(dict.fromkeys([*usable[:1], *system])) or [sys.executable]


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: "-".join(Path(path).parts[-3:]))
def test_the_program_runs_on_every_python(python: str, s3: S3Server, tmp_path: Path) -> None:
    _snapshots(tmp_path / SNAPSHOTS)
    shutil.copy(tmp_path / SNAPSHOTS, tmp_path / "again")
    _snapshots(tmp_path / SNAPSHOTS)
    assert (tmp_path / SNAPSHOTS).read_bytes() == (tmp_path / "again").read_bytes()
    member = {"name": "server-1", "peerUrl": "https://127.0.0.1:2380"}
    program = SnapshotProgram(tmp_path, distribution="kubeadm", kubeadm=member, s3=s3.settings())
    command = [python, "-E", tmp_path / SNAPSHOTS, "list", "--config", program.file]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"snapshots": []}\n', "")


def test_servers_install_the_program_and_its_tools() -> None:
    assert f"for each in etcdctl etcdutl {SNAPSHOTS}; do" in installer_function("install_etcd_tools")
