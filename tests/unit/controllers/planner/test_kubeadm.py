"""What machines of kubeadm clusters are told."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import herder.kubeadm
from herder.api.management.manifest import Agent
from herder.api.rke.names import AUTH_SECRET_TYPE, KUBEADM_INSTALLER
from herder.api.rke.node.plan import Plan
from herder.controllers.planner.distributions.interface import (
    Authority,
    ClusterInputs,
    ConfigError,
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


def cluster(spec: Any = None, **more: Any) -> ClusterInputs:
    inputs: dict[str, Any] = {
        "namespace": "fleet-default",
        "name": "farm",
        "management_name": "c-m-1",
        "version": "v1.36.3+kubeadm1",
        "spec": spec or {},
        "agent_token": "joining",
        "authorities": AUTHORITIES,
    }
    return ClusterInputs(**(inputs | more))


def machine(roles: Roles = WORKER, **more: Any) -> MachineInputs:
    inputs: dict[str, Any] = {"name": "m", "uid": "uid-m", "roles": roles, "internal_addresses": ("10.0.0.2",)}
    return MachineInputs(**(inputs | ({"join_url": "https://10.0.0.1:6443"} if "is_init" not in more else {}) | more))


def first(roles: Roles = SERVER, **more: Any) -> MachineInputs:
    return machine(roles, is_init=True, internal_addresses=("10.0.0.1",), **more)


def rendered(told: ClusterInputs | None = None, whom: MachineInputs | None = None) -> Plan:
    return Kubeadm().render(told or cluster(), whom or machine())


def content(plan: Plan, path: str) -> str:
    where = path if path.startswith("/") else f"{CONFIG_DIR}/{path}"
    return next(file for file in plan.files if file.path == where).decoded.decode()


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


# --- who is who -------------------------------------------------------------------------------------------------------


def test_roles_decide_what_the_installer_does() -> None:
    exec_of = {
        "init": first(),
        "server": machine(SERVER),
        "agent": machine(),
    }
    for word, whom in exec_of.items():
        assert environment(rendered(whom=whom))["INSTALL_KUBEADM_EXEC"] == word


def test_only_servers_have_the_keys_of_the_cluster() -> None:
    keys = {"pki/ca.key", "pki/etcd/ca.key", "pki/front-proxy-ca.key", "pki/sa.key"}
    for whom in (first(), machine(SERVER)):
        assert keys <= paths(rendered(whom=whom))
    worker = rendered()
    assert not {path for path in paths(worker) if path.startswith("pki/")}
    assert "key of" not in "".join(file.decoded.decode() for file in worker.files)


def test_nothing_but_the_authority_is_for_everybody_to_read() -> None:
    for whom in (first(), machine(SERVER), machine()):
        readable = {file.path for file in rendered(whom=whom).files if file.permissions not in ("", "0600")}
        assert readable <= {f"{CONFIG_DIR}/ca.crt"}


@pytest.mark.parametrize("roles", [Roles(etcd=True), Roles(control_plane=True), Roles(etcd=True, worker=True)])
def test_roles_that_are_apart_are_refused(roles: Roles) -> None:
    assert "give a pool both etcdRole and controlPlaneRole" in Kubeadm().refusal(cluster(), roles)


def test_a_server_that_is_no_worker_takes_no_pods() -> None:
    for roles, taints in ((SERVER, ["node-role.kubernetes.io/control-plane"]), (ALL, [])):
        registration = documents(rendered(whom=first(roles)), "init.yaml")["InitConfiguration"]["nodeRegistration"]
        assert [taint["key"] for taint in registration["taints"]] == taints


def test_the_node_tells_which_machine_it_is() -> None:
    plan = rendered()
    (identity,) = documents(plan, "join.yaml")["JoinConfiguration"]["nodeRegistration"]["kubeletExtraArgs"]
    assert identity == {"name": "provider-id", "value": "kubeadm://uid-m"}
    assert "rke.cattle.io/machine=uid-m" in content(plan, "labels").split()


def test_everybody_finds_the_servers_by_one_name() -> None:
    told = cluster(servers=("https://10.0.0.1:6443", "https://10.0.0.3:6443"))
    assert content(rendered(told, machine()), "endpoints").split() == ["10.0.0.1", "10.0.0.3"]
    own = machine(SERVER, internal_addresses=("10.0.0.3",))
    assert content(rendered(told, own), "endpoints").split() == ["10.0.0.3", "10.0.0.1"], "a server asks itself first"


def test_what_the_installer_notes_in_manifests_is_there_however_a_server_came_to_be() -> None:
    for whom, path, kind in ((first(), "init.yaml", "Init"), (machine(SERVER), "join.yaml", "Join")):
        found = documents(rendered(whom=whom), path)[f"{kind}Configuration"]
        assert found["patches"] == {"directory": "/var/lib/rancher/kubeadm/patches"}
    assert "state=/var/lib/rancher/kubeadm\n" in (script := INSTALLER.read_text())
    assert "patches=$state/patches" in script


def test_what_machines_join_with_has_the_form_that_kubeadm_wants() -> None:
    token = documents(rendered(), "join.yaml")["JoinConfiguration"]["discovery"]["tlsBootstrapToken"]
    assert re.fullmatch(r"[a-z0-9]{6}\.[a-z0-9]{16}", token)
    (known,) = documents(rendered(whom=first()), "init.yaml")["InitConfiguration"]["bootstrapTokens"]
    assert known["token"] == token


# --- what users choose ------------------------------------------------------------------------------------------------


def test_flags_reach_the_program_that_they_are_for() -> None:
    told = config(kube_apiserver_arg=["v=3", "profiling"], kube_scheduler_arg="v=1", kubelet_arg=["max-pods=50"])
    plan = rendered(told, first())
    made = documents(plan, "init.yaml")["ClusterConfiguration"]
    assert made["apiServer"]["extraArgs"][1:] == [{"name": "v", "value": "3"}, {"name": "profiling", "value": "true"}]
    assert made["scheduler"]["extraArgs"] == [{"name": "v", "value": "1"}]
    assert "--max-pods=50" in content(plan, "kubelet.env")


def test_a_default_gives_way_to_what_users_say() -> None:
    for told, value in ((cluster(), "true"), (config(kube_apiserver_arg=["shutdown-send-retry-after=false"]), "false")):
        (only,) = documents(rendered(told, first()), "init.yaml")["ClusterConfiguration"]["apiServer"]["extraArgs"]
        assert only == {"name": "shutdown-send-retry-after", "value": value}


def test_names_of_a_server_are_in_its_certificate() -> None:
    plan = rendered(config(tls_san=["api.example"]), first(external_addresses=("192.0.2.1",)))
    names = documents(plan, "init.yaml")["ClusterConfiguration"]["apiServer"]["certSANs"]
    assert names == ["127.0.0.1", "10.0.0.1", "192.0.2.1", "api.example"]
    assert content(plan, "names").split() == names


def test_settings_for_some_machines_are_for_those_alone() -> None:
    config = {"machineLabelSelector": {"matchLabels": {"a": "b"}}, "config": {"kubelet-arg": ["max-pods=50"]}}
    told = cluster({"machineSelectorConfig": [config]})
    assert "--max-pods=50" in content(rendered(told, machine(labels={"a": "b"})), "kubelet.env")
    assert "--max-pods=50" not in content(rendered(told, machine()), "kubelet.env")


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
def test_what_cannot_be_is_told(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        rendered(cluster({"machineGlobalConfig": values}))


def test_labels_that_only_the_manager_may_give_are_left_to_it() -> None:
    labels = {"node-role.kubernetes.io/barn": "", "node.kubernetes.io/size": "l", "example.com/x": "y"}
    given = content(rendered(whom=machine(node_labels=labels)), "labels").split()
    assert given == ["example.com/x=y", "node.kubernetes.io/size=l", "rke.cattle.io/machine=uid-m"]
    assert "node-role.kubernetes.io/barn=" in content(rendered(whom=first(node_labels=labels)), "labels").split()


def test_a_machine_whose_address_is_not_known_waits() -> None:
    with pytest.raises(ConfigError, match="machine m: has no address yet"):
        rendered(whom=machine(internal_addresses=()))


def test_windows_is_refused() -> None:
    with pytest.raises(ConfigError, match="no Windows nodes"):
        rendered(whom=machine(windows=True))


# --- what makes something start again ---------------------------------------------------------------------------------


def test_another_server_makes_nobody_start_again() -> None:
    before = cluster(servers=("https://10.0.0.1:6443",))
    after = cluster(servers=("https://10.0.0.1:6443", "https://10.0.0.3:6443"))
    for whom in (first(), machine(SERVER), machine()):
        assert stamp(rendered(before, whom)) == stamp(rendered(after, whom))


@pytest.mark.parametrize(
    ("values", "servers_too", "workers_too"),
    [
        ({"node-label": ["a=b"]}, False, False),
        ({"kube-apiserver-arg": ["v=3"]}, True, False),
        ({"kubelet-arg": ["v=3"]}, True, True),
        ({"tls-san": ["api.example"]}, True, False),
    ],
)
def test_a_setting_starts_again_what_it_is_for(values: dict[str, Any], servers_too: bool, workers_too: bool) -> None:
    told = cluster({"machineGlobalConfig": values})
    for whom, changes in ((first(), servers_too), (machine(SERVER), servers_too), (machine(), workers_too)):
        assert (stamp(rendered(told, whom)) != stamp(rendered(whom=whom))) is changes


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "image"),
    [
        (cluster(), KUBEADM_INSTALLER),
        (cluster(default_registry="a.example"), f"a.example/{KUBEADM_INSTALLER}"),
        (config(system_default_registry="b.example"), f"b.example/{KUBEADM_INSTALLER}"),
    ],
)
def test_the_installer_comes_from_the_registry_that_is_set(told: ClusterInputs, image: str) -> None:
    assert rendered(told).instructions[0].image == f"{image}:v1.36.3-kubeadm1"


def test_registries_are_told_to_the_agent_and_to_the_container_runtime() -> None:
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
    told = json.loads(content(plan, "/etc/rancher/agent/registries.yaml"))
    assert told["mirrors"] == registries["mirrors"]
    assert told["configs"]["private.example"]["auth"]["password"] == "hidden"
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
    ]
    assert content(plan, f"{files}/ca.crt") == "authority"


def test_the_manager_can_be_the_registry() -> None:
    agent = Agent(server_url="https://10.0.0.9:6443", token="t", ca_checksum="c", image="agent:1")
    plan = rendered(cluster(agent=agent, server_certificates="authority of the manager"))
    hosts = content(plan, "/etc/containerd/certs.d/10.0.0.9:6443/hosts.toml")
    (line,) = [line for line in hosts.splitlines() if "ca =" in line]
    assert content(plan, json.loads(line.partition("=")[2])) == "authority of the manager"


@pytest.mark.parametrize("taint", [{"key": "a"}, {"effect": "NoSchedule"}, {}, {"key": "a", "effect": "Never"}])
def test_a_taint_of_a_machine_that_is_none_is_told(taint: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=re.escape("machine m, annotation rke.cattle.io/taints: ")):
        rendered(cluster(), machine(node_taints=[taint]))


def test_a_mirror_that_has_no_address_is_told() -> None:
    with pytest.raises(ConfigError, match=re.escape("registries.mirrors[a.example].endpoint: 'http://['")):
        rendered(cluster({"registries": {"mirrors": {"a.example": {"endpoint": ["http://["]}}}}))


def test_names_of_images_cannot_be_rewritten() -> None:
    registries = {"mirrors": {"registry.example": {"endpoint": ["https://m.example"], "rewrite": {"a": "b"}}}}
    with pytest.raises(ConfigError, match="containerd cannot rewrite image names"):
        rendered(cluster({"registries": registries}))


def test_a_login_that_is_not_there_is_told() -> None:
    registries = {"configs": {"private.example": {"authConfigSecretName": "login"}}}
    assert Kubeadm().references({"registries": registries}, "fleet-default") == [
        Reference("Secret", "fleet-default", "login")
    ]
    with pytest.raises(ConfigError, match="Secret login does not exist"):
        rendered(cluster({"registries": registries}))


# --- what runs in the cluster -----------------------------------------------------------------------------------------


def test_the_first_server_brings_the_agent_and_what_users_add() -> None:
    agent = Agent(server_url="https://manager.example", token="t", ca_checksum="c", image="agent:1")
    plan = rendered(cluster({"additionalManifest": "kind: X\n"}, agent=agent), first())
    made = {each["kind"]: each for each in yaml.safe_load_all(content(plan, "manifests/cluster-agent.yaml"))}
    assert made["Deployment"]["spec"]["template"]["spec"]["dnsPolicy"] == "Default", (
        "there may be no DNS in the cluster"
    )
    assert content(plan, "manifests/addons.yaml") == "kind: X\n"
    assert not {path for path in paths(rendered(cluster(agent=agent))) if path.startswith("manifests/")}
