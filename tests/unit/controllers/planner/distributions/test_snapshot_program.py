"""Configuration of the snapshot program on kubeadm and embedded servers, and the instructions of its tasks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from herder.api.management.manifest import Agent
from herder.api.rke import operations
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.names import CLUSTER_SPEC
from herder.api.rke.node.plan import Plan
from herder.controllers.planner.distributions.embedded import Embedded
from herder.controllers.planner.distributions.interface import (
    Authority,
    ClusterInputs,
    Distribution,
    MachineInputs,
    Reference,
    Referenced,
    Roles,
)
from herder.controllers.planner.distributions.kubeadm.distribution import Kubeadm
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.controllers.planner.distributions.tasks import (
    CheckSnapshot,
    Rejoin,
    RestoreSnapshot,
    SaveSnapshot,
    SnapshotFile,
    StartServices,
    StopServices,
    Task,
)
from herder.kubeadm import csr_approver as approver

CREDENTIAL = Reference("Secret", "fleet-default", "s3")
KEYS = {
    "s3credentialConfig-accessKey": b"A",
    "s3credentialConfig-secretKey": b"S",
    "s3credentialConfig-defaultBucket": b"theirs",
    "s3credentialConfig-defaultRegion": b"r",
    "s3credentialConfig-defaultFolder": b"f",
    "s3credentialConfig-defaultEndpoint": b"e.example",
    "s3credentialConfig-defaultEndpointCA": b"-----BEGIN CERTIFICATE-----",
    "s3credentialConfig-defaultSkipSSLVerify": b"true",
}
SERVER = MachineInputs(
    name="m",
    uid="u",
    roles=Roles(etcd=True, control_plane=True),
    is_init=True,
    internal_addresses=("10.0.0.1",),
    node_name="server-1",
)
WORKER = replace(SERVER, roles=Roles(worker=True), is_init=False, join_url="https://10.0.0.9:6443")
DISTRIBUTIONS = pytest.mark.parametrize("distribution", [Kubeadm(), Embedded()], ids=["kubeadm", "embedded"])
IN_S3 = SnapshotFile("file-1", in_s3=True)


def cluster(distribution: Distribution, keys: dict[str, bytes] | None = None, **etcd: Any) -> ClusterInputs:
    return ClusterInputs(
        namespace="fleet-default",
        name="farm",
        management_name="c-m-1",
        version=f"v1.36.3+{'kubeadm1' if distribution.name == 'kubeadm' else 'herder1'}",
        spec={"etcd": etcd},
        annotations={CLUSTER_SPEC: "encoded"},
        server_token="server",
        agent_token="agent",
        authorities={name: Authority("certificate", "key") for name in distribution.authorities},
        agent=Agent("https://manager", "token", "checksum", "image", False, ()),
        referenced={CREDENTIAL: Referenced({}, KEYS if keys is None else keys)},
    )


def config_of(plan: Plan) -> dict[str, Any]:
    (found,) = (each for each in plan.files if each.path.endswith("/snapshots.json"))
    assert (found.permissions, found.dynamic, found.minor) == ("0600", True, True)
    content: dict[str, Any] = json.loads(found.decoded)
    return content


@DISTRIBUTIONS
def test_only_servers_have_the_configuration(distribution: Distribution) -> None:
    given = cluster(distribution, s3={"cloudCredentialName": "s3"})
    assert config_of(distribution.render(given, SERVER))["node"] == "server-1"
    worker = distribution.render(given, WORKER)
    assert not [each for each in worker.files if b'"S"' in each.decoded or each.path.endswith("/snapshots.json")]


@DISTRIBUTIONS
def test_the_credential_has_the_defaults_of_the_storage(distribution: Distribution) -> None:
    config = config_of(distribution.render(cluster(distribution, s3={"cloudCredentialName": "s3"}), SERVER))
    assert config["s3"] == {
        "accessKey": "A",
        "secretKey": "S",
        "bucket": "theirs",
        "region": "r",
        "folder": "f",
        "endpoint": "e.example",
        "endpointCA": "-----BEGIN CERTIFICATE-----",
        "skipSSLVerify": True,
    }
    assert config["retention"] == 5
    assert "disabled" not in config


@DISTRIBUTIONS
def test_values_of_the_cluster_override_those_of_the_credential(distribution: Distribution) -> None:
    own = {"bucket": "b", "region": "x", "folder": "y", "endpoint": "z", "endpointCA": "c"}
    s3 = {"cloudCredentialName": "s3", "retention": 3, **own}
    etcd = {"snapshotRetention": 7, "disableSnapshots": True, "s3": s3}
    config = config_of(distribution.render(cluster(distribution, **etcd), SERVER))
    assert config["s3"] == {"accessKey": "A", "secretKey": "S", "skipSSLVerify": True, "retention": 3, **own}
    assert (config["retention"], config["disabled"]) == (7, True)


@DISTRIBUTIONS
def test_a_change_of_the_configuration_restarts_nothing(distribution: Distribution) -> None:
    before, after = (
        distribution.render(cluster(distribution, snapshotRetention=number), SERVER).disruptive_parts()
        for number in (5, 6)
    )
    assert before == after


@DISTRIBUTIONS
@pytest.mark.parametrize(
    ("s3", "keys", "message"),
    [
        ({"bucket": "b"}, KEYS, "cloudCredentialName: must name a Secret"),
        ({"cloudCredentialName": "s3"}, {**KEYS, "s3credentialConfig-defaultBucket": b""}, "bucket: not set"),
        ({"cloudCredentialName": "other"}, KEYS, "Secret fleet-default/other does not exist"),
        ({"cloudCredentialName": "theirs:s3"}, KEYS, "is in another namespace"),
    ],
)
def test_incomplete_storage_is_an_error(
    distribution: Distribution, s3: dict[str, Any], keys: dict[str, bytes], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        distribution.render(cluster(distribution, keys, s3=s3), SERVER)


@DISTRIBUTIONS
def test_the_credential_is_a_reference(distribution: Distribution) -> None:
    spec = {"etcd": {"s3": {"cloudCredentialName": "s3"}}}
    assert CREDENTIAL in distribution.references(spec, "fleet-default")


@DISTRIBUTIONS
def test_a_restore_is_committed_or_undone_by_its_run(distribution: Distribution) -> None:
    """Only the restore of the run that the cluster continues with is not undone."""
    given, mark = cluster(distribution), "run-2/Phase/1"
    tasks = (RestoreSnapshot(mark, IN_S3, accepted="run-1"), StartServices(mark, "run-1"), Rejoin(mark, commits=True))
    expectations = (("--run=run-2", "--accepted=run-1"), ("--accepted=run-1",), ("--run=run-2",))
    for task, expected in zip(tasks, expectations, strict=True):
        plan = distribution.task(given, SERVER, task)
        arguments = [each for instruction in plan.instructions for each in instruction.args]
        assert tuple(each for each in arguments if each.startswith(("--run=", "--accepted="))) == expected
    without = distribution.task(given, SERVER, StartServices(mark))
    assert not [each for instruction in without.instructions for each in instruction.args if "--accepted" in each]


# --- tasks ------------------------------------------------------------------------------------------------------------


@DISTRIBUTIONS
@pytest.mark.parametrize(
    ("task", "names"),
    [
        (SaveSnapshot("mark"), [operations.SAVE_SNAPSHOT]),
        (CheckSnapshot("mark", IN_S3), [operations.CHECK_SNAPSHOT]),
        (StopServices("mark"), [operations.STOP_SERVICES]),
        (RestoreSnapshot("mark", IN_S3), ["install", operations.RESTORE_SNAPSHOT]),
        (Rejoin("mark"), ["install"]),
        (Rejoin("mark", commits=True), [operations.COMMIT_RESTORE, "install"]),
    ],
)
def test_instructions_of_tasks(distribution: Distribution, task: Task, names: list[str]) -> None:
    plan = distribution.task(cluster(distribution), SERVER, task)
    assert [each.name for each in plan.instructions] == names
    own = [each for each in plan.instructions if each.name in operations.TASK_INSTRUCTIONS]
    assert all("OPERATION=mark" in each.env for each in own)
    if isinstance(task, CheckSnapshot | RestoreSnapshot):
        assert own[0].args[-2:] == ("file-1", "--s3")


@pytest.mark.parametrize("version", ["v1.34.1+k3s1", "v1.34.1+rke2r1", "v1.34.1+kubeadm1"])
def test_a_new_server_deletes_nodes_of_lost_machines_when_it_has_started(version: str) -> None:
    distribution = distribution_of(version)
    task = Rejoin("mark", commits=True, machines=("uid-1", "uid-2"))
    plan = distribution.task(replace(cluster(distribution), version=version), SERVER, task)
    assert [each.name for each in plan.instructions][::2] == [operations.COMMIT_RESTORE, operations.DELETE_NODES]
    assert "uid-1 uid-2" in plan.instructions[-1].args
    assert operations.DELETE_NODES not in {each.name for each in operations.without_tasks(plan).instructions}


@DISTRIBUTIONS
@pytest.mark.parametrize("task", [CheckSnapshot, RestoreSnapshot])
def test_a_restore_requires_the_hash_that_the_manager_has_recorded(
    distribution: Distribution, task: type[CheckSnapshot | RestoreSnapshot]
) -> None:
    plan = distribution.task(cluster(distribution), SERVER, task("mark", replace(IN_S3, sha256="a" * 64)))
    assert plan.instructions[-1].args[-3:] == ("file-1", f"--sha256={'a' * 64}", "--s3")


@DISTRIBUTIONS
def test_a_server_is_installed_without_a_start_before_it_is_restored(distribution: Distribution) -> None:
    install = distribution.task(cluster(distribution), SERVER, RestoreSnapshot("mark", IN_S3)).instructions[0]
    variables = dict(each.split("=", 1) for each in install.env)
    runtime = "KUBEADM" if distribution.name == "kubeadm" else "HERDER"
    assert variables[f"INSTALL_{runtime}_SKIP_START"] == "true"
    assert "RESTART_STAMP" not in variables


@DISTRIBUTIONS
def test_the_description_of_a_snapshot_is_part_of_its_task_only(distribution: Distribution) -> None:
    given = cluster(distribution)
    task = distribution.task(given, SERVER, SaveSnapshot("mark"))
    (described,) = (each for each in task.files if each.path.endswith(operations.SNAPSHOT_METADATA))
    assert json.loads(described.decoded) == {
        "kubernetesVersion": given.version,
        "provisioning-cluster-spec": "encoded",
    }
    assert operations.without_tasks(task).files == tuple(each for each in task.files if each is not described)
    assert not [each for each in distribution.render(given, SERVER).files if each.path == described.path]


@pytest.mark.parametrize(
    "task",
    [
        StopServices("mark", ("server-2", "worker-1")),
        RestoreSnapshot("mark", IN_S3, ("server-2", "worker-1")),
        Rejoin("mark", nodes=("server-2", "worker-1")),
        Rejoin("mark", drop_data=True, nodes=("server-2", "worker-1")),
    ],
    ids=["stop", "restore", "rejoin", "rejoin without data"],
)
def test_tasks_of_a_restore_reserve_the_names_of_all_nodes_on_kubeadm_servers(task: Task) -> None:
    """Each server has them before the data is replaced: records of machines that joined later are lost with it."""
    plan = Kubeadm().task(cluster(Kubeadm()), SERVER, task)
    (reserved,) = (each for each in plan.files if each.path == approver.RESERVED_NAMES)
    assert (json.loads(reserved.decoded), reserved.permissions) == (["server-2", "worker-1"], "0600")
    assert (reserved.dynamic, reserved.minor) == (True, True)
    assert reserved not in operations.without_tasks(plan).files
    before = Kubeadm().render(cluster(Kubeadm()), SERVER)
    assert Plan(files=(*before.files, reserved)).disruptive_parts() == Plan(files=before.files).disruptive_parts()


def test_a_kubeadm_server_is_started_and_fenced_before_the_installer_runs() -> None:
    """The installer refuses servers that an operation has stopped."""
    given, joining = cluster(Kubeadm()), replace(SERVER, is_init=False, join_url="https://10.0.0.9:6443")
    for task, name in (
        (StartServices("mark"), operations.START_SERVICES),
        (Rejoin("mark", drop_data=True), operations.DROP_DATA),
    ):
        plan = Kubeadm().task(given, joining, task)
        assert [each.name for each in plan.instructions] == [name, "install"]
