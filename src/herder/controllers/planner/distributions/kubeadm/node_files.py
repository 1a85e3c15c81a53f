"""Plan files of every kubeadm machine: CA, kubeconfig, kube-proxy configuration, kubelet arguments and labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from herder.api.rke.node.plan import File, file
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.kubeadm.paths import CONFIG_DIR, addresses, as_json, kubeconfig, token
from herder.controllers.planner.distributions.kubeadm.user_config import labels, pod_network
from herder.engine.meta.kinds import Object


def node_files(cluster: ClusterInputs, machine: MachineInputs, config: Mapping[str, Any]) -> Iterator[File]:
    yield file(f"{CONFIG_DIR}/node-name", machine.node_name)
    yield file(f"{CONFIG_DIR}/pods", pod_network(config))
    yield file(
        f"{CONFIG_DIR}/endpoints",
        "".join(f"{each}\n" for each in _endpoints(cluster, machine)),
        dynamic=True,
        minor=True,
    )
    yield file(f"{CONFIG_DIR}/ca.crt", cluster.authorities["ca"].certificate, permissions="0644")
    yield file(f"{CONFIG_DIR}/nodes.kubeconfig", as_json(kubeconfig(token(cluster))))
    yield file(f"{CONFIG_DIR}/kube-proxy.yaml", as_json(_proxy(machine, config)))
    arguments = [
        f"--node-ip={','.join(addresses(machine))}",
        *(f"--{a.removeprefix('--')}" for a in config.get("kubelet-arg", ())),
    ]
    yield file(f"{CONFIG_DIR}/kubelet.env", f"KUBELET_EXTRA_ARGS={' '.join(arguments)}\n")
    yield file(f"{CONFIG_DIR}/labels", "".join(f"{each}\n" for each in labels(machine, config)))


def _endpoints(cluster: ClusterInputs, machine: MachineInputs) -> list[str]:
    """API server addresses in order of preference: a server prefers itself, others the server that they joined."""
    known = [urlsplit(each).hostname or "" for each in (machine.join_url, *sorted(cluster.servers)) if each]
    own = addresses(machine)[:1] if machine.roles.is_server else []
    return list(dict.fromkeys([*own, *known]))


def _proxy(machine: MachineInputs, config: Mapping[str, Any]) -> Object:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{CONFIG_DIR}/nodes.kubeconfig"},
        "clusterCIDR": pod_network(config),
        "mode": config.get("kube-proxy-mode", "iptables"),
        "hostnameOverride": machine.node_name,
        "conntrack": {"maxPerCore": 0, "min": 0},
    }
