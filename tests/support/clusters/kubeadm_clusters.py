"""Kubeadm clusters on `local` machines: their Cluster objects, and the programs that they install."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from herder.api.management.names import DEFAULT_WORKSPACE
from herder.api.rke.names import KUBEADM_INSTALLER
from herder.api.rke.sample import Pool, cluster_objects
from herder.cli.demo.site import ON_A_FULL_DISK
from herder.kubeadm.installer import PROGRAMS
from tests.support.clusters.site import Cluster, Object, Site
from tests.support.embedded import HERDER
from tests.support.peers import peer

VERSION, REBUILT, NEXT = "v1.36.3+kubeadm1", "v1.36.3+kubeadm2", "v1.36.4+kubeadm1"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
FENCED = "farm.example/fenced"  # a taint of workers


def kubernetes(version: str) -> str:
    return version.partition("+")[0]


def programs(directory: Path) -> Path:
    """A directory with the programs of VERSION, as they were built."""
    directory.mkdir()
    for name in PROGRAMS:
        (directory / name).symlink_to(peer(name))
    return directory


def next_programs(directory: Path) -> Path:
    """The same programs with NEXT as the version that they report: kubeadm upgrades to what they report."""
    directory.mkdir()
    version, next_version = (kubernetes(each).encode() for each in (VERSION, NEXT))
    for name in PROGRAMS:
        content = peer(name).read_bytes()
        (directory / name).write_bytes(
            content.replace(version, next_version)
        )  # both have the same length, so no offset changes
        os.chmod(directory / name, 0o755)
    return directory


def installer_function(name: str) -> str:
    """The source of a function in the installer's script."""
    lines = (resources.files("herder.kubeadm") / "run.sh").read_text().splitlines()
    start = lines.index(f"{name}() {{")
    return "\n".join(lines[start : lines.index("}", start) + 1])


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def kubelet_request(name: str, node: str, key: ec.EllipticCurvePrivateKey) -> Object:
    """A CertificateSigningRequest as a kubelet creates it."""
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes")
    subject = x509.Name([organization, x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
            "request": base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode(),
        },
    }


def push_installer(site: Site, version: str, directory: Path) -> None:
    target = f"127.0.0.1:{site.registry.port}/{KUBEADM_INSTALLER}"
    site(HERDER, "installer", "kubeadm", "--version", version, "--from", directory, "--push", target)


def server_processes(farm: Cluster, server: str) -> str:
    """Process IDs of the services of a server."""
    return farm.ssh(
        server, "systemctl show --property=MainPID containerd kubelet kube-proxy; pgrep -x 'etcd|kube-apiserver'"
    )


def kubeadm_cluster(name: str, pools: Mapping[str, int], **config: object) -> list[Object]:
    """Machine configs, and the Cluster as the last object. `config` has fields of rkeConfig."""
    roles = {"servers": ("etcd", "controlplane"), "workers": ("worker",)}
    machine_pools = [Pool(pool, quantity, roles[pool], {"kubernetes": True}) for pool, quantity in pools.items()]
    objects = [
        obj for _, obj in cluster_objects(name, DEFAULT_WORKSPACE, driver="local", version=VERSION, pools=machine_pools)
    ]
    rke_config = objects[-1]["spec"]["rkeConfig"]
    rke_config |= {"machineGlobalConfig": {"kubelet-arg": [*ON_A_FULL_DISK]}, **config}
    for pool in rke_config["machinePools"]:
        pool["drainBeforeDelete"] = True
        if pool["name"] == "workers":
            pool["labels"] = {"farm.example/breed": "merino", "node-role.kubernetes.io/worker": ""}
            pool["taints"] = [{"key": FENCED, "value": "loosely", "effect": "PreferNoSchedule"}]
    return objects
