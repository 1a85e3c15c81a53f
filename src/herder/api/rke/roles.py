"""Role combinations that a distribution does not support."""

from __future__ import annotations

from herder.api.rke.distributions import BY_BUILD


def unsupported_roles(distribution: str, *, etcd: bool, control_plane: bool) -> str:
    """Return why machines cannot have these roles; "" if they can. `distribution` is the build name of a version."""
    facts = BY_BUILD.get(distribution)
    if etcd == control_plane or facts is None or not facts.colocation_reason:
        return ""
    return f"{facts.colocation_reason}: give a pool both etcdRole and controlPlaneRole, or neither"
