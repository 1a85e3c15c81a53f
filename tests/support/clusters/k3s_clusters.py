"""K3s clusters on `local` machines: which k3s binary, and the fields of the Cluster that these machines need.

A real k3s uses the machines' own containerd. So it makes no difference whether the binary contains all that it needs,
as releases do, or nothing, as a plain build does.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from herder.api.management.names import DEFAULT_WORKSPACE
from herder.api.rke.sample import Pool, cluster_objects
from herder.k3s.installer import version_of
from tests.support import k3s_stand_in
from tests.support.clusters.site import HOST, MIRROR, REGISTRY, Object, Site
from tests.support.embedded import HERDER
from tests.support.peers import peer

K3S, K3S_VERSION = (
    "HERDER_K3S",
    "HERDER_K3S_VERSION",
)  # path of a real k3s, and its version if the binary does not report it
STAND_IN, REAL = "stand-in", "real"
DATA = "/var/lib/rancher/k3s"
INSTALLER = "rancher/system-agent-installer-k3s"
CONTROL_PLANE, ETCD = "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd"
ROLES = {  # of machines, by pool name
    "servers": ("etcd", "controlplane"),
    "members": ("etcd",),
    "planes": ("controlplane",),
    "others": ("controlplane", "worker"),
    "workers": ("worker",),
}
GO_AGENT = f"rancher-system-agent-{'arm64' if os.uname().machine == 'aarch64' else 'amd64'}"


@dataclass(frozen=True)
class K3s:
    kind: str
    binary: Path
    version: str

    @property
    def runs_pods(self) -> bool:
        return self.kind == REAL

    @property
    def timeout(self) -> int:
        return 900 if self.runs_pods else 120


def k3s_of(kind: str, directory: Path) -> K3s:
    return stand_in(directory, "v1.36.3+k3s1") if kind == STAND_IN else _real_k3s()


def stand_in(directory: Path, version: str) -> K3s:
    return K3s(STAND_IN, k3s_stand_in.build(directory / f"k3s-{version}", version), version)


def _real_k3s() -> K3s:
    path = os.environ.get(K3S)
    if not path:
        pytest.skip(f"a real k3s: set {K3S} to the path of its binary")
    binary = Path(path).absolute()
    version = os.environ.get(K3S_VERSION) or version_of(binary)
    assert version, f"{path} does not report its version: set {K3S_VERSION}, such as v1.36.3+k3s1"
    return K3s(REAL, binary, version)


def push_installer(site: Site, k3s: K3s) -> None:
    arguments = ("--binary", k3s.binary, "--version", k3s.version)
    site(HERDER, "installer", "k3s", *arguments, "--push", f"127.0.0.1:{site.registry.port}/{INSTALLER}")


def write_installer(k3s: K3s, archive: Path) -> None:
    arguments = ("--binary", k3s.binary, "--version", k3s.version, "--output", archive)
    subprocess.run([HERDER, "installer", "k3s", *arguments], check=True, capture_output=True, timeout=120)


# --- the node agent ---------------------------------------------------------------------------------------------------


def go_agent_in(directory: Path) -> Path:
    """A directory for the setting `system-agent-assets` that contains the Go rancher-system-agent."""
    assets = directory / "assets"
    assets.mkdir()
    (assets / GO_AGENT).symlink_to(peer("rancher-system-agent"))
    return assets


def runs_go_agent(directory: Path) -> bool:
    """Whether the machine in this directory runs the Go agent."""
    program = (directory / "upper/usr/local/bin/rancher-system-agent").read_bytes()
    return program == peer("rancher-system-agent").read_bytes()


# --- the Cluster object -----------------------------------------------------------------------------------------------

# No images are available for k3s's own pods, so they are disabled. Machines share a network, so routes suffice.
GLOBAL_CONFIG = {
    "container-runtime-endpoint": "unix:///run/containerd/containerd.sock",
    "disable": ["coredns", "local-storage", "metrics-server", "servicelb", "traefik"],
    "disable-helm-controller": True,
    "disable-network-policy": True,
    "egress-selector-mode": "disabled",
    "flannel-backend": "host-gw",
    "flannel-iface": "host0",
    "kube-proxy-arg": ["conntrack-max-per-core=0"],
}

# The host may have cgroups v1, which kubelets reject by default.
KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
"""
ENVIRONMENT = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/cni\n"
MIRRORED = f'server = "{MIRROR}"\n[host."{MIRROR}"]\ncapabilities = ["pull", "resolve"]\n'
PODS = {
    "name": "cbr0",
    "cniVersion": "1.0.0",
    "plugins": [{"type": "flannel"}, {"type": "portmap", "capabilities": {"portMappings": True}}],
}
# Debian has no CNI plug-in of this name: this one configures the bridge plug-in from flannel's subnet file.
FLANNEL = """\
#!/usr/bin/env python3
import ipaddress, json, os, shutil, sys
request = json.load(sys.stdin)
with open("/run/flannel/subnet.env") as file:
    env = dict(line.strip().split("=", 1) for line in file if "=" in line)
subnet = ipaddress.ip_network(env["FLANNEL_SUBNET"], strict=False)
addresses = {"type": "host-local", "subnet": str(subnet), "routes": [{"dst": env["FLANNEL_NETWORK"]}]}
bridge = {name: request[name] for name in ("cniVersion", "name") if name in request}
bridge.update(type="bridge", bridge="cni0", mtu=int(env["FLANNEL_MTU"]), isDefaultGateway=True, hairpinMode=True)
bridge.update(ipMasq=env.get("FLANNEL_IPMASQ") != "true", ipam=addresses)
reading, writing = os.pipe()
os.write(writing, json.dumps(bridge).encode())
os.close(writing)
os.dup2(reading, 0)
program = shutil.which("bridge", path=os.environ["CNI_PATH"])
os.execv(program, [program])
"""
FILES = {  # paths, content and permissions
    "kubelet.conf": ((f"{DATA}/agent/etc/kubelet.conf.d/99-local.conf",), KUBELET, "0600"),
    "environment": (("/etc/default/k3s", "/etc/default/k3s-agent"), ENVIRONMENT, "0644"),
    "pods.conflist": (("/etc/cni/net.d/10-flannel.conflist",), json.dumps(PODS), "0644"),
    "flannel": (("/usr/lib/cni/flannel",), FLANNEL, "0755"),
    "hosts.toml": (
        (f"/etc/containerd/certs.d/{REGISTRY}/hosts.toml", "/etc/containerd/certs.d/registry.k8s.io/hosts.toml"),
        MIRRORED,
        "0644",
    ),
}
# The agent environment variable that makes machines of a cluster download the Go agent from the manager.
WITH_GO_AGENT = {"name": "CATTLE_AGENT_BINARY_URL", "value": f"https://{HOST}:7443/assets/{GO_AGENT}"}
_RBAC = "rbac.authorization.k8s.io"
# A plain build does not grant the rights of its own components. A release does, more narrowly; then these add nothing.
COMPONENTS = ("k3s-cloud-controller-manager", "system:k3s-controller", "kube-apiserver")
MANIFEST = [
    {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "parts-of-k3s"},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": name} for name in COMPONENTS],
    }
]


def k3s_cluster(name: str, version: str, pools: Mapping[str, int], **config: object) -> list[Object]:
    """Machine configs, the files as a ConfigMap, and last the Cluster. `config` has fields of rkeConfig."""
    machine_pools = [Pool(pool, quantity, ROLES[pool], {"kubernetes": True}) for pool, quantity in pools.items()]
    objects = [
        obj for _, obj in cluster_objects(name, DEFAULT_WORKSPACE, driver="local", version=version, pools=machine_pools)
    ]
    rke_config = objects[-1]["spec"]["rkeConfig"]
    rke_config |= {
        "machineGlobalConfig": GLOBAL_CONFIG,
        "machineSelectorFiles": [{"fileSources": [{"configMap": {"name": f"{name}-files", "items": _items()}}]}],
        "additionalManifest": yaml.safe_dump_all(MANIFEST),
        "registries": {"mirrors": {REGISTRY: {"endpoint": [MIRROR]}}},
        **config,
    }
    for pool in rke_config["machinePools"]:
        if pool["name"] == "workers":
            pool |= {"drainBeforeDelete": True, "labels": {"farm.example/breed": "merino"}}
    return [*objects[:-1], _files(name), objects[-1]]


def _items() -> list[Object]:
    return [
        {"key": key, "path": path, "permissions": permissions}
        for key, (paths, _, permissions) in FILES.items()
        for path in paths
    ]


def _files(cluster: str) -> Object:
    annotations = {"rke.cattle.io/object-authorized-for-clusters": cluster}
    meta = {"name": f"{cluster}-files", "namespace": DEFAULT_WORKSPACE, "annotations": annotations}
    data = {key: content for key, (_, content, _) in FILES.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
