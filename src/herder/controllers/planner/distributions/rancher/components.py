"""Arguments of the control plane's own programs, so that the node's agent can ask them how they are."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any

from herder.controllers.planner.distributions.interface import ClusterInputs
from herder.controllers.planner.distributions.rancher.addresses import as_list
from herder.controllers.planner.distributions.rancher.runtime import Runtime


@dataclass(frozen=True)
class Component:
    name: str
    port: str

    @property
    def argument(self) -> str:
        return f"{self.name}-arg"

    @property
    def mount(self) -> str:
        return f"{self.name}-extra-mount"

    def directory(self, cluster: ClusterInputs, runtime: Runtime) -> str:
        """Where its certificate is, unless the user says otherwise."""
        return f"{runtime.data(cluster)}/server/tls/{self.name}"


CONTROLLER_MANAGER = Component("kube-controller-manager", "10257")
SCHEDULER = Component("kube-scheduler", "10259")


def add_arguments(config: dict[str, Any], component: Component, cluster: ClusterInputs, runtime: Runtime) -> None:
    """A certificate and a port that are known, unless the user chose others. A certificate of the user's is mounted."""
    arguments = as_list(config.get(component.argument))
    file, directory = said(arguments, "tls-cert-file"), said(arguments, "cert-dir")
    port = said(arguments, "secure-port")
    default = component.directory(cluster, runtime)
    added = [] if file or directory else [f"cert-dir={default}"]
    added += [] if port else [f"secure-port={component.port}"]
    config[component.argument] = [*arguments, *added]
    if runtime.name == "rke2":
        mounted = posixpath.dirname(file) if file else directory or default
        config[component.mount] = [*as_list(config.get(component.mount)), f"{mounted}:{mounted}"]


def said(arguments: list[str], name: str) -> str:
    """The value of the first `name=value`."""
    return next((each.partition("=")[2] for each in arguments if each.partition("=")[0] == name), "")
