"""Certificates that the services of a machine issue when they start, unless they exist."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from cryptography import x509

from herder.sim.host.disk import Certificate
from herder.sim.host.etcd import Bootstrap

if TYPE_CHECKING:
    from herder.sim.nodes import SimulatedNode

YEAR = 365 * 86400.0
AUTHORITIES = ("client-ca", "server-ca", "request-header-ca", "etcd/server-ca", "etcd/peer-ca")
CLIENT, SERVING, BOTH = "ClientAuth", "ServerAuth", "ServerAuth,ClientAuth"

Leaf = tuple[str, str, str, str]
"""File name without suffix, subject, usage and CA."""

_SERVER: tuple[Leaf, ...] = (
    ("client-admin", "system:admin", CLIENT, "client-ca"),
    ("client-auth-proxy", "system:auth-proxy", CLIENT, "request-header-ca"),
    ("client-controller", "system:kube-controller-manager", CLIENT, "client-ca"),
    ("client-{}-cloud-controller", "{}-cloud-controller-manager", CLIENT, "client-ca"),
    ("client-kube-apiserver", "system:apiserver", CLIENT, "client-ca"),
    ("client-scheduler", "system:kube-scheduler", CLIENT, "client-ca"),
    ("client-supervisor", "system:{}-supervisor", CLIENT, "client-ca"),
    ("serving-kube-apiserver", "kube-apiserver", SERVING, "server-ca"),
    ("kube-controller-manager/kube-controller-manager", "kube-controller-manager", SERVING, "server-ca"),
    ("kube-scheduler/kube-scheduler", "kube-scheduler", SERVING, "server-ca"),
)
_ETCD: tuple[Leaf, ...] = (
    ("etcd/client", "etcd-client", CLIENT, "etcd/server-ca"),
    ("etcd/server-client", "etcd-server", BOTH, "etcd/server-ca"),
    ("etcd/peer-server-client", "etcd-peer", BOTH, "etcd/peer-ca"),
)
_AGENT: tuple[Leaf, ...] = (
    ("client-kubelet", "system:node", CLIENT, "client-ca"),
    ("client-kube-proxy", "system:kube-proxy", CLIENT, "client-ca"),
    ("client-{}-controller", "system:{}-controller", CLIENT, "client-ca"),
    ("serving-kubelet", "kubelet", SERVING, "server-ca"),
)
SHARED_KEYS = ("client-{}-controller", "client-kube-proxy", "client-kubelet", "serving-kubelet")
"""Keys in the servers' directory for certificates that agents request."""
_KUBEADM: tuple[Leaf, ...] = (
    ("apiserver", "kube-apiserver", SERVING, "ca"),
    ("apiserver-kubelet-client", "kube-apiserver-kubelet-client", CLIENT, "ca"),
    ("apiserver-etcd-client", "kube-apiserver-etcd-client", CLIENT, "etcd/ca"),
    ("front-proxy-client", "front-proxy-client", CLIENT, "front-proxy-ca"),
    ("etcd/server", "etcd-server", BOTH, "etcd/ca"),
    ("etcd/peer", "etcd-peer", BOTH, "etcd/ca"),
    ("etcd/healthcheck-client", "kube-etcd-healthcheck-client", CLIENT, "etcd/ca"),
)
_KUBECONFIGS: tuple[Leaf, ...] = (
    ("admin.conf", "kubernetes-admin", CLIENT, "ca"),
    ("controller-manager.conf", "system:kube-controller-manager", CLIENT, "ca"),
    ("scheduler.conf", "system:kube-scheduler", CLIENT, "ca"),
)
_SUPER_ADMIN: Leaf = ("super-admin.conf", "kubernetes-super-admin", CLIENT, "ca")  # only on the first server
_KUBELET: tuple[Leaf, ...] = (
    ("kubelet-client-current", "system:node", CLIENT, "ca"),
    ("kubelet", "kubelet", SERVING, "kubelet"),  # signs its serving certificate itself
)
KUBEADM_NAMES = {
    **{each: each for each in ("apiserver", "apiserver-kubelet-client", "apiserver-etcd-client", "front-proxy-client")},
    **{each[0]: each[0] for each in (*_KUBECONFIGS, _SUPER_ADMIN)},
    "etcd-server": "etcd/server",
    "etcd-peer": "etcd/peer",
    "etcd-healthcheck-client": "etcd/healthcheck-client",
}
"""Names in `kubeadm certs renew`, and the files without suffix."""
KUBELET_PKI = "/var/lib/kubelet/pki"
_EMBEDDED: tuple[Leaf, ...] = (
    ("serving", "herder-apiserver", SERVING, "ca"),
    ("admin", "kubernetes-admin", CLIENT, "ca"),
)


def leaves(node: SimulatedNode) -> Iterator[tuple[str, Leaf]]:
    """The paths without suffix of all certificates of a machine."""
    disk, runtime = node.disk, node.runtime
    if runtime == "herder":
        for leaf in () if node.is_worker else _EMBEDDED:
            yield f"{disk.layout.tls}/{leaf[0]}", leaf
        return
    if runtime == "kubeadm":
        yield from _kubeadm_leaves(node)
        return
    agent = f"{disk.layout.data}/agent"
    for leaf in _AGENT:
        yield f"{agent}/{leaf[0].format(runtime)}", leaf
    if not node.is_worker:
        for leaf in (*_SERVER, *(_ETCD if node.has_etcd else ())):
            yield f"{disk.layout.tls}/{leaf[0].format(runtime)}", leaf


def _kubeadm_leaves(node: SimulatedNode) -> Iterator[tuple[str, Leaf]]:
    for leaf in _KUBELET:
        yield f"{KUBELET_PKI}/{leaf[0]}", leaf
    if node.is_worker:
        return
    for leaf in _KUBEADM:
        yield f"{node.disk.layout.tls}/{leaf[0]}", leaf
    is_first = node.disk.installed is not None and node.disk.installed.role == "init"
    for leaf in (*_KUBECONFIGS, *((_SUPER_ADMIN,) if is_first else ())):
        yield f"/etc/kubernetes/{leaf[0]}", leaf


def new_certificate(node: SimulatedNode, leaf: Leaf) -> Certificate:
    """Another certificate, for a year."""
    _, subject, usage, issuer = leaf
    etcd, runtime = node.cluster.etcd, node.runtime
    root = etcd.bootstrap.authorities.get(issuer, 0) if etcd is not None else 0
    expires = node.context.wall() + YEAR
    return Certificate(subject.format(runtime), usage, f"{runtime}-{issuer}", root, node.context.serial(), expires)


def issue(node: SimulatedNode, bootstrap: Bootstrap, serial: Callable[[], int], now: float) -> None:
    """Issue missing certificates. K3s and RKE2 issue those of the agent at each start, with the same keys, and those
    whose CA is not in the file of the present one."""
    files, runtime, layout = node.disk.files, node.runtime, node.disk.layout
    authorities = bootstrap.authorities
    if not node.is_worker and runtime in ("k3s", "rke2"):
        for name in AUTHORITIES:
            root = authorities.get(name, 0)
            subject = f"{runtime}-{name}"
            files[f"{layout.tls}/{name}.crt"] = Certificate(
                subject, "CertSign", subject, root, root, now + 10 * YEAR, bootstrap.bundle(name)
            )
            files.setdefault(f"{layout.tls}/{name}.key", b"key")
        files.setdefault(f"{layout.tls}/service.key", b"service key")
        for key in SHARED_KEYS:
            files.setdefault(f"{layout.tls}/{key.format(runtime)}.key", b"key")
    agent = f"{layout.data}/agent/"
    for path, (_, subject, usage, issuer) in leaves(node):
        files.setdefault(f"{path}.key", b"key")
        known, bundle = files.get(f"{path}.crt"), bootstrap.bundle(issuer)
        is_foreign = isinstance(known, Certificate) and bool(known.roots) and known.issuer_serial not in bundle
        if known is None or path.startswith(agent) or is_foreign:
            name, root = f"{runtime}-{issuer}", authorities.get(issuer, 0)
            files[f"{path}.crt"] = Certificate(subject.format(runtime), usage, name, root, serial(), now + YEAR, bundle)


def certificates_at(node: SimulatedNode, patterns: Iterable[str]) -> Iterator[tuple[str, Certificate]]:
    """Certificates in files of these patterns, as a shell expands them, including the authorities of plans."""
    found = {_path_of(path): each for path, each in node.disk.files.items() if path.endswith(".crt")}
    for pattern in patterns:
        directory, name = posixpath.split(pattern)
        for path in sorted(found):
            if posixpath.dirname(path) == directory and fnmatchcase(posixpath.basename(path), name):
                certificate = _parsed(found[path])
                if certificate is not None:
                    yield path, certificate


def _path_of(path: str) -> str:
    """The path on a real machine. Here, all certificates have the suffix of a certificate."""
    stem = path.removesuffix(".crt")
    if stem.endswith(".conf"):
        return stem
    return f"{stem}.pem" if stem == f"{KUBELET_PKI}/kubelet-client-current" else path


def _parsed(content: object) -> Certificate | None:
    if isinstance(content, Certificate):
        return content
    try:
        found = x509.load_pem_x509_certificate(content if isinstance(content, bytes) else b"")
    except ValueError:
        return None
    subject, serial = found.subject.rfc4514_string(), found.serial_number
    return Certificate(subject, "CertSign", subject, serial, serial, found.not_valid_after_utc.timestamp())
