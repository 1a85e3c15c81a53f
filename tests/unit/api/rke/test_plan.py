"""Plans in the bytes that Go's agents read, and the reports of agents."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from herder.api.rke.node.plan import File, HttpGet, Instruction, PeriodicInstruction, Plan, Probe, checksum, file
from herder.api.rke.node.plan_secret import PlanSecret, encoded, zipped
from herder.engine.meta.kinds import Object

HELLO = b'{"instructions":[{"name":"hello","command":"sh","args":["-c","echo hi"],"saveOutput":true}]}'
HELLO_SUM = "fa1b55e3770a8688464b41bec7c9d9a2e12246661841809a8be80c661278a6a6"


# --- bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "data"),
    [
        (Plan(), b"{}"),
        (
            Plan(files=(file("/a", "x", dynamic=True, minor=True, permissions="0644"),)),
            b'{"files":[{"content":"eA==","path":"/a","permissions":"0644","dynamic":true,"minor":true}]}',
        ),
        (Plan(files=(File(path="/a", action="delete"),)), b'{"files":[{"path":"/a","action":"delete"}]}'),
        (
            Plan(instructions=(Instruction(name="i", image="im", env=("A=1",), args=("a && b",), command="sh"),)),
            b'{"instructions":[{"name":"i","image":"im","env":["A=1"],"args":["a \\u0026\\u0026 b"],"command":"sh"}]}',
        ),
        (
            Plan(periodic_instructions=(PeriodicInstruction(name="p", period_seconds=5),), error="no"),
            b'{"periodicInstructions":[{"name":"p","periodSeconds":5}],"error":"no"}',
        ),
        (
            Plan(probes={"z": Probe(), "a": Probe(timeout_seconds=5, http_get=HttpGet(url="u", ca_cert="c"))}),
            b'{"probes":{"a":{"timeoutSeconds":5,"httpGet":{"url":"u","caCert":"c"}},"z":{"httpGet":{}}}}',
        ),
    ],
    ids=["empty", "a file", "a file to delete", "an instruction", "periodic", "probes in order"],
)
def test_a_plan_is_serialized_as_go_does(plan: Plan, data: bytes) -> None:
    assert plan.to_json() == data
    assert Plan.from_json(data) == plan


def test_a_plan_is_identified_by_the_checksum_of_its_bytes() -> None:
    assert checksum(HELLO) == HELLO_SUM
    assert json.loads(Plan.from_json(HELLO).to_json()) == json.loads(HELLO)


# --- reports --------------------------------------------------------------------------------------------------------


def secret(**data: Any) -> Object:
    entries = {name.replace("_", "-"): encoded(value) for name, value in data.items()}
    return {"metadata": {"name": "plan"}, "data": entries}


@pytest.mark.parametrize(
    ("data", "in_sync", "failed"),
    [
        ({}, False, False),
        ({"plan": HELLO}, False, False),
        ({"plan": HELLO, "plan_state": "pending"}, False, False),
        ({"plan": HELLO, "plan_state": "in-progress", "applied_checksum": HELLO_SUM}, False, False),
        ({"plan": HELLO, "plan_state": "succeeded"}, True, False),
        ({"plan": HELLO, "plan_state": "failed"}, False, True),
        # written by the Go agent when it sees a failed plan again
        ({"plan": HELLO, "plan_state": "failed", "applied_checksum": HELLO_SUM, "failure_count": "0"}, False, True),
        # agents without plan-state support
        ({"plan": HELLO, "applied_checksum": HELLO_SUM}, True, False),
        ({"plan": HELLO, "plan_state": "pending", "applied_checksum": HELLO_SUM}, True, False),
        ({"plan": HELLO, "applied_checksum": "another"}, False, False),
        ({"plan": HELLO, "failed_checksum": HELLO_SUM, "failure_count": "1"}, False, True),
        ({"plan": HELLO, "failed_checksum": HELLO_SUM, "failure_count": "2", "failure_threshold": "3"}, False, False),
        ({"plan": HELLO, "failed_checksum": HELLO_SUM, "failure_count": "9", "failure_threshold": "-1"}, False, False),
        ({"plan": HELLO, "failed_checksum": "another", "failure_count": "9"}, False, False),
    ],
)
def test_the_plan_state_takes_precedence_over_the_checksum(data: dict[str, Any], in_sync: bool, failed: bool) -> None:
    plan_secret = PlanSecret(secret(**data))
    assert (plan_secret.in_sync, plan_secret.failed) == (in_sync, failed)


def test_a_plan_secret_is_healthy_without_unhealthy_probes() -> None:
    assert PlanSecret(secret()).healthy
    plan_secret = PlanSecret(
        secret(probe_statuses='{"kubelet":{"healthy":true,"successCount":1},"etcd":{"failureCount":2},"a":{}}')
    )
    assert not plan_secret.healthy
    assert plan_secret.unhealthy_probes == ["a", "etcd"]


def test_outputs_are_read_from_compressed_reports() -> None:
    outputs = zipped({"hello": base64.b64encode(b"hi\n").decode()})
    periodic = zipped({"etcd-name": {"name": "etcd-name", "stdout": "bmFtZQ==", "stderr": None, "exitCode": 0}})
    plan_secret = PlanSecret(secret(applied_output=outputs, applied_periodic_output=periodic))
    assert plan_secret.outputs == {"hello": b"hi\n"}
    assert plan_secret.periodic_outputs["etcd-name"].stdout == b"name"


@pytest.mark.parametrize("data", [{"plan": b"{"}, {"applied_output": b"no gzip"}, {"plan_revision": "many"}])
def test_malformed_data_is_ignored(data: dict[str, Any]) -> None:
    plan_secret = PlanSecret(secret(**data))
    assert (plan_secret.plan, plan_secret.outputs, plan_secret.revision) == (None, {}, 0)
