"""Tasks of rotations: what each distribution renders, and that guards allow exactly this in each phase."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from herder.api.management.manifest import Agent
from herder.api.rke import operations
from herder.api.rke.distributions import EMBEDDED, KUBEADM
from herder.api.rke.node.plan import Plan
from herder.api.rke.services import SERVICES
from herder.controllers.planner.distributions import embedded_rotation
from herder.controllers.planner.distributions.interface import (
    Authority,
    ClusterInputs,
    EncryptionKeys,
    MachineInputs,
    Roles,
)
from herder.controllers.planner.distributions.kubeadm import certificates, encryption
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.controllers.planner.distributions.tasks import (
    DiscardAuthorities,
    EncryptSecrets,
    PrepareAuthorities,
    RestartServices,
    RotateAuthorities,
    RotateCertificates,
    Task,
    UnsupportedTask,
)

VERSIONS = {
    "k3s": "v1.34.1+k3s1",
    "rke2": "v1.34.1+rke2r1",
    "kubeadm": "v1.34.1+kubeadm1",
    "embedded": "v1.34.1+herder1",
}
SERVER = MachineInputs("s", "s", Roles(etcd=True, control_plane=True), is_init=True, internal_addresses=("10.0.0.1",))
WORKER = MachineInputs("w", "w", Roles(worker=True), join_url="https://10.0.0.1:6443", internal_addresses=("10.0.0.2",))
AGENT = Agent(server_url="https://manager.example", token="t", ca_checksum="", image="agent")
KEYS = {1: "b25l", 2: "dHdv"}
STEPS: dict[str, Task] = {
    "Prepare": EncryptSecrets("m", "prepare"),
    "PostPrepareRestart": RestartServices("m"),
    "Rotate": EncryptSecrets("m", "rotate"),
    "PostRotateRestart": RestartServices("m"),
    "Reencrypt": EncryptSecrets("m", "reencrypt"),
    "PostReencryptRestart": RestartServices("m"),
}


def cluster(distribution: str, *loaded: int, **fields: Any) -> ClusterInputs:
    keys = EncryptionKeys(loaded, {each: KEYS[each] for each in loaded if each}) if loaded else None
    authorities = {purpose: Authority("certificate", "key") for purpose in ("ca", "etcd", "sa", "proxy")}
    version = VERSIONS[distribution]
    spec = {"kubernetesVersion": version}
    return ClusterInputs(
        "ns", "demo", "c-m", version, spec, authorities=authorities, agent=AGENT, encryption=keys, **fields
    )


def task(distribution: str, given: Task, machine: MachineInputs = SERVER, loaded: tuple[int, ...] = (2, 1)) -> Plan:
    return distribution_of(VERSIONS[distribution]).task(cluster(distribution, *loaded), machine, given)


def content(plan: Plan, path: str) -> str:
    (found,) = (each for each in plan.files if each.path == path)
    assert (found.permissions, found.dynamic, found.minor) == ("0600", True, True)
    return base64.b64decode(found.content).decode()


@pytest.mark.parametrize("distribution", VERSIONS)
def test_guards_allow_the_tasks_of_each_phase_and_no_other(distribution: str) -> None:
    for phase, step in STEPS.items():
        (instruction,) = task(distribution, step).instructions
        allowed = operations.PERMISSIONS[operations.ENCRYPTION_KEYS, phase].instructions
        assert {instruction.name, *({operations.RESTART_SERVICES} & allowed)} == allowed
    resumed = task(distribution, EncryptSecrets("m", "prepare", restarts=True)).instructions
    assert {each.name for each in resumed} <= operations.PERMISSIONS[operations.ENCRYPTION_KEYS, "Prepare"].instructions
    for machine in (SERVER, WORKER):
        names = {each.name for each in task(distribution, RotateCertificates("m"), machine).instructions}
        assert names <= operations.PERMISSIONS[operations.CERTIFICATES, "Rotate"].instructions


AUTHORITY_TASKS: dict[str, Task] = {
    "Prepare": PrepareAuthorities("m"),
    "Replace": RotateAuthorities("m"),
    "Abort": DiscardAuthorities("m"),
}


@pytest.mark.parametrize("distribution", ["k3s", "rke2"])
def test_guards_allow_the_tasks_of_a_rotation_of_authorities(distribution: str) -> None:
    for phase, step in AUTHORITY_TASKS.items():
        (instruction,) = task(distribution, step).instructions
        assert {instruction.name} == operations.PERMISSIONS[operations.AUTHORITIES, phase].instructions
        assert (instruction.env, instruction.save_output) == (("OPERATION=m",), True)
    follow = RotateCertificates("m", reports_authorities=True)
    server, worker = (task(distribution, follow, each).instructions for each in (SERVER, WORKER))
    assert [each.name for each in server] == ["rotate-certificates", "report-certificate-authorities"]
    assert [each.name for each in worker] == ["restart-services"]
    allowed = operations.PERMISSIONS[operations.AUTHORITIES, "Rotate"].instructions
    assert {each.name for each in (*server, *worker)} == allowed
    assert task(distribution, RotateCertificates("m")).instructions == server[:1], "as before without CAs"


@pytest.mark.parametrize("step", AUTHORITY_TASKS.values())
@pytest.mark.parametrize("distribution", [KUBEADM.name, EMBEDDED.name])
def test_other_distributions_have_no_tasks_for_authorities(distribution: str, step: Task) -> None:
    with pytest.raises(UnsupportedTask):
        task(distribution, step)


@pytest.mark.parametrize("distribution", VERSIONS)
def test_every_service_that_admission_accepts_is_rendered(distribution: str) -> None:
    plans = [task(distribution, RotateCertificates("m", (service,))).to_json() for service in SERVICES[distribution]]
    assert len(set(plans)) == len(plans)


@pytest.mark.parametrize("distribution", [KUBEADM.name, EMBEDDED.name])
def test_a_stored_request_for_an_unknown_service_is_refused(distribution: str) -> None:
    with pytest.raises(UnsupportedTask, match=f"kube-proxy: has no certificates on {distribution}; use some of admin"):
        task(distribution, RotateCertificates("m", ("admin", "kube-proxy")))


def test_kubeadm_encrypts_with_the_first_key_and_reads_unencrypted_secrets() -> None:
    def providers(*loaded: int) -> list[Any]:
        text = content(task("kubeadm", RestartServices("m"), loaded=loaded), encryption.CONFIG_FILE)
        (resource,) = json.loads(text)["resources"]
        assert resource["resources"] == ["secrets"]
        return [
            [each["name"] for each in provider["secretbox"]["keys"]] if "secretbox" in provider else "identity"
            for provider in resource["providers"]
        ]

    assert providers(2, 1) == [["key2", "key1"], "identity"]
    assert providers(0, 1) == ["identity", ["key1"]]
    assert providers(1, 0) == providers(1) == [["key1"], "identity"]


def test_embedded_servers_get_one_key_per_line() -> None:
    path = "/var/lib/rancher/herder/server/db/managed.keys"
    assert content(task("embedded", RestartServices("m"), loaded=(2, 1)), path) == "dHdv\nb25l\n"
    assert content(task("embedded", RestartServices("m"), loaded=(0, 1)), path) == "local\nb25l\n"


@pytest.mark.parametrize("distribution", [KUBEADM.name, EMBEDDED.name])
def test_plans_of_servers_have_the_keys_and_restart_nothing_for_them(distribution: str) -> None:
    rendered = [
        distribution_of(VERSIONS[distribution]).render(cluster(distribution, *loaded), SERVER)
        for loaded in ((), (1,), (2, 1))
    ]
    assert len({plan.to_json() for plan in rendered}) == 3
    assert all(plan.disruptive_parts() == rendered[0].disruptive_parts() for plan in rendered)


@pytest.mark.parametrize("distribution", [KUBEADM.name, EMBEDDED.name])
def test_no_plan_of_a_worker_has_a_key(distribution: str) -> None:
    given = cluster(distribution, 2, 1)
    assert given.for_workers.encryption is None
    plan = distribution_of(VERSIONS[distribution]).render(given, WORKER).to_json()
    assert not any(base64.b64encode(key.encode()) in plan or key.encode() in plan for key in KEYS.values())


def test_no_key_is_an_argument() -> None:
    for distribution in (KUBEADM.name, EMBEDDED.name):
        for step in STEPS.values():
            (instruction,) = task(distribution, step).instructions
            assert not any(key in str((instruction.args, instruction.env)) for key in KEYS.values())
    assert "dHdv" not in repr(cluster("kubeadm", 2))
    assert replace(cluster("kubeadm", 2), encryption=None) == cluster("kubeadm")


def test_workers_without_a_certificate_to_renew_get_no_task() -> None:
    assert task("kubeadm", RotateCertificates("m", ("etcd",)), WORKER) == Plan()
    assert task("kubeadm", RotateCertificates("m"), WORKER) != Plan()
    assert task("embedded", RotateCertificates("m"), WORKER) == Plan()


def test_kubeadm_restarts_each_component_once_and_etcd_first() -> None:
    (instruction,) = task("kubeadm", RotateCertificates("m")).instructions
    components = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
    assert instruction.args[5].split() == components
    (instruction,) = task("kubeadm", RotateCertificates("m", ("admin",))).instructions
    assert instruction.args[4:] == ("admin.conf super-admin.conf", "", "")


@pytest.mark.parametrize(
    "script",
    [
        certificates.ROTATE_SCRIPT,
        encryption.CHECK_SCRIPT,
        encryption.RESTART_SCRIPT,
        encryption.REENCRYPT_SCRIPT,
        embedded_rotation.ROTATE_SCRIPT,
        embedded_rotation.CHECK_SCRIPT,
        embedded_rotation.RESTART_SCRIPT,
        embedded_rotation.REENCRYPT_SCRIPT,
    ],
)
def test_scripts_are_valid(script: str) -> None:
    """Real clusters run them (`tests/interop`, `tests/provisioning`)."""
    subprocess.run(["sh", "-n", "-c", script], check=True, timeout=30)
