"""The configuration of k3s: its files, merged in the order of their names, then flags."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from herder.embedded.configuration import KEYS, Configuration, read

CONFIG = Path("/etc/rancher/k3s")
SUPERVISOR_PORT, KUBELET_PORT = 6443, 10248
RUN = Path("/run/k3s-stand-in")
# Options that have no effect without pods.
POD_OPTIONS = (
    "container-runtime-endpoint",
    "disable",
    "disable-helm-controller",
    "disable-network-policy",
    "egress-selector-mode",
    "flannel-backend",
    "flannel-iface",
    "kube-proxy-arg",
    "private-registry",
    "system-default-registry",
)
# Options that `k3s agent` rejects.
SERVER_OPTIONS = {
    "agent-token",
    "cluster-init",
    "disable",
    "disable-helm-controller",
    "disable-network-policy",
    "egress-selector-mode",
    "flannel-backend",
    "kube-controller-manager-arg",
    "kube-scheduler-arg",
    "system-default-registry",
    "tls-san",
}
SUPPORTED = (*KEYS, "cluster-init", "kubelet-arg", "kube-controller-manager-arg", "kube-scheduler-arg", *POD_OPTIONS)


@dataclass(frozen=True, slots=True)
class K3sConfig:
    configuration: Configuration
    server_url: str  # the URL of a server; empty on the first
    arguments: dict[str, dict[str, str]]  # of kubelet, kube-controller-manager and kube-scheduler
    version: str

    @property
    def tls(self) -> Path:
        return self.configuration.data_dir / "server" / "tls"


def load_config(role: str, flags: Sequence[str], version: str) -> K3sConfig:
    merged: dict[str, Any] = {}
    for file in (CONFIG / "config.yaml", *sorted((CONFIG / "config.yaml.d").glob("*.yaml"))):
        for key, value in (yaml.safe_load(file.read_text()) or {}).items() if file.exists() else ():
            name = key.removesuffix("+")
            merged[name] = [*_list(merged.get(name)), *_list(value)] if key.endswith("+") else value
    for flag in flags:
        name, _, value = flag.removeprefix("--").partition("=")
        merged[name] = value
    known = set(SUPPORTED) - (SERVER_OPTIONS if role == "agent" else set())
    if unknown := sorted(merged.keys() - known):
        raise SystemExit(f"k3s stand-in: unknown options {', '.join(unknown)}")
    merged.setdefault("node-ip", [_own_address()])
    merged.setdefault("data-dir", "/var/lib/rancher/k3s")
    own = {key: value for key, value in merged.items() if key in KEYS}
    RUN.mkdir(mode=0o700, exist_ok=True)
    (RUN / "config.yaml").write_text(json.dumps(own))
    components = ("kubelet", "kube-controller-manager", "kube-scheduler")
    arguments = {each: dict(_argument(text) for text in _list(merged.get(f"{each}-arg"))) for each in components}
    return K3sConfig(read(RUN, version=version), merged.get("server", ""), arguments, version)


def _argument(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _own_address() -> str:
    """The address of the interface with the default route, as k3s chooses it; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
