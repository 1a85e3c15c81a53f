"""Files of servers, and of machines that join them: what kubeadm reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from herder.api.capi.kinds import NODE
from herder.api.management.manifest import as_yaml, manifest
from herder.api.policies import Policy, policy
from herder.api.rke.names import KUBEADM_PROVIDER, TAINTS
from herder.api.rke.plan import File, file
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.kubeadm.choices import (
    ARGUMENTS,
    DEFAULT_ARGUMENTS,
    SERVICE_NETWORK,
    arguments,
    parsed_taint,
    pod_network,
)
from herder.controllers.planner.distributions.kubeadm.places import (
    API_PORT,
    ENDPOINT,
    HERE,
    addresses,
    as_json,
    documents,
    kubeconfig,
    token,
)
from herder.engine.meta.kinds import Object

SOCKET = "unix:///run/containerd/containerd.sock"
TOKEN_GROUP = "system:bootstrappers:kubeadm:default-node-token"
PATCHES = {"directory": "/var/lib/rancher/kubeadm/patches"}  # the installer puts something of its own in manifests
NETWORK_POLICY = "herder-node-networks"
CONTROL_PLANE_TAINT = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}


def files_of_role(cluster: ClusterInputs, machine: MachineInputs, chosen: Mapping[str, Any]) -> Iterator[File]:
    registration = _registration(machine, chosen)
    if machine.roles.is_server:
        yield from _authorities(cluster)
        names = _names(machine, chosen)
        yield file(f"{HERE}/names", "".join(f"{each}\n" for each in names))
        yield file(f"{HERE}/init.yaml", documents(*_init(cluster, machine, chosen, registration, names), _kubelet()))
    if machine.is_init:
        yield from _manifests(cluster)
    else:
        # Whom it joined is of no interest to a machine that has joined: no other server makes it start again.
        yield file(f"{HERE}/discovery.kubeconfig", as_json(kubeconfig(token(cluster))), dynamic=True)
        yield file(f"{HERE}/join.yaml", documents(_join(cluster, machine, registration)))


def _authorities(cluster: ClusterInputs) -> Iterator[File]:
    for name, purpose in (("ca", "ca"), ("etcd/ca", "etcd"), ("front-proxy-ca", "proxy")):
        yield file(f"{HERE}/pki/{name}.crt", cluster.authorities[purpose].certificate)
        yield file(f"{HERE}/pki/{name}.key", cluster.authorities[purpose].key)
    yield file(f"{HERE}/pki/sa.pub", cluster.authorities["sa"].certificate)
    yield file(f"{HERE}/pki/sa.key", cluster.authorities["sa"].key)


def _names(machine: MachineInputs, chosen: Mapping[str, Any]) -> list[str]:
    """What a server is called by, besides what kubeadm knows; probes ask it where they are."""
    given = (*addresses(machine), *machine.external_addresses, *chosen.get("tls-san", ()))
    return list(dict.fromkeys(["127.0.0.1", *given]))


def _init(
    cluster: ClusterInputs,
    machine: MachineInputs,
    chosen: Mapping[str, Any],
    registration: Object,
    names: Sequence[str],
) -> tuple[Object, Object]:
    joining = {"token": token(cluster), "ttl": "0s", "usages": ["signing", "authentication"], "groups": [TOKEN_GROUP]}
    node = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "InitConfiguration",
        "bootstrapTokens": [joining],
        "localAPIEndpoint": {"advertiseAddress": addresses(machine)[0], "bindPort": API_PORT},
        "nodeRegistration": registration,
        "patches": PATCHES,
        "skipPhases": ["addon/coredns", "addon/kube-proxy"],
    }
    common: Object = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "clusterName": cluster.name,
        "kubernetesVersion": cluster.version.partition("+")[0],
        "controlPlaneEndpoint": f"{ENDPOINT}:{API_PORT}",
        "networking": {"podSubnet": pod_network(chosen), "serviceSubnet": chosen.get("service-cidr", SERVICE_NETWORK)},
    }
    for key, component in ARGUMENTS.items():
        if flags := arguments(DEFAULT_ARGUMENTS.get(key, ()), chosen.get(key, ())):
            common[component] = {"extraArgs": flags}
    common["apiServer"] = {**common.get("apiServer", {}), "certSANs": [*names]}
    return node, common


def _join(cluster: ClusterInputs, machine: MachineInputs, registration: Object) -> Object:
    made: Object = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {
            "file": {"kubeConfigPath": f"{HERE}/discovery.kubeconfig"},
            "tlsBootstrapToken": token(cluster),
        },
        "nodeRegistration": registration,
    }
    if machine.roles.is_server:
        endpoint = {"advertiseAddress": addresses(machine)[0], "bindPort": API_PORT}
        made |= {"controlPlane": {"localAPIEndpoint": endpoint}, "patches": PATCHES}
    return made


def _registration(machine: MachineInputs, chosen: Mapping[str, Any]) -> Object:
    taints = [parsed_taint("node-taint", each) for each in chosen.get("node-taint", ())]
    marked = f"machine {machine.name}, annotation {TAINTS}"
    taints += [parsed_taint(marked, _as_text(each)) for each in machine.node_taints]
    if machine.roles.is_server and not machine.roles.worker:
        taints.append(CONTROL_PLANE_TAINT)
    identity = [{"name": "provider-id", "value": f"{KUBEADM_PROVIDER}{machine.uid}"}]
    return {
        **({"name": machine.node_name} if machine.node_name else {}),
        "criSocket": SOCKET,
        "imagePullPolicy": "IfNotPresent",
        "taints": [_plain_taint(each) for each in taints],
        "kubeletExtraArgs": identity,
    }


def _as_text(taint: Mapping[str, str]) -> str:
    return f"{taint.get('key', '')}={taint.get('value', '')}:{taint.get('effect', '')}"


def _plain_taint(taint: Mapping[str, str]) -> Object:
    return {key: taint[key] for key in ("key", "value", "effect") if taint.get(key)}


def _kubelet() -> Object:
    """What depends on the machine, such as its control groups, is settled there."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failSwapOn": False,
    }


def _manifests(cluster: ClusterInputs) -> Iterator[File]:
    yield file(f"{HERE}/manifests/nodes.yaml", as_yaml([_node_rights(), *_node_networks()]), dynamic=True)
    if cluster.agent is not None:
        agent = as_yaml([_by_name(each) for each in manifest(cluster.agent)])
        yield file(f"{HERE}/manifests/cluster-agent.yaml", agent, dynamic=True, minor=True)
    addons = "" if cluster.has_agent_first else cluster.spec.get("additionalManifest") or ""
    yield file(f"{HERE}/manifests/addons.yaml", addons, dynamic=True)


def _by_name(obj: Object) -> Object:
    """Names are looked up as the machine does: whether there is a name server in the cluster is its owner's affair."""
    if obj["kind"] != "Deployment":
        return obj
    template = obj["spec"]["template"]
    spec = {**obj["spec"], "template": {**template, "spec": {**template["spec"], "dnsPolicy": "Default"}}}
    return {**obj, "spec": spec}


def _node_rights() -> Object:
    """kube-proxy and the routes read Services and Nodes with what machines join with."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "herder:node-proxiers"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:node-proxier"},
        "subjects": [{"kind": "Group", "apiGroup": group, "name": TOKEN_GROUP}],
    }


def _node_networks() -> Policy:
    """Every machine routes the pod network of each Node to that Node. The controller manager assigns the networks;
    NodeRestriction would let a node choose that of another, or the default route, for a Node that it registers."""
    unchanged = [
        f"object.spec.?{field}.orValue({empty}) == "
        f"(oldObject == null ? {empty} : oldObject.spec.?{field}.orValue({empty}))"
        for field, empty in (("podCIDR", "''"), ("podCIDRs", "[]"))
    ]
    return policy(
        NETWORK_POLICY,
        (NODE,),
        ("CREATE", "UPDATE"),
        "'system:nodes' in request.userInfo.groups",
        " && ".join(unchanged),
        "spec.podCIDRs: assigned by kube-controller-manager; a node cannot choose its pod network",
    )
