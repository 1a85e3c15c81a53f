"""Commands for operations on a real API server. The test writes what the planner would write."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from herder.api.capi.crds import CRDS as CORE_CRDS
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.cluster_spec import encode_spec
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.api.rke.etcd import restore
from herder.api.rke.etcd.snapshots import FINALIZER
from herder.api.rke.fields.table import refused_values
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.api.rke.operations import (
    ABORTED,
    AGENTS,
    AUTHORITIES,
    CERTIFICATES,
    DELETION,
    ENCRYPTION_KEYS,
    RESTORE,
    SCHEDULED_SNAPSHOT,
    SNAPSHOT,
)
from herder.app.install import install_kinds
from herder.cli.operations.estimate import UNKNOWN, Estimate, estimate
from herder.cli.operations.requests import (
    Outcome,
    Request,
    is_replaced,
    last_generation,
    operation_data,
    operation_line,
    outcome_of,
    pending_requests,
    progress_message,
)
from herder.cli.operations.rollback import rollback_of
from herder.cli.operations.snapshot import _size
from tests.support.builders import new_condition, new_manifest, new_object
from tests.support.embedded import HERDER, Embedded
from tests.support.engines import Engine, unique
from tests.unit.cli.commands import Terminal, expect_failure, herder

NAMESPACE = "fleet-default"
STARTED = "2026-01-01T12:00:00Z"
ESCAPE = "\x1b[2J"


def run(kind: str, phase: str, generation: int = 1, **fields: Any) -> dict[str, Any]:
    return {"id": "x", "kind": kind, "phase": phase, "generation": generation, "startedAt": STARTED, **fields}


def control_plane(operation: dict[str, Any] | None = None, ready: str = "", spec: Any = None, **status: Any) -> Any:
    conditions = [new_condition("Ready", "False", message=ready)] if ready else []
    known = {"operation": operation} if operation else {}
    return new_object(CONTROL_PLANE, "meadow", spec=spec or {}, status={**known, **status, "conditions": conditions})


def provisioning_cluster(generation: int = 1, **config: Any) -> Any:
    meta = {"generation": generation}
    return new_object(PROVISIONING_CLUSTER, "meadow", metadata=meta, spec={"rkeConfig": config})


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plane", "outcome"),
    [
        (None, None),
        (control_plane(run(SNAPSHOT, "Started", 3)), None),
        (control_plane(run(SNAPSHOT, "Finished", 2)), None),
        (control_plane(run(RESTORE, "Finished", 3)), None),
        (control_plane(run(SNAPSHOT, "Finished", 3)), Outcome(has_failed=False)),
        (control_plane(run(SNAPSHOT, "Failed", 3, message="disk full")), Outcome(True, "disk full")),
        (
            control_plane(
                run(RESTORE, "Started"), etcdSnapshotCreate={"generation": 3}, etcdSnapshotCreatePhase="Finished"
            ),
            Outcome(False, "another operation has run since; see the Events of the cluster"),
        ),
        (
            control_plane(
                run(RESTORE, "Started"), etcdSnapshotCreate={"generation": 3}, etcdSnapshotCreatePhase="Started"
            ),
            None,
        ),
        (
            control_plane(
                run(RESTORE, "Started"), etcdSnapshotCreate={"generation": 2}, etcdSnapshotCreatePhase="Finished"
            ),
            None,
        ),
    ],
)
def test_an_outcome_is_that_of_the_requested_generation(plane: Any, outcome: Outcome | None) -> None:
    assert outcome_of(plane, Request(SNAPSHOT, 3)) == outcome


@pytest.mark.parametrize("kind", [AGENTS, CERTIFICATES])
def test_an_operation_that_has_ended_is_not_pending_while_the_next_one_runs(kind: str) -> None:
    request = {kind: 3} if kind == AGENTS else {"rkeConfig": {kind: {"generation": 3}}}
    ended = run(kind, "Failed", 3, message="no response")
    plane = control_plane(run(RESTORE, "Started"), operationHistory=[ended])
    assert [*pending_requests({"spec": request}, plane)] == []
    assert outcome_of(plane, Request(kind, 3)) == Outcome(True, "no response")


def test_a_redeployment_that_the_history_no_longer_has_is_not_pending() -> None:
    plane = control_plane(run(RESTORE, "Started"), **{AGENTS: 3})
    assert [*pending_requests({"spec": {AGENTS: 3}}, plane)] == []
    assert [*pending_requests({"spec": {AGENTS: 4}}, plane)] == [Request(AGENTS, 4)]


def test_the_outcome_of_a_rotation_outlives_the_next_operation() -> None:
    plane = control_plane(run(SNAPSHOT, "Started"), certificateRotationGeneration=4)
    assert outcome_of(plane, Request(CERTIFICATES, 4)) == Outcome(has_failed=False)
    assert outcome_of(plane, Request(CERTIFICATES, 5)) is None


def test_the_last_generation_is_known_even_if_the_request_was_removed() -> None:
    assert last_generation(provisioning_cluster(), None, SNAPSHOT) == 0
    assert last_generation(provisioning_cluster(etcdSnapshotCreate={"generation": 4}), None, SNAPSHOT) == 4
    plane = control_plane(run(SNAPSHOT, "Failed", 6), etcdSnapshotCreate={"generation": 5})
    assert last_generation(provisioning_cluster(), plane, SNAPSHOT) == 6
    assert last_generation(provisioning_cluster(), plane, RESTORE) == 0
    rotated = control_plane(certificateRotationGeneration=7)
    assert last_generation(provisioning_cluster(rotateCertificates=None), rotated, CERTIFICATES) == 7
    assert last_generation(provisioning_cluster(rotateCertificates=None), rotated, AUTHORITIES) == 7
    both = provisioning_cluster(rotateCertificates={"generation": 8, "caCertificates": True})
    assert [last_generation(both, rotated, kind) for kind in (CERTIFICATES, AUTHORITIES)] == [8, 8]
    assert [each.kind for each in pending_requests(both, rotated)] == [AUTHORITIES]


def test_pending_requests_are_those_that_have_not_started() -> None:
    cluster = provisioning_cluster(etcdSnapshotCreate={"generation": 2}, rotateCertificates={"generation": 1})
    plane = control_plane(run(SNAPSHOT, "Started", 2))
    assert [*pending_requests(cluster, plane)] == [Request(CERTIFICATES, 1)]
    assert [*pending_requests(cluster, None)] == [Request(SNAPSHOT, 2), Request(CERTIFICATES, 1)]


def test_a_request_is_replaced_only_by_another_one_that_the_control_plane_has() -> None:
    request, newer = Request(SNAPSHOT, 2), {SNAPSHOT: {"generation": 3}}
    cluster, plane = provisioning_cluster(9, **newer), control_plane(spec=newer)
    assert is_replaced(cluster, plane, request, written=8)
    assert not is_replaced(cluster, plane, request, written=10), "the Cluster is older than the request"
    assert not is_replaced(cluster, control_plane(spec={}), request, written=8), "the control plane is older"
    started = control_plane(run(SNAPSHOT, "Started", 2), spec=newer)
    assert not is_replaced(cluster, started, request, written=8)


def test_the_fields_that_commands_write_are_accepted_on_k3s() -> None:
    """The server of the tests below has no admission rules of Herder."""
    requests = {
        SNAPSHOT: {"generation": 1},
        RESTORE: {"name": "one", "restoreRKEConfig": "none", "generation": 1},
        CERTIFICATES: {"services": ["kubelet"], "generation": 1},
        ENCRYPTION_KEYS: {"generation": 1},
    }
    cluster = provisioning_cluster(**requests)
    cluster["spec"]["kubernetesVersion"] = "v1.36.3+k3s1"
    assert [*refused_values(cluster)] == []


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("etcd restore: starting", ""),
        ("etcd restore: phase Shutdown", ""),
        ("etcd restore, phase Shutdown: waiting for machine(s) a:\n  stopping", "waiting for machine(s) a: stopping"),
        ("etcd restore: machine a: exit code 1", "machine a: exit code 1"),
    ],
)
def test_progress_is_shown_without_what_the_phase_says(message: str, shown: str) -> None:
    assert progress_message(control_plane(run(RESTORE, "Shutdown"), message)) == shown
    assert progress_message(control_plane(run(RESTORE, "Finished"), message)) == ""


def test_an_operation_in_one_line() -> None:
    now = datetime.fromisoformat(STARTED) + timedelta(minutes=5)
    assert operation_line(control_plane(), now) == ""
    active = control_plane(run(RESTORE, "Shutdown", attempt=2), "etcd restore, phase Shutdown: waiting for a")
    assert operation_line(active, now) == (
        "operation: etcd restore 1, phase Shutdown, attempt 2, 28%, started 5m ago: waiting for a"
    )
    failed = control_plane(run(CERTIFICATES, "Failed", 2, message="no\nluck"))
    assert operation_line(failed, now) == "last operation: certificate rotation 2, Failed, started 5m ago: no luck"


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (None, ""),
        (-1, ""),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_have_units(size: object, shown: str) -> None:
    assert _size(size) == shown


# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass
class Cluster:
    """A provisioning Cluster with its control plane, on a server without controllers."""

    server: Engine
    name: str

    @property
    def environment(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.server.kubeconfig)}

    def herder(self, *arguments: str) -> str:
        return herder(*arguments, **self.environment).stdout

    def expect_failure(self, *arguments: str) -> str:
        return expect_failure(*arguments, **self.environment)

    def create(self, obj: Any) -> None:
        self.server.kubectl("create", "-f", "-", stdin=json.dumps(obj))

    def spec(self) -> Any:
        found = self.server.kubectl("get", "-n", NAMESPACE, _PROVISIONING, self.name, "-o", "json").stdout
        return json.loads(found)["spec"]

    def requested(self, kind: str) -> Any:
        return self.spec()["rkeConfig"].get(kind)

    def wait_for_request(self, kind: str, generation: int) -> None:
        path = f"jsonpath={{.spec.rkeConfig.{kind}.generation}}={generation}"
        self.server.kubectl("wait", "-n", NAMESPACE, _PROVISIONING, self.name, f"--for={path}", "--timeout=50s")

    def report(self, operation: dict[str, Any], ready: str = "", **status: Any) -> None:
        """Write the status as the planner does."""
        conditions = [new_condition("Ready", "False" if ready else "True", message=ready)]
        patch = {"status": {**status, "operation": operation, "conditions": conditions}}
        arguments = ("--subresource=status", "--type=merge", "-p", json.dumps(patch))
        self.server.kubectl("patch", "-n", NAMESPACE, _CONTROL_PLANE, self.name, *arguments)

    def add_snapshot(self, snapshot: str, cluster: str = "", finalizers: Sequence[str] = (), **fields: Any) -> None:
        """`fields` are those of its file."""
        file = {"name": f"file-{snapshot}", "nodeName": "node-a", "status": "successful", **fields}
        labels, spec = {names.CLUSTER_NAME: self.name}, {"clusterName": cluster or self.name}
        obj = new_manifest(ETCD_SNAPSHOT, snapshot, NAMESPACE, labels=labels, spec=spec, snapshotFile=file)
        obj["metadata"]["finalizers"] = [*finalizers]
        self.create(obj)


_PROVISIONING = str(PROVISIONING_CLUSTER.resource.group_resource)
_SNAPSHOT = str(ETCD_SNAPSHOT.resource.group_resource)
_CONTROL_PLANE = str(CONTROL_PLANE.resource.group_resource)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Embedded(tmp_path_factory.mktemp("embedded")) as server:
        yield Engine("embedded", server.kubeconfig)


@pytest.fixture
async def cluster(server: Engine) -> Cluster:
    client = server.client()
    try:
        await install_kinds(client, (*CORE_CRDS, *MANAGEMENT_CRDS, *RKE_CRDS))
    finally:
        await client.close()
    server.kubectl("create", "namespace", NAMESPACE, check=False)
    found = Cluster(server, unique("meadow"))
    found.create(new_manifest(PROVISIONING_CLUSTER, found.name, NAMESPACE, spec={"rkeConfig": {}}))
    spec = {"clusterName": found.name, "managementClusterName": "c-m-1"}
    found.create(new_manifest(CONTROL_PLANE, found.name, NAMESPACE, spec=spec))
    return found


def test_a_snapshot_is_requested_and_followed_to_its_end(cluster: Cluster) -> None:
    terminal = Terminal("snapshot", "create", cluster.name, **cluster.environment)
    terminal.read_until("etcd snapshot 1 is requested")
    waiting = "waiting for machine(s) server-0: applying"
    cluster.report(run(SNAPSHOT, "Started"), f"etcd snapshot, phase Started: {waiting}")
    terminal.read_until(waiting)
    cluster.report(run(SNAPSHOT, "Started", attempt=2), f"etcd snapshot, phase Started: {waiting} {ESCAPE}")
    terminal.read_until("phase Started, attempt 2")
    cluster.report(run(SNAPSHOT, "RestartCluster"), "etcd snapshot: phase RestartCluster")
    terminal.read_until("  phase RestartCluster")
    cluster.report(run(SNAPSHOT, "Finished"))
    assert terminal.exit_status() == 0
    assert f"cluster {cluster.name}: etcd snapshot 1 has finished" in terminal.output
    assert ESCAPE not in terminal.output
    assert terminal.output.count("  phase Started\r") == 1
    assert cluster.requested(SNAPSHOT) == {"generation": 1}


def test_a_failed_operation_fails_the_command_with_its_message_first(cluster: Cluster) -> None:
    """Also a preflight that refuses it: it ends in the write in which it starts."""
    command = [HERDER, "rotate", "certificates", cluster.name, "--service", "kubelet"]
    with subprocess.Popen(
        command, env=os.environ | cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        cluster.wait_for_request(CERTIFICATES, 1)
        why = "etcd machine(s) server-1 are not reachable; repair or delete them first"
        cluster.report(run(CERTIFICATES, "Failed", message=why))
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[0] == f"Error: certificate rotation 1 has failed: {why}"
    assert cluster.requested(CERTIFICATES) == {"generation": 1, "services": ["kubelet"]}


def test_each_request_has_a_new_generation(cluster: Cluster) -> None:
    assert "etcd snapshot 1 is requested" in cluster.herder("snapshot", "create", cluster.name, "--no-wait")
    assert "etcd snapshot 2 is requested" in cluster.herder("snapshot", "create", cluster.name, "--no-wait")
    cluster.report(run(SNAPSHOT, "Finished", 7))
    assert "etcd snapshot 8 is requested" in cluster.herder("snapshot", "create", cluster.name, "--no-wait")
    rotation = cluster.herder("rotate", "encryption-keys", cluster.name, "--no-wait")
    assert "encryption key rotation 1 is requested" in rotation
    assert cluster.requested(ENCRYPTION_KEYS) == {"generation": 1}


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (("snapshot", "create"), SNAPSHOT),
        (("snapshot", "restore"), RESTORE),
        (("rotate", "certificates"), CERTIFICATES),
        (("rotate", "encryption-keys"), ENCRYPTION_KEYS),
        (("redeploy", "agents"), AGENTS),
        (("rollback", "cluster"), RESTORE),
    ],
)
def test_the_operation_is_printed_as_data(cluster: Cluster, command: tuple[str, str], kind: str) -> None:
    """Progress is on standard error. A failed operation is printed too."""
    old = f"{cluster.name}-old"
    cluster.report(run(RESTORE, "Finished", 7, inverse={**INVERSE, "name": old}))
    cluster.add_snapshot(old, createdAt=STARTED)
    options = {
        "restore": [old],
        "cluster": ["--accept-data-loss-since", STARTED],
    }.get(command[1], [])
    asked = herder(*command, cluster.name, *options, "--no-wait", "-o", "json", **cluster.environment)
    generation = 8 if kind == RESTORE else 1
    assert json.loads(asked.stdout) == {"kind": kind, "generation": generation, "phase": "Pending"}
    assert f" {generation} is requested" in asked.stderr
    if kind != SNAPSHOT:
        return
    arguments = [HERDER, *command, cluster.name, "-o", "yaml"]
    with subprocess.Popen(
        arguments, env=os.environ | cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        cluster.wait_for_request(SNAPSHOT, 2)
        cluster.report(run(SNAPSHOT, "Failed", 2, message="disk full"))
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Error: etcd snapshot 2 has failed: disk full" in errors
    assert {"phase: Failed", "generation: 2", "message: disk full"} <= {*output.splitlines()}


def test_the_data_of_an_operation_outlives_the_next_one() -> None:
    ended = run(SNAPSHOT, "Finished", 2)
    plane = control_plane(run(DELETION, "Delete", 0), operationHistory=[run(SNAPSHOT, "Failed", 1), ended])
    assert operation_data(plane, Request(SNAPSHOT, 2)) == ended
    assert operation_data(plane, Request(SNAPSHOT, 3)) == {"kind": SNAPSHOT, "generation": 3, "phase": "Pending"}
    assert operation_data(None, Request(SNAPSHOT, 3))["phase"] == "Pending"


def test_a_key_rotation_warns_before_its_request(cluster: Cluster) -> None:
    rotate = ("rotate", "encryption-keys", cluster.name)
    warning = "Warning: a rotation of encryption keys cannot be undone; to be able to go back, first run: "
    warning += f"herder snapshot create {cluster.name}"
    refused = Terminal(*rotate, **cluster.environment)
    refused.read_until("[y/N]")
    assert warning in " ".join(refused.output.split())
    refused.type("n\n")
    assert refused.exit_status() == 1
    assert cluster.requested(ENCRYPTION_KEYS) is None
    accepted = herder(*rotate, "--yes", "--no-wait", **cluster.environment)
    assert warning in accepted.stderr
    assert "encryption key rotation 1 is requested" in accepted.stdout


def test_a_rotation_of_authorities_warns_before_its_request(cluster: Cluster) -> None:
    rotate = ("rotate", "certificates", cluster.name, "--ca")
    refused = Terminal(*rotate, **cluster.environment)
    refused.read_until("[y/N]")
    assert "Warning: Kubernetes restarts on every machine." in " ".join(refused.output.split())
    refused.type("n\n")
    assert refused.exit_status() == 1
    assert cluster.requested(CERTIFICATES) is None
    both = herder(*rotate, "--service", "etcd", "--yes", check=False, **cluster.environment)
    assert (both.returncode, "--service cannot be used with --ca" in both.stderr) == (2, True)
    accepted = herder(*rotate, "--yes", "--no-wait", **cluster.environment)
    assert "CA rotation 1 is requested" in accepted.stdout
    assert cluster.requested(CERTIFICATES) == {"generation": 1, "caCertificates": True}
    cluster.herder("rotate", "certificates", cluster.name, "--no-wait")
    assert cluster.requested(CERTIFICATES) == {"generation": 2, "services": []}


def test_after_an_interrupt_the_operation_can_be_waited_for_again(cluster: Cluster) -> None:
    terminal = Terminal("snapshot", "create", cluster.name, **cluster.environment)
    terminal.read_until("etcd snapshot 1 is requested")
    cluster.report(run(SNAPSHOT, "Started"), "etcd snapshot: starting")
    terminal.read_until("phase Started")
    terminal.type("\x03")
    assert terminal.exit_status() == 130
    assert "The etcd snapshot continues in the manager" in terminal.output
    again = f"herder operations {cluster.name} --wait"
    assert again in terminal.output
    waiting = Terminal(*again.split()[1:], **cluster.environment)
    waiting.read_until("phase Started")
    cluster.report(run(SNAPSHOT, "Failed", message="disk full"))
    assert waiting.exit_status() == 1
    assert "Error: etcd snapshot 1 has failed: disk full" in waiting.output
    assert "disk full" in cluster.expect_failure("operations", cluster.name, "--wait"), "also after its end"


def test_a_timeout_says_how_to_wait_again(cluster: Cluster) -> None:
    message = cluster.expect_failure("snapshot", "create", cluster.name, "--timeout", "1")
    assert "timed out after 1 s; the operation continues in the background" in message
    assert f"herder operations {cluster.name} --wait" in message


def test_a_request_that_admission_refuses_ends_the_command(cluster: Cluster) -> None:
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": cluster.name},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [PROVISIONING_CLUSTER.group],
                        "apiVersions": ["*"],
                        "operations": ["UPDATE"],
                        "resources": [PROVISIONING_CLUSTER.plural],
                    }
                ]
            },
            "validations": [
                {
                    "expression": f"object.metadata.name != '{cluster.name}'",
                    "message": "spec.rkeConfig.etcdSnapshotCreate: not here",
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": cluster.name},
        "spec": {"policyName": cluster.name, "validationActions": ["Deny"]},
    }
    cluster.create(policy)
    cluster.create(binding)
    patch = ("patch", "-n", NAMESPACE, _PROVISIONING, cluster.name, "--type=merge", "--dry-run=server")
    for _ in range(100):  # policies take effect after a moment
        if cluster.server.kubectl(*patch, "-p", '{"metadata":{"labels":{"a":"b"}}}', check=False).returncode:
            break
    assert "spec.rkeConfig.etcdSnapshotCreate: not here" in cluster.expect_failure("snapshot", "create", cluster.name)


def test_a_request_that_another_one_replaces_ends_the_wait(cluster: Cluster) -> None:
    terminal = Terminal("snapshot", "create", cluster.name, **cluster.environment)
    terminal.read_until("etcd snapshot 1 is requested")
    cluster.herder("snapshot", "create", cluster.name, "--no-wait")
    spec = json.dumps({"spec": {SNAPSHOT: {"generation": 2}}})
    cluster.server.kubectl("patch", "-n", NAMESPACE, _CONTROL_PLANE, cluster.name, "--type=merge", "-p", spec)
    assert terminal.exit_status() == 1
    assert "the etcd snapshot 1 has not started: another request has replaced it" in terminal.output


def test_a_deleted_cluster_ends_the_wait(cluster: Cluster) -> None:
    terminal = Terminal("snapshot", "create", cluster.name, **cluster.environment)
    terminal.read_until("etcd snapshot 1 is requested")
    cluster.report(run(SNAPSHOT, "Started"), "etcd snapshot: starting")
    terminal.read_until("phase Started")
    cluster.server.kubectl("delete", "-n", NAMESPACE, _PROVISIONING, cluster.name)
    assert terminal.exit_status() == 1
    assert f"cluster {cluster.name} was deleted before the etcd snapshot 1 has ended" in terminal.output


def test_snapshots_are_listed_newest_first(cluster: Cluster) -> None:
    name = cluster.name
    listing = herder("snapshot", "list", name, **cluster.environment)
    assert (listing.stdout, f"No snapshots of cluster {name} found" in listing.stderr) == ("", True)
    old, new = f"{name}-old", f"{name}-new"
    cluster.add_snapshot(old, createdAt="2026-01-01T00:00:00Z", size=2048, location="file:///var/lib/old")
    cluster.add_snapshot(
        new, createdAt="2026-01-02T00:00:00Z", nodeName="s3", status="failed", message=f"denied{ESCAPE}"
    )
    cluster.add_snapshot(f"{name}-other", cluster="other")
    header, *rows = [line.split() for line in cluster.herder("snapshot", "list", name).splitlines()]
    assert header == ["NAME", "NODE", "AGE", "SIZE", "STATUS"]
    assert [row[:2] for row in rows] == [[new, "s3"], [old, "node-a"]]
    assert rows[1][3:] == ["2.0", "KiB", "successful"]
    wide = cluster.herder("snapshot", "list", name, "-o", "wide")
    assert "file:///var/lib/old" in wide
    assert ESCAPE not in wide
    items = json.loads(cluster.herder("snapshot", "list", name, "-o", "json"))["items"]
    assert [(each["kind"], each["metadata"]["name"]) for each in items] == [
        ("ETCDSnapshot", new),
        ("ETCDSnapshot", old),
    ]


def test_a_restore_asks_and_says_what_is_lost(cluster: Cluster) -> None:
    snapshot = f"{cluster.name}-one"
    cluster.add_snapshot(snapshot, createdAt="2026-01-01T00:00:00Z")
    lost = "all changes since 2026-01-01T00:00:00Z ("
    refused = Terminal("snapshot", "restore", cluster.name, snapshot, **cluster.environment)
    refused.read_until("[y/N]")
    refused.type("n\n")
    assert refused.exit_status() == 1
    assert lost in refused.output
    assert cluster.requested(RESTORE) is None
    accepted = Terminal("snapshot", "restore", cluster.name, f"file-{snapshot}", **cluster.environment)
    accepted.read_until("[y/N]")
    accepted.type("y\n")
    accepted.read_until("etcd restore 1 is requested")
    cluster.report(run(RESTORE, "Shutdown", leader="server-0"), "etcd restore: phase Shutdown")
    accepted.read_until("phase Shutdown (leader: machine server-0)")
    cluster.report(run(RESTORE, "Finished", leader="server-0"))
    assert accepted.exit_status() == 0
    assert cluster.requested(RESTORE) == {"generation": 1, "name": snapshot, "restoreRKEConfig": "none"}
    assert lost in cluster.herder("snapshot", "restore", cluster.name, snapshot, "--yes", "--no-wait")


def test_a_snapshot_that_cannot_be_restored_is_refused_before_the_question(cluster: Cluster) -> None:
    failed, other = f"{cluster.name}-failed", f"{cluster.name}-other"
    cluster.add_snapshot(failed, status="failed", message="disk full")
    cluster.add_snapshot(other, cluster="other")
    command = ("snapshot", "restore", cluster.name)
    assert "has failed and cannot be restored: disk full" in cluster.expect_failure(*command, failed)
    for unknown in (other, "none"):
        message = cluster.expect_failure(*command, unknown, "--yes")
        assert f'cluster {cluster.name} has no snapshot "{unknown}"; list its snapshots with:' in message
    cluster.add_snapshot(f"{cluster.name}-a", name="same")
    cluster.add_snapshot(f"{cluster.name}-b", name="same")
    assert "several snapshots have a file same" in cluster.expect_failure(*command, "same", "--yes")
    assert cluster.requested(RESTORE) is None


def test_snapshots_are_deleted_with_their_files(cluster: Cluster) -> None:
    one, other = f"{cluster.name}-one", f"{cluster.name}-other"
    for snapshot in (one, other):
        cluster.add_snapshot(snapshot, finalizers=[FINALIZER])
    kept = Terminal("snapshot", "delete", cluster.name, one, **cluster.environment)
    kept.read_until("with the files? [y/N]")
    kept.type("n\n")
    assert kept.exit_status() == 1
    deleting = Terminal("snapshot", "delete", cluster.name, one, f"file-{other}", "--yes", **cluster.environment)
    deleting.read_until(f"deletion of snapshot {other} is requested")
    cluster.report(run(DELETION, "Failed", message=f"machine server-0: no such bucket{ESCAPE}"))
    assert deleting.exit_status() == 1
    assert "the files are not deleted: machine server-0: no such bucket" in deleting.output
    listed = herder("snapshot", "delete", cluster.name, one, "--no-wait", "-o", "json", **cluster.environment)
    assert [each["metadata"]["name"] for each in json.loads(listed.stdout)["items"]] == [one]
    assert f"deletion of snapshot {one} is requested" in listed.stderr
    again = Terminal("snapshot", "delete", cluster.name, one, other, "--yes", **cluster.environment)
    again.read_until(f"deletion of snapshot {other} is requested")
    for snapshot in (one, other):
        patch = '{"metadata": {"finalizers": null}}'
        cluster.server.kubectl("patch", "-n", NAMESPACE, _SNAPSHOT, snapshot, "--type=merge", "-p", patch)
    assert again.exit_status() == 0
    assert f"{one}, {other} deleted" in again.output
    assert "has no snapshot" in cluster.expect_failure("snapshot", "delete", cluster.name, one, "--yes")


def test_the_operation_and_pending_requests_are_shown(cluster: Cluster) -> None:
    name = cluster.name
    nothing = herder("operations", name, **cluster.environment)
    assert (nothing.stdout, nothing.stderr) == ("", f"No operation of cluster {name} found\n")
    cluster.herder("rotate", "certificates", name, "--no-wait")
    deadline = (datetime.now(UTC) + timedelta(minutes=9)).strftime("%Y-%m-%dT%H:%M:%SZ")
    operation = run(RESTORE, "Shutdown", 3, attempt=2, leader="server-0", deadline=deadline)
    cluster.report(operation, "etcd restore, phase Shutdown: waiting for machine(s) server-1")
    header, first, second = cluster.herder("operations", name).splitlines()
    columns = ["OPERATION", "GENERATION", "PHASE", "PROGRESS", "ATTEMPT", "LEADER", "SINCE", "DEADLINE", "MESSAGE"]
    assert header.split() == columns
    assert first.split()[:7] == ["etcd", "restore", "3", "Shutdown", "28%", "2", "server-0"]
    assert first.endswith(f"{deadline}   waiting for machine(s) server-1")
    assert second.split() == ["certificate", "rotation", "1", "Pending"]
    assert json.loads(cluster.herder("operations", name, "-o", "json")) == {
        "operation": operation,
        "progress": {"percent": 28, "basis": "this cluster has no earlier run"},
        "waitingFor": "waiting for machine(s) server-1",
        "pending": [{"kind": CERTIFICATES, "generation": 1}],
    }


def test_the_rest_of_an_operation_is_estimated_from_earlier_runs() -> None:
    now = datetime.fromisoformat(STARTED) + timedelta(seconds=30)
    history = [
        {"kind": SNAPSHOT, "phase": "Finished", "timings": {"Started": seconds, "RestartCluster": 20}}
        for seconds in (60, 80, 100)
    ]
    others = [
        {"kind": SNAPSHOT, "phase": "Failed", "timings": {"Started": 900}},
        {"kind": RESTORE, "phase": "Finished"},
    ]
    active = run(SNAPSHOT, "Started", phaseStartedAt=STARTED)
    assert estimate(control_plane(active, operationHistory=others), now) == Estimate(0, None, UNKNOWN)
    found = estimate(control_plane(active, operationHistory=[*history, *others]), now)
    assert found == Estimate(30, 70, "from 3 earlier runs")
    assert str(found) == "30%, about 70s left (from 3 earlier runs)"
    late = estimate(control_plane(active, operationHistory=history), now + timedelta(hours=1))
    assert late == Estimate(80, 20, "from 3 earlier runs")
    assert estimate(control_plane(run(SNAPSHOT, "Finished"), operationHistory=history), now) is None
    assert estimate(control_plane(run(SNAPSHOT, "RestartCluster", message="failed")), now) is None


LATER = "2026-01-01T13:00:00Z"
INVERSE = {"kind": RESTORE, "name": "old", "restoreRKEConfig": "none", "snapshotTime": STARTED}
UPGRADE = {"from": "v1.33.5+k3s1", "to": "v1.34.1+k3s1", "snapshot": "old", "snapshotTime": STARTED}


def later(kind: str, phase: str, generation: int = 1, **fields: Any) -> dict[str, Any]:
    return {**run(kind, phase, generation, **fields), "startedAt": LATER}


@pytest.mark.parametrize(
    ("plane", "undo"),
    [
        (None, "no operation and no change of the version is recorded"),
        (control_plane(run(SNAPSHOT, "Started", 3)), "the etcd snapshot 3 is in progress; wait for its end, or abort"),
        (control_plane(run(SNAPSHOT, "Finished")), "no operation and no change of the version is recorded"),
        (control_plane(run(RESTORE, "Finished", inverse=INVERSE)), "old none the etcd restore 1"),
        (control_plane(run(RESTORE, "Finished", inverse={"message": "it cannot be undone: x"})), "cannot be undone: x"),
        (control_plane(run(RESTORE, "Failed", message="no such file")), "etcd restore 1: no such file"),
        (control_plane(run(ENCRYPTION_KEYS, "Done", inverse={"message": "it cannot be undone"})), "cannot be undone"),
        (
            control_plane(run(SNAPSHOT, "Finished"), rollback=UPGRADE),
            "old kubernetesVersion the upgrade from v1.33.5+k3s1 to v1.34.1+k3s1",
        ),
        (
            control_plane(
                run(RESTORE, "Finished", inverse=INVERSE), rollback={**UPGRADE, "time": "2026-01-01T13:00:00Z"}
            ),
            "old kubernetesVersion the upgrade",
        ),
        # later operations that cannot be undone do not hide it
        (
            control_plane(later(CERTIFICATES, "Finished"), rollback={**UPGRADE, "time": STARTED}),
            "old kubernetesVersion the upgrade from v1.33.5+k3s1 to v1.34.1+k3s1",
        ),
        (
            control_plane(
                later(ENCRYPTION_KEYS, "Done", inverse={"message": "it cannot be undone"}),
                rollback={**UPGRADE, "time": STARTED},
            ),
            "old kubernetesVersion the upgrade",
        ),
        (
            control_plane(later(RESTORE, "Failed", message="no such file"), rollback={**UPGRADE, "time": STARTED}),
            "old kubernetesVersion the upgrade",
        ),
        (
            control_plane(
                later(SCHEDULED_SNAPSHOT, "Finished", 0),
                operationHistory=[run(RESTORE, "Finished", 4, inverse=INVERSE), later(CERTIFICATES, "Finished")],
            ),
            "old none the etcd restore 4",
        ),
        (
            control_plane(
                later(CERTIFICATES, "Finished"),
                rollback={**UPGRADE, "time": STARTED},
                operationHistory=[later(RESTORE, "Finished", 4, inverse={"message": "it cannot be undone: disk full"})],
            ),
            "etcd restore 4: it cannot be undone: disk full",
        ),
        (
            control_plane(
                operationHistory=[run(RESTORE, "Finished", 4, inverse=INVERSE)],
                rollback={**UPGRADE, "snapshot": "new", "time": LATER},
            ),
            "new kubernetesVersion the upgrade",
        ),
        (
            control_plane(rollback={"from": "v1", "to": "v2", "message": "no snapshot was taken"}),
            "the upgrade from v1 to v2 cannot be undone: no snapshot was taken",
        ),
    ],
)
def test_a_rollback_undoes_the_last_change(plane: Any, undo: str) -> None:
    found = rollback_of(plane)
    assert undo in (found if isinstance(found, str) else f"{found.snapshot} {found.mode} {found.change}")


def test_a_rollback_names_the_data_that_is_lost_and_requires_its_acceptance(cluster: Cluster) -> None:
    rollback = ("rollback", "cluster", cluster.name)
    assert "cannot be rolled back: no operation" in cluster.expect_failure(*rollback)
    encoded = encode_spec({"kubernetesVersion": UPGRADE["from"]})
    known = {"rollback": {**UPGRADE, "snapshot": f"{cluster.name}-old"}, "specHistory": [restore.digest(encoded)]}
    cluster.report(run(SNAPSHOT, "Finished"), **known)
    assert f'has no snapshot "{cluster.name}-old"' in cluster.expect_failure(*rollback)
    metadata = base64.b64encode(json.dumps({restore.SPEC_KEY: encoded}).encode()).decode()
    cluster.add_snapshot(f"{cluster.name}-old", createdAt=STARTED, metadata=metadata)
    refusal = cluster.expect_failure(*rollback)
    assert "undoing the upgrade from v1.33.5+k3s1 to v1.34.1+k3s1 restores a snapshot" in refusal
    assert f"all changes in the cluster since {STARTED} (" in refusal
    accept = refusal.partition("to accept, pass ")[2].split()
    assert accept[:2] == ["--accept-data-loss-since", STARTED]
    for wrong in ("2026-01-01T12:00:01Z", "yesterday"):
        cluster.expect_failure(*rollback, accept[0], wrong)
    assert cluster.requested(RESTORE) is None
    terminal = Terminal(*rollback, *accept[:2], **cluster.environment)
    terminal.read_until("etcd restore 1 is requested")
    cluster.report(run(RESTORE, "Finished"))
    assert terminal.exit_status() == 0
    request = {"generation": 1, "name": f"{cluster.name}-old", "restoreRKEConfig": "kubernetesVersion"}
    assert cluster.requested(RESTORE) == request
    assert cluster.spec()["kubernetesVersion"] == UPGRADE["from"]


def test_an_operation_is_aborted_before_its_point_of_no_return(cluster: Cluster) -> None:
    abort = ("operations", "abort", cluster.name)
    assert "has no operation in progress" in cluster.expect_failure(*abort)
    cluster.report(run(RESTORE, "Restore"))
    why = "cannot be aborted in phase Restore: the data of the cluster is being replaced"
    assert why in cluster.expect_failure(*abort)
    request = {"generation": 1, "name": "old", "restoreRKEConfig": "kubernetesVersion"}
    applied = {"kubernetesVersion": "v1.34.1+k3s1"}
    cluster.report(run(RESTORE, "Shutdown"), etcdSnapshotRestore=request, appliedSpec=applied)
    terminal = Terminal(*abort, **cluster.environment)
    terminal.read_until("abort of the etcd restore 1 is requested")
    found = json.loads(cluster.server.kubectl("get", "-n", NAMESPACE, _PROVISIONING, cluster.name, "-o", "json").stdout)
    assert found["metadata"]["annotations"][names.ABORT_OPERATION] == "x"
    assert found["spec"]["kubernetesVersion"] == "v1.34.1+k3s1"
    cluster.report(run(RESTORE, "Abort", message=f"phase Shutdown: {ABORTED}"))
    terminal.read_until("phase Abort")
    cluster.report(run(RESTORE, "Failed", message=f"phase Shutdown: {ABORTED}"))
    assert terminal.exit_status() == 0
    assert "etcd restore 1 was aborted" in terminal.output


def test_unknown_and_imported_clusters_are_refused(cluster: Cluster) -> None:
    imported = unique("imported")
    cluster.create(new_manifest(PROVISIONING_CLUSTER, imported, NAMESPACE, spec={}))
    for command in (
        ("snapshot", "create"),
        ("snapshot", "list"),
        ("snapshot", "restore"),
        ("rotate", "certificates"),
        ("rotate", "encryption-keys"),
        ("operations",),
        ("operations", "abort"),
        ("rollback", "cluster"),
    ):
        arguments = ("x",) if command[-1] == "restore" else ()
        message = cluster.expect_failure(*command, "heath", *arguments)
        assert f"cluster heath not found in namespace {NAMESPACE}" in message, command
        assert f"cluster {imported} is imported; " in cluster.expect_failure(*command, imported, *arguments), command


def test_describe_shows_the_operation(cluster: Cluster) -> None:
    reference = {"apiGroup": CONTROL_PLANE.group, "kind": CONTROL_PLANE.kind, "name": cluster.name}
    core = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "spec": {"controlPlaneRef": reference}}
    cluster.create(core | {"metadata": {"name": cluster.name, "namespace": NAMESPACE}})
    assert "operation" not in cluster.herder("describe", "cluster", cluster.name)
    cluster.report(run(SNAPSHOT, "Started"), "etcd snapshot, phase Started: waiting for machine(s) server-1")
    _, line, blank, *_ = cluster.herder("describe", "cluster", cluster.name).splitlines()
    assert line.startswith("operation: etcd snapshot 1, phase Started, 0%, started "), line
    assert line.endswith(" ago: waiting for machine(s) server-1")
    assert blank == ""
    data = json.loads(cluster.herder("describe", "cluster", cluster.name, "-o", "json"))
    assert data["operation"] == run(SNAPSHOT, "Started", attempt=1)
