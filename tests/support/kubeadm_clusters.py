"""Clusters by kubeadm on `local` machines: their Cluster objects, and what they are installed from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from herder.api.management.names import DEFAULT_WORKSPACE
from herder.api.rke.names import KUBEADM_INSTALLER
from herder.api.rke.sample import Pool, cluster_objects
from herder.cli.demo_site import ON_A_FULL_DISK
from herder.kubeadm.installer import PROGRAMS
from tests.support.embedded import HERDER
from tests.support.peers import peer
from tests.support.site import Object, Site

VERSION, REBUILT, NEXT = "v1.36.3+kubeadm1", "v1.36.3+kubeadm2", "v1.36.4+kubeadm1"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
FENCED = "farm.example/fenced"  # a taint of workers


def kubernetes(version: str) -> str:
    return version.partition("+")[0]


def programs(directory: Path) -> Path:
    """Those of VERSION, as they were built."""
    directory.mkdir()
    for name in PROGRAMS:
        (directory / name).symlink_to(peer(name))
    return directory


def next_programs(directory: Path) -> Path:
    """The same ones, which tell that they are of NEXT: to kubeadm, that is what makes another version."""
    directory.mkdir()
    told, instead = (kubernetes(version).encode() for version in (VERSION, NEXT))
    for name in PROGRAMS:
        content = peer(name).read_bytes()
        (directory / name).write_bytes(content.replace(told, instead))  # as long as the other: nothing moves
        os.chmod(directory / name, 0o755)
    return directory


def push_installer(site: Site, version: str, directory: Path) -> None:
    target = f"127.0.0.1:{site.registry.port}/{KUBEADM_INSTALLER}"
    site(HERDER, "installer", "kubeadm", "--version", version, "--from", directory, "--push", target)


def kubeadm_cluster(name: str, pools: Mapping[str, int], **config: object) -> list[Object]:
    """Machine configs, and last the Cluster. `config` are fields of rkeConfig."""
    roles = {"servers": ("etcd", "controlplane"), "workers": ("worker",)}
    wanted = [Pool(pool, quantity, roles[pool], {"kubernetes": True}) for pool, quantity in pools.items()]
    made = [obj for _, obj in cluster_objects(name, DEFAULT_WORKSPACE, driver="local", version=VERSION, pools=wanted)]
    rke_config = made[-1]["spec"]["rkeConfig"]
    rke_config |= {"machineGlobalConfig": {"kubelet-arg": [*ON_A_FULL_DISK]}, **config}
    for pool in rke_config["machinePools"]:
        pool["drainBeforeDelete"] = True
        if pool["name"] == "workers":
            pool["labels"] = {"farm.example/breed": "merino", "node-role.kubernetes.io/worker": ""}
            pool["taints"] = [{"key": FENCED, "value": "loosely", "effect": "PreferNoSchedule"}]
    return made
