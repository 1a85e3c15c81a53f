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

_RENEW = "remove the field to renew the certificates of services"
NO_AUTHORITY_ROTATION: Mapping[str, str] = {
    KUBEADM.name: f"kubeadm has no command that rotates certificate authorities; {_RENEW}",
    EMBEDDED.name: f"nodes of an embedded cluster trust only one certificate authority at a time; {_RENEW}",
}
"""Why certificate authorities cannot be rotated, by distribution; on the others they can."""


def unknown_services(distribution: str, services: Sequence[str]) -> str:
    """Which of these services have no certificates there, and what is possible; empty if all have."""
    known = SERVICES[distribution]
    unknown = [each for each in services if each not in known]
    if not unknown:
        return ""
    return (
        f"{', '.join(unknown)}: has no certificates on {distribution}; use some of {', '.join(known)}, or none for all"
    )
