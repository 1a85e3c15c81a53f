"""Differences between K3s and RKE2: units, ports, paths and arguments."""

from __future__ import annotations

from dataclasses import dataclass

from herder.api.rke import distributions
from herder.api.rke.distributions import Facts
from herder.api.rke.machine_config.arguments import K3S_ARGUMENTS, RKE2_ARGUMENTS, ArgumentTable
from herder.controllers.planner.distributions.interface import ClusterInputs

AGENT_REGISTRIES = "/etc/rancher/agent/registries.yaml"


@dataclass(frozen=True)
class Runtime:
    """Facts about K3s or RKE2."""

    facts: Facts
    server_unit: str
    agent_unit: str
    supervisor_port: int
    arguments: ArgumentTable

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def variable(self) -> str:
        """Prefix of its environment variables."""
        return self.name.upper()

    @property
    def config_file(self) -> str:
        return f"/etc/rancher/{self.name}/config.yaml.d/50-rancher.yaml"

    @property
    def registries_file(self) -> str:
        return f"/etc/rancher/{self.name}/registries.yaml"

    def data(self, cluster: ClusterInputs) -> str:
        return _directory(cluster, "k8sDistro") or f"/var/lib/rancher/{self.name}"


K3S = Runtime(distributions.K3S, "k3s", "k3s-agent", 6443, K3S_ARGUMENTS)
RKE2 = Runtime(distributions.RKE2, "rke2-server", "rke2-agent", 9345, RKE2_ARGUMENTS)


def provisioning_directory(cluster: ClusterInputs) -> str:
    return _directory(cluster, "provisioning") or "/var/lib/rancher/capr"


def loopback(cluster: ClusterInputs) -> str:
    preference = (cluster.spec.get("networking") or {}).get("stackPreference")
    return {"ipv6": "[::1]", "dual": "localhost"}.get(str(preference), "127.0.0.1")


def registry(cluster: ClusterInputs) -> str:
    """The system default registry: of the cluster, if set for all machines, otherwise of the setting."""
    own = cluster.config.get("system-default-registry")
    for each in cluster.spec.get("machineSelectorConfig") or ():
        if each.get("machineLabelSelector") is None:
            own = (each.get("config") or {}).get("system-default-registry") or own
    return str(own or cluster.default_registry or "")


def _directory(cluster: ClusterInputs, name: str) -> str:
    return str((cluster.spec.get("dataDirectories") or {}).get(name) or "")
