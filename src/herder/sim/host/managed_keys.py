"""Encryption keys that the manager writes to kubeadm and embedded servers, as their API servers read them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from herder.sim.host.etcd import EncryptionConfig

if TYPE_CHECKING:
    from herder.sim.nodes import SimulatedNode

KUBEADM_CONFIG = "/etc/rancher/kubeadm/encryption/config.json"
KUBEADM_PATCH = "/var/lib/rancher/kubeadm/patches/kube-apiserver-encryption+json.json"
KUBEADM_MANIFEST = "/etc/kubernetes/manifests/kube-apiserver.yaml"
FLAG = b"--encryption-provider-config="
RUNTIMES = ("kubeadm", "herder")
PLAIN, OWN = "plain", "local"
_RESEAL_SECONDS = 2.0


def write_manifest(node: SimulatedNode) -> None:
    """The manifest of the API server, with the patches that exist now."""
    patched = KUBEADM_PATCH in node.disk.files
    node.disk.files[KUBEADM_MANIFEST] = b"kube-apiserver\n" + (FLAG + KUBEADM_CONFIG.encode() if patched else b"")


def load_keys(node: SimulatedNode) -> str:
    """Read the keys when the API server starts; returns why it cannot start."""
    etcd = node.cluster.etcd
    assert etcd is not None
    config = _kubeadm_keys(node) if node.runtime == "kubeadm" else embedded_keys(node)
    needed = etcd.bootstrap.secret_keys
    if node.runtime == "herder" and not needed <= set(config.keys):
        return "store is encrypted with a key which is not in the key file; restore the key and retry"
    node.service.loaded = config
    etcd.bootstrap = replace(etcd.bootstrap, secret_keys=needed | {config.keys[0]})
    if node.runtime == "herder":
        _encrypt_again(node, config)
    return ""


def _kubeadm_keys(node: SimulatedNode) -> EncryptionConfig:
    """Of the file that the manifest names. A missing file keeps the API server from starting."""
    if FLAG not in node.disk.files.get(KUBEADM_MANIFEST, b""):
        return EncryptionConfig((PLAIN,))
    (resource,) = json.loads(node.disk.files[KUBEADM_CONFIG])["resources"]
    keys: list[str] = []
    for provider in resource["providers"]:
        ((kind, content),) = provider.items()
        keys += [PLAIN] if kind == "identity" else [f"{each['name']}:{each['secret']}" for each in content["keys"]]
    return EncryptionConfig(tuple(keys))


def embedded_keys(node: SimulatedNode) -> EncryptionConfig:
    managed = node.disk.files.get(managed_keys_file(node))
    return EncryptionConfig(tuple(managed.decode().split()) if managed else (OWN,))


def managed_keys_file(node: SimulatedNode) -> str:
    return f"{node.disk.layout.database}/managed.keys"


def status_file(node: SimulatedNode) -> str:
    return f"{node.disk.layout.database}/encryption.status"


def _encrypt_again(node: SimulatedNode, config: EncryptionConfig) -> None:
    """An embedded server encrypts everything with its first key, some time after it has started."""
    managed = node.disk.files.get(managed_keys_file(node))
    if not managed:
        return
    digest, starts = hashlib.sha256(managed).hexdigest(), node.service.starts
    node.disk.files[status_file(node)] = f"loaded {digest}\n".encode()

    def finish() -> None:
        etcd = node.cluster.etcd
        if node.service.running and node.service.starts == starts + 1 and etcd is not None:
            etcd.bootstrap = replace(etcd.bootstrap, secret_keys=frozenset(config.keys[:1]))
            node.disk.files[status_file(node)] = f"loaded {digest}\nencrypted {digest}\n".encode()

    asyncio.get_running_loop().call_later(_RESEAL_SECONDS, finish)
