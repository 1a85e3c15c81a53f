"""The Job of a machine: its program, arguments, environment variables and files."""

from __future__ import annotations

import base64
import json

import pytest

from herder.api.machines import names
from herder.api.machines.credentials import CREDENTIAL_TYPE
from herder.api.machines.drivers import known
from herder.api.machines.jobs import JOB
from herder.engine.runtime.decision import Apply, Create, Decision
from tests.support.builders import patches_of, writes_of
from tests.unit.controllers.machines.provision.objects import (
    DRIVER,
    arguments_of,
    cluster,
    decide,
    encoded,
    environment_of,
    infra,
    job_of,
    machine,
    node_driver,
    read_result,
    secret,
)


def test_only_external_drivers_are_downloaded_and_recorded_for_the_removal() -> None:
    built_in = arguments_of(decide("digitalocean", infra(), machine(), cluster(), DRIVER))
    assert built_in[:4] == [
        "--driver-download-url=",
        "--driver-hash=",
        "--secret-namespace=ns",
        "--secret-name=m-machine-state",
    ]
    linode = node_driver("linode")
    decision = decide("linode", infra("linode"), machine(), cluster(), linode)
    assert arguments_of(decision)[0] == f"--driver-download-url={linode['spec']['url']}"
    assert arguments_of(decision)[1] == f"--driver-hash={linode['spec']['checksum']}"
    (patch,) = [each.patch for each in patches_of(decision)]
    assert patch["status"]["driverUrl"] == linode["spec"]["url"]
    assert patch["status"]["driverHash"] == linode["spec"]["checksum"]
    assert patch["status"]["jobName"] == "m-machine-provision"


def test_a_node_driver_may_have_any_name() -> None:
    other = {**node_driver("linode"), "metadata": {"name": "nd-x7k2p"}}
    assert arguments_of(decide("linode", infra("linode"), machine(), cluster(), other))


@pytest.mark.parametrize(
    ("driver", "annotations", "image"),
    [
        ("amazonec2", {}, "herder/machine"),
        ("amazonec2", {"machine.herder.io/program": "rancher-machine"}, "rancher/machine"),
        ("digitalocean", {}, "rancher/machine"),
        ("generic", {}, "herder/machine"),
    ],
)
def test_the_node_driver_decides_which_program_creates_its_machines(
    driver: str, annotations: dict[str, str], image: str
) -> None:
    found = node_driver(driver)
    found["metadata"] = {
        **found["metadata"],
        "annotations": {**found["metadata"].get("annotations", {}), **annotations},
    }
    job = job_of(decide(driver, infra(driver), machine(), cluster(), found))
    assert job["spec"]["template"]["spec"]["containers"][0]["image"].partition(":")[0] == image


def test_jobs_inherit_the_configured_environment_variables_of_the_manager() -> None:
    decision = decide("digitalocean", infra(), machine(), cluster(), DRIVER)
    assert environment_of(decision) == {"HTTP_PROXY": "http://proxy:3128"}


@pytest.mark.parametrize(
    ("driver", "variable", "value"),
    [
        ("amazonec2", "AWS_EC2_METADATA_DISABLED", "true"),
        ("google", "GOOGLE_APPLICATION_CREDENTIALS", "/dev/null"),
    ],
)
def test_jobs_do_not_use_the_instance_role_of_the_manager(driver: str, variable: str, value: str) -> None:
    """Without a credential, the SDK would ask the metadata service for the role of the host."""
    decision = decide(driver, infra(driver), machine(), cluster(), node_driver(driver))
    assert environment_of(decision)[variable] == value


def decide_with_credential(*, declared: bool = True, **fields: str) -> Decision:
    """Decide about an EC2 machine whose credential has these fields; without `declared`, the NodeDriver has no
    annotations."""
    found = secret("aws")
    data = encoded(**{f"amazonec2credentialConfig-{name}": value for name, value in fields.items()})
    read = {**found, "type": "provisioning.cattle.io/cloud-credential", "data": data}
    server = infra("amazonec2", spec={"common": {"cloudCredentialSecretName": "aws"}})
    driver = node_driver("amazonec2")
    if not declared:
        driver = {**driver, "metadata": {"name": driver["metadata"]["name"]}}
    return decide("amazonec2", server, machine(), cluster(), driver, found, results=dict([read_result(read, server)]))


KEYS = {"accessKey": "AK", "secretKey": "SK", "sessionToken": "ST", "defaultRegion": "eu-west-1"}


@pytest.mark.parametrize("declared", [True, False])
def test_fields_of_a_credential_become_variables_of_the_driver(declared: bool) -> None:
    variables = environment_of(decide_with_credential(declared=declared, **KEYS))
    assert {name: value for name, value in variables.items() if name.startswith("AWS_")} == {
        "AWS_ACCESS_KEY": "AK",
        "AWS_SECRET_KEY": "SK",
        "AWS_SESSION_TOKEN": "ST",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("field", ["configFile", "ec2MetadataDisabled", "access_key"])
def test_a_credential_sets_no_variable_that_its_driver_does_not_declare(field: str, declared: bool) -> None:
    """AWS_CONFIG_FILE names a file, such as the user data, whose credential_process the SDK would run."""
    decision = decide_with_credential(declared=declared, **KEYS, **{field: "/path/to/machine/files/userdata"})
    assert not [write for write in writes_of(decision) if isinstance(write, Create) and write.kind == JOB]
    assert decision.wait is not None
    assert f'field "{field}" is unknown to driver amazonec2' in decision.wait.reason


def decide_vsphere(*, spec: dict[str, str], **fields: str) -> Decision:
    """Decide about a vSphere machine with this spec, whose credential has these fields."""
    data = {"username": "admin", "password": "secret", "vcenter": "vcenter.example", **fields}
    key = secret("cred") | {"type": CREDENTIAL_TYPE, "data": encoded(**data)}
    machine_object = infra("vmwarevsphere", spec={"common": {"cloudCredentialSecretName": "cred"}, **spec})
    driver = node_driver("vmwarevsphere")
    return decide(
        "vmwarevsphere",
        machine_object,
        machine(),
        cluster(),
        driver,
        key,
        results=dict([read_result(key, machine_object)]),
    )


@pytest.mark.parametrize("field", ["vcenter", "vcenterPort", "username", "password"])
def test_a_config_cannot_redirect_the_password_of_a_credential(field: str) -> None:
    """The author of the config may use the credential, but not read it."""
    decision = decide_vsphere(spec={field: "evil.example"}, vcenterPort="8443")
    assert not [argument for argument in arguments_of(decision) if "evil" in argument]
    assert environment_of(decision)["VSPHERE_VCENTER"] == "vcenter.example"
    assert environment_of(decision)["VSPHERE_VCENTER_PORT"] == "8443"


def test_a_config_may_set_fields_that_the_credential_omits() -> None:
    decision = decide_vsphere(spec={"vcenterPort": "8443", "cpuCount": "4"})
    assert {"--vmwarevsphere-vcenter-port=8443", "--vmwarevsphere-cpu-count=4"} <= {*arguments_of(decision)}
    assert environment_of(decide_vsphere(spec={}))["VSPHERE_VCENTER_PORT"] == "443"


@pytest.mark.parametrize("field", ["cloudinit", "boot2dockerUrl"])
@pytest.mark.parametrize("value", ["/etc/passwd", "file:///etc/passwd", "etc/passwd"])
def test_a_driver_reads_no_file_of_the_host_of_its_job(field: str, value: str) -> None:
    driver = "vmwarevsphere"
    decision = decide(driver, infra(driver, spec={field: value}), machine(), cluster(), node_driver(driver))
    assert not [write for write in writes_of(decision) if isinstance(write, Create) and write.kind == JOB]
    assert decision.wait is not None
    assert f"spec.{field}: must be an http or https URL" in decision.wait.reason


def test_a_machine_may_have_a_cloud_config_url() -> None:
    driver, spec = "vmwarevsphere", {"cloudinit": "https://example.com/config", "boot2dockerUrl": ""}
    assert job_of(decide(driver, infra(driver, spec=spec), machine(), cluster(), node_driver(driver)))


@pytest.mark.parametrize("address", ["http://169.254.169.254/latest/", "http://127.0.0.1:8080/", "https://iso.example"])
def test_a_job_downloads_nothing_for_a_machine(address: str) -> None:
    """Metadata services and services of the host answer the Job, but would not answer the user."""
    driver = "vmwarevsphere"
    machine_object = infra(driver, spec={"boot2dockerUrl": address})
    decision = decide(driver, machine_object, machine(), cluster(), node_driver(driver))
    assert not [write for write in writes_of(decision) if isinstance(write, Create) and write.kind == JOB]
    assert decision.wait is not None
    assert "spec.boot2dockerUrl: " in decision.wait.reason


@pytest.mark.parametrize("driver", ["digitalocean", "vmwarevsphere", "generic"])
def test_the_ssh_user_of_a_machine_cannot_be_an_option_of_ssh(driver: str) -> None:
    """An older OpenSSH would run a ProxyCommand on the host of the Job."""
    machine_object = infra(driver, spec={"sshUser": "-oProxyCommand=id"})
    decision = decide(driver, machine_object, machine(), cluster(), node_driver(driver))
    assert not [write for write in writes_of(decision) if isinstance(write, Create) and write.kind == JOB]
    assert decision.wait is not None
    assert "spec.sshUser: " in decision.wait.reason


def test_fields_zone_and_files_reach_the_driver() -> None:
    spec = {"region": "eu-west-1", "sshKeyContents": "KEY", "instanceType": "t3.large"}
    decision = decide(
        "amazonec2",
        infra("amazonec2", spec=spec, annotations={names.HOSTNAME_LIMIT: "10"}),
        machine(failureDomain="eu-west-1b"),
        cluster(),
        node_driver("amazonec2"),
    )
    assert arguments_of(decision)[4:] == [
        "create",
        "--driver=amazonec2",
        "--custom-install-script=/run/secrets/machine/value",
        "--amazonec2-instance-type=t3.large",
        "--amazonec2-region=eu-west-1",
        "--amazonec2-ssh-keypath=/path/to/machine/files/id_rsa",
        "--amazonec2-tags=kubernetes.io/cluster/c,owned",
        "--amazonec2-zone=b",
        "m",
    ]


_KUBECONFIG = """\
clusters: [{{name: c, cluster: {{server: "https://harvester.example"}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
users: [{{name: u, user: {{{user}}}}}]
current-context: c
"""
_FEDERATED = {"type": "external_account", "token_url": "https://a.example", "credential_source": {"file": "/etc/hosts"}}


def decide_with_document(driver: str, field: str, content: str, *, in_spec: bool) -> Decision:
    key = secret("cred") | {"type": CREDENTIAL_TYPE, "data": encoded(**({} if in_spec else {field: content}))}
    machine_object = infra(
        driver, spec={"common": {"cloudCredentialSecretName": "cred"}, **({field: content} if in_spec else {})}
    )
    driver_object = node_driver(driver)
    driver_object["metadata"]["annotations"]["optionalCredentialFields"] = f"clusterId,{field}"
    return decide(
        driver,
        machine_object,
        machine(),
        cluster(),
        driver_object,
        key,
        results=dict([read_result(key, machine_object)]),
    )


@pytest.mark.parametrize(
    ("driver", "field", "content"),
    [
        ("harvester", "kubeconfigContent", _KUBECONFIG.format(user="exec: {command: id}")),
        ("harvester", "kubeconfigContent", _KUBECONFIG.format(user="tokenFile: /etc/hosts")),
        ("harvester", "kubeconfigContent", "["),
        ("google", "authEncodedJson", json.dumps(_FEDERATED)),
        ("google", "authEncodedJson", json.dumps({"type": "service_account", "Type": "external_account"})),
        ("google", "authEncodedJson", "[]"),
        ("google", "authEncodedJson", "{"),
    ],
)
@pytest.mark.parametrize("in_spec", [False, True])
def test_no_document_of_a_user_runs_a_command_or_reads_a_file(
    driver: str, field: str, content: str, in_spec: bool
) -> None:
    """The programs of these drivers follow such documents on the host of the Job."""
    decision = decide_with_document(driver, field, content, in_spec=in_spec)
    assert not [write for write in writes_of(decision) if isinstance(write, Create) and write.kind == JOB]
    assert decision.wait is not None
    assert f"{field}: " in decision.wait.reason


@pytest.mark.parametrize("in_spec", [False, True])
def test_documents_with_plain_credentials_reach_the_driver(in_spec: bool) -> None:
    kubeconfig, account = _KUBECONFIG.format(user="token: t"), json.dumps({"type": "service_account"})
    assert job_of(decide_with_document("harvester", "kubeconfigContent", kubeconfig, in_spec=in_spec))
    assert job_of(decide_with_document("google", "authEncodedJson", account, in_spec=in_spec))


@pytest.mark.parametrize(("driver", "field"), [("amazonec2", "userdata"), ("generic", "sshKey")])
def test_a_driver_reads_no_file_of_the_host_without_its_node_driver(driver: str, field: str) -> None:
    decision = decide(driver, infra(driver, spec={field: "/etc/hosts"}), machine(), cluster())
    assert not [argument for argument in arguments_of(decision) if argument.endswith("=/etc/hosts")]


def test_an_ssh_key_may_be_in_the_credential() -> None:
    found = secret("barn-key")
    read = {
        **found,
        "type": "provisioning.cattle.io/cloud-credential",
        "data": encoded(**{"genericcredentialConfig-sshKey": "KEY"}),
    }
    host = infra("generic", spec={"ipAddress": "192.0.2.1", "common": {"cloudCredentialSecretName": "barn-key"}})
    key, result = read_result(read, host)
    decision = decide("generic", host, machine(), cluster(), node_driver("generic"), found, results={key: result})
    assert "--generic-ssh-key=/path/to/machine/files/id_rsa" in arguments_of(decision)
    assert "KEY" not in str(environment_of(decision))
    (files,) = [
        write.obj for write in writes_of(decision) if isinstance(write, Apply) and "id_rsa" in write.obj.get("data", {})
    ]
    assert base64.b64decode(files["data"]["id_rsa"]) == b"KEY\n"


def test_a_credential_that_was_recreated_while_being_read_is_not_used() -> None:
    """It is read by name, and may belong to another user by then."""
    observed = secret("do")
    read = {**secret("do", uid="uid-another"), "type": CREDENTIAL_TYPE}
    read["data"] = encoded(**{"digitaloceancredentialConfig-accessToken": "of another user"})
    droplet = infra(spec={"common": {"cloudCredentialSecretName": "do"}})
    key, result = read_result(read, droplet)
    decision = decide("digitalocean", droplet, machine(), cluster(), DRIVER, observed, results={key: result})
    assert writes_of(decision) == []
    assert decision.wait is not None
    assert "was recreated while being read; reading it again" in decision.wait.reason


@pytest.mark.parametrize("name", ["m-machine-driver-secret", "m-machine-provision"])
def test_a_job_uses_no_secret_that_is_not_its_own(name: str) -> None:
    """Long names are truncated: another machine or a user who tries many names can have a Secret of the same name."""
    foreign = secret(name)
    decision = decide("digitalocean", infra(), machine(), cluster(), DRIVER, foreign)
    assert not [write for write in writes_of(decision) if isinstance(write, Create | Apply)]
    assert decision.wait is not None
    assert f"Secret ns/{name} is needed for the Job" in decision.wait.reason
    owner = {"kind": "DigitaloceanMachine", "name": "m", "uid": infra()["metadata"]["uid"], "controller": True}
    own_secret = secret(name, ownerReferences=[owner])
    assert job_of(decide("digitalocean", infra(), machine(), cluster(), DRIVER, own_secret))


@pytest.mark.parametrize(
    ("field", "value"),
    [("privateKeyPath", "/etc/shadow"), ("userDataFile", "file:///etc/shadow"), ("sshKeyPath", "~/.ssh/id_rsa")],
)
def test_a_downloaded_driver_reads_no_file_of_the_host_of_its_job(field: str, value: str) -> None:
    driver = node_driver("oci")
    decision = decide("oci", infra("oci", spec={field: value}), machine(), cluster(), driver)
    assert not [write for write in writes_of(decision) if isinstance(write, Create) and write.kind == JOB]
    assert decision.wait is not None
    assert f"spec.{field}: files of the host that runs Jobs are not used" in decision.wait.reason
    aliases = {known.FILE_ALIASES: f"{field}:{field}"}
    aliased = {**driver, "metadata": {**driver["metadata"], "annotations": aliases}}
    (argument,) = [
        argument
        for argument in arguments_of(decide("oci", infra("oci", spec={field: value}), machine(), cluster(), aliased))
        if argument.startswith("--oci-") and "files" in argument
    ]
    assert argument.endswith(("=/path/to/machine/files/id_rsa", f"=/path/to/machine/files/{field}"))
