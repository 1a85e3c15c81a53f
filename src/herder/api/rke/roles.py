"""Roles that a distribution cannot put on machines of their own."""

from __future__ import annotations

_TOGETHER = {
    "kubeadm": "kubeadm runs etcd and control plane on the same machines",
    "herder": "the embedded distribution has etcd and control plane in one program",
}


def refusal(distribution: str, *, etcd: bool, control_plane: bool) -> str:
    """Why machines cannot have these roles; empty where they can. `distribution`: as versions name it."""
    if etcd == control_plane or distribution not in _TOGETHER:
        return ""
    return f"{_TOGETHER[distribution]}: give a pool both etcdRole and controlPlaneRole, or neither"
