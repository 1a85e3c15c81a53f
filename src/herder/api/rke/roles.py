"""Roles that a distribution cannot put on machines of their own."""

from __future__ import annotations

from herder.api.rke.distributions import BY_BUILD


def refusal(distribution: str, *, etcd: bool, control_plane: bool) -> str:
    """Why machines cannot have these roles; empty where they can. `distribution`: as versions name it."""
    facts = BY_BUILD.get(distribution)
    if etcd == control_plane or facts is None or not facts.together:
        return ""
    return f"{facts.together}: give a pool both etcdRole and controlPlaneRole, or neither"
