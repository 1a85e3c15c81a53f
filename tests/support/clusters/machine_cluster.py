"""A Kubernetes cluster in one `local` machine: control plane, kubelet, containerd and kube-proxy as systemd units.

All its files are below /var/lib/rancher, a directory that the machine shares with the host.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.support.kube import Authority
from tests.support.peers import peer
from tests.support.registry.images import PAUSE
from tests.unit.machine.local.host import Booted

INSIDE = "/var/lib/rancher"
KUBECONFIG = f"{INSIDE}/admin.kubeconfig"
SERVICES, FIRST_SERVICE, PODS = "10.96.0.0/16", "10.96.0.1", "10.244.0.0/24"
PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
)
CONTAINERD = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{registry}/{pause}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
"""
SET_UP = """\
set -e
echo 1 > /proc/sys/net/ipv4/ip_forward
mkdir -p /etc/cni/net.d /etc/containerd/certs.d/{registry}
cp {inside}/pods.conflist /etc/cni/net.d/
cp {inside}/containerd.toml /etc/containerd/config.toml
cp {inside}/hosts.toml /etc/containerd/certs.d/{registry}/
ln -s {inside}/bin/kubectl /usr/local/bin/
systemctl restart containerd
"""
# Components start in any order; systemd restarts those that find no API server yet.
UNIT = ("systemd-run", "--quiet", "-p", "Restart=on-failure", "-p", "RestartSec=300ms", "-p", "StartLimitIntervalSec=0")


class MachineCluster:
    """`registry` serves its images by plain HTTP; its address is as seen from the machine."""

    def __init__(self, machine: Booted, registry: str) -> None:
        self.machine = machine
        self.registry = registry
        self.address = machine.place.address
        self.files = machine.directory / "data" / "var-lib-rancher"

    def start(self) -> None:
        self.authority = Authority(self.files / "pki")
        self._link_programs()
        self._write_configuration()
        script = [SET_UP.format(inside=INSIDE, registry=self.registry)]
        for name, arguments in self._components().items():
            command = (*UNIT, f"--unit={name}", f"{INSIDE}/bin/{name}", *arguments)
            script.append(shlex.join(command) + "\n")
        (self.files / "set-up").write_text("".join(script))
        self.machine.ssh(f"sh {INSIDE}/set-up")

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        """Run kubectl as the administrator, in the machine."""
        return self.machine.ssh(f"kubectl --kubeconfig {KUBECONFIG} {shlex.join(arguments)}", check=check)

    def apply(self, *objects: dict[str, Any]) -> None:
        (self.files / "objects").write_text(yaml.safe_dump_all(objects))
        self.kubectl("apply", "-f", f"{INSIDE}/objects")

    def node_is_ready(self) -> bool:
        path = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
        return self.kubectl("get", "nodes", "-o", path, check=False) == "True"

    def log(self, unit: str) -> str:
        return self.machine.ssh(f"journalctl --no-pager -n 40 -u {unit}", check=False)

    def _link_programs(self) -> None:
        (self.files / "bin").mkdir()
        for name in (*PROGRAMS, "kubectl"):
            try:
                os.link(peer(name), self.files / "bin" / name)
            except OSError:  # another file system
                shutil.copy2(peer(name), self.files / "bin" / name)

    def _write_configuration(self) -> None:
        self._write_kubeconfig("admin", "admin", "system:masters")
        self._write_kubeconfig("kube-controller-manager", "system:kube-controller-manager", "system:masters")
        self._write_kubeconfig("kube-scheduler", "system:kube-scheduler")
        self._write_kubeconfig("kube-proxy", "system:kube-proxy")
        self._write_kubeconfig("kubelet", f"system:node:{self.machine.name}", "system:nodes")
        self._write("kubelet.json", json.dumps(self._kubelet()))
        self._write("pods.conflist", json.dumps(_pod_network()))
        self._write("hosts.toml", f'[host."http://{self.registry}"]\ncapabilities = ["pull", "resolve"]\n')
        self._write("containerd.toml", CONTAINERD.format(registry=self.registry, pause=PAUSE))

    def _kubelet(self) -> dict[str, Any]:
        certificate, key = self.authority.issue("kubelet-serving", server=True, addresses=(self.address,))
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": _inside(self.authority.path)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": _inside(certificate),
            "tlsPrivateKeyFile": _inside(key),
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "resolvConf": "",
        }

    def _components(self) -> dict[str, list[str]]:
        def config(name: str) -> str:
            return f"--kubeconfig={INSIDE}/{name}.kubeconfig"

        account_key = _inside(self.authority.service_account_key())
        manager = ["--leader-elect=false", f"--root-ca-file={_inside(self.authority.path)}"]
        manager.append(f"--service-account-private-key-file={account_key}")
        node = [f"--hostname-override={self.machine.name}"]
        return {
            "etcd": ["--data-dir=/var/lib/etcd", "--unsafe-no-fsync"],
            "kube-apiserver": self._api_server(account_key),
            "kube-controller-manager": [config("kube-controller-manager"), *manager],
            "kube-scheduler": [config("kube-scheduler"), "--leader-elect=false"],
            "kubelet": [config("kubelet"), f"--config={INSIDE}/kubelet.json", f"--node-ip={self.address}", *node],
            "kube-proxy": [config("kube-proxy"), "--proxy-mode=nftables", "--conntrack-max-per-core=0", *node],
        }

    def _api_server(self, account_key: str) -> list[str]:
        """API server and kubelets authenticate each other by certificate; kubelets authorize it by webhook."""
        pki = self.authority
        certificate, key = pki.issue("kube-apiserver", server=True, addresses=(self.address, FIRST_SERVICE))
        client, client_key = pki.issue("kube-apiserver-kubelet-client", groups=("kubelet-clients",))
        return [
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={self.address}",
            f"--tls-cert-file={_inside(certificate)}",
            f"--tls-private-key-file={_inside(key)}",
            f"--client-ca-file={_inside(pki.path)}",
            f"--service-account-key-file={account_key}",
            f"--service-account-signing-key-file={account_key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICES}",
            f"--kubelet-certificate-authority={_inside(pki.path)}",
            f"--kubelet-client-certificate={_inside(client)}",
            f"--kubelet-client-key={_inside(client_key)}",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
        ]

    def _write_kubeconfig(self, file: str, name: str, *groups: str) -> None:
        certificate, key = self.authority.issue(name, groups=groups)
        cluster = {"server": f"https://{self.address}:6443", "certificate-authority": _inside(self.authority.path)}
        user = {"client-certificate": _inside(certificate), "client-key": _inside(key)}
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        self._write(f"{file}.kubeconfig", json.dumps(config))

    def _write(self, name: str, text: str) -> None:
        (self.files / name).write_text(text)


def kubelet_clients() -> dict[str, Any]:
    """The binding that lets the API server's certificate access kubelets; without it they reject all requests."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "kubelet-clients"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": "kubelet-clients"}],
    }


def _inside(path: Path) -> str:
    return f"{INSIDE}/pki/{path.name}"


def _pod_network() -> dict[str, Any]:
    addresses = {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipMasq": True, "ipam": addresses}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
