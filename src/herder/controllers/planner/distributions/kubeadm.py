"""`+kubeadmN`: plain upstream Kubernetes, by kubeadm, under the machine's own containerd.

kubeadm does what it is made for: certificates, joining, static pods. The authorities come with the plan, so every
server has them and none is a special one; the servers are found by one name, which each machine knows for itself. What
this renders is read by the installer's script (`herder/kubeadm/run.sh`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from herder.api.management.manifest import as_yaml, manifest
from herder.api.rke.names import AUTH_SECRET_TYPE, KUBEADM_INSTALLER, MACHINE_UID
from herder.api.rke.plan import File, HttpGet, Instruction, Plan, Probe, file
from herder.controllers.planner.distributions.interface import (
    ClusterInputs,
    ConfigError,
    MachineInputs,
    Reference,
    Roles,
)
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import label_selector_from_object

HERE = "/etc/rancher/kubeadm"
ENDPOINT = "control-plane.herder.internal"
API_PORT = 6443
POD_NETWORK, SERVICE_NETWORK = "10.42.0.0/16", "10.43.0.0/16"
SOCKET = "unix:///run/containerd/containerd.sock"
TOKEN_GROUP = "system:bootstrappers:kubeadm:default-node-token"
CONTROL_PLANE_TAINT = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}

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


class Kubeadm:
    name = "kubeadm"
    revision = 1
    supervisor_port = API_PORT
    api_port = API_PORT
    names_servers = True
    authorities: Sequence[str] = ("ca", "etcd", "sa", "proxy")

    def refusal(self, cluster: ClusterInputs, roles: Roles) -> str:
        if roles.etcd != roles.control_plane:
            return (
                "kubeadm runs etcd and control plane on the same machines: give a pool both etcdRole and "
                "controlPlaneRole, or neither"
            )
        return ""

    def references(self, spec: Mapping[str, Any], namespace: str) -> Sequence[Reference]:
        named = []
        for each in _registry_configs(spec).values():
            named += [each.get("authConfigSecretName"), each.get("tlsSecretName")]
        return [Reference("Secret", namespace, name) for name in dict.fromkeys(named) if name]

    def unit(self, roles: Roles) -> str:
        return "kubelet"

    def member_removal(self) -> str:
        return "etcd.kubeadm.cattle.io"

    def drain_hash(self, plan: Plan) -> str:
        install = next((each for each in plan.instructions if each.name == "install"), None)
        return next((e.partition("=")[2] for e in install.env if e.startswith("DRAIN_HASH=")), "") if install else ""

    def render(self, cluster: ClusterInputs, machine: MachineInputs) -> Plan:
        if machine.windows:
            raise ConfigError("machinePools: kubeadm clusters have no Windows nodes here")
        chosen = _chosen(cluster, machine)
        files = (*_common(cluster, machine, chosen), *_registries(cluster), *_of_role(cluster, machine, chosen))
        install = _install(cluster, machine, files)
        return Plan(files=files, instructions=(install,), probes=_probes(machine))


# --- what users chose -----------------------------------------------------------------------------------------------


def _chosen(cluster: ClusterInputs, machine: MachineInputs) -> dict[str, Any]:
    """The later over the earlier, key by key."""
    chosen = _checked("machineGlobalConfig", cluster.config)
    for index, each in enumerate(cluster.spec.get("machineSelectorConfig") or ()):
        selector = label_selector_from_object(each.get("machineLabelSelector"))
        if selector is None or selector.matches(machine.labels):
            chosen |= _checked(f"machineSelectorConfig[{index}].config", each.get("config") or {})
    return chosen


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


def _arguments(defaults: Sequence[str], words: Sequence[str]) -> list[Object]:
    """`name=value` as kubeadm's configuration has it. What users say counts more."""
    given = [(name, value or "true") for name, _, value in (each.removeprefix("--").partition("=") for each in words)]
    named = {name for name, _ in given}
    ours = [(name, value) for name, _, value in (each.partition("=") for each in defaults) if name not in named]
    return [{"name": name, "value": value} for name, value in (*ours, *given)]


# --- files of every machine -----------------------------------------------------------------------------------------


def _common(cluster: ClusterInputs, machine: MachineInputs, chosen: Mapping[str, Any]) -> Iterator[File]:
    yield file(f"{HERE}/node-name", machine.node_name)
    yield file(f"{HERE}/pods", _pods(chosen))
    yield file(
        f"{HERE}/endpoints", "".join(f"{each}\n" for each in _endpoints(cluster, machine)), dynamic=True, minor=True
    )
    yield file(f"{HERE}/ca.crt", cluster.authorities["ca"].certificate, permissions="0644")
    yield file(f"{HERE}/nodes.kubeconfig", _json(_kubeconfig(_token(cluster))))
    yield file(f"{HERE}/kube-proxy.yaml", _json(_proxy(machine, chosen)))
    words = [
        f"--node-ip={','.join(_addresses(machine))}",
        *(f"--{a.removeprefix('--')}" for a in chosen.get("kubelet-arg", ())),
    ]
    yield file(f"{HERE}/kubelet.env", f"KUBELET_EXTRA_ARGS={' '.join(words)}\n")
    yield file(f"{HERE}/labels", "".join(f"{each}\n" for each in _labels(machine, chosen)))


def _endpoints(cluster: ClusterInputs, machine: MachineInputs) -> list[str]:
    """A server asks itself first; everybody else the one that it joined."""
    known = [urlsplit(each).hostname or "" for each in (machine.join_url, *sorted(cluster.servers)) if each]
    own = _addresses(machine)[:1] if machine.roles.is_server else []
    return list(dict.fromkeys([*own, *known]))


def _kubeconfig(token: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "cluster",
                "cluster": {"server": f"https://{ENDPOINT}:{API_PORT}", "certificate-authority": f"{HERE}/ca.crt"},
            }
        ],
        "users": [{"name": "nodes", "user": {"token": token}}],
        "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": "nodes"}}],
        "current-context": "default",
    }


def _proxy(machine: MachineInputs, chosen: Mapping[str, Any]) -> Object:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{HERE}/nodes.kubeconfig"},
        "clusterCIDR": _pods(chosen),
        "mode": chosen.get("kube-proxy-mode", "iptables"),
        "hostnameOverride": machine.node_name,
        "conntrack": {"maxPerCore": 0, "min": 0},
    }


def _labels(machine: MachineInputs, chosen: Mapping[str, Any]) -> list[str]:
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


# --- files of servers and of machines that join ---------------------------------------------------------------------


def _of_role(cluster: ClusterInputs, machine: MachineInputs, chosen: Mapping[str, Any]) -> Iterator[File]:
    registration = _registration(machine, chosen)
    if machine.roles.is_server:
        yield from _authorities(cluster)
        names = _names(machine, chosen)
        yield file(f"{HERE}/names", "".join(f"{each}\n" for each in names))
        yield file(f"{HERE}/init.yaml", _documents(*_init(cluster, machine, chosen, registration, names), _kubelet()))
    if machine.is_init:
        yield from _manifests(cluster)
    else:
        # Whom it joined is of no interest to a machine that has joined: no other server makes it start again.
        yield file(f"{HERE}/discovery.kubeconfig", _json(_kubeconfig(_token(cluster))), dynamic=True)
        yield file(f"{HERE}/join.yaml", _documents(_join(cluster, machine, registration)))


def _authorities(cluster: ClusterInputs) -> Iterator[File]:
    for name, purpose in (("ca", "ca"), ("etcd/ca", "etcd"), ("front-proxy-ca", "proxy")):
        yield file(f"{HERE}/pki/{name}.crt", cluster.authorities[purpose].certificate)
        yield file(f"{HERE}/pki/{name}.key", cluster.authorities[purpose].key)
    yield file(f"{HERE}/pki/sa.pub", cluster.authorities["sa"].certificate)
    yield file(f"{HERE}/pki/sa.key", cluster.authorities["sa"].key)


def _names(machine: MachineInputs, chosen: Mapping[str, Any]) -> list[str]:
    """What a server is called by, besides what kubeadm knows; probes ask it where they are."""
    given = (*_addresses(machine), *machine.external_addresses, *chosen.get("tls-san", ()))
    return list(dict.fromkeys(["127.0.0.1", *given]))


def _init(
    cluster: ClusterInputs,
    machine: MachineInputs,
    chosen: Mapping[str, Any],
    registration: Object,
    names: Sequence[str],
) -> tuple[Object, Object]:
    token = {"token": _token(cluster), "ttl": "0s", "usages": ["signing", "authentication"], "groups": [TOKEN_GROUP]}
    node = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "InitConfiguration",
        "bootstrapTokens": [token],
        "localAPIEndpoint": {"advertiseAddress": _addresses(machine)[0], "bindPort": API_PORT},
        "nodeRegistration": registration,
        "skipPhases": ["addon/coredns", "addon/kube-proxy"],
    }
    common: Object = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "clusterName": cluster.name,
        "kubernetesVersion": cluster.version.partition("+")[0],
        "controlPlaneEndpoint": f"{ENDPOINT}:{API_PORT}",
        "networking": {"podSubnet": _pods(chosen), "serviceSubnet": chosen.get("service-cidr", SERVICE_NETWORK)},
    }
    for key, component in ARGUMENTS.items():
        if arguments := _arguments(DEFAULT_ARGUMENTS.get(key, ()), chosen.get(key, ())):
            common[component] = {"extraArgs": arguments}
    common["apiServer"] = {**common.get("apiServer", {}), "certSANs": [*names]}
    return node, common


def _join(cluster: ClusterInputs, machine: MachineInputs, registration: Object) -> Object:
    made: Object = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {
            "file": {"kubeConfigPath": f"{HERE}/discovery.kubeconfig"},
            "tlsBootstrapToken": _token(cluster),
        },
        "nodeRegistration": registration,
    }
    if machine.roles.is_server:
        endpoint = {"advertiseAddress": _addresses(machine)[0], "bindPort": API_PORT}
        made["controlPlane"] = {"localAPIEndpoint": endpoint}
    return made


def _registration(machine: MachineInputs, chosen: Mapping[str, Any]) -> Object:
    taints = [_parsed_taint(each) for each in chosen.get("node-taint", ())] + [
        dict(each) for each in machine.node_taints
    ]
    if machine.roles.is_server and not machine.roles.worker:
        taints.append(CONTROL_PLANE_TAINT)
    arguments = [{"name": "provider-id", "value": f"kubeadm://{machine.uid}"}]
    return {
        **({"name": machine.node_name} if machine.node_name else {}),
        "criSocket": SOCKET,
        "imagePullPolicy": "IfNotPresent",
        "taints": [_plain_taint(each) for each in taints],
        "kubeletExtraArgs": arguments,
    }


def _kubelet() -> Object:
    """What depends on the machine, such as its control groups, is settled there."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failSwapOn": False,
    }


def _manifests(cluster: ClusterInputs) -> Iterator[File]:
    yield file(f"{HERE}/manifests/nodes.yaml", as_yaml([_node_rights()]), dynamic=True)
    if cluster.agent is not None:
        agent = as_yaml([_by_name(each) for each in manifest(cluster.agent)])
        yield file(f"{HERE}/manifests/cluster-agent.yaml", agent, dynamic=True, minor=True)
    yield file(f"{HERE}/manifests/addons.yaml", cluster.spec.get("additionalManifest") or "", dynamic=True)


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


# --- registries, for the images of pods -----------------------------------------------------------------------------


def _registry_configs(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return (spec.get("registries") or {}).get("configs") or {}


def _registries(cluster: ClusterInputs) -> Iterator[File]:
    """For the agent, which pulls the installer, in its own form; for containerd a directory for each host."""
    registries = cluster.spec.get("registries") or {}
    mirrors, configs = registries.get("mirrors") or {}, _registry_configs(cluster.spec)
    told = {"mirrors": mirrors, "configs": {host: _for_agent(cluster, host, each) for host, each in configs.items()}}
    if mirrors or configs:
        yield file("/etc/rancher/agent/registries.yaml", _json(told), dynamic=True)
    for host, each in configs.items():
        if each.get("caBundle"):
            yield file(_authority_file(host), each["caBundle"], dynamic=True)
    for host in dict.fromkeys((*mirrors, *configs)):
        yield file(
            f"/etc/containerd/certs.d/{_directory(host)}/hosts.toml", _hosts(host, mirrors, configs), dynamic=True
        )


def _for_agent(cluster: ClusterInputs, host: str, config: Mapping[str, Any]) -> Object:
    tls: Object = {"insecure_skip_verify": bool(config.get("insecureSkipVerify"))}
    if config.get("caBundle"):
        tls["ca_file"] = _authority_file(host)
    return {"auth": _login(cluster, config), "tls": tls}


def _login(cluster: ClusterInputs, config: Mapping[str, Any]) -> Object | None:
    name = config.get("authConfigSecretName")
    if not name:
        return None
    secret = cluster.referenced.get(Reference("Secret", cluster.namespace, name))
    if secret is None or secret.type != AUTH_SECRET_TYPE:
        raise ConfigError(
            f"registries.configs: Secret {cluster.namespace}/{name} of type {AUTH_SECRET_TYPE} is not there"
        )
    return {key: secret.data[key].decode() for key in ("username", "password", "auth") if key in secret.data}


def _hosts(host: str, mirrors: Mapping[str, Any], configs: Mapping[str, Any]) -> str:
    """TOML's strings are JSON's, for what is in them here."""
    lines = []
    for endpoint in (mirrors.get(host) or {}).get("endpoint") or [f"https://{host}"]:
        config = configs.get(urlsplit(endpoint).netloc) or {}
        lines += [f"[host.{json.dumps(endpoint)}]", '  capabilities = ["pull", "resolve"]']
        if config.get("caBundle"):
            lines.append(f"  ca = {json.dumps(_authority_file(urlsplit(endpoint).netloc))}")
        if config.get("insecureSkipVerify"):
            lines.append("  skip_verify = true")
    return "\n".join(lines) + "\n"


def _authority_file(host: str) -> str:
    return f"/etc/rancher/agent/registry-{hashlib.sha256(host.encode()).hexdigest()[:12]}-ca.crt"


def _directory(host: str) -> str:
    if "/" in host or host in {"", ".", ".."}:
        raise ConfigError(f"registries: {host!r} is not a registry's host")
    return "_default" if host == "*" else host


# --- instruction and probes -----------------------------------------------------------------------------------------


def _install(cluster: ClusterInputs, machine: MachineInputs, files: Sequence[File]) -> Instruction:
    image = _image(cluster)
    stamp = _stamp(cluster, image, files)
    role = "init" if machine.is_init else "server" if machine.roles.is_server else "agent"
    environment = (
        f"RESTART_STAMP={stamp}",
        f"DRAIN_HASH={stamp}",
        *(f"{each['name']}={each['value']}" for each in cluster.spec.get("agentEnvVars") or () if each.get("value")),
        f"INSTALL_KUBEADM_EXEC={role}",
    )
    return Instruction(name="install", image=image, command="sh", args=("-c", "run.sh"), env=environment)


def _image(cluster: ClusterInputs) -> str:
    registry = cluster.config.get("system-default-registry") or cluster.default_registry
    prefix = f"{registry}/" if registry else ""
    return f"{prefix}{KUBEADM_INSTALLER}:{cluster.version.replace('+', '-')}"


def _stamp(cluster: ClusterInputs, image: str, files: Sequence[File]) -> str:
    """Labels and names reach a machine that runs: nothing starts again for them."""
    quiet = (f"{HERE}/labels", f"{HERE}/join.yaml", f"{HERE}/endpoints")
    content = "".join(each.path + each.content for each in files if not each.dynamic and each.path not in quiet)
    generation = cluster.spec.get("provisionGeneration") or 0
    return hashlib.sha256(f"{generation}{image}{content}{cluster.config_generation}".encode()).hexdigest()


def _probes(machine: MachineInputs) -> dict[str, Probe]:
    probes = {"kubelet": _probe("http://127.0.0.1:10248/healthz")}
    if machine.roles.is_server:
        probes |= {
            "etcd": _probe("http://127.0.0.1:2381/health"),
            "kube-apiserver": _probe(f"https://127.0.0.1:{API_PORT}/readyz", authority=f"{HERE}/ca.crt"),
            # Their certificates are of their own making, new at each start.
            "kube-controller-manager": _probe("https://127.0.0.1:10257/healthz", insecure=True),
            "kube-scheduler": _probe("https://127.0.0.1:10259/healthz", insecure=True),
        }
    return probes


def _probe(url: str, *, authority: str = "", insecure: bool = False) -> Probe:
    get = HttpGet(url=url, ca_cert=authority, insecure=insecure)
    return Probe(initial_delay_seconds=1, timeout_seconds=5, success_threshold=1, failure_threshold=5, http_get=get)


# --- small things ---------------------------------------------------------------------------------------------------


def _token(cluster: ClusterInputs) -> str:
    """In the form of a bootstrap token, made of what machines join with."""
    digest = hashlib.sha256(f"bootstrap-token:{cluster.agent_token}".encode()).hexdigest()
    return f"{digest[:6]}.{digest[6:22]}"


def _addresses(machine: MachineInputs) -> list[str]:
    found = list(machine.internal_addresses or machine.external_addresses)
    if not found:
        raise ConfigError(f"machine {machine.name}: its address is not known")
    return found


def _pods(chosen: Mapping[str, Any]) -> str:
    return str(chosen.get("cluster-cidr", POD_NETWORK))


def _parsed_taint(text: str) -> Object:
    words, _, effect = text.rpartition(":")
    key, _, value = words.partition("=")
    if not key or effect not in {"NoSchedule", "PreferNoSchedule", "NoExecute"}:
        raise ConfigError(f"node-taint: {text!r} must be key[=value]:Effect")
    return {"key": key, "value": value, "effect": effect}


def _plain_taint(taint: Mapping[str, str]) -> Object:
    return {key: taint[key] for key in ("key", "value", "effect") if taint.get(key)}


def _json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True)


def _documents(*objects: Object) -> str:
    """JSON is YAML."""
    return "\n---\n".join(_json(each) for each in objects) + "\n"
