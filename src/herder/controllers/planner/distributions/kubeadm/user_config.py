"""Validate the user's configuration of kubeadm clusters: arguments, networks, labels and taints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.machine_config.kubeadm import checked_option
from herder.api.rke.names import MACHINE_UID
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.selector_config import merge_config
from herder.engine.meta.kinds import Object

POD_NETWORK, SERVICE_NETWORK = "10.42.0.0/16", "10.43.0.0/16"
DEFAULT_ARGUMENTS = {"kube-apiserver-arg": ("shutdown-send-retry-after=true",)}
"""Close watches as soon as an API server shuts down; otherwise they delay its end by half a minute."""

PROPAGATED = ("node-role.kubernetes.io", "node-restriction.kubernetes.io")
"""Label domains that the manager copies from Machine to Node: NodeRestriction forbids nodes to set them."""
KUBELET_LABELS = re.compile(
    r"(.+\.)?(kubelet|node)\.kubernetes\.io/.*"
    r"|(beta\.)?kubernetes\.io/(os|arch|hostname|instance-type)"
    r"|(topology|failure-domain\.beta)\.kubernetes\.io/(zone|region)"
)
"""Reserved labels of Kubernetes that a kubelet may set on its own Node."""


def user_config(cluster: ClusterInputs, machine: MachineInputs) -> dict[str, Any]:
    return merge_config(cluster, machine, _checked_config)


def _checked_config(field: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: checked_option(f"{field}.{key}", key, value) for key, value in config.items()}


def arguments(defaults: Sequence[str], flags: Sequence[str]) -> list[Object]:
    """Arguments in the format of kubeadm's configuration. The user's override the defaults."""
    user_arguments = [
        (name, value or "true") for name, _, value in (each.removeprefix("--").partition("=") for each in flags)
    ]
    named = {name for name, _ in user_arguments}
    default_arguments = [
        (name, value) for name, _, value in (each.partition("=") for each in defaults) if name not in named
    ]
    return [{"name": name, "value": value} for name, value in (*default_arguments, *user_arguments)]


def pod_network(config: Mapping[str, Any]) -> str:
    return str(config.get("cluster-cidr", POD_NETWORK))


def parsed_taint(field: str, text: str) -> Object:
    flags, _, effect = text.rpartition(":")
    key, _, value = flags.partition("=")
    if not key or effect not in {"NoSchedule", "PreferNoSchedule", "NoExecute"}:
        raise ConfigError(f"{field}: {text!r} must be key[=value]:Effect")
    return {"key": key, "value": value, "effect": effect}


def labels(machine: MachineInputs, config: Mapping[str, Any]) -> list[str]:
    """Labels for the Node. Servers set them with admin rights; workers only those that NodeRestriction allows."""
    own = {**machine.node_labels, MACHINE_UID: machine.uid}
    if not machine.roles.is_server:
        own = {key: value for key, value in own.items() if key.partition("/")[0] not in PROPAGATED}
        _check_labels("node-label", [each.partition("=")[0] for each in config.get("node-label", ())])
        _check_labels("machinePools[].labels", own)
    return [*config.get("node-label", ()), *(f"{key}={value}" for key, value in sorted(own.items()))]


def _check_labels(field: str, keys: Iterable[str]) -> None:
    for key in keys:
        domain = key.partition("/")[0] if "/" in key else ""
        reserved = domain.endswith(("kubernetes.io", "k8s.io"))
        if reserved and not KUBELET_LABELS.fullmatch(key):
            raise ConfigError(
                f"{field}: {key}: NodeRestriction forbids nodes to set this label; use another domain, or, for "
                f"{' and '.join(PROPAGATED)}, the labels of machinePools"
            )
