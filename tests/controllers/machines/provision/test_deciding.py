"""One pass over a machine: what it waits for, in words, and what its Job is made of."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_SET, NAMESPACE, POD, SECRET
from herder.api.machines import hosts, names
from herder.api.machines.archive import log_object
from herder.api.machines.credentials import CREDENTIAL_TYPE
from herder.api.machines.hosts import machine_credential
from herder.api.machines.jobs import JOB
from herder.api.machines.kinds import NODE_DRIVER, kinds_of
from herder.api.machines.registered import registered
from herder.api.references.approvals import APPROVED
from herder.api.references.catalogue import BOOTSTRAP_DATA, CREDENTIAL
from herder.api.settings import Settings
from herder.controllers.machines.provision.controller import FAMILY, controller
from herder.controllers.machines.provision.removal import FINALIZER
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runner.approval import verify
from herder.engine.runtime.decision import Apply, Create, Decision, Delete, EffectResult, Patch
from tests.controllers.inmemory.stage import flat, made, only_patch
from tests.support.views import NOW, view_of

NS = "ns"
PASSED = {"HTTP_PROXY": "http://proxy:3128", "SECRET_OF_THE_MANAGER": "x"}


def cluster(*, provisioned: bool = True, paused: bool = False) -> Object:
    status = {"initialization": {"infrastructureProvisioned": provisioned}}
    return made(CLUSTER, "c", spec={"paused": paused}, status=status)


def machine(*, data: str = "data", **more: Any) -> Object:
    bootstrap = {"dataSecretName": data} if data else {}
    return made(MACHINE, "m", spec={"clusterName": "c", "bootstrap": bootstrap, **more})


def infra(
    driver: str = "digitalocean",
    *,
    spec: Object | None = None,
    status: Object | None = None,
    claimed: bool = True,
    owned: bool = True,
    deleting: bool = False,
    annotations: dict[str, str] | None = None,
) -> Object:
    return made(
        kinds_of(driver).machine,
        "m",
        owner=machine() if owned else None,
        labels={names.MACHINE_NAME_LABEL: "m"} if claimed else {},
        finalizers=[FINALIZER] if claimed else [],
        annotations=annotations,
        deleting=deleting,
        spec=spec or {},
        status=status or {},
    )


def node_driver(name: str, **more: Any) -> Object:
    found = next(driver for driver in registered() if driver["metadata"]["name"] == name)
    return {**found, "spec": {**found["spec"], **more}}


def secret(name: str, namespace: str = NS, *, revision: str = "7", **more: Any) -> Object:
    meta = {"name": name, "namespace": namespace, "resourceVersion": revision, "uid": f"uid-{name}", **more}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta}


def was_read(obj: Object, of: Object, occasion: str = "") -> tuple[tuple[str, ...], EffectResult]:
    meta = obj["metadata"]
    key = ("read-secret", of["metadata"]["uid"], meta["namespace"], meta["name"], meta["resourceVersion"], occasion)
    return key, EffectResult(obj)


def encoded(**texts: str) -> dict[str, str]:
    return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}


def decide(driver: str, *objects: Object, **more: Any) -> Decision:
    kind = kinds_of(driver).machine
    ours, objects = controller(kind, PASSED), tuple(_naming(each, kind) for each in objects)
    return ours.reconcile(view_of(ours, f"{NS}/m", objects, settings=Settings().get, **more))


def _naming(obj: Object, kind: Kind) -> Object:
    """A Machine that does not say otherwise names the infrastructure machine of its name."""
    if obj["kind"] != MACHINE.kind or "infrastructureRef" in obj["spec"]:
        return obj
    reference = {"apiGroup": kind.group, "kind": kind.kind, "name": obj["metadata"]["name"]}
    return {**obj, "spec": {**obj["spec"], "infrastructureRef": reference}}


def job_of(decision: Decision) -> Object:
    (job,) = [write.obj for write in flat(decision) if isinstance(write, Create) and write.kind == JOB]
    return job


def arguments_of(decision: Decision) -> list[str]:
    words: list[str] = job_of(decision)["spec"]["template"]["spec"]["containers"][0]["args"]
    return words


def environment_of(decision: Decision) -> dict[str, str]:
    (found,) = [
        write.obj
        for write in flat(decision)
        if isinstance(write, Apply) and write.obj["metadata"]["name"] == "m-machine-driver-secret"
    ]
    return {name: base64.b64decode(value).decode() for name, value in found["data"].items()}


# --- references -----------------------------------------------------------------------------------------------------

DRIVER = node_driver("digitalocean")
AWS = infra("amazonec2", spec={"common": {"cloudCredentialSecretName": "aws"}})


def approved(obj: Object, path: str, name: str, uid: str) -> Object:
    found = {"path": path, "resource": "secrets", "namespace": NS, "name": name, "uid": uid, "author": "u"}
    return {**obj, "metadata": {**obj["metadata"], "annotations": {APPROVED: json.dumps([found])}}}


@pytest.mark.parametrize(
    ("path", "uid", "expected"),
    [
        (CREDENTIAL, "uid-aws", "Secret default/aws is being read"),
        (CREDENTIAL, "uid-of-another", "was recreated"),
        ("spec.other", "uid-aws", "is not approved"),
    ],
)
def test_a_credential_is_read_only_as_approved(path: str, uid: str, expected: str) -> None:
    aws = secret("aws")
    given = approved(AWS, path, "aws", uid)
    decision = decide("amazonec2", given, machine(), cluster(), node_driver("amazonec2"), aws)
    assert decision.wait is not None
    assert expected.replace("default", NS) in decision.wait.reason
    assert bool(decision.effects) is (expected.startswith("Secret"))


def test_bootstrap_data_is_mounted_only_as_approved() -> None:
    given = approved(machine(), BOOTSTRAP_DATA, "data", "uid-of-another")
    decision = decide("digitalocean", infra(), given, cluster(), DRIVER, secret("data"))
    assert decision.wait is not None
    assert "spec.bootstrap.dataSecretName" in decision.wait.reason


def test_bootstrap_data_of_an_rke_bootstrap_is_its_own() -> None:
    given = machine(data="theirs")
    given["spec"]["bootstrap"]["configRef"] = {"apiGroup": "rke.cattle.io", "kind": "RKEBootstrap", "name": "m"}
    decision = decide("digitalocean", infra(), given, cluster(), DRIVER, secret("theirs"))
    assert decision.wait is not None
    assert "is not that of RKEBootstrap m" in decision.wait.reason


def test_the_status_names_no_credential() -> None:
    given = infra("amazonec2", status={"cloudCredentialSecretName": "cattle-global-data:theirs"})
    decision = decide("amazonec2", given, machine(), cluster(), node_driver("amazonec2"))
    assert not decision.effects


def test_an_object_is_no_machine_s_unless_the_machine_names_it() -> None:
    """Whoever writes an object writes its owner references as well."""
    other = machine(infrastructureRef={"apiGroup": "rke-machine.cattle.io", "kind": "DigitaloceanMachine", "name": "n"})
    decision = decide("digitalocean", infra(), other, cluster(), DRIVER)
    assert decision.wait is not None
    assert "make it a Machine's" in decision.wait.reason


# --- the order of things --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([infra(owned=False), cluster(), DRIVER], "the core has yet to make it a Machine's"),
        ([infra(), machine(), DRIVER], "Cluster c does not exist"),
        ([infra(), machine(), cluster(paused=True), DRIVER], "it is paused"),
        ([infra(), machine(), cluster(provisioned=False), DRIVER], "the cluster's infrastructure is not provisioned"),
        ([infra(), machine(data=""), cluster(), DRIVER], "the Machine has no bootstrap data yet"),
        (
            [infra(), machine(), cluster()],
            "there is no NodeDriver for driver digitalocean; create it, or delete the machine",
        ),
    ],
)
def test_each_wait_has_its_reason(objects: list[Object], reason: str) -> None:
    decision = decide("digitalocean", *objects)
    assert decision.wait is not None
    assert decision.wait.reason == reason
    assert not any(isinstance(write, Create) for write in flat(decision))


def test_a_machine_is_claimed_before_anything_is_made_for_it() -> None:
    patch = only_patch(decide("digitalocean", infra(claimed=False), machine(), cluster(), DRIVER))
    assert patch["metadata"]["finalizers"] == ["wrangler.cattle.io/machine-provision-remove"]
    assert patch["metadata"]["labels"] == {"rke.cattle.io/capi-machine-name": "m"}


def test_the_job_comes_after_all_that_it_needs_and_after_what_is_noted_of_it() -> None:
    kinds = [
        (type(write).__name__, write.ref.kind.kind if isinstance(write, (Patch, Delete)) else write.kind.kind)
        for write in flat(decide("digitalocean", infra(), machine(), cluster(), DRIVER))
    ]
    assert kinds == [
        ("Create", "Secret"),  # what is known of the machine
        ("Apply", "Secret"),  # its environment
        ("Apply", "ServiceAccount"),
        ("Apply", "Role"),
        ("Apply", "RoleBinding"),
        ("Patch", "DigitaloceanMachine"),
        ("Create", "Job"),
    ]


# --- what a Job is told ---------------------------------------------------------------------------------------------


def test_a_driver_that_is_built_in_is_not_downloaded_and_others_are_noted_for_the_removal() -> None:
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
    (told,) = [write.patch for write in flat(decision) if isinstance(write, Patch)]
    assert told["status"]["driverUrl"] == linode["spec"]["url"]
    assert told["status"]["driverHash"] == linode["spec"]["checksum"]
    assert told["status"]["jobName"] == "m-machine-provision"


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
def test_the_node_driver_says_which_program_makes_its_machines(
    driver: str, annotations: dict[str, str], image: str
) -> None:
    found = node_driver(driver)
    found["metadata"] = {
        **found["metadata"],
        "annotations": {**found["metadata"].get("annotations", {}), **annotations},
    }
    job = job_of(decide(driver, infra(driver), machine(), cluster(), found))
    assert job["spec"]["template"]["spec"]["containers"][0]["image"].partition(":")[0] == image


def test_jobs_inherit_of_the_manager_s_environment_what_the_setting_names() -> None:
    decision = decide("digitalocean", infra(), machine(), cluster(), DRIVER)
    assert environment_of(decision) == {"HTTP_PROXY": "http://proxy:3128"}


def test_jobs_do_not_act_as_the_instance_that_the_manager_runs_on() -> None:
    """Without a credential, the SDK would ask the metadata service for the role of the host."""
    decision = decide("amazonec2", infra("amazonec2"), machine(), cluster(), node_driver("amazonec2"))
    assert environment_of(decision)["AWS_EC2_METADATA_DISABLED"] == "true"


def with_credential(*, declared: bool = True, **fields: str) -> Decision:
    """A machine of EC2 whose credential has these fields; the NodeDriver's annotations may have been removed."""
    found = secret("aws")
    data = encoded(**{f"amazonec2credentialConfig-{name}": value for name, value in fields.items()})
    read = {**found, "type": "provisioning.cattle.io/cloud-credential", "data": data}
    server = infra("amazonec2", spec={"common": {"cloudCredentialSecretName": "aws"}})
    driver = node_driver("amazonec2")
    if not declared:
        driver = {**driver, "metadata": {"name": driver["metadata"]["name"]}}
    return decide("amazonec2", server, machine(), cluster(), driver, found, results=dict([was_read(read, server)]))


KEYS = {"accessKey": "AK", "secretKey": "SK", "sessionToken": "ST", "defaultRegion": "eu-west-1"}


@pytest.mark.parametrize("declared", [True, False])
def test_fields_of_a_credential_are_variables_of_the_driver(declared: bool) -> None:
    variables = environment_of(with_credential(declared=declared, **KEYS))
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
    decision = with_credential(declared=declared, **KEYS, **{field: "/path/to/machine/files/userdata"})
    assert not [write for write in flat(decision) if isinstance(write, Create) and write.kind == JOB]
    assert decision.wait is not None
    assert f'field "{field}" is none of a credential for driver amazonec2' in decision.wait.reason


@pytest.mark.parametrize("field", ["cloudinit", "boot2dockerUrl"])
@pytest.mark.parametrize("value", ["/etc/passwd", "file:///etc/passwd", "etc/passwd"])
def test_a_driver_reads_no_file_of_the_host_that_runs_its_job(field: str, value: str) -> None:
    driver = "vmwarevsphere"
    decision = decide(driver, infra(driver, spec={field: value}), machine(), cluster(), node_driver(driver))
    assert not [write for write in flat(decision) if isinstance(write, Create) and write.kind == JOB]
    assert decision.wait is not None
    assert f"spec.{field}: must be an http or https URL" in decision.wait.reason
    spec = {field: "https://example.com/config"}
    assert job_of(decide(driver, infra(driver, spec=spec), machine(), cluster(), node_driver(driver)))


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


def with_document(driver: str, field: str, content: str, *, in_spec: bool) -> Decision:
    key = secret("cred") | {"type": CREDENTIAL_TYPE, "data": encoded(**({} if in_spec else {field: content}))}
    own = infra(driver, spec={"common": {"cloudCredentialSecretName": "cred"}, **({field: content} if in_spec else {})})
    known = node_driver(driver)
    known["metadata"]["annotations"]["optionalCredentialFields"] = f"clusterId,{field}"
    return decide(driver, own, machine(), cluster(), known, key, results=dict([was_read(key, own)]))


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
    """Programs of these drivers follow what such documents say, where the Job runs."""
    decision = with_document(driver, field, content, in_spec=in_spec)
    assert not [write for write in flat(decision) if isinstance(write, Create) and write.kind == JOB]
    assert decision.wait is not None
    assert f"{field}: " in decision.wait.reason


@pytest.mark.parametrize("in_spec", [False, True])
def test_documents_with_credentials_alone_reach_the_driver(in_spec: bool) -> None:
    kubeconfig, account = _KUBECONFIG.format(user="token: t"), json.dumps({"type": "service_account"})
    assert job_of(with_document("harvester", "kubeconfigContent", kubeconfig, in_spec=in_spec))
    assert job_of(with_document("google", "authEncodedJson", account, in_spec=in_spec))


@pytest.mark.parametrize(("driver", "field"), [("amazonec2", "userdata"), ("generic", "sshKey")])
def test_a_driver_reads_no_file_of_the_host_without_its_node_driver(driver: str, field: str) -> None:
    decision = decide(driver, infra(driver, spec={field: "/etc/hosts"}), machine(), cluster())
    assert not [word for word in arguments_of(decision) if word.endswith("=/etc/hosts")]


def test_a_key_may_stand_in_the_credential_rather_than_in_an_object() -> None:
    found = secret("barn-key")
    read = {
        **found,
        "type": "provisioning.cattle.io/cloud-credential",
        "data": encoded(**{"genericcredentialConfig-sshKey": "KEY"}),
    }
    host = infra("generic", spec={"ipAddress": "192.0.2.1", "common": {"cloudCredentialSecretName": "barn-key"}})
    key, result = was_read(read, host)
    decision = decide("generic", host, machine(), cluster(), node_driver("generic"), found, results={key: result})
    assert "--generic-ssh-key=/path/to/machine/files/id_rsa" in arguments_of(decision)
    assert "KEY" not in str(environment_of(decision))
    (files,) = [
        write.obj for write in flat(decision) if isinstance(write, Apply) and "id_rsa" in write.obj.get("data", {})
    ]
    assert base64.b64decode(files["data"]["id_rsa"]) == b"KEY\n"


# --- machines of a host ---------------------------------------------------------------------------------------------

HOST = {
    **secret(hosts.HOST_SECRET, hosts.HOST_NAMESPACE),
    "type": hosts.HOST_SECRET_TYPE,
    "data": encoded(key="k" * 32, directory="/var/lib/herder/host/api", node="this-host"),
}


def test_without_a_host_s_daemon_its_machines_wait_and_say_what_to_do() -> None:
    decision = decide("process", infra("process"), machine(), cluster(), node_driver("process"))
    assert decision.wait is not None
    assert "start `herder up`" in decision.wait.reason


def test_a_job_for_a_machine_of_a_host_may_use_its_daemon_for_that_machine_alone() -> None:
    own = infra("process")
    decision = decide(
        "process", own, machine(), cluster(), node_driver("process"), HOST, results=dict([was_read(HOST, own)])
    )
    assert environment_of(decision)[hosts.CREDENTIAL_VARIABLE] == machine_credential(b"k" * 32, NS, "m")
    pod = job_of(decision)["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"herder.io/runner": "true", "kubernetes.io/hostname": "this-host"}
    assert {"hostPath": {"path": "/var/lib/herder/host/api", "type": "Directory"}, "name": "host"} in pod["volumes"]


@pytest.mark.parametrize("driver", ["digitalocean", "generic"])
def test_a_program_that_a_status_names_does_not_run_on_the_managers_host(driver: str) -> None:
    """Whoever may write the status of a machine must not choose what its Jobs download and run there."""
    status = {"driverUrl": "https://evil.example/driver", "driverHash": "0" * 64}
    new = infra(driver, status=status)
    created = decide(driver, new, machine(), cluster(), HOST, results=dict([was_read(HOST, new)]))
    going = infra(driver, status=status)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    kept = {**secret("m-machine-state"), "type": names.STATE_SECRET_TYPE, "data": {names.STATE_KEY: "eA=="}}
    results = dict([was_read(HOST, going), was_read(kept, going, "remove")])
    removed = decide(driver, going, machine(), cluster(), HOST, kept, results=results)
    for decision in (created, removed):
        if driver == "generic":  # which the machine program has
            assert "evil.example" not in str(job_of(decision))
        else:
            assert decision.wait is not None
            assert "there is no NodeDriver for driver digitalocean" in decision.wait.reason


def test_where_there_is_a_runner_all_jobs_go_there() -> None:
    own = infra()
    decision = decide("digitalocean", own, machine(), cluster(), DRIVER, HOST, results=dict([was_read(HOST, own)]))
    template = job_of(decision)["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {"herder.io/runner": "true"}
    assert template["spec"]["tolerations"]
    approval = verify(hosts.approval_key(b"k" * 32), NS, template["metadata"]["annotations"])
    assert (approval.job, approval.owner.name) == ("m-machine-provision", "m")
    assert list(approval.secrets) == [names.environment_secret("m")]


def test_without_a_runner_jobs_are_not_signed() -> None:
    template = job_of(decide("digitalocean", infra(), machine(), cluster(), DRIVER))["spec"]["template"]
    assert "annotations" not in template["metadata"]


# --- what is there already ------------------------------------------------------------------------------------------


def state(kind: Kind) -> Object:
    return secret("m-machine-state", labels={names.INFRA_KIND_LABEL: kind.kind, names.INFRA_NAME_LABEL: "m"})


def test_a_machine_does_not_use_the_state_of_another_by_a_name_that_was_cut() -> None:
    """Names of 63 characters are told apart by 20 bits of a hash. The state holds the SSH key of the machine."""
    theirs = state(kinds_of("digitalocean").machine)
    theirs["metadata"]["labels"][names.INFRA_NAME_LABEL] = "n"
    going = infra()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    created = decide("digitalocean", infra(), machine(), cluster(), DRIVER, theirs)
    removed = decide("digitalocean", going, machine(), cluster(), DRIVER, theirs)
    assert created.wait is not None
    assert "DigitaloceanMachine n has the same state Secret" in created.wait.reason
    for decision in (created, removed):
        assert not [write for write in flat(decision) if isinstance(write, (Create, Delete))]
        assert not decision.effects, "nor is it read"


def test_a_machine_uses_no_secret_of_a_user_as_its_state() -> None:
    """A user who creates Secrets under cut names may read and change what is in them. No user creates state Secrets."""
    theirs = {**secret("m-machine-state"), "type": CREDENTIAL_TYPE}
    read = [was_read(theirs, infra(), occasion) for occasion in ("create", "remove")]
    created = decide("digitalocean", infra(), machine(), cluster(), DRIVER, theirs, results=dict(read))
    assert created.wait is not None
    assert "Secret ns/m-machine-state is of type provisioning.cattle.io/cloud-credential" in created.wait.reason
    removed = decide("digitalocean", infra(deleting=True), machine(), cluster(), DRIVER, theirs, results=dict(read))
    assert only_patch(removed) == {"metadata": {"finalizers": []}}, "of the machine: nothing was made for it"
    for decision in (created, removed):
        writes = flat(decision)
        assert not [write for write in writes if isinstance(write, (Create, Delete))]
        assert not [write for write in writes if isinstance(write, Patch) and write.ref.kind == SECRET]


def test_two_machines_of_one_name_do_not_share_a_state() -> None:
    decision = decide("digitalocean", infra(), machine(), cluster(), DRIVER, state(kinds_of("amazonec2").machine))
    assert decision.wait is not None
    assert decision.wait.reason == (
        "Amazonec2Machine m has the same state Secret, which is named after the machine; rename one"
    )


def test_a_machine_that_nothing_was_made_for_goes_at_once() -> None:
    going = infra(deleting=True)
    key = ("read-secret", going["metadata"]["uid"], NS, "m-machine-state", "", "remove")
    asked = decide("digitalocean", going, machine(), cluster(), DRIVER)
    assert [effect.key for effect in asked.effects] == [key]
    decision = decide("digitalocean", going, machine(), cluster(), DRIVER, results={key: EffectResult(None)})
    assert only_patch(decision) == {"metadata": {"finalizers": []}}


def test_a_state_secret_without_its_machine_stays_until_somebody_deletes_it() -> None:
    kind = kinds_of("digitalocean").machine
    kept = state(kind)
    kept["metadata"]["finalizers"] = ["machine.herder.io/state"]
    assert flat(decide("digitalocean", kept)) == []
    going = {**kept, "metadata": {**kept["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert only_patch(decide("digitalocean", going)) == {"metadata": {"finalizers": []}}


@pytest.mark.parametrize("provider_id", ["", "do://1"])
def test_a_machine_is_provisioned_to_the_core_once_it_has_a_provider_id(provider_id: str) -> None:
    told = {"type": "CreateJob", "status": "True", "reason": "Created", "message": ""}
    own = infra(spec={"providerID": provider_id}, status={"conditions": [told]})
    decision = decide("digitalocean", own, machine(), cluster(), DRIVER)
    expected = [{"status": {"initialization": {"provisioned": True}}}] if provider_id else []
    assert [write.patch for write in flat(decision) if isinstance(write, Patch)] == expected


# --- a Job that failed before its pod was seen ----------------------------------------------------------------------


def test_the_words_of_a_pod_are_waited_for_but_not_for_long() -> None:
    own = infra()
    ended = (NOW - timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    failed = {"type": "Failed", "status": "True", "message": "backoff limit", "lastTransitionTime": ended}
    job = made(JOB, "m-machine-provision", owner=own, status={"conditions": [failed]})
    soon = decide("digitalocean", own, machine(), cluster(), DRIVER, job)
    assert flat(soon) == []
    assert soon.wake_at == NOW + timedelta(seconds=8)
    later = decide("digitalocean", own, machine(), cluster(), DRIVER, job, now=NOW + timedelta(seconds=9))
    (told,) = [write.patch for write in flat(later) if isinstance(write, Patch)]
    assert told["status"]["failureMessage"] == "backoff limit; its pod is gone or said nothing"


# --- a Job that cannot begin ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod_status", "told"),
    [
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]}, True),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "X", "message": "no such image"}]},
            True,
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, False),
    ],
)
def test_what_keeps_its_pod_from_its_work_is_told(pod_status: Object, told: bool) -> None:
    own = infra()
    job = made(JOB, "m-machine-provision", owner=own)
    pod = made(POD, "m-machine-provision-x", owner=job, status=pod_status)
    (patch,) = [
        write.patch
        for write in flat(decide("digitalocean", own, machine(), cluster(), DRIVER, job, pod))
        if isinstance(write, Patch)
    ]
    message = patch["status"]["conditions"][0]["message"]
    assert message.endswith(": its pod waits: no such image" if told else "in infrastructure provider")


# --- a machine that could not be created ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("earlier", "stays"),
    [
        ([], 0),
        ([5], 5),
        ([40, 5], 40),
        ([2000], 0),  # long ago
        ([1500], 600),  # at most
    ],
)
def test_a_pool_that_cannot_work_tries_ever_more_rarely(earlier: list[int], stays: int) -> None:
    def stamp(seconds_ago: int) -> str:
        return (NOW - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")

    told = {"type": "CreateJob", "status": "False", "reason": "CreateError", "lastTransitionTime": stamp(0)}
    of_set = made(MACHINE, "m", owner=made(MACHINE_SET, "set"), spec=machine()["spec"])
    kind = kinds_of("digitalocean").machine
    failures = [("set", ago) for ago in earlier] + [("another", 900)]
    kept = [
        log_object(made(kind, f"m{ago}"), kind, names.CREATE_LOG, "uid", "said", stamp(ago), failed_in=machine_set)
        for machine_set, ago in failures
    ]
    forged = log_object(made(kind, "f"), kind, names.CREATE_LOG, "uid", "said", stamp(300), failed_in="set")
    forged["metadata"]["namespace"] = "team"  # what users write there is no log of ours
    objects = [infra(status={"conditions": [told]}), of_set, cluster(), DRIVER, *kept, forged]
    decision = decide("digitalocean", *objects)
    if stays:
        assert not any(isinstance(write, Delete) for write in flat(decision))
        assert decision.wake_at == NOW + timedelta(seconds=stays)
    else:
        assert [write.ref.kind for write in flat(decision) if isinstance(write, Delete)] == [MACHINE]


# --- which kinds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "labels", "kind"),
    [
        (
            "amazonec2machines.rke-machine.cattle.io",
            {"io.cattle.node_driver.name": "amazonec2"},
            kinds_of("amazonec2").machine,
        ),
        ("amazonec2machinetemplates.rke-machine.cattle.io", {"io.cattle.node_driver.name": "amazonec2"}, None),
        ("amazonec2configs.rke-machine-config.cattle.io", {"io.cattle.node_driver.name": "amazonec2"}, None),
        ("amazonec2machines.rke-machine.cattle.io", {}, None),
        ("machines.cluster.x-k8s.io", {}, None),
    ],
)
def test_only_machines_of_drivers_have_a_controller(name: str, labels: dict[str, str], kind: Kind | None) -> None:
    assert FAMILY.kind_of({"metadata": {"name": name, "labels": labels}}) == kind


def test_what_only_some_machines_need_wakes_only_those() -> None:
    ours = controller(kinds_of("amazonec2").machine, {})
    needs = ours.indexes[kinds_of("amazonec2").machine]["need"]
    spec = {"common": {"cloudCredentialSecretName": "aws"}}
    done = {"conditions": [{"type": "CreateJob", "status": "True"}]}
    assert "Secret ns/aws" in needs(infra("amazonec2", spec=spec))
    assert list(needs(infra("amazonec2", spec=spec, status=done))) == []
    assert "Secret ns/aws" in needs(infra("amazonec2", spec=spec, status=done, deleting=True))


def test_the_kinds_that_it_reads_are_declared() -> None:
    assert {SECRET.metadata_only(), NAMESPACE.metadata_only(), NODE_DRIVER, JOB} <= {
        watch.kind for watch in FAMILY.watches()
    }
