"""Services whose certificates can be rotated, by distribution; and where certificate authorities can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from herder.api.rke.distributions import EMBEDDED, K3S, KUBEADM, RKE2

_EVERYWHERE = ("admin", "api-server")
_COMPONENTS = (*_EVERYWHERE, "controller-manager", "scheduler", "etcd", "auth-proxy", "kubelet")
_RANCHER = (*_COMPONENTS, "kube-proxy", "cloud-controller", "supervisor")

SERVICES: Mapping[str, Sequence[str]] = {
    K3S.name: (*_RANCHER, "k3s-controller", "k3s-server"),
    RKE2.name: (*_RANCHER, "rke2-controller", "rke2-server"),
    KUBEADM.name: _COMPONENTS,  # kube-proxy has a token, and no certificate
    EMBEDDED.name: _EVERYWHERE,  # nodes have tokens
}
"""By the names that Rancher uses."""

AUTHORITY_ROTATION = (K3S.name, RKE2.name)
"""Distributions whose certificate authorities can be rotated."""
NO_AUTHORITY_ROTATION = (
    "kubeadm has no command that rotates certificate authorities, and the nodes of an embedded cluster trust only one "
    "at a time; remove the field to renew the certificates of services"
)


def unknown_services(distribution: str, services: Sequence[str]) -> str:
    """Which of these services have no certificates there, and what is possible; empty if all have."""
    known = SERVICES[distribution]
    unknown = [each for each in services if each not in known]
    if not unknown:
        return ""
    return (
        f"{', '.join(unknown)}: has no certificates on {distribution}; use some of {', '.join(known)}, or none for all"
    )
