"""What users may choose for machines of kubeadm clusters, and what they chose for one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from herder.api.rke.names import MACHINE_UID
from herder.controllers.planner.distributions.interface import ClusterInputs, ConfigError, MachineInputs
from herder.controllers.planner.distributions.selected import selected
from herder.engine.meta.kinds import Object

POD_NETWORK, SERVICE_NETWORK = "10.42.0.0/16", "10.43.0.0/16"
ARGUMENTS = {
    "kube-apiserver-arg": "apiServer",
    "kube-controller-manager-arg": "controllerManager",
    "kube-scheduler-arg": "scheduler",
}
DEFAULT_ARGUMENTS = {"kube-apiserver-arg": ("shutdown-send-retry-after=true",)}
"""An API server that ends lets its watchers go at once; otherwise they hold it up for half a minute."""
LISTS = (*ARGUMENTS, "kubelet-arg", "tls-san", "node-label", "node-taint")
TEXTS = ("cluster-cidr", "service-cidr", "kube-proxy-mode", "system-default-registry")

CARRIED = ("node-role.kubernetes.io", "node-restriction.kubernetes.io")
"""Labels that the manager brings from a Machine to its Node, since no machine may give them to itself."""
OWN_LABELS = re.compile(
    r"(.+\.)?(kubelet|node)\.kubernetes\.io/.*"
    r"|(beta\.)?kubernetes\.io/(os|arch|hostname|instance-type)"
    r"|(topology|failure-domain\.beta)\.kubernetes\.io/(zone|region)"
)
"""Of Kubernetes' own, those that a machine may give its Node."""

UNQUOTED = frozenset("\\\"'$` \t\n")  # what a systemd environment file or a list of words would read in its own way


def chosen_for(cluster: ClusterInputs, machine: MachineInputs) -> dict[str, Any]:
    return selected(cluster, machine, _checked)


def _checked(field: str, config: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in config.items():
        if key not in (*LISTS, *TEXTS):
            known = ", ".join((*LISTS, *TEXTS))
            raise ConfigError(f"{field}.{key}: kubeadm clusters do not know it; they know {known}")
        texts = value if isinstance(value, list) and key in LISTS else [value]
        for each in texts:
            if not isinstance(each, str):
                raise ConfigError(f"{field}.{key}: must be text{' or a list of texts' if key in LISTS else ''}")
            if UNQUOTED & set(each):
                raise ConfigError(f"{field}.{key}: {each!r}: quotes, spaces, $ and \\ cannot be passed on")
    return {key: _list(value) if key in LISTS else value for key, value in config.items()}


def _list(value: Any) -> list[str]:
    return list(value) if isinstance(value, list) else [value]


def arguments(defaults: Sequence[str], words: Sequence[str]) -> list[Object]:
    """`name=value` as kubeadm's configuration has it. What users say counts more."""
    given = [(name, value or "true") for name, _, value in (each.removeprefix("--").partition("=") for each in words)]
    named = {name for name, _ in given}
    ours = [(name, value) for name, _, value in (each.partition("=") for each in defaults) if name not in named]
    return [{"name": name, "value": value} for name, value in (*ours, *given)]


def pod_network(chosen: Mapping[str, Any]) -> str:
    return str(chosen.get("cluster-cidr", POD_NETWORK))


def parsed_taint(field: str, text: str) -> Object:
    words, _, effect = text.rpartition(":")
    key, _, value = words.partition("=")
    if not key or effect not in {"NoSchedule", "PreferNoSchedule", "NoExecute"}:
        raise ConfigError(f"{field}: {text!r} must be key[=value]:Effect")
    return {"key": key, "value": value, "effect": effect}


def labels(machine: MachineInputs, chosen: Mapping[str, Any]) -> list[str]:
    """Servers set them as administrators, workers as the machines they are."""
    own = {**machine.node_labels, MACHINE_UID: machine.uid}
    if not machine.roles.is_server:
        own = {key: value for key, value in own.items() if key.partition("/")[0] not in CARRIED}
        _check_labels("node-label", [each.partition("=")[0] for each in chosen.get("node-label", ())])
        _check_labels("machinePools[].labels", own)
    return [*chosen.get("node-label", ()), *(f"{key}={value}" for key, value in sorted(own.items()))]


def _check_labels(field: str, keys: Iterable[str]) -> None:
    for key in keys:
        domain = key.partition("/")[0] if "/" in key else ""
        reserved = domain.endswith(("kubernetes.io", "k8s.io"))
        if reserved and not OWN_LABELS.fullmatch(key):
            raise ConfigError(
                f"{field}: {key}: Kubernetes lets no machine give its Node this label. Use another domain, or, for "
                f"{' and '.join(CARRIED)}, the labels of machinePools"
            )
