"""Validation of the options of kubeadm clusters."""

from __future__ import annotations

from typing import Any

from herder.api.rke.machine_config.errors import OptionError

COMPONENT_ARGUMENTS = {
    "kube-apiserver-arg": "apiServer",
    "kube-controller-manager-arg": "controllerManager",
    "kube-scheduler-arg": "scheduler",
}
"""Options with arguments of a component, and the section of kubeadm's ClusterConfiguration that takes them."""
LISTS = (*COMPONENT_ARGUMENTS, "kubelet-arg", "tls-san", "node-label", "node-taint")
TEXTS = ("cluster-cidr", "service-cidr", "kube-proxy-mode", "system-default-registry")

_RESERVED_CHARACTERS = frozenset("\\\"'$` \t\n")  # special in systemd environment files


def checked_option(field: str, option: str, value: Any) -> str | list[str]:
    if option not in (*LISTS, *TEXTS):
        raise OptionError(field, f"unknown option of kubeadm clusters; use one of {', '.join((*LISTS, *TEXTS))}")
    texts = value if isinstance(value, list) and option in LISTS else [value]
    for each in texts:
        if not isinstance(each, str):
            raise OptionError(field, f"must be text{' or a list of texts' if option in LISTS else ''}")
        if _RESERVED_CHARACTERS & set(each):
            raise OptionError(field, f"{each!r}: quotes, spaces, $ and \\ cannot be passed on")
    return list(texts) if option in LISTS else str(value)
