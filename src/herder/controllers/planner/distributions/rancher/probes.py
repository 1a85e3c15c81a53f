"""Health probes that the node agent runs against Kubernetes components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herder.api.rke.node.plan import HttpGet, Probe
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.rancher.addresses import as_list
from herder.controllers.planner.distributions.rancher.components import (
    CONTROLLER_MANAGER,
    SCHEDULER,
    Component,
    argument_value,
)
from herder.controllers.planner.distributions.rancher.runtime import Runtime, loopback

_CALICO = ("", "calico", "calico+multus")


def probes(
    cluster: ClusterInputs, machine: MachineInputs, runtime: Runtime, config: Mapping[str, Any]
) -> dict[str, Probe]:
    here, data = loopback(cluster), runtime.data(cluster)
    found: dict[str, HttpGet] = {}
    if machine.roles.etcd and runtime.name == "rke2":
        found["etcd"] = HttpGet(url=f"http://{here}:2381/health")
    if machine.roles.control_plane:
        found["kube-apiserver"] = HttpGet(
            url=f"https://{here}:6443/readyz",
            ca_cert=f"{data}/server/tls/server-ca.crt",
            client_cert=f"{data}/server/tls/client-kube-apiserver.crt",
            client_key=f"{data}/server/tls/client-kube-apiserver.key",
        )
        for component in (CONTROLLER_MANAGER, SCHEDULER):
            found[component.name] = _secure(component, cluster, runtime, config)
    if not (machine.roles.only_etcd and runtime.name == "k3s"):  # K3s runs no kubelet on etcd-only machines
        found["kubelet"] = HttpGet(url=f"http://{here}:10248/healthz")
    if not machine.roles.only_etcd and not machine.windows and _has_calico(cluster, runtime):
        found["calico"] = HttpGet(url=f"http://{here}:9099/liveness")
    return {name: _probe(get) for name, get in found.items()}


def _secure(component: Component, cluster: ClusterInputs, runtime: Runtime, config: Mapping[str, Any]) -> HttpGet:
    """Probe the secure port; the self-signed certificate is its own CA."""
    arguments = as_list(config.get(component.argument))
    directory = argument_value(arguments, "cert-dir") or component.directory(cluster, runtime)
    certificate = argument_value(arguments, "tls-cert-file") or f"{directory}/{component.name}.crt"
    port = argument_value(arguments, "secure-port") or component.port
    return HttpGet(url=f"https://{loopback(cluster)}:{port}/healthz", ca_cert=certificate)


def _has_calico(cluster: ClusterInputs, runtime: Runtime) -> bool:
    cni = cluster.config.get("cni")
    return runtime.name == "rke2" and (cni is None or (isinstance(cni, str) and cni in _CALICO) or cni == ["calico"])


def _probe(get: HttpGet) -> Probe:
    return Probe(initial_delay_seconds=1, timeout_seconds=5, success_threshold=1, failure_threshold=5, http_get=get)
