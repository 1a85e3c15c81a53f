"""Files of every machine of a kubeadm cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from herder.api.rke.plan import File, file
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.kubeadm.choices import labels, pod_network
from herder.controllers.planner.distributions.kubeadm.places import HERE, addresses, as_json, kubeconfig, token
from herder.engine.meta.kinds import Object


def files_of_every_machine(cluster: ClusterInputs, machine: MachineInputs, chosen: Mapping[str, Any]) -> Iterator[File]:
    yield file(f"{HERE}/node-name", machine.node_name)
    yield file(f"{HERE}/pods", pod_network(chosen))
    yield file(
        f"{HERE}/endpoints", "".join(f"{each}\n" for each in _endpoints(cluster, machine)), dynamic=True, minor=True
    )
    yield file(f"{HERE}/ca.crt", cluster.authorities["ca"].certificate, permissions="0644")
    yield file(f"{HERE}/nodes.kubeconfig", as_json(kubeconfig(token(cluster))))
    yield file(f"{HERE}/kube-proxy.yaml", as_json(_proxy(machine, chosen)))
    words = [
        f"--node-ip={','.join(addresses(machine))}",
        *(f"--{a.removeprefix('--')}" for a in chosen.get("kubelet-arg", ())),
    ]
    yield file(f"{HERE}/kubelet.env", f"KUBELET_EXTRA_ARGS={' '.join(words)}\n")
    yield file(f"{HERE}/labels", "".join(f"{each}\n" for each in labels(machine, chosen)))


def _endpoints(cluster: ClusterInputs, machine: MachineInputs) -> list[str]:
    """A server asks itself first; everybody else the one that it joined."""
    known = [urlsplit(each).hostname or "" for each in (machine.join_url, *sorted(cluster.servers)) if each]
    own = addresses(machine)[:1] if machine.roles.is_server else []
    return list(dict.fromkeys([*own, *known]))


def _proxy(machine: MachineInputs, chosen: Mapping[str, Any]) -> Object:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{HERE}/nodes.kubeconfig"},
        "clusterCIDR": pod_network(chosen),
        "mode": chosen.get("kube-proxy-mode", "iptables"),
        "hostnameOverride": machine.node_name,
        "conntrack": {"maxPerCore": 0, "min": 0},
    }
