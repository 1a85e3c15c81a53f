"""Plans of kubeadm clusters."""

from __future__ import annotations

import base64
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import herder.kubeadm
from herder.api.management.manifest import Agent
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.names import AUTH_SECRET_TYPE, AUTHORIZED_CLUSTERS, KUBEADM_INSTALLER
from herder.api.rke.node.plan import Plan
from herder.controllers.planner.distributions.interface import (
    Authority,
    ClusterInputs,
    MachineInputs,
    Reference,
    Referenced,
    Roles,
)
from herder.controllers.planner.distributions.kubeadm.distribution import Kubeadm
from herder.controllers.planner.distributions.kubeadm.paths import CONFIG_DIR

INSTALLER = Path(herder.kubeadm.__file__).parent / "run.sh"
SERVER, WORKER = Roles(etcd=True, control_plane=True), Roles(worker=True)
ALL = Roles(etcd=True, control_plane=True, worker=True)
AUTHORITIES = {name: Authority(f"certificate of {name}", f"key of {name}") for name in Kubeadm.authorities}


def cluster(spec: Any = None, **changes: Any) -> ClusterInputs:
    inputs: dict[str, Any] = {
        "namespace": "fleet-default",
        "name": "farm",
        "management_name": "c-m-1",
        "version": "v1.36.3+kubeadm1",
        "spec": spec or {},
        "agent_token": "joining",
        "authorities": AUTHORITIES,
    }
    return ClusterInputs(**(inputs | changes))


def machine(roles: Roles = WORKER, **changes: Any) -> MachineInputs:
    inputs: dict[str, Any] = {"name": "m", "uid": "uid-m", "roles": roles, "internal_addresses": ("10.0.0.2",)}
    return MachineInputs(
        **(inputs | ({"join_url": "https://10.0.0.1:6443"} if "is_init" not in changes else {}) | changes)
    )


def init_machine(roles: Roles = SERVER, **changes: Any) -> MachineInputs:
    return machine(roles, is_init=True, internal_addresses=("10.0.0.1",), **changes)


def rendered(cluster_inputs: ClusterInputs | None = None, machine_inputs: MachineInputs | None = None) -> Plan:
    return Kubeadm().render(cluster_inputs or cluster(), machine_inputs or machine())


def content(plan: Plan, path: str) -> str:
    full_path = path if path.startswith("/") else f"{CONFIG_DIR}/{path}"
    return next(file for file in plan.files if file.path == full_path).decoded.decode()


def paths(plan: Plan) -> set[str]:
    return {file.path.removeprefix(f"{CONFIG_DIR}/") for file in plan.files}


def documents(plan: Plan, path: str) -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(content(plan, path))}


def environment(plan: Plan) -> dict[str, str]:
    (install,) = plan.instructions
    return dict(each.split("=", 1) for each in install.env)


def stamp(plan: Plan) -> str:
    return environment(plan)["RESTART_STAMP"]


def config(**values: Any) -> ClusterInputs:
    return cluster({"machineGlobalConfig": {key.replace("_", "-"): value for key, value in values.items()}})


# --- roles ------------------------------------------------------------------------------------------------------------


def test_the_role_decides_the_action_of_the_installer() -> None:
    exec_of = {
        "init": init_machine(),
        "server": machine(SERVER),
        "agent": machine(),
    }
    for action, machine_inputs in exec_of.items():
        assert environment(rendered(machine_inputs=machine_inputs))["INSTALL_KUBEADM_EXEC"] == action


def test_only_servers_have_the_private_keys_of_the_cluster() -> None:
    keys = {"pki/ca.key", "pki/etcd/ca.key", "pki/front-proxy-ca.key", "pki/sa.key"}
    for machine_inputs in (init_machine(), machine(SERVER)):
        assert keys <= paths(rendered(machine_inputs=machine_inputs))
    worker = rendered()
    assert not {path for path in paths(worker) if path.startswith("pki/")}
    assert "key of" not in "".join(file.decoded.decode() for file in worker.files)


def test_only_the_ca_certificate_is_readable_by_everybody() -> None:
    for machine_inputs in (init_machine(), machine(SERVER), machine()):
        readable = {
            file.path for file in rendered(machine_inputs=machine_inputs).files if file.permissions not in ("", "0600")
        }
        assert readable <= {f"{CONFIG_DIR}/ca.crt"}


@pytest.mark.parametrize("roles", [Roles(etcd=True), Roles(control_plane=True), Roles(etcd=True, worker=True)])
def test_etcd_and_control_plane_cannot_be_separate(roles: Roles) -> None:
    assert "give a pool both etcdRole and controlPlaneRole" in Kubeadm().refusal(cluster(), roles)


def test_a_server_without_the_worker_role_has_a_taint() -> None:
    for roles, taints in ((SERVER, ["node-role.kubernetes.io/control-plane"]), (ALL, [])):
        registration = documents(rendered(machine_inputs=init_machine(roles)), "init.yaml")["InitConfiguration"][
            "nodeRegistration"
        ]
        assert [taint["key"] for taint in registration["taints"]] == taints


def test_the_node_identifies_its_machine() -> None:
    plan = rendered()
    (identity,) = documents(plan, "join.yaml")["JoinConfiguration"]["nodeRegistration"]["kubeletExtraArgs"]
    assert identity == {"name": "provider-id", "value": "kubeadm://uid-m"}
    assert "rke.cattle.io/machine=uid-m" in content(plan, "labels").split()


def test_all_machines_know_the_endpoints_of_the_servers() -> None:
    inputs = cluster(servers=("https://10.0.0.1:6443", "https://10.0.0.3:6443"))
    assert content(rendered(inputs, machine()), "endpoints").split() == ["10.0.0.1", "10.0.0.3"]
    own = machine(SERVER, internal_addresses=("10.0.0.3",))
    assert content(rendered(inputs, own), "endpoints").split() == ["10.0.0.3", "10.0.0.1"], "a server uses itself first"


def test_patches_are_configured_on_init_and_joining_servers() -> None:
    for machine_inputs, path, kind in ((init_machine(), "init.yaml", "Init"), (machine(SERVER), "join.yaml", "Join")):
        found = documents(rendered(machine_inputs=machine_inputs), path)[f"{kind}Configuration"]
        assert found["patches"] == {"directory": "/var/lib/rancher/kubeadm/patches"}
    assert "state=/var/lib/rancher/kubeadm\n" in (script := INSTALLER.read_text())
    assert "patches=$state/patches" in script


def test_the_join_token_has_the_form_that_kubeadm_requires() -> None:
    token = documents(rendered(), "join.yaml")["JoinConfiguration"]["discovery"]["tlsBootstrapToken"]
    assert re.fullmatch(r"[a-z0-9]{6}\.[a-z0-9]{16}", token)
    (bootstrap_token,) = documents(rendered(machine_inputs=init_machine()), "init.yaml")["InitConfiguration"][
        "bootstrapTokens"
    ]
    assert bootstrap_token["token"] == token


# --- configuration by users -------------------------------------------------------------------------------------------


def test_arguments_reach_their_component() -> None:
    inputs = config(kube_apiserver_arg=["v=3", "profiling"], kube_scheduler_arg="v=1", kubelet_arg=["max-pods=50"])
    plan = rendered(inputs, init_machine())
    cluster_configuration = documents(plan, "init.yaml")["ClusterConfiguration"]
    assert cluster_configuration["apiServer"]["extraArgs"][1:] == [
        {"name": "v", "value": "3"},
        {"name": "profiling", "value": "true"},
    ]
    assert cluster_configuration["scheduler"]["extraArgs"] == [{"name": "v", "value": "1"}]
    assert "--max-pods=50" in content(plan, "kubelet.env")


def test_users_can_override_defaults() -> None:
    for inputs, value in (
        (cluster(), "true"),
        (config(kube_apiserver_arg=["shutdown-send-retry-after=false"]), "false"),
    ):
        (only,) = documents(rendered(inputs, init_machine()), "init.yaml")["ClusterConfiguration"]["apiServer"][
            "extraArgs"
        ]
        assert only == {"name": "shutdown-send-retry-after", "value": value}


def test_the_names_of_a_server_are_in_its_certificate() -> None:
    plan = rendered(config(tls_san=["api.example"]), init_machine(external_addresses=("192.0.2.1",)))
    names = documents(plan, "init.yaml")["ClusterConfiguration"]["apiServer"]["certSANs"]
    assert names == ["127.0.0.1", "10.0.0.1", "192.0.2.1", "api.example"]
    assert content(plan, "names").split() == names


def test_selector_config_applies_only_to_matching_machines() -> None:
    config = {"machineLabelSelector": {"matchLabels": {"a": "b"}}, "config": {"kubelet-arg": ["max-pods=50"]}}
    inputs = cluster({"machineSelectorConfig": [config]})
    assert "--max-pods=50" in content(rendered(inputs, machine(labels={"a": "b"})), "kubelet.env")
    assert "--max-pods=50" not in content(rendered(inputs, machine()), "kubelet.env")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"cni": "calico"},
            "machineGlobalConfig.cni: unknown option of kubeadm clusters; use one of kube-apiserver-arg",
        ),
        ({"kubelet-arg": [1]}, "machineGlobalConfig.kubelet-arg: must be text or a list of texts"),
        ({"cluster-cidr": ["10.0.0.0/8"]}, "machineGlobalConfig.cluster-cidr: must be text"),
        ({"kubelet-arg": ["v=$(id)"]}, "quotes, spaces, $ and"),
        ({"node-taint": ["a=b"]}, "node-taint: 'a=b' must be key[=value]:Effect"),
        ({"node-label": ["node-role.kubernetes.io/x=y"]}, "forbids nodes to set this label"),
        ({"node-label": ["example.k8s.io/x=y"]}, "forbids nodes to set this label"),
    ],
)
def test_invalid_configuration_is_an_error(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        rendered(cluster({"machineGlobalConfig": values}))


def test_labels_that_kubelets_may_not_set_are_left_to_the_manager() -> None:
    labels = {"node-role.kubernetes.io/barn": "", "node.kubernetes.io/size": "l", "example.com/x": "y"}
    rendered_labels = content(rendered(machine_inputs=machine(node_labels=labels)), "labels").split()
    assert rendered_labels == ["example.com/x=y", "node.kubernetes.io/size=l", "rke.cattle.io/machine=uid-m"]
    assert (
        "node-role.kubernetes.io/barn="
        in content(rendered(machine_inputs=init_machine(node_labels=labels)), "labels").split()
    )


def test_a_machine_without_an_address_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match="machine m: has no address; delete it and register it again with --internal-address"
    ):
        rendered(machine_inputs=machine(internal_addresses=()))


def test_windows_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no Windows nodes"):
        rendered(machine_inputs=machine(windows=True))


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_a_new_server_restarts_no_machine() -> None:
    before = cluster(servers=("https://10.0.0.1:6443",))
    after = cluster(servers=("https://10.0.0.1:6443", "https://10.0.0.3:6443"))
    for machine_inputs in (init_machine(), machine(SERVER), machine()):
        assert stamp(rendered(before, machine_inputs)) == stamp(rendered(after, machine_inputs))


@pytest.mark.parametrize(
    ("values", "servers_too", "workers_too"),
    [
        ({"node-label": ["a=b"]}, False, False),
        ({"kube-apiserver-arg": ["v=3"]}, True, False),
        ({"kubelet-arg": ["v=3"]}, True, True),
        ({"tls-san": ["api.example"]}, True, False),
    ],
)
def test_a_setting_restarts_only_the_machines_that_it_is_for(
    values: dict[str, Any], servers_too: bool, workers_too: bool
) -> None:
    inputs = cluster({"machineGlobalConfig": values})
    for machine_inputs, changes in (
        (init_machine(), servers_too),
        (machine(SERVER), servers_too),
        (machine(), workers_too),
    ):
        assert (stamp(rendered(inputs, machine_inputs)) != stamp(rendered(machine_inputs=machine_inputs))) is changes


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "image"),
    [
        (cluster(), KUBEADM_INSTALLER),
        (cluster(default_registry="a.example"), f"a.example/{KUBEADM_INSTALLER}"),
        (config(system_default_registry="b.example"), f"b.example/{KUBEADM_INSTALLER}"),
    ],
)
def test_the_installer_image_comes_from_the_configured_registry(inputs: ClusterInputs, image: str) -> None:
    assert rendered(inputs).instructions[0].image == f"{image}:v1.36.3-kubeadm1"


def test_registries_are_configured_for_the_agent_and_the_container_runtime() -> None:
    login = Referenced({}, {"username": b"dolly", "password": b"hidden"}, AUTH_SECRET_TYPE)
    client = Referenced({}, {"tls.crt": b"certificate", "tls.key": b"key"}, "kubernetes.io/tls")
    registries = {
        "mirrors": {"registry.example": {"endpoint": ["http://10.0.0.9:5000", "https://other.example/path"]}},
        "configs": {
            "private.example": {
                "authConfigSecretName": "login",
                "tlsSecretName": "client",
                "caBundle": base64.b64encode(b"authority").decode(),
            }
        },
    }
    referenced = {
        Reference("Secret", "fleet-default", name): each for name, each in (("login", login), ("client", client))
    }
    plan = rendered(cluster({"registries": registries}, referenced=referenced))
    agent_registries = json.loads(content(plan, "/etc/rancher/agent/registries.yaml"))
    assert agent_registries["mirrors"] == registries["mirrors"]
    assert agent_registries["configs"]["private.example"]["auth"]["password"] == "hidden"
    mirror = content(plan, "/etc/containerd/certs.d/registry.example/hosts.toml").splitlines()
    assert mirror == [
        '[host."http://10.0.0.9:5000"]',
        '  capabilities = ["pull", "resolve"]',
        '[host."https://other.example/path"]',
        '  capabilities = ["pull", "resolve"]',
        "  override_path = true",
    ]
    files = f"{CONFIG_DIR}/registries/private.example"
    assert content(plan, "/etc/containerd/certs.d/private.example/hosts.toml").splitlines()[2:] == [
        f'  ca = "{files}/ca.crt"',
        f'  client = [["{files}/tls.crt", "{files}/tls.key"]]',
        '  [host."https://private.example".header]',
        f'    Authorization = "Basic {base64.b64encode(b"dolly:hidden").decode()}"',
    ]
    assert content(plan, f"{files}/ca.crt") == "authority"


def test_the_manager_can_serve_images() -> None:
    agent = Agent(server_url="https://10.0.0.9:6443", token="t", ca_checksum="c", image="agent:1")
    plan = rendered(cluster(agent=agent, server_certificates="authority of the manager"))
    hosts = content(plan, "/etc/containerd/certs.d/10.0.0.9:6443/hosts.toml")
    (line,) = [line for line in hosts.splitlines() if "ca =" in line]
    assert content(plan, json.loads(line.partition("=")[2])) == "authority of the manager"


@pytest.mark.parametrize("taint", [{"key": "a"}, {"effect": "NoSchedule"}, {}, {"key": "a", "effect": "Never"}])
def test_an_invalid_taint_annotation_is_an_error(taint: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=re.escape("machine m, annotation rke.cattle.io/taints: ")):
        rendered(cluster(), machine(node_taints=[taint]))


def test_a_mirror_without_an_address_is_an_error() -> None:
    with pytest.raises(ConfigError, match=re.escape("registries.mirrors[a.example].endpoint: 'http://['")):
        rendered(cluster({"registries": {"mirrors": {"a.example": {"endpoint": ["http://["]}}}}))


def test_image_names_cannot_be_rewritten() -> None:
    registries = {"mirrors": {"registry.example": {"endpoint": ["https://m.example"], "rewrite": {"a": "b"}}}}
    with pytest.raises(ConfigError, match="containerd cannot rewrite image names"):
        rendered(cluster({"registries": registries}))


def test_containerd_logs_in_to_mirrors_too() -> None:
    registries = {
        "mirrors": {"docker.io": {"endpoint": ["https://mirror.example:5000/v2", "https://open.example"]}},
        "configs": {"mirror.example:5000": {"authConfigSecretName": "login"}},
    }
    login = Referenced({}, {"auth": b"dolly:hidden"}, AUTH_SECRET_TYPE)
    referenced = {Reference("Secret", "fleet-default", "login"): login}
    plan = rendered(cluster({"registries": registries}, referenced=referenced))
    hosts = tomllib.loads(content(plan, "/etc/containerd/certs.d/docker.io/hosts.toml"))["host"]
    header = {"Authorization": f"Basic {base64.b64encode(b'dolly:hidden').decode()}"}
    assert [each.get("header") for each in hosts.values()] == [header, None]


def test_a_login_that_containerd_cannot_use_is_an_error() -> None:
    registries = {"configs": {"private.example": {"authConfigSecretName": "login"}}}
    referenced = {
        Reference("Secret", "fleet-default", "login"): Referenced({}, {"identityToken": b"t"}, AUTH_SECRET_TYPE)
    }
    with pytest.raises(ConfigError, match="containerd needs username and password, or auth"):
        rendered(cluster({"registries": registries}, referenced=referenced))


def test_machines_get_the_files_that_users_select_for_them() -> None:
    source = {"name": "files", "items": [{"key": "a", "path": "/etc/a", "permissions": "0640"}]}
    entry = {"machineLabelSelector": {"matchLabels": {"b": "c"}}, "fileSources": [{"configMap": source}]}
    spec = {"machineSelectorFiles": [entry]}
    reference = Reference("ConfigMap", "fleet-default", "files")
    assert Kubeadm().references(spec, "fleet-default") == [reference]
    found = Referenced({AUTHORIZED_CLUSTERS: "farm"}, {"a": b"content"})
    inputs = cluster(spec, referenced={reference: found})
    selected, other = rendered(inputs, machine(labels={"b": "c"})), rendered(inputs, machine())
    assert (selected.files[-1].path, selected.files[-1].permissions) == ("/etc/a", "0640")
    assert selected.files[-1].decoded == b"content"
    assert "/etc/a" not in [each.path for each in other.files]
    assert selected.instructions != other.instructions, "a new file restarts Kubernetes, unless it is dynamic"


def test_a_missing_registry_secret_is_an_error() -> None:
    registries = {"configs": {"private.example": {"authConfigSecretName": "login"}}}
    assert Kubeadm().references({"registries": registries}, "fleet-default") == [
        Reference("Secret", "fleet-default", "login")
    ]
    with pytest.raises(ConfigError, match="Secret login does not exist"):
        rendered(cluster({"registries": registries}))


# --- manifests --------------------------------------------------------------------------------------------------------


def test_the_init_server_applies_the_cluster_agent_and_additional_manifests() -> None:
    agent = Agent(server_url="https://manager.example", token="t", ca_checksum="c", image="agent:1")
    plan = rendered(cluster({"additionalManifest": "kind: X\n"}, agent=agent), init_machine())
    manifests = {each["kind"]: each for each in yaml.safe_load_all(content(plan, "manifests/cluster-agent.yaml"))}
    assert manifests["Deployment"]["spec"]["template"]["spec"]["dnsPolicy"] == "Default", "the cluster may have no DNS"
    assert content(plan, "manifests/addons.yaml") == "kind: X\n"
    assert not {path for path in paths(rendered(cluster(agent=agent))) if path.startswith("manifests/")}
