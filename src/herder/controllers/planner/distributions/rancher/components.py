"""Arguments of kube-controller-manager and kube-scheduler that probes of the node agent rely on."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any

from herder.controllers.planner.distributions.interface import ClusterInputs
from herder.controllers.planner.distributions.rancher.addresses import as_list
from herder.controllers.planner.distributions.rancher.runtime import Runtime


@dataclass(frozen=True)
class Component:
    """A control plane component with a secure port."""

    name: str
    port: str

    @property
    def argument(self) -> str:
        return f"{self.name}-arg"

    @property
    def mount(self) -> str:
        return f"{self.name}-extra-mount"

    def directory(self, cluster: ClusterInputs, runtime: Runtime) -> str:
        """Default directory of its certificate."""
        return f"{runtime.data(cluster)}/server/tls/{self.name}"


CONTROLLER_MANAGER = Component("kube-controller-manager", "10257")
SCHEDULER = Component("kube-scheduler", "10259")


def add_arguments(config: dict[str, Any], component: Component, cluster: ClusterInputs, runtime: Runtime) -> None:
    """Set certificate directory and port unless the user did. RKE2 also needs the directory mounted."""
    arguments = as_list(config.get(component.argument))
    file, directory = argument_value(arguments, "tls-cert-file"), argument_value(arguments, "cert-dir")
    port = argument_value(arguments, "secure-port")
    default = component.directory(cluster, runtime)
    added = [] if file or directory else [f"cert-dir={default}"]
    added += [] if port else [f"secure-port={component.port}"]
    config[component.argument] = [*arguments, *added]
    if runtime.name == "rke2":
        mounted = posixpath.dirname(file) if file else directory or default
        config[component.mount] = [*as_list(config.get(component.mount)), f"{mounted}:{mounted}"]


def argument_value(arguments: list[str], name: str) -> str:
    """The value of the first `name=value`."""
    return next((each.partition("=")[2] for each in arguments if each.partition("=")[0] == name), "")
