"""Plans in the bytes that Go's agents read, and what their answers mean."""

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
    ("plan", "written"),
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
def test_a_plan_is_written_as_go_would(plan: Plan, written: bytes) -> None:
    assert plan.to_json() == written
    assert Plan.from_json(written) == plan


def test_a_plan_is_told_by_the_sum_of_its_bytes() -> None:
    assert checksum(HELLO) == HELLO_SUM
    assert json.loads(Plan.from_json(HELLO).to_json()) == json.loads(HELLO)


# --- answers --------------------------------------------------------------------------------------------------------


def secret(**data: Any) -> Object:
    written = {name.replace("_", "-"): encoded(value) for name, value in data.items()}
    return {"metadata": {"name": "plan"}, "data": written}


@pytest.mark.parametrize(
    ("data", "in_sync", "failed"),
    [
        ({}, False, False),
        ({"plan": HELLO}, False, False),
        ({"plan": HELLO, "plan_state": "pending"}, False, False),
        ({"plan": HELLO, "plan_state": "in-progress", "applied_checksum": HELLO_SUM}, False, False),
        ({"plan": HELLO, "plan_state": "succeeded"}, True, False),
        ({"plan": HELLO, "plan_state": "failed"}, False, True),
        # what the Go agent writes on its second look at a plan that failed
        ({"plan": HELLO, "plan_state": "failed", "applied_checksum": HELLO_SUM, "failure_count": "0"}, False, True),
        # agents that know no state
        ({"plan": HELLO, "applied_checksum": HELLO_SUM}, True, False),
        ({"plan": HELLO, "plan_state": "pending", "applied_checksum": HELLO_SUM}, True, False),
        ({"plan": HELLO, "applied_checksum": "another"}, False, False),
        ({"plan": HELLO, "failed_checksum": HELLO_SUM, "failure_count": "1"}, False, True),
        ({"plan": HELLO, "failed_checksum": HELLO_SUM, "failure_count": "2", "failure_threshold": "3"}, False, False),
        ({"plan": HELLO, "failed_checksum": HELLO_SUM, "failure_count": "9", "failure_threshold": "-1"}, False, False),
        ({"plan": HELLO, "failed_checksum": "another", "failure_count": "9"}, False, False),
    ],
)
def test_the_state_is_the_truth_and_the_checksum_where_there_is_none(
    data: dict[str, Any], in_sync: bool, failed: bool
) -> None:
    read = PlanSecret(secret(**data))
    assert (read.in_sync, read.failed) == (in_sync, failed)


def test_probes_are_healthy_when_all_are_and_when_there_are_none() -> None:
    assert PlanSecret(secret()).healthy
    read = PlanSecret(
        secret(probe_statuses='{"kubelet":{"healthy":true,"successCount":1},"etcd":{"failureCount":2},"a":{}}')
    )
    assert not read.healthy
    assert read.unhealthy_probes == ["a", "etcd"]


def test_outputs_are_read_from_what_agents_pack() -> None:
    outputs = zipped({"hello": base64.b64encode(b"hi\n").decode()})
    periodic = zipped({"etcd-name": {"name": "etcd-name", "stdout": "bmFtZQ==", "stderr": None, "exitCode": 0}})
    read = PlanSecret(secret(applied_output=outputs, applied_periodic_output=periodic))
    assert read.outputs == {"hello": b"hi\n"}
    assert read.periodic_outputs["etcd-name"].stdout == b"name"


@pytest.mark.parametrize("data", [{"plan": b"{"}, {"applied_output": b"no gzip"}, {"plan_revision": "many"}])
def test_what_cannot_be_read_is_as_if_it_were_not_there(data: dict[str, Any]) -> None:
    read = PlanSecret(secret(**data))
    assert (read.plan, read.outputs, read.revision) == (None, {}, 0)
