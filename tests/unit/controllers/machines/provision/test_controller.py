"""One reconcile of a machine: what it waits for, and what its Job contains."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE, MACHINE_SET, NAMESPACE, POD, SECRET
from herder.api.machines import hosts, names
from herder.api.machines.archive import log_object
from herder.api.machines.credentials import CREDENTIAL_TYPE
from herder.api.machines.hosts import machine_credential
from herder.api.machines.jobs import JOB
from herder.api.machines.kinds import NODE_DRIVER, kinds_of
from herder.api.references.approvals import APPROVED
from herder.api.references.catalogue import BOOTSTRAP_DATA, CREDENTIAL
from herder.controllers.machines.provision.controller import DYNAMIC_CONTROLLER, controller
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runner.approval import verify
from herder.engine.runtime.decision import Create, Delete, EffectResult, Patch
from tests.support.builders import (
    DELETED_AT,
    LONG_AGO,
    NOW,
    new_condition,
    new_machine,
    new_object,
    only_patch,
    owner_reference,
    patches_of,
    writes_of,
)
from tests.unit.controllers.machines.provision.objects import (
    DRIVER,
    NS,
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

# --- references -----------------------------------------------------------------------------------------------------

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
    approved_machine = approved(AWS, path, "aws", uid)
    decision = decide("amazonec2", approved_machine, machine(), cluster(), node_driver("amazonec2"), aws)
    assert decision.wait is not None
    assert expected.replace("default", NS) in decision.wait.reason
    assert bool(decision.effects) is (expected.startswith("Secret"))


def test_bootstrap_data_is_mounted_only_as_approved() -> None:
    machine_object = approved(machine(), BOOTSTRAP_DATA, "data", "uid-of-another")
    decision = decide("digitalocean", infra(), machine_object, cluster(), DRIVER, secret("data"))
    assert decision.wait is not None
    assert "spec.bootstrap.dataSecretName" in decision.wait.reason


def test_an_rke_bootstrap_uses_only_its_own_bootstrap_data() -> None:
    machine_object = machine(data="theirs")
    machine_object["spec"]["bootstrap"]["configRef"] = {
        "apiGroup": "rke.cattle.io",
        "kind": "RKEBootstrap",
        "name": "m",
    }
    decision = decide("digitalocean", infra(), machine_object, cluster(), DRIVER, secret("theirs"))
    assert decision.wait is not None
    assert "is not that of RKEBootstrap m" in decision.wait.reason


def test_bootstrap_data_must_belong_to_the_bootstrap_object() -> None:
    """The core copies the name from the status of any kind, which users may write without access to the Secret."""
    config = {"apiGroup": "bootstrap.example", "kind": "Config", "name": "m"}
    machine_object = machine(data="data")
    machine_object["spec"]["bootstrap"]["configRef"] = config
    decision = decide("digitalocean", infra(), machine_object, cluster(), DRIVER, secret("data"))
    assert decision.wait is not None
    assert "does not belong to Config m" in decision.wait.reason


@pytest.mark.parametrize("by_user", [False, True])
def test_bootstrap_data_may_belong_to_the_bootstrap_object_or_be_approved(by_user: bool) -> None:
    config = {"apiGroup": "bootstrap.example", "kind": "Config", "name": "m"}
    owner = {"apiVersion": "bootstrap.example/v1", "kind": "Config", "name": "m", "uid": "u", "controller": True}
    machine_object = approved(machine(), BOOTSTRAP_DATA, "data", "uid-data") if by_user else machine()
    machine_object["spec"]["bootstrap"]["configRef"] = config
    data = secret("data") if by_user else secret("data", ownerReferences=[owner])
    assert job_of(decide("digitalocean", infra(), machine_object, cluster(), DRIVER, data))


def test_the_status_cannot_name_a_credential() -> None:
    machine_object = infra("amazonec2", status={"cloudCredentialSecretName": "cattle-global-data:theirs"})
    decision = decide("amazonec2", machine_object, machine(), cluster(), node_driver("amazonec2"))
    assert not decision.effects


def test_an_infrastructure_machine_needs_a_machine_that_references_it() -> None:
    """Whoever writes an object also writes its owner references."""
    other = machine(infrastructureRef={"apiGroup": "rke-machine.cattle.io", "kind": "DigitaloceanMachine", "name": "n"})
    decision = decide("digitalocean", infra(), other, cluster(), DRIVER)
    assert decision.wait is not None
    assert "set the owner reference" in decision.wait.reason


def test_the_reference_of_a_machine_includes_the_group() -> None:
    """Admission checks the right to use a driver of the manager's host by the group of the reference."""
    other = machine(infrastructureRef={"apiGroup": "cluster.x-k8s.io", "kind": "DigitaloceanMachine", "name": "m"})
    decision = decide("digitalocean", infra(), other, cluster(), DRIVER)
    assert decision.wait is not None
    assert "set the owner reference" in decision.wait.reason


# --- preconditions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([infra(owned=False), cluster(), DRIVER], "waiting for the Machine controller to set the owner reference"),
        ([infra(), machine(), DRIVER], "Cluster c does not exist"),
        ([infra(), machine(), cluster(paused=True), DRIVER], "reconciliation is paused"),
        ([infra(), machine(), cluster(provisioned=False), DRIVER], "the cluster's infrastructure is not provisioned"),
        ([infra(), machine(data=""), cluster(), DRIVER], "the Machine has no bootstrap data yet"),
        (
            [infra(), machine(), cluster()],
            "no NodeDriver provides driver digitalocean; create it, or delete the machine",
        ),
    ],
)
def test_each_wait_has_a_reason(objects: list[Object], reason: str) -> None:
    decision = decide("digitalocean", *objects)
    assert decision.wait is not None
    assert decision.wait.reason == reason
    assert not any(isinstance(write, Create) for write in writes_of(decision))


def test_a_machine_is_claimed_before_anything_is_created_for_it() -> None:
    patch = only_patch(decide("digitalocean", infra(claimed=False), machine(), cluster(), DRIVER))
    assert patch["metadata"]["finalizers"] == ["wrangler.cattle.io/machine-provision-remove"]
    assert patch["metadata"]["labels"] == {"rke.cattle.io/capi-machine-name": "m"}


def test_the_job_is_created_after_its_dependencies_and_the_status() -> None:
    kinds = [
        (type(write).__name__, write.ref.kind.kind if isinstance(write, (Patch, Delete)) else write.kind.kind)
        for write in writes_of(decide("digitalocean", infra(), machine(), cluster(), DRIVER))
    ]
    assert kinds == [
        ("Create", "Secret"),  # the state of the machine
        ("Apply", "Secret"),  # its environment
        ("Apply", "ServiceAccount"),
        ("Apply", "Role"),
        ("Apply", "RoleBinding"),
        ("Patch", "DigitaloceanMachine"),
        ("Create", "Job"),
    ]


# --- machines of a host ---------------------------------------------------------------------------------------------

HOST = {
    **secret(hosts.HOST_SECRET, hosts.HOST_NAMESPACE),
    "type": hosts.HOST_SECRET_TYPE,
    "data": encoded(key="k" * 32, directory="/var/lib/herder/host/api", node="this-host"),
}


def test_machines_of_a_host_without_a_daemon_report_what_to_do() -> None:
    decision = decide("process", infra("process"), machine(), cluster(), node_driver("process"))
    assert decision.wait is not None
    assert "start `herder up`" in decision.wait.reason


def test_a_job_may_use_the_host_daemon_only_for_its_own_machine() -> None:
    machine_object = infra("process")
    decision = decide(
        "process",
        machine_object,
        machine(),
        cluster(),
        node_driver("process"),
        HOST,
        results=dict([read_result(HOST, machine_object)]),
    )
    assert environment_of(decision)[hosts.CREDENTIAL_VARIABLE] == machine_credential(b"k" * 32, NS, "m")
    pod = job_of(decision)["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"herder.io/runner": "true", "kubernetes.io/hostname": "this-host"}
    assert {"hostPath": {"path": "/var/lib/herder/host/api", "type": "Directory"}, "name": "host"} in pod["volumes"]


@pytest.mark.parametrize("driver", ["digitalocean", "generic"])
def test_a_driver_url_in_a_status_is_never_downloaded(driver: str) -> None:
    """Users who may write the status of a machine must not choose what its Jobs download and run there."""
    status = {"driverUrl": "https://evil.example/driver", "driverHash": "0" * 64}
    new = infra(driver, status=status)
    created = decide(driver, new, machine(), cluster(), HOST, results=dict([read_result(HOST, new)]))
    deleting = infra(driver, status=status)
    deleting["metadata"]["deletionTimestamp"] = DELETED_AT
    state_secret = {**secret("m-machine-state"), "type": names.STATE_SECRET_TYPE, "data": {names.STATE_KEY: "eA=="}}
    results = dict([read_result(HOST, deleting), read_result(state_secret, deleting, "remove")])
    removed = decide(driver, deleting, machine(), cluster(), HOST, state_secret, results=results)
    for decision in (created, removed):
        if driver == "generic":  # which is built into the machine program
            assert "evil.example" not in str(job_of(decision))
        else:
            assert decision.wait is not None
            assert "no NodeDriver provides driver digitalocean" in decision.wait.reason


def test_all_jobs_run_on_the_runner_if_there_is_one() -> None:
    machine_object = infra()
    decision = decide(
        "digitalocean",
        machine_object,
        machine(),
        cluster(),
        DRIVER,
        HOST,
        results=dict([read_result(HOST, machine_object)]),
    )
    template = job_of(decision)["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {"herder.io/runner": "true"}
    assert template["spec"]["tolerations"]
    approval = verify(hosts.approval_key(b"k" * 32), NS, template["metadata"]["annotations"])
    assert (approval.job, approval.owner.name) == ("m-machine-provision", "m")
    assert list(approval.secrets) == [names.environment_secret("m")]


def test_jobs_without_a_runner_are_not_signed() -> None:
    template = job_of(decide("digitalocean", infra(), machine(), cluster(), DRIVER))["spec"]["template"]
    assert "annotations" not in template["metadata"]


# --- existing state -------------------------------------------------------------------------------------------------


def state(kind: Kind) -> Object:
    return secret("m-machine-state", labels={names.INFRA_KIND_LABEL: kind.kind, names.INFRA_NAME_LABEL: "m"})


def test_a_machine_does_not_use_state_of_another_with_the_same_truncated_name() -> None:
    """Names of 63 characters are distinguished by 20 bits of a hash. The state contains the SSH key of the machine."""
    foreign_state = state(kinds_of("digitalocean").machine)
    foreign_state["metadata"]["labels"][names.INFRA_NAME_LABEL] = "n"
    deleting = infra()
    deleting["metadata"]["deletionTimestamp"] = DELETED_AT
    created = decide("digitalocean", infra(), machine(), cluster(), DRIVER, foreign_state)
    removed = decide("digitalocean", deleting, machine(), cluster(), DRIVER, foreign_state)
    assert created.wait is not None
    assert "DigitaloceanMachine n uses the same state Secret" in created.wait.reason
    for decision in (created, removed):
        assert not [write for write in writes_of(decision) if isinstance(write, (Create, Delete))]
        assert not decision.effects, "it is not read either"


def test_a_machine_does_not_use_a_secret_of_a_user_as_its_state() -> None:
    """A user who creates a Secret under a truncated name can read and change it. Users cannot create state Secrets."""
    user_secret = {**secret("m-machine-state"), "type": CREDENTIAL_TYPE}
    results = [read_result(user_secret, infra(), occasion) for occasion in ("create", "remove")]
    created = decide("digitalocean", infra(), machine(), cluster(), DRIVER, user_secret, results=dict(results))
    assert created.wait is not None
    assert "Secret ns/m-machine-state is of type provisioning.cattle.io/cloud-credential" in created.wait.reason
    removed = decide(
        "digitalocean", infra(deleting=True), machine(), cluster(), DRIVER, user_secret, results=dict(results)
    )
    assert only_patch(removed) == {"metadata": {"finalizers": []}}, "nothing was created for the machine"
    for decision in (created, removed):
        writes = writes_of(decision)
        assert not [write for write in writes if isinstance(write, (Create, Delete))]
        assert not [write for write in writes if isinstance(write, Patch) and write.ref.kind == SECRET]


def test_two_machines_of_the_same_name_do_not_share_state() -> None:
    decision = decide("digitalocean", infra(), machine(), cluster(), DRIVER, state(kinds_of("amazonec2").machine))
    assert decision.wait is not None
    assert decision.wait.reason == ("Amazonec2Machine m uses the same state Secret; rename one of the machines")


def test_a_machine_without_resources_is_deleted_at_once() -> None:
    deleting = infra(deleting=True)
    key = ("read-secret", deleting["metadata"]["uid"], NS, "m-machine-state", "", "remove")
    reading = decide("digitalocean", deleting, machine(), cluster(), DRIVER)
    assert [effect.key for effect in reading.effects] == [key]
    decision = decide("digitalocean", deleting, machine(), cluster(), DRIVER, results={key: EffectResult(None)})
    assert only_patch(decision) == {"metadata": {"finalizers": []}}


def test_an_orphaned_state_secret_stays_until_it_is_deleted() -> None:
    kind = kinds_of("digitalocean").machine
    orphan = state(kind)
    orphan["metadata"]["finalizers"] = ["machine.herder.io/state"]
    assert writes_of(decide("digitalocean", orphan)) == []
    deleting = {**orphan, "metadata": {**orphan["metadata"], "deletionTimestamp": DELETED_AT}}
    assert only_patch(decide("digitalocean", deleting)) == {"metadata": {"finalizers": []}}


@pytest.mark.parametrize("provider_id", ["", "do://1"])
def test_a_machine_is_provisioned_once_it_has_a_provider_id(provider_id: str) -> None:
    condition = new_condition("CreateJob", reason="Created")
    machine_object = infra(spec={"providerID": provider_id}, status={"conditions": [condition]})
    decision = decide("digitalocean", machine_object, machine(), cluster(), DRIVER)
    expected = [{"status": {"initialization": {"provisioned": True}}}] if provider_id else []
    assert [each.patch for each in patches_of(decision)] == expected


def provision_job(**status: Any) -> Object:
    """The Job that creates the machine; `status` are the fields of its status."""
    owner = owner_reference(kinds_of("digitalocean").machine, "m")
    return new_object(JOB, "m-machine-provision", NS, owners=[owner], status=status)


# --- Jobs that failed before their pod was observed -----------------------------------------------------------------


def test_the_message_of_a_pod_is_awaited_for_a_limited_time() -> None:
    machine_object = infra()
    failed = new_condition("Failed", message="backoff limit", since=NOW - timedelta(seconds=2))
    job = provision_job(conditions=[failed])
    at_first = decide("digitalocean", machine_object, machine(), cluster(), DRIVER, job)
    assert writes_of(at_first) == []
    assert at_first.wake_at == NOW + timedelta(seconds=8)
    later = decide("digitalocean", machine_object, machine(), cluster(), DRIVER, job, now=NOW + timedelta(seconds=9))
    (patch,) = [each.patch for each in patches_of(later)]
    assert patch["status"]["failureMessage"] == "backoff limit; its pod does not exist or reported no message"


# --- Jobs that cannot start -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod_status", "reported"),
    [
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]}, True),
        (
            {"conditions": [new_condition("PodScheduled", "False", "X", "no such image")]},
            True,
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, False),
    ],
)
def test_a_waiting_pod_is_reported(pod_status: Object, reported: bool) -> None:
    machine_object = infra()
    job = provision_job()
    owner = owner_reference(JOB, "m-machine-provision")
    created = {"creationTimestamp": LONG_AGO}
    pod = new_object(POD, "m-machine-provision-x", NS, owners=[owner], metadata=created, status=pod_status)
    (patch,) = [
        write.patch
        for write in writes_of(decide("digitalocean", machine_object, machine(), cluster(), DRIVER, job, pod))
        if isinstance(write, Patch)
    ]
    message = patch["status"]["conditions"][0]["message"]
    assert message.endswith(": pod is waiting: no such image" if reported else "in infrastructure provider")


# --- machines that could not be created -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds_ago", "backoff"),
    [
        ([], 10),  # at least
        ([5], 10),
        ([40, 5], 40),
        ([2000], 10),  # long ago
        ([1500], 600),  # at most
    ],
)
def test_failing_machine_sets_back_off(seconds_ago: list[int], backoff: int) -> None:
    def stamp(seconds: int) -> str:
        return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    condition = new_condition("CreateJob", "False", "CreateError", since=NOW)
    owner = owner_reference(MACHINE_SET, "set")
    machine_of_set = new_machine("m", NS, cluster="c", owners=[owner], spec=machine()["spec"])
    kind = kinds_of("digitalocean").machine
    failures = [("set", ago) for ago in seconds_ago] + [("another", 900)]
    logs = [
        log_object(
            new_object(kind, f"m{ago}", NS), kind, names.CREATE_LOG, "uid", "said", stamp(ago), failed_in=machine_set
        )
        for machine_set, ago in failures
    ]
    forged = log_object(new_object(kind, "f", NS), kind, names.CREATE_LOG, "uid", "said", stamp(300), failed_in="set")
    forged["metadata"]["namespace"] = "team"  # ConfigMaps of users are not logs
    objects = [infra(status={"conditions": [condition]}), machine_of_set, cluster(), DRIVER, *logs, forged]
    decision = decide("digitalocean", *objects)
    if backoff:
        assert not any(isinstance(write, Delete) for write in writes_of(decision))
        assert decision.wake_at == NOW + timedelta(seconds=backoff)
    else:
        assert [write.ref.kind for write in writes_of(decision) if isinstance(write, Delete)] == [MACHINE]


# --- kinds ----------------------------------------------------------------------------------------------------------


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
def test_only_machine_kinds_of_drivers_have_a_controller(name: str, labels: dict[str, str], kind: Kind | None) -> None:
    assert DYNAMIC_CONTROLLER.kind_of({"metadata": {"name": name, "labels": labels}}) == kind


def test_a_credential_wakes_only_machines_that_need_it() -> None:
    machine_controller = controller(kinds_of("amazonec2").machine, {})
    index = machine_controller.indexes[kinds_of("amazonec2").machine]["need"]
    spec = {"common": {"cloudCredentialSecretName": "aws"}}
    done = {"conditions": [new_condition("CreateJob")]}
    assert "Secret ns/aws" in index(infra("amazonec2", spec=spec))
    assert list(index(infra("amazonec2", spec=spec, status=done))) == []
    assert "Secret ns/aws" in index(infra("amazonec2", spec=spec, status=done, deleting=True))


def test_all_kinds_that_are_read_are_watched() -> None:
    assert {SECRET.metadata_only(), NAMESPACE.metadata_only(), NODE_DRIVER, JOB} <= {
        watch.kind for watch in DYNAMIC_CONTROLLER.watches()
    }
