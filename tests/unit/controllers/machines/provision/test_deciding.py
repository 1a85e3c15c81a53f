"""One pass over a machine: what it waits for, in words, and what its Job is made of."""

from __future__ import annotations

import json
from datetime import timedelta

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
from tests.support.views import NOW
from tests.unit.controllers.inmemory.stage import flat, made, only_patch
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
    secret,
    was_read,
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


def test_bootstrap_data_belongs_to_the_bootstrap_object() -> None:
    """The core copies the name from the status of any kind, which users can write who may not read the Secret."""
    config = {"apiGroup": "bootstrap.example", "kind": "Config", "name": "m"}
    given = machine(data="data")
    given["spec"]["bootstrap"]["configRef"] = config
    decision = decide("digitalocean", infra(), given, cluster(), DRIVER, secret("data"))
    assert decision.wait is not None
    assert "does not belong to Config m" in decision.wait.reason


@pytest.mark.parametrize("by_user", [False, True])
def test_bootstrap_data_can_be_the_bootstrap_objects_or_named_by_a_user(by_user: bool) -> None:
    config = {"apiGroup": "bootstrap.example", "kind": "Config", "name": "m"}
    owner = {"apiVersion": "bootstrap.example/v1", "kind": "Config", "name": "m", "uid": "u", "controller": True}
    given = approved(machine(), BOOTSTRAP_DATA, "data", "uid-data") if by_user else machine()
    given["spec"]["bootstrap"]["configRef"] = config
    data = secret("data") if by_user else secret("data", ownerReferences=[owner])
    assert job_of(decide("digitalocean", infra(), given, cluster(), DRIVER, data))


def test_the_status_names_no_credential() -> None:
    given = infra("amazonec2", status={"cloudCredentialSecretName": "cattle-global-data:theirs"})
    decision = decide("amazonec2", given, machine(), cluster(), node_driver("amazonec2"))
    assert not decision.effects


def test_an_object_is_no_machine_s_unless_the_machine_names_it() -> None:
    """Whoever writes an object writes its owner references as well."""
    other = machine(infrastructureRef={"apiGroup": "rke-machine.cattle.io", "kind": "DigitaloceanMachine", "name": "n"})
    decision = decide("digitalocean", infra(), other, cluster(), DRIVER)
    assert decision.wait is not None
    assert "set the owner reference" in decision.wait.reason


def test_a_machine_names_an_object_by_its_group_too() -> None:
    """Admission asks for the right to use a driver of the manager's host by the group of the reference."""
    other = machine(infrastructureRef={"apiGroup": "cluster.x-k8s.io", "kind": "DigitaloceanMachine", "name": "m"})
    decision = decide("digitalocean", infra(), other, cluster(), DRIVER)
    assert decision.wait is not None
    assert "set the owner reference" in decision.wait.reason


# --- the order of things --------------------------------------------------------------------------------------------


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
            assert "no NodeDriver provides driver digitalocean" in decision.wait.reason


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
    assert "DigitaloceanMachine n uses the same state Secret" in created.wait.reason
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
    assert only_patch(removed) == {"metadata": {"finalizers": []}}, "of the machine: nothing was created for it"
    for decision in (created, removed):
        writes = flat(decision)
        assert not [write for write in writes if isinstance(write, (Create, Delete))]
        assert not [write for write in writes if isinstance(write, Patch) and write.ref.kind == SECRET]


def test_two_machines_of_one_name_do_not_share_a_state() -> None:
    decision = decide("digitalocean", infra(), machine(), cluster(), DRIVER, state(kinds_of("amazonec2").machine))
    assert decision.wait is not None
    assert decision.wait.reason == ("Amazonec2Machine m uses the same state Secret; rename one of the machines")


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
    assert told["status"]["failureMessage"] == "backoff limit; its pod does not exist or reported no message"


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
    assert message.endswith(": pod is waiting: no such image" if told else "in infrastructure provider")


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
    assert DYNAMIC_CONTROLLER.kind_of({"metadata": {"name": name, "labels": labels}}) == kind


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
        watch.kind for watch in DYNAMIC_CONTROLLER.watches()
    }
