"""Files in the plans of K3s and RKE2."""

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
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.node.plan import Instruction, Plan
from herder.controllers.planner.distributions.interface import Reference, Referenced, Roles
from herder.controllers.planner.distributions.rancher.distribution import Rancher
from herder.controllers.planner.distributions.rancher.runtime import K3S, RKE2
from herder.controllers.planner.distributions.rancher.scripts import run_once
from tests.unit.controllers.planner.distributions.inputs import (
    DATA,
    cluster,
    config_of,
    server,
    variables,
    with_agent,
    worker,
)


def secret(
    name: str, data: dict[str, str], *, type_: str = "Opaque", **annotations: str
) -> dict[Reference, Referenced]:
    encoded_data = {key: value.encode() for key, value in data.items()}
    return {Reference("Secret", "fleet-default", name): Referenced(annotations, encoded_data, type_)}


def content(plan: Plan, path: str) -> str:
    return next(file for file in plan.files if file.path == path).decoded.decode()


def rendered(machine: Any = None, *, referenced: dict[Reference, Referenced] | None = None, **spec: Any) -> Plan:
    inputs = replace(cluster(**spec), referenced=referenced or {})
    return Rancher(RKE2).render(inputs, machine or worker())


# --- registries -----------------------------------------------------------------------------------------------------


def test_registries_are_configured_with_their_certificates() -> None:
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
    registry_config = content(plan, "/etc/rancher/rke2/registries.yaml")
    assert registry_config == content(plan, "/etc/rancher/agent/registries.yaml")
    assert registry_config == (
        '{"configs":{"m.example":{"auth":{"username":"u","password":"p","auth":"","identity_token":""},'
        f'"tls":{{"ca_file":"{directory}/ca.crt","cert_file":"{directory}/tls.crt","key_file":"{directory}/tls.key",'
        '"insecure_skip_verify":false}}},'
        '"mirrors":{"docker.io":{"endpoint":["https://m.example"],"rewrite":{"^a":"b"}}}}'
    )


def test_registry_credentials_may_be_a_dockerconfigjson() -> None:
    auths = {"auths": {"m.example": {"username": "u", "password": "p", "auth": base64.b64encode(b"u:p").decode()}}}
    referenced = secret("auth", {".dockerconfigjson": json.dumps(auths)}, type_="kubernetes.io/dockerconfigjson")
    plan = rendered(referenced=referenced, registries={"configs": {"m.example": {"authConfigSecretName": "auth"}}})
    auth = json.loads(content(plan, "/etc/rancher/rke2/registries.yaml"))["configs"]["m.example"]["auth"]
    assert auth == {"username": "u", "password": "p", "auth": base64.b64encode(b"u:p").decode(), "identity_token": ""}


@pytest.mark.parametrize(
    ("config", "existing", "expected"),
    [
        ({"authConfigSecretName": "auth"}, {}, "authConfigSecretName: Secret auth does not exist"),
        ({"authConfigSecretName": "auth"}, secret("auth", {}), "must be of type rke.cattle.io/auth-config"),
        ({"tlsSecretName": "tls"}, secret("tls", {}), "Secret tls must be of type kubernetes.io/tls"),
    ],
)
def test_an_unusable_registry_secret_is_an_error(config: dict[str, Any], existing: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rendered(referenced=existing, registries={"configs": {"m.example": config}})
    assert "rkeConfig.registries.configs[m.example]" in str(caught.value)
    assert expected in str(caught.value)


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
def test_the_installer_image_comes_from_the_configured_registry(spec: dict[str, Any], setting: str, image: str) -> None:
    inputs = replace(cluster(**spec), default_registry=setting)
    assert Rancher(RKE2).render(inputs, worker()).instructions[0].image == image


def test_the_certificate_of_a_manager_that_serves_images_is_configured() -> None:
    """The endpoint is HTTPS, also at a private address, where agents would assume plain HTTP."""
    agent = Agent("https://10.0.0.1:8443", "token", "", "herder/agent")
    inputs = replace(cluster(), agent=agent, server_certificates="PEM", default_registry="10.0.0.1:8443")
    plan = Rancher(K3S).render(inputs, worker())
    registry_config = json.loads(content(plan, "/etc/rancher/agent/registries.yaml"))
    assert registry_config["mirrors"] == {"10.0.0.1:8443": {"endpoint": ["https://10.0.0.1:8443"]}}
    assert content(plan, registry_config["configs"]["10.0.0.1:8443"]["tls"]["ca_file"]) == "PEM"
    elsewhere = Rancher(K3S).render(replace(inputs, default_registry="g.example"), worker())
    assert "10.0.0.1" not in content(elsewhere, "/etc/rancher/agent/registries.yaml")


# --- files from Secrets ---------------------------------------------------------------------------------------------


def selected(**item: Any) -> dict[str, Any]:
    source = {
        "secret": {"name": "files", "defaultPermissions": "0640", "items": [{"key": "k", "path": "/own", **item}]}
    }
    return {"machineSelectorFiles": [{"fileSources": [source]}]}


AUTHORIZED = {names.AUTHORIZED_CLUSTERS: "other,demo"}


def test_files_come_from_secrets_that_are_authorized_for_the_cluster() -> None:
    referenced = secret("files", {"k": "v"}, **AUTHORIZED)
    digest = base64.b64encode(hashlib.sha256(b"v").digest()).decode()
    plan = rendered(referenced=referenced, **selected(hash=digest, dynamic=True))
    own = next(file for file in plan.files if file.path == "/own")
    assert (own.decoded, own.permissions, own.dynamic) == (b"v", "0640", True)
    assert [file.path for file in plan.files].index("/own") == 1


@pytest.mark.parametrize(
    ("existing", "item", "expected"),
    [
        ({}, {}, "Secret fleet-default/files does not exist"),
        (secret("files", {"k": "v"}), {}, "is not for this cluster"),
        (secret("files", {"k": "v"}, **AUTHORIZED), {"hash": "wrong"}, "does not contain the expected content"),
        (secret("files", {}, **AUTHORIZED), {}, "has no key k"),
    ],
)
def test_an_unusable_file_source_is_an_error(existing: Any, item: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rendered(referenced=existing, **selected(**item))
    assert "rkeConfig.machineSelectorFiles[0].fileSources[0].secret" in str(caught.value)
    assert expected in str(caught.value)
    assert base64.b64encode(hashlib.sha256(b"v").digest()).decode() not in str(caught.value), "members read conditions"


def test_contents_given_as_arguments_become_files() -> None:
    plan = rendered(
        server(), machineGlobalConfig={"audit-policy-file": "rules: []", "cloud-provider-config": "[Global]"}
    )
    policy, provider = f"{DATA}/etc/config-files/audit-policy-file", f"{DATA}/etc/config-files/cloud-provider-config"
    assert (content(plan, policy), content(plan, provider)) == ("rules: []", "[Global]")
    assert config_of(plan)["audit-policy-file"] == policy


def test_the_cloud_provider_config_may_be_in_an_authorized_secret() -> None:
    annotation = {"v2prov-secret-authorized-for-cluster": "demo"}
    spec = {"machineGlobalConfig": {"cloud-provider-config": "secret://fleet-default:cloud"}}
    plan = rendered(referenced=secret("cloud", {"credential": "c"}, **annotation), **spec)
    assert content(plan, f"{DATA}/etc/config-files/cloud-provider-config") == "c"
    with pytest.raises(ConfigError, match="does not belong to cluster demo"):
        rendered(referenced=secret("cloud", {"credential": "c"}), **spec)


# --- snapshots ------------------------------------------------------------------------------------------------------


def test_snapshot_settings_come_from_the_cluster_or_its_credential() -> None:
    referenced = secret(
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
    plan = rendered(server(), referenced=referenced, etcd=etcd)
    etcd_arguments = {key: value for key, value in config_of(plan).items() if key.startswith("etcd-")}
    authority = next(file for file in plan.files if "s3-endpoint-ca-" in file.path)
    assert etcd_arguments == {
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
    assert not [
        key for key in config_of(rendered(worker(), referenced=referenced, etcd=etcd)) if key.startswith("etcd-")
    ]


@pytest.mark.parametrize(
    ("path", "owned"),
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
def test_only_files_that_plans_alone_write_are_owned(path: str, owned: bool) -> None:
    assert Rancher(RKE2).owns_file(cluster(), path) is owned


# --- manifests ------------------------------------------------------------------------------------------------------


def test_control_planes_apply_the_cluster_agent_the_spec_and_additional_manifests() -> None:
    plan = Rancher(RKE2).render(with_agent(cluster(additionalManifest="kind: Secret")), server())
    directory = f"{DATA}/server/manifests/rancher"
    assert "cattle-cluster-agent" in content(plan, f"{directory}/cluster-agent.yaml")
    config_map = yaml.safe_load(content(plan, f"{directory}/rke2-etcd-snapshot-extra-metadata.yaml"))
    assert config_map["metadata"] == {"name": "rke2-etcd-snapshot-extra-metadata", "namespace": "kube-system"}
    assert config_map["data"] == {"provisioning-cluster-spec": "H4sI"}
    assert content(plan, f"{directory}/addons.yaml") == "kind: Secret"
    etcd = Rancher(RKE2).render(with_agent(cluster()), server(roles=Roles(etcd=True)))
    assert [file.path for file in etcd.files if directory in file.path] == [f"{directory}/managed-chart-config.yaml"]


def test_changes_of_minor_or_dynamic_files_cause_no_restart() -> None:
    plain = Rancher(RKE2).render(cluster(), server())
    changed = Rancher(RKE2).render(
        with_agent(cluster(additionalManifest="x", chartValues={"rke2-coredns": {}})), server()
    )
    assert variables(plain)["RESTART_STAMP"] == variables(changed)["RESTART_STAMP"]


def test_chart_values_contain_the_cluster_id() -> None:
    plan = rendered(server(), chartValues={"rke2-calico": {"global": {"a": 1}}, "rke2-coredns": None})
    charts = list(yaml.safe_load_all(content(plan, f"{DATA}/server/manifests/rancher/managed-chart-config.yaml")))
    assert [chart["metadata"]["name"] for chart in charts] == ["rke2-calico", "rke2-coredns"]
    values = json.loads(charts[0]["spec"]["valuesContent"])
    assert values == {"global": {"a": 1, "cattle": {"clusterId": "c-m-abcdefgh"}}}


def test_the_authorized_endpoint_has_a_file_and_an_argument_on_servers() -> None:
    plan = rendered(server(), localClusterAuthEndpoint={"enabled": True})
    path = f"{DATA}/kube-api-authn-webhook.yaml"
    assert config_of(plan)["kube-apiserver-arg"] == [f"authentication-token-webhook-config-file={path}"]
    server_ = yaml.safe_load(content(plan, path))["clusters"][0]["cluster"]["server"]
    assert server_ == "http://127.0.0.1:6440/v1/authenticate"
    assert not [
        file for file in rendered(worker(), localClusterAuthEndpoint={"enabled": True}).files if file.path == path
    ]


@pytest.mark.parametrize(("preference", "host"), [("ipv4", "127.0.0.1"), ("ipv6", "[::1]"), ("dual", "localhost")])
def test_probes_use_the_loopback_address_of_the_stack_preference(preference: str, host: str) -> None:
    plan = rendered(server(), networking={"stackPreference": preference})
    assert plan.probes["kubelet"].http_get.url == f"http://{host}:10248/healthz"
    assert plan.probes["kube-apiserver"].http_get.url == f"https://{host}:6443/readyz"


@pytest.mark.parametrize(("cni", "probed"), [(None, True), ("calico", True), ("cilium", False), (["calico"], True)])
def test_calico_is_probed_only_where_it_runs(cni: Any, probed: bool) -> None:
    config = {"cni": cni} if cni else {}
    assert ("calico" in rendered(worker(), machineGlobalConfig=config).probes) is probed


# --- environment and directories ------------------------------------------------------------------------------------


def test_environment_variables_and_data_directories_are_used() -> None:
    spec: dict[str, Any] = {
        "agentEnvVars": [{"name": "HTTP_PROXY", "value": "http://p"}, {"name": "EMPTY", "value": ""}],
        "dataDirectories": {"k8sDistro": "/data", "provisioning": "/capr"},
        "provisionGeneration": 3,
    }
    plan = rendered(server(), **spec)
    environment = variables(plan)
    assert (environment["HTTP_PROXY"], environment["RKE2_DATA_DIR"]) == ("http://p", "/data")
    assert "EMPTY" not in environment
    assert config_of(plan)["data-dir"] == "/data"
    assert plan.files[-1].path == "/capr/idempotence/idempotent.sh"
    assert environment["RESTART_STAMP"] != variables(rendered(server()))["RESTART_STAMP"]


def test_a_run_once_instruction_has_the_form_of_upstream() -> None:
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


def test_a_windows_worker_has_its_own_plan_and_drain_hash() -> None:
    inputs = replace(cluster(agentEnvVars=[{"name": "$env:A", "value": '"b"'}]), initialized=True)
    plan = Rancher(RKE2).render(inputs, worker(windows=True))
    install, closing = plan.instructions
    assert (install.command, install.args) == ("powershell.exe", ("-File", "run.ps1"))
    environment = variables(plan)
    assert set(environment) == {
        "WINS_RESTART_STAMP", "WINS_DRAIN_HASH", "A", "RKE2_DATA_DIR", "INSTALL_RKE2_VERSION", "INSTALL_RKE2_EXEC",
    }  # fmt: skip
    assert (environment["A"], environment["INSTALL_RKE2_VERSION"]) == ("b", "v1.33.4+rke2r1")
    assert closing.args[1].endswith("set-permissions.ps1")
    assert "calico" not in plan.probes
    assert Rancher(RKE2).drain_hash(plan) == environment["WINS_DRAIN_HASH"]


def test_windows_nodes_must_be_workers_of_rke2() -> None:
    with pytest.raises(ConfigError, match="Windows nodes can be workers of RKE2"):
        Rancher(RKE2).render(cluster(), server(windows=True))
    with pytest.raises(ConfigError, match="Windows nodes can be workers of RKE2"):
        Rancher(K3S).render(cluster("v1.33.4+k3s1"), worker(windows=True))


# --- references -----------------------------------------------------------------------------------------------------


def test_references_of_a_spec_are_found() -> None:
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
