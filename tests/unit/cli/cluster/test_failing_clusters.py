"""Clusters that cannot be provisioned: what the waiting command, `describe`, `logs` and kubectl show."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.embedded import HERDER, Embedded
from tests.support.kube import free_port
from tests.support.manager.machines import host_shutdown
from tests.support.peers import peer

NAMESPACE = "fleet-default"
NO_CREDENTIALS = 'Error with pre-create check: "no AWS credentials found'
K3S = ("--kubernetes", "v1.36.3+k3s1", "--servers", "1", "--workers", "0", "--timeout", "120")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """With an address that machines could reach: otherwise none of a cloud would be created."""
    flags = ("--capi-core=own", "--machines", "--gateway", "--set", "server-url=https://192.0.2.1:7443")
    data = tmp_path_factory.mktemp("site")
    with host_shutdown(data), Embedded(data, flags=flags, listen=f"127.0.0.1:{free_port()}") as server:
        yield server


def output_of(server: Embedded, *command: str, exit_code: int = 0) -> str:
    variables = os.environ | {"KUBECONFIG": str(server.kubeconfig)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=variables, check=False)
    assert done.returncode == exit_code, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def herder(server: Embedded, *arguments: str, exit_code: int = 0) -> str:
    return output_of(server, str(HERDER), *arguments, exit_code=exit_code)


def described(server: Embedded, resource: str, name: str) -> str:
    return output_of(server, str(peer("kubectl")), "describe", resource, name, "-n", NAMESPACE)


def test_a_cluster_without_credentials_ends_the_wait(server: Embedded) -> None:
    arguments = ("create", "cluster", "poor", "--driver", "amazonec2", "--machine-config", "region=eu-central-1", *K3S)
    output = herder(server, *arguments, exit_code=1)
    *_, error = output.splitlines()
    assert error.startswith("Error: cluster poor cannot be provisioned: machine poor-servers-"), output
    assert f"creation failed: {NO_CREDENTIALS}" in error, output
    assert "(3 failures for this reason)" in error, output
    assert sum(": creation failed: " in line for line in output.splitlines()) == 2, "once, and in the error"
    assert f"waiting for viable init node: machine could not be created: {NO_CREDENTIALS}" in output


def test_describe_and_logs_say_why_in_the_first_line(server: Embedded) -> None:
    for command in ("describe", "logs"):
        first, *others = herder(server, command, "cluster", "poor").splitlines()
        assert first.startswith("cluster poor is not ready: "), first
        assert NO_CREDENTIALS in first, first
        assert any(NO_CREDENTIALS in line for line in others), others
    data = json.loads(herder(server, "describe", "cluster", "poor", "-o", "json"))
    assert NO_CREDENTIALS in data["summary"]


def test_kubectl_describe_shows_why(server: Embedded) -> None:
    cluster = described(server, "clusters.provisioning.cattle.io", "poor")
    (event,) = [line.split() for line in cluster.splitlines() if "MachineCreationFailed" in line]
    assert event[0] == "Warning"
    assert NO_CREDENTIALS in " ".join(event)
    machines = output_of(server, str(peer("kubectl")), "get", "events", "-n", NAMESPACE)
    assert all(reason in machines for reason in ("MachineFailed", "MachineReplaced", "FailedCreate")), machines


def test_a_missing_credential_stalls_the_cluster(server: Embedded) -> None:
    arguments = ("create", "cluster", "lost", "--driver", "digitalocean", "--credential", f"{NAMESPACE}:gone", *K3S)
    output = herder(server, *arguments, exit_code=1)
    why = f"Secret {NAMESPACE}/gone does not exist"
    assert "cluster lost is stalled: " in output, output
    assert why in output.splitlines()[-1], output
    for command in ("describe", "logs"):
        first = herder(server, command, "cluster", "lost").splitlines()[0]
        assert first.startswith("cluster lost is not ready: "), first
        assert first.endswith(why), first
    assert why in described(server, "clusters.provisioning.cattle.io", "lost").partition("Events:")[2]


def test_a_quota_on_jobs_is_the_reason(server: Embedded) -> None:
    kubectl = (str(peer("kubectl")), "-n", NAMESPACE)
    output_of(server, *kubectl, "wait", "--for=create", f"namespace/{NAMESPACE}", "--timeout=60s")
    output_of(server, *kubectl, "create", "quota", "no-jobs", "--hard=count/jobs.batch=0")
    flags = ("--kubernetes", "v1.36.3+herder1", "--servers", "1", "--workers", "0", "--timeout", "15")
    output = herder(server, "create", "cluster", "full", *flags, exit_code=1)
    assert "exceeded quota: no-jobs" in output, output
    assert "exceeded quota: no-jobs" in herder(server, "describe", "cluster", "full").splitlines()[0]
    output_of(server, *kubectl, "delete", "quota", "no-jobs")
    herder(server, "delete", "cluster", "full", "--yes")


def test_an_imported_cluster_is_described(server: Embedded) -> None:
    herder(server, "import", "flock")
    for command in ("describe", "logs"):
        first = herder(server, command, "cluster", "flock").splitlines()[0]
        assert first.startswith("cluster flock is not ready: waiting for the cluster's agent: run the command"), first
    assert "Connected" in herder(server, "describe", "cluster", "flock")


def test_a_cluster_that_never_connected_has_no_kubeconfig(server: Embedded) -> None:
    herder(server, "import", "herd")
    error = herder(server, "kubeconfig", "herd", exit_code=1)
    assert error.startswith("Error: cluster herd has not connected yet, so it has no kubeconfig; "), error
    assert error.rstrip().endswith("print the command that connects it with: herder import herd"), error
    assert "curl" in herder(server, "import", "herd")
