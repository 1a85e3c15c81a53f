"""Read what plans install on a machine: the installer image, and the configuration files of each distribution."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from herder.sim.host.disk import Disk, Installed, layout_of

CONFIG = re.compile(r"/etc/rancher/(k3s|rke2|herder)/config\.yaml\.d/50-rancher\.yaml")
MANIFEST = re.compile(r".*/(server/manifests/rancher|etc/rancher/kubeadm/manifests)/cluster-agent\.yaml")
KUBEADM = "/etc/rancher/kubeadm"
_IMAGE = re.compile(r".*system-agent-installer-(?P<runtime>k3s|rke2|kubeadm|herder):(?P<release>v[\d.]+)-(?P<build>.+)")


def read_image(image: str, variables: Mapping[str, str]) -> Installed | None:
    """What an installer image installs; None if it is no installer."""
    found = _IMAGE.fullmatch(image)
    if found is None:
        return None
    role = variables.get(f"INSTALL_{found['runtime'].upper()}_EXEC", "")
    stamp, version = variables.get("RESTART_STAMP", ""), f"{found['release']}+{found['build']}"
    return Installed(found["runtime"], version, stamp, role.startswith("agent"), role)


def skips_start(runtime: str, variables: Mapping[str, str]) -> bool:
    return variables.get(f"INSTALL_{runtime.upper()}_SKIP_START") == "true"


def without_start(new: Installed, before: Installed | None) -> Installed:
    """What is installed if the service is not started: the old stamp stays, so the next installation restarts it."""
    return replace(new, stamp=before.stamp if before else "")


def read_config(disk: Disk, path: str) -> None:
    """Read a changed configuration file of K3s, RKE2 or the embedded distribution."""
    found = CONFIG.fullmatch(path)
    if found is not None:
        disk.config = json.loads(disk.files.get(path) or b"{}")
        disk.layout = layout_of(found[1], str(disk.config.get("data-dir") or ""))


def read_kubeadm_config(disk: Disk) -> None:
    """Read what the installer of kubeadm reads."""
    arguments = _text(disk, "kubelet.env").strip().removeprefix("KUBELET_EXTRA_ARGS=").split()
    kubelet = [each.removeprefix("--") for each in arguments if not each.startswith("--node-ip=")]
    config: dict[str, Any] = {
        "node-label": _text(disk, "labels").split(),
        "endpoints": _text(disk, "endpoints").split(),
    }
    config |= {"kubelet-arg": kubelet} if kubelet else {}
    config["provider-id"] = _provider_id(disk)
    disk.config, disk.layout = config, layout_of("kubeadm")


def _provider_id(disk: Disk) -> str:
    text = _text(disk, "join.yaml") or _text(disk, "init.yaml")
    registration = json.loads(text.partition("\n---\n")[0] or "{}").get("nodeRegistration") or {}
    arguments = {each["name"]: each["value"] for each in registration.get("kubeletExtraArgs") or ()}
    return str(arguments.get("provider-id", ""))


def _text(disk: Disk, name: str) -> str:
    content: bytes = disk.files.get(f"{KUBEADM}/{name}", b"")
    return content.decode()
