"""Files that plans bring along for K3s and RKE2."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from herder.api.management.manifest import Agent
from herder.api.rke import names
from herder.api.rke.node.plan import Instruction, Plan
from herder.controllers.planner.distributions.interface import ClusterInputs, ConfigError, Reference, Referenced, Roles
from herder.controllers.planner.distributions.rancher.distribution import Rancher
from herder.controllers.planner.distributions.rancher.runtime import K3S, RKE2
from herder.controllers.planner.distributions.rancher.scripts import run_once
from tests.unit.controllers.planner.test_vectors import DATA, cluster, config_of, server, variables, worker


def secret(
    name: str, data: dict[str, str], *, type_: str = "Opaque", **annotations: str
) -> dict[Reference, Referenced]:
    held = {key: value.encode() for key, value in data.items()}
    return {Reference("Secret", "fleet-default", name): Referenced(annotations, held, type_)}


def content(plan: Plan, path: str) -> str:
    return next(file for file in plan.files if file.path == path).decoded.decode()


def rendered(machine: Any = None, *, referenced: dict[Reference, Referenced] | None = None, **spec: Any) -> Plan:
    inputs = replace(cluster(**spec), referenced=referenced or {})
    return Rancher(RKE2).render(inputs, machine or worker())


# --- registries -----------------------------------------------------------------------------------------------------


def test_registries_reach_the_agent_and_the_distribution_with_their_certificates() -> None:
    tls = secret("tls", {"tls.crt": "CERT", "tls.key": "KEY"}, type_="kubernetes.io/tls")
    auth = secret("auth", {"username": "u", "password": "p"}, type_=names.AUTH_SECRET_TYPE)
    config = {
        "authConfigSecretName": "auth",
        "tlsSecretName": "tls",
        "caBundle": base64.b64encode(b"CA").decode(),
    }
    mirrors = {"docker.io": {"endpoint": ["https://m.example"], "rewrite": {"^a": "b"}}}
    spec = {"registries": {"configs": {"m.example": config}, "mirrors": mirrors}}
    plan = rendered(referenced=tls | auth, **spec)
    directory = f"{DATA}/etc/tls/registries/m.example"
    assert [(file.path, file.dynamic) for file in plan.files][:5] == [
        ("/etc/rancher/agent/registries.yaml", True),
        (f"{directory}/ca.crt", False),
        (f"{directory}/tls.crt", False),
        (f"{directory}/tls.key", False),
        ("/etc/rancher/rke2/registries.yaml", False),
    ]
    said = content(plan, "/etc/rancher/rke2/registries.yaml")
    assert said == content(plan, "/etc/rancher/agent/registries.yaml")
    assert said == (
        '{"configs":{"m.example":{"auth":{"username":"u","password":"p","auth":"","identity_token":""},'
        f'"tls":{{"ca_file":"{directory}/ca.crt","cert_file":"{directory}/tls.crt","key_file":"{directory}/tls.key",'
        '"insecure_skip_verify":false}}},'
        '"mirrors":{"docker.io":{"endpoint":["https://m.example"],"rewrite":{"^a":"b"}}}}'
    )


def test_a_login_may_come_from_docker_s_own_file() -> None:
    auths = {"auths": {"m.example": {"username": "u", "password": "p", "auth": base64.b64encode(b"u:p").decode()}}}
    given = secret("auth", {".dockerconfigjson": json.dumps(auths)}, type_="kubernetes.io/dockerconfigjson")
    plan = rendered(referenced=given, registries={"configs": {"m.example": {"authConfigSecretName": "auth"}}})
    auth = json.loads(content(plan, "/etc/rancher/rke2/registries.yaml"))["configs"]["m.example"]["auth"]
    assert auth == {"username": "u", "password": "p", "auth": base64.b64encode(b"u:p").decode(), "identity_token": ""}


@pytest.mark.parametrize(
    ("config", "there", "told"),
    [
        ({"authConfigSecretName": "auth"}, {}, "authConfigSecretName: Secret auth does not exist"),
        ({"authConfigSecretName": "auth"}, secret("auth", {}), "must be of type rke.cattle.io/auth-config"),
        ({"tlsSecretName": "tls"}, secret("tls", {}), "Secret tls must be of type kubernetes.io/tls"),
    ],
)
def test_a_registry_that_cannot_be_used_is_told(config: dict[str, Any], there: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rendered(referenced=there, registries={"configs": {"m.example": config}})
    assert "rkeConfig.registries.configs[m.example]" in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "setting", "image"),
    [
        ({}, "", "rancher/system-agent-installer-rke2:v1.33.4-rke2r1"),
        ({}, "g.example", "g.example/rancher/system-agent-installer-rke2:v1.33.4-rke2r1"),
        (
            {"machineGlobalConfig": {"system-default-registry": "c.example"}},
            "g.example",
            "c.example/rancher/system-agent-installer-rke2:v1.33.4-rke2r1",
        ),
    ],
)
def test_the_installer_comes_from_the_registry_of_the_cluster_or_of_all(
    spec: dict[str, Any], setting: str, image: str
) -> None:
    inputs = replace(cluster(**spec), default_registry=setting)
    assert Rancher(RKE2).render(inputs, worker()).instructions[0].image == image


def test_a_manager_that_is_the_registry_is_known_by_its_certificate() -> None:
    """By HTTPS, also at a private address, where agents would take it to have no TLS."""
    agent = Agent("https://10.0.0.1:8443", "token", "", "herder/agent")
    inputs = replace(cluster(), agent=agent, server_certificates="PEM", default_registry="10.0.0.1:8443")
    plan = Rancher(K3S).render(inputs, worker())
    said = json.loads(content(plan, "/etc/rancher/agent/registries.yaml"))
    assert said["mirrors"] == {"10.0.0.1:8443": {"endpoint": ["https://10.0.0.1:8443"]}}
    assert content(plan, said["configs"]["10.0.0.1:8443"]["tls"]["ca_file"]) == "PEM"
    elsewhere = Rancher(K3S).render(replace(inputs, default_registry="g.example"), worker())
    assert "10.0.0.1" not in content(elsewhere, "/etc/rancher/agent/registries.yaml")


# --- files of the user ----------------------------------------------------------------------------------------------


def selected(**item: Any) -> dict[str, Any]:
    source = {
        "secret": {"name": "files", "defaultPermissions": "0640", "items": [{"key": "k", "path": "/own", **item}]}
    }
    return {"machineSelectorFiles": [{"fileSources": [source]}]}


AUTHORIZED = {names.AUTHORIZED_CLUSTERS: "other,demo"}


def test_files_come_from_secrets_that_are_for_this_cluster() -> None:
    given = secret("files", {"k": "v"}, **AUTHORIZED)
    digest = base64.b64encode(hashlib.sha256(b"v").digest()).decode()
    plan = rendered(referenced=given, **selected(hash=digest, dynamic=True))
    own = next(file for file in plan.files if file.path == "/own")
    assert (own.decoded, own.permissions, own.dynamic) == (b"v", "0640", True)
    assert [file.path for file in plan.files].index("/own") == 1


@pytest.mark.parametrize(
    ("there", "item", "told"),
    [
        ({}, {}, "Secret fleet-default/files does not exist"),
        (secret("files", {"k": "v"}), {}, "is not for this cluster"),
        (secret("files", {"k": "v"}, **AUTHORIZED), {"hash": "wrong"}, "does not contain the expected content"),
        (secret("files", {}, **AUTHORIZED), {}, "has no key k"),
    ],
)
def test_a_file_that_must_not_be_used_is_told(there: Any, item: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rendered(referenced=there, **selected(**item))
    assert "rkeConfig.machineSelectorFiles[0].fileSources[0].secret" in str(caught.value)
    assert told in str(caught.value)


def test_contents_given_as_arguments_become_files() -> None:
    plan = rendered(
        server(), machineGlobalConfig={"audit-policy-file": "rules: []", "cloud-provider-config": "[Global]"}
    )
    policy, provider = f"{DATA}/etc/config-files/audit-policy-file", f"{DATA}/etc/config-files/cloud-provider-config"
    assert (content(plan, policy), content(plan, provider)) == ("rules: []", "[Global]")
    assert config_of(plan)["audit-policy-file"] == policy


def test_a_cloud_provider_s_config_may_be_in_a_secret_of_the_cluster() -> None:
    mark = {"v2prov-secret-authorized-for-cluster": "demo"}
    spec = {"machineGlobalConfig": {"cloud-provider-config": "secret://fleet-default:cloud"}}
    plan = rendered(referenced=secret("cloud", {"credential": "c"}, **mark), **spec)
    assert content(plan, f"{DATA}/etc/config-files/cloud-provider-config") == "c"
    with pytest.raises(ConfigError, match="does not belong to cluster demo"):
        rendered(referenced=secret("cloud", {"credential": "c"}), **spec)


# --- snapshots ------------------------------------------------------------------------------------------------------


def test_snapshots_go_where_the_cluster_or_its_credential_says() -> None:
    given = secret(
        "s3",
        {
            "s3credentialConfig-accessKey": "A",
            "s3credentialConfig-secretKey": "S",
            "s3credentialConfig-defaultBucket": "theirs",
            "s3credentialConfig-defaultRegion": "r",
            "s3credentialConfig-defaultEndpointCA": "-----BEGIN CERTIFICATE-----",
        },
    )
    etcd = {
        "snapshotRetention": 5,
        "snapshotScheduleCron": "0 */5 * * *",
        "s3": {"bucket": "own", "cloudCredentialName": "s3", "retention": 3},
    }
    plan = rendered(server(), referenced=given, etcd=etcd)
    told = {key: value for key, value in config_of(plan).items() if key.startswith("etcd-")}
    authority = next(file for file in plan.files if "s3-endpoint-ca-" in file.path)
    assert told == {
        "etcd-snapshot-retention": 5,
        "etcd-snapshot-schedule-cron": "0 */5 * * *",
        "etcd-s3": True,
        "etcd-s3-bucket": "own",
        "etcd-s3-access-key": "A",
        "etcd-s3-secret-key": "S",
        "etcd-s3-region": "r",
        "etcd-s3-retention": 3,
        "etcd-s3-endpoint-ca": authority.path,
    }
    assert plan.files[0] is authority
    encoded = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
    digest = hashlib.md5(encoded.encode(), usedforsecurity=False).hexdigest()[:5]
    assert authority.path == f"{DATA}/etc/config-files/s3-endpoint-ca-{digest}.crt"
    assert not [key for key in config_of(rendered(worker(), referenced=given, etcd=etcd)) if key.startswith("etcd-")]


@pytest.mark.parametrize(
    ("path", "goes"),
    [
        ("/etc/rancher/agent/registries.yaml", True),
        (f"{DATA}/etc/tls/registries/m.example/tls.key", True),
        (f"{DATA}/etc/config-files/cloud-provider-config", True),
        (f"{DATA}/kube-api-authn-webhook.yaml", True),
        (f"{DATA}/server/manifests/rancher/addons.yaml", False),
        (f"{DATA}/server/token", False),
        ("/etc/sysctl.d/90-own.conf", False),
    ],
)
def test_what_was_of_plans_alone_goes_with_them(path: str, goes: bool) -> None:
    assert Rancher(RKE2).owns_file(cluster(), path) is goes


# --- manifests ------------------------------------------------------------------------------------------------------


def with_agent(inputs: ClusterInputs) -> ClusterInputs:
    agent = Agent(server_url="https://herder.example", token="t" * 54, ca_checksum="c", image="agent:1")
    return replace(inputs, agent=agent, annotations={names.CLUSTER_SPEC: "H4sI"})


def test_control_planes_apply_the_cluster_agent_the_spec_and_what_users_add() -> None:
    plan = Rancher(RKE2).render(with_agent(cluster(additionalManifest="kind: Secret")), server())
    directory = f"{DATA}/server/manifests/rancher"
    assert "cattle-cluster-agent" in content(plan, f"{directory}/cluster-agent.yaml")
    kept = yaml.safe_load(content(plan, f"{directory}/rke2-etcd-snapshot-extra-metadata.yaml"))
    assert kept["metadata"] == {"name": "rke2-etcd-snapshot-extra-metadata", "namespace": "kube-system"}
    assert kept["data"] == {"provisioning-cluster-spec": "H4sI"}
    assert content(plan, f"{directory}/addons.yaml") == "kind: Secret"
    etcd = Rancher(RKE2).render(with_agent(cluster()), server(roles=Roles(etcd=True)))
    assert [file.path for file in etcd.files if directory in file.path] == [f"{directory}/managed-chart-config.yaml"]


def test_what_is_minor_or_dynamic_restarts_nothing() -> None:
    plain = Rancher(RKE2).render(cluster(), server())
    changed = Rancher(RKE2).render(
        with_agent(cluster(additionalManifest="x", chartValues={"rke2-coredns": {}})), server()
    )
    assert variables(plain)["RESTART_STAMP"] == variables(changed)["RESTART_STAMP"]


def test_charts_learn_their_cluster() -> None:
    plan = rendered(server(), chartValues={"rke2-calico": {"global": {"a": 1}}, "rke2-coredns": None})
    charts = list(yaml.safe_load_all(content(plan, f"{DATA}/server/manifests/rancher/managed-chart-config.yaml")))
    assert [chart["metadata"]["name"] for chart in charts] == ["rke2-calico", "rke2-coredns"]
    values = json.loads(charts[0]["spec"]["valuesContent"])
    assert values == {"global": {"a": 1, "cattle": {"clusterId": "c-m-abcdefgh"}}}


def test_the_authentication_endpoint_has_a_file_and_an_argument_on_servers() -> None:
    plan = rendered(server(), localClusterAuthEndpoint={"enabled": True})
    path = f"{DATA}/kube-api-authn-webhook.yaml"
    assert config_of(plan)["kube-apiserver-arg"] == [f"authentication-token-webhook-config-file={path}"]
    server_ = yaml.safe_load(content(plan, path))["clusters"][0]["cluster"]["server"]
    assert server_ == "http://127.0.0.1:6440/v1/authenticate"
    assert not [
        file for file in rendered(worker(), localClusterAuthEndpoint={"enabled": True}).files if file.path == path
    ]


@pytest.mark.parametrize(("preference", "here"), [("ipv4", "127.0.0.1"), ("ipv6", "[::1]"), ("dual", "localhost")])
def test_probes_ask_where_the_cluster_s_stack_answers(preference: str, here: str) -> None:
    plan = rendered(server(), networking={"stackPreference": preference})
    assert plan.probes["kubelet"].http_get.url == f"http://{here}:10248/healthz"
    assert plan.probes["kube-apiserver"].http_get.url == f"https://{here}:6443/readyz"


@pytest.mark.parametrize(("cni", "has"), [(None, True), ("calico", True), ("cilium", False), (["calico"], True)])
def test_calico_is_asked_where_it_runs(cni: Any, has: bool) -> None:
    config = {"cni": cni} if cni else {}
    assert ("calico" in rendered(worker(), machineGlobalConfig=config).probes) is has


# --- environment, directories ---------------------------------------------------------------------------------------


def test_variables_and_directories_of_the_cluster_are_used() -> None:
    spec: dict[str, Any] = {
        "agentEnvVars": [{"name": "HTTP_PROXY", "value": "http://p"}, {"name": "EMPTY", "value": ""}],
        "dataDirectories": {"k8sDistro": "/data", "provisioning": "/capr"},
        "provisionGeneration": 3,
    }
    plan = rendered(server(), **spec)
    told = variables(plan)
    assert (told["HTTP_PROXY"], told["RKE2_DATA_DIR"]) == ("http://p", "/data")
    assert "EMPTY" not in told
    assert config_of(plan)["data-dir"] == "/data"
    assert plan.files[-1].path == "/capr/idempotence/idempotent.sh"
    assert told["RESTART_STAMP"] != variables(rendered(server()))["RESTART_STAMP"]


def test_a_command_that_runs_once_has_the_known_form() -> None:
    wrapped = run_once(
        cluster(), "Etcd-Restore", "1", Instruction(command="/bin/sh", args=("-c", "true"), save_output=True)
    )
    value, command = (hashlib.sha256(text.encode()).hexdigest() for text in ("1", "/bin/sh"))
    assert wrapped.name == f"idempotent-Etcd-Restore-{value}-{command}"
    script, directory = "/var/lib/rancher/capr/idempotence/idempotent.sh", "/var/lib/rancher/capr"
    assert wrapped.command == "/bin/sh"
    assert wrapped.args == ("-x", script, "etcd-restore", value, command, "/bin/sh", directory, "-c", "true")
    assert wrapped.save_output


# --- Windows --------------------------------------------------------------------------------------------------------


def test_a_windows_worker_s_plan_is_in_its_own_words_and_its_drain_hash_is_read() -> None:
    inputs = replace(cluster(agentEnvVars=[{"name": "$env:A", "value": '"b"'}]), initialized=True)
    plan = Rancher(RKE2).render(inputs, worker(windows=True))
    install, closing = plan.instructions
    assert (install.command, install.args) == ("powershell.exe", ("-File", "run.ps1"))
    told = variables(plan)
    assert set(told) == {
        "WINS_RESTART_STAMP", "WINS_DRAIN_HASH", "A", "RKE2_DATA_DIR", "INSTALL_RKE2_VERSION", "INSTALL_RKE2_EXEC",
    }  # fmt: skip
    assert (told["A"], told["INSTALL_RKE2_VERSION"]) == ("b", "v1.33.4+rke2r1")
    assert closing.args[1].endswith("set-permissions.ps1")
    assert "calico" not in plan.probes
    assert Rancher(RKE2).drain_hash(plan) == told["WINS_DRAIN_HASH"]


def test_windows_nodes_are_workers_of_rke2_alone() -> None:
    with pytest.raises(ConfigError, match="Windows nodes can be workers of RKE2"):
        Rancher(RKE2).render(cluster(), server(windows=True))
    with pytest.raises(ConfigError, match="Windows nodes can be workers of RKE2"):
        Rancher(K3S).render(cluster("v1.33.4+k3s1"), worker(windows=True))


# --- references -----------------------------------------------------------------------------------------------------


def test_a_spec_names_what_its_plans_are_made_of() -> None:
    spec = {
        "registries": {"configs": {"a": {"authConfigSecretName": "auth", "tlsSecretName": "tls"}}},
        "etcd": {"s3": {"cloudCredentialName": "cattle-global-data:cc-1"}},
        "machineGlobalConfig": {"cloud-provider-config": "secret://other:cloud"},
        "machineSelectorFiles": [{"fileSources": [{"configMap": {"name": "files"}}]}],
    }
    assert [str(found) for found in Rancher(RKE2).references(spec, "fleet-default")] == [
        "Secret fleet-default/auth",
        "Secret fleet-default/tls",
        "Secret cattle-global-data/cc-1",
        "Secret other/cloud",
        "ConfigMap fleet-default/files",
    ]
