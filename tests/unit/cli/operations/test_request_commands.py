"""Commands that request an operation: its generation, their output, and what ends them early."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.operations import AGENTS, CERTIFICATES, ENCRYPTION_KEYS, RESTORE, SNAPSHOT
from tests.support.builders import new_manifest
from tests.support.embedded import HERDER
from tests.support.engines import unique
from tests.unit.cli.commands import Terminal, herder
from tests.unit.cli.operations.cluster import CLUSTERS, CONTROL_PLANES, NAMESPACE, Cluster
from tests.unit.cli.operations.objects import ESCAPE, INVERSE, STARTED, run


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
    patch = ("patch", "-n", NAMESPACE, CLUSTERS, cluster.name, "--type=merge", "--dry-run=server")
    for _ in range(100):  # policies take effect after a moment
        if cluster.server.kubectl(*patch, "-p", '{"metadata":{"labels":{"a":"b"}}}', check=False).returncode:
            break
    assert "spec.rkeConfig.etcdSnapshotCreate: not here" in cluster.expect_failure("snapshot", "create", cluster.name)


def test_a_request_that_another_one_replaces_ends_the_wait(cluster: Cluster) -> None:
    terminal = Terminal("snapshot", "create", cluster.name, **cluster.environment)
    terminal.read_until("etcd snapshot 1 is requested")
    cluster.herder("snapshot", "create", cluster.name, "--no-wait")
    spec = json.dumps({"spec": {SNAPSHOT: {"generation": 2}}})
    cluster.server.kubectl("patch", "-n", NAMESPACE, CONTROL_PLANES, cluster.name, "--type=merge", "-p", spec)
    assert terminal.exit_status() == 1
    assert "the etcd snapshot 1 has not started: another request has replaced it" in terminal.output


def test_a_deleted_cluster_ends_the_wait(cluster: Cluster) -> None:
    terminal = Terminal("snapshot", "create", cluster.name, **cluster.environment)
    terminal.read_until("etcd snapshot 1 is requested")
    cluster.report(run(SNAPSHOT, "Started"), "etcd snapshot: starting")
    terminal.read_until("phase Started")
    cluster.server.kubectl("delete", "-n", NAMESPACE, CLUSTERS, cluster.name)
    assert terminal.exit_status() == 1
    assert f"cluster {cluster.name} was deleted before the etcd snapshot 1 has ended" in terminal.output


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
