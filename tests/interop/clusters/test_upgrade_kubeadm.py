"""Upgrade of the manager with a running kubeadm cluster: this code takes it over, and no machine notices.

`make soak` and `make interop` run this test. `test_upgrade.py` does the same with the embedded distribution in every
run of `make test`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.test_upgrade import PLAN, previous_release
from tests.support.clusters.kubeadm_clusters import VERSION, kubeadm_cluster, programs, push_installer
from tests.support.clusters.site import MIRROR, REGISTRY, Site, site_in
from tests.support.embedded import HERDER, Embedded

pytestmark = pytest.mark.extended

NAME = "farm"
LONG_RUNNING = (
    "containerd",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
)

EXTENDED = {f"/etc/rancher/kubeadm/manifests/{name}.yaml" for name in ("cluster-agent", "nodes")}
"""Manifests that this release extends: servers apply them again, and nothing restarts."""

__all__ = ["previous_release"]


@pytest.fixture
def site(tmp_path: Path, previous_release: Path) -> Iterator[Site]:
    """A site with the manager of the previous release."""
    with site_in(tmp_path, {}, timeout=300, pods=True, program=previous_release) as site:
        push_installer(site, VERSION, programs(tmp_path / "programs"))
        yield site


def plans(site: Site) -> dict[str, Any]:
    """Plans by the name of their Secret, with their files by path."""
    found = {}
    for secret in site.listed("secrets"):
        if secret["type"] == PLAN:
            plan = json.loads(base64.b64decode(secret["data"]["plan"]))
            files = {file["path"]: base64.b64decode(file.get("content", "")).decode() for file in plan["files"]}
            found[secret["metadata"]["name"]] = plan | {"files": files}
    return found


def without_extended_files(plan: dict[str, Any]) -> dict[str, Any]:
    return plan | {"files": {path: text for path, text in plan["files"].items() if path not in EXTENDED}}


def processes(site: Site) -> dict[int, tuple[str, str]]:
    """Long-running processes of the machines: process ID → command and start time."""
    found = {}
    for group in site.groups():
        for file in group.rglob("cgroup.procs"):
            for pid in file.read_text().split():
                process = Path("/proc") / pid
                try:
                    command = process.joinpath("cmdline").read_text().split("\0")[0]
                    started = process.joinpath("stat").read_text().rpartition(")")[2].split()[19]
                except OSError:
                    continue  # it has ended
                if Path(command).name in LONG_RUNNING:
                    found[int(pid)] = (command, started)
    return found


def start_release(site: Site, program: Path) -> None:
    """Stop the manager as a service manager does, and start another release on its data."""
    manager = site.manager
    assert isinstance(manager, Embedded)
    assert manager.process is not None
    manager.process.terminate()
    assert manager.process.wait(60) == 0
    manager.program = program
    manager.start()


def test_a_running_kubeadm_cluster_is_taken_over_unchanged(site: Site) -> None:
    mirrors = {"mirrors": {REGISTRY: {"endpoint": [MIRROR]}}}
    objects = kubeadm_cluster(NAME, {"servers": 1, "workers": 1}, registries=mirrors)
    cluster = site.create_cluster(NAME, *objects)
    cluster.until_ready("workers=1")
    before, running = plans(site), processes(site)
    assert len(before) == 2
    assert {Path(command).name for command, _ in running.values()} == set(LONG_RUNNING)

    start_release(site, HERDER)
    # The command returns when the new machine is Ready: every controller has decided about the cluster by then.
    cluster.until_ready("workers=2")
    after = plans(site)
    assert len(after) == 3
    for name, plan in before.items():
        assert without_extended_files(after[name]) == without_extended_files(plan)
    current = processes(site)
    assert {pid: current.get(pid) for pid in running} == running
    assert json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
