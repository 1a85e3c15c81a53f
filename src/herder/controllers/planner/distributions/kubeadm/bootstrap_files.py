"""Plan files that kubeadm reads: certificate authorities, init and join configuration, and manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from herder.api.capi.kinds import NODE
from herder.api.management.manifest import as_yaml, manifest
from herder.api.policies import Policy, policy
from herder.api.rke.machine_config.kubeadm import COMPONENT_ARGUMENTS
from herder.api.rke.names import KUBEADM_PROVIDER, TAINTS
from herder.api.rke.node.plan import File, file
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.kubeadm.paths import (
    API_PORT,
    CONFIG_DIR,
    ENDPOINT,
    STATE_DIR,
    addresses,
    as_json,
    documents,
    kubeconfig,
    token,
)
from herder.controllers.planner.distributions.kubeadm.user_config import (
    DEFAULT_ARGUMENTS,
    SERVICE_NETWORK,
    arguments,
    parsed_taint,
    pod_network,
)
from herder.engine.meta.kinds import Object

SOCKET = "unix:///run/containerd/containerd.sock"
TOKEN_GROUP = "system:bootstrappers:kubeadm:default-node-token"
PATCHES = {"directory": f"{STATE_DIR}/patches"}  # written by the installer
NETWORK_POLICY = "herder-node-networks"
CONTROL_PLANE_TAINT = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}


def bootstrap_files(cluster: ClusterInputs, machine: MachineInputs, config: Mapping[str, Any]) -> Iterator[File]:
    registration = _registration(machine, config)
    if machine.roles.is_server:
        yield from _authorities(cluster)
        names = _certificate_names(machine, config)
        yield file(f"{CONFIG_DIR}/names", "".join(f"{each}\n" for each in names))
        yield file(
            f"{CONFIG_DIR}/init.yaml", documents(*_init(cluster, machine, config, registration, names), _kubelet())
        )
    if machine.is_init:
        yield from _manifests(cluster)
    else:
        # Dynamic, so that another join server does not restart a machine that has joined already.
        yield file(f"{CONFIG_DIR}/discovery.kubeconfig", as_json(kubeconfig(token(cluster))), dynamic=True)
        yield file(f"{CONFIG_DIR}/join.yaml", documents(_join(cluster, machine, registration)))


def _authorities(cluster: ClusterInputs) -> Iterator[File]:
    for name, purpose in (("ca", "ca"), ("etcd/ca", "etcd"), ("front-proxy-ca", "proxy")):
        yield file(f"{CONFIG_DIR}/pki/{name}.crt", cluster.authorities[purpose].certificate)
        yield file(f"{CONFIG_DIR}/pki/{name}.key", cluster.authorities[purpose].key)
    yield file(f"{CONFIG_DIR}/pki/sa.pub", cluster.authorities["sa"].certificate)
    yield file(f"{CONFIG_DIR}/pki/sa.key", cluster.authorities["sa"].key)


def _certificate_names(machine: MachineInputs, config: Mapping[str, Any]) -> list[str]:
    """Additional names in the API server's certificate; probes use the loopback address."""
    given = (*addresses(machine), *machine.external_addresses, *config.get("tls-san", ()))
    return list(dict.fromkeys(["127.0.0.1", *given]))


def _init(
    cluster: ClusterInputs,
    machine: MachineInputs,
    config: Mapping[str, Any],
    registration: Object,
    names: Sequence[str],
) -> tuple[Object, Object]:
    bootstrap_token = {
        "token": token(cluster),
        "ttl": "0s",
        "usages": ["signing", "authentication"],
        "groups": [TOKEN_GROUP],
    }
    node = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "InitConfiguration",
        "bootstrapTokens": [bootstrap_token],
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
        "networking": {"podSubnet": pod_network(config), "serviceSubnet": config.get("service-cidr", SERVICE_NETWORK)},
    }
    for key, component in COMPONENT_ARGUMENTS.items():
        if flags := arguments(DEFAULT_ARGUMENTS.get(key, ()), config.get(key, ())):
            common[component] = {"extraArgs": flags}
    common["apiServer"] = {**common.get("apiServer", {}), "certSANs": [*names]}
    return node, common


def _join(cluster: ClusterInputs, machine: MachineInputs, registration: Object) -> Object:
    configuration: Object = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {
            "file": {"kubeConfigPath": f"{CONFIG_DIR}/discovery.kubeconfig"},
            "tlsBootstrapToken": token(cluster),
        },
        "nodeRegistration": registration,
    }
    if machine.roles.is_server:
        endpoint = {"advertiseAddress": addresses(machine)[0], "bindPort": API_PORT}
        configuration |= {"controlPlane": {"localAPIEndpoint": endpoint}, "patches": PATCHES}
    return configuration


def _registration(machine: MachineInputs, config: Mapping[str, Any]) -> Object:
    taints = [parsed_taint("node-taint", each) for each in config.get("node-taint", ())]
    marked = f"machine {machine.name}, annotation {TAINTS}"
    taints += [parsed_taint(marked, _as_text(each)) for each in machine.node_taints]
    if machine.roles.is_server and not machine.roles.worker:
        taints.append(CONTROL_PLANE_TAINT)
    identity = [{"name": "provider-id", "value": f"{KUBEADM_PROVIDER}{machine.uid}"}]
    return {
        **({"name": machine.node_name} if machine.node_name else {}),
        "criSocket": SOCKET,
        "imagePullPolicy": "IfNotPresent",
        "taints": [_without_empty_fields(each) for each in taints],
        "kubeletExtraArgs": identity,
    }


def _as_text(taint: Mapping[str, str]) -> str:
    return f"{taint.get('key', '')}={taint.get('value', '')}:{taint.get('effect', '')}"


def _without_empty_fields(taint: Mapping[str, str]) -> Object:
    return {key: taint[key] for key in ("key", "value", "effect") if taint.get(key)}


def _kubelet() -> Object:
    """The installer adds settings that depend on the machine, such as the cgroup driver."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failSwapOn": False,
    }


def _manifests(cluster: ClusterInputs) -> Iterator[File]:
    yield file(
        f"{CONFIG_DIR}/manifests/nodes.yaml", as_yaml([_node_proxier_binding(), *_pod_network_policy()]), dynamic=True
    )
    if cluster.agent is not None:
        agent = as_yaml([_with_host_dns(each) for each in manifest(cluster.agent)])
        yield file(f"{CONFIG_DIR}/manifests/cluster-agent.yaml", agent, dynamic=True, minor=True)
    addons = "" if cluster.is_pre_bootstrap else cluster.spec.get("additionalManifest") or ""
    yield file(f"{CONFIG_DIR}/manifests/addons.yaml", addons, dynamic=True)


def _with_host_dns(obj: Object) -> Object:
    """Use the host's DNS: kubeadm clusters have no cluster DNS unless the user installs one."""
    if obj["kind"] != "Deployment":
        return obj
    template = obj["spec"]["template"]
    spec = {**obj["spec"], "template": {**template, "spec": {**template["spec"], "dnsPolicy": "Default"}}}
    return {**obj, "spec": spec}


def _node_proxier_binding() -> Object:
    """Allow kube-proxy and the route service, which use the join token, to read Services and Nodes."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "herder:node-proxiers"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:node-proxier"},
        "subjects": [{"kind": "Group", "apiGroup": group, "name": TOKEN_GROUP}],
    }


def _pod_network_policy() -> Policy:
    """Forbid nodes to choose their pod network.

    Every machine routes the pod CIDR of each Node to that Node. NodeRestriction would let a node claim another node's
    CIDR, or the default route, for the Node that it registers.
    """
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
