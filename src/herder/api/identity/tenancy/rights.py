"""Who writes an object, and with which rights."""

from __future__ import annotations

from typing import Protocol

from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.engine.meta.kinds import Kind

_ACCOUNTS = "system:serviceaccount:"
_COMPONENT_ACCOUNTS = f"{_ACCOUNTS}kube-system:"


class Rights(Protocol):
    """Checks what the writer may do, using the authorizer."""

    def __call__(
        self, verb: str, kind: Kind, *, namespace: str = "", name: str = "", subresource: str = ""
    ) -> bool: ...


def is_manager(may: Rights) -> bool:
    """Whether the writer may escalate management Clusters, and so grant any permission: no rule here would
    stop them.
    """
    return may("escalate", MANAGEMENT_CLUSTER)


def is_system(user: str) -> bool:
    """Whether it is a service account or component; an administrator decided what it may create."""
    return user.startswith("system:")


def is_component(user: str) -> bool:
    """Whether it is a part of Kubernetes, such as the garbage collector. Admins of a namespace can create any other
    service account, and act as it.
    """
    return is_system(user) and (not user.startswith(_ACCOUNTS) or user.startswith(_COMPONENT_ACCOUNTS))


def is_token_controller(user: str) -> bool:
    """Whether it is kube-controller-manager, which issues the tokens of such Secrets."""
    return user == "system:kube-controller-manager" or user.startswith(_COMPONENT_ACCOUNTS)
