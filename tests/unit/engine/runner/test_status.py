from __future__ import annotations

from pathlib import Path

import pytest

from herder.engine.meta.kinds import Object
from herder.engine.runner.pod.attempt import Outcome
from herder.engine.runner.pod.container import MESSAGE_BYTES, last_bytes
from herder.engine.runner.pod.status import ContainerState, PodState, Verdict, pod_status, terminated

NOW = "2026-01-01T12:00:00Z"


def ended(code: int) -> ContainerState:
    state = terminated(Outcome(code, 1000.0, 1001.0), container_id="herder://x", message="")
    return ContainerState(waiting=None, ended=state)


def running() -> ContainerState:
    return ContainerState(waiting=None, running_since=1000.0)


def new_pod(restart: str = "Never", *, init: bool = False) -> Object:
    spec: Object = {"restartPolicy": restart, "containers": [{"name": "a"}, {"name": "b"}]}
    if init:
        spec["initContainers"] = [{"name": "i"}]
    return {"metadata": {"name": "p", "generation": 1}, "spec": spec, "status": {}}


def status_of(pod: Object, *states: ContainerState, init: ContainerState | None = None, final: bool = False) -> Object:
    state = PodState(dict(zip("ab", states, strict=True)), {"i": init} if init else {}, started=NOW, final=final)
    return pod_status(pod, state, address="127.0.0.1", now=NOW)


@pytest.mark.parametrize(
    ("restart", "first", "second", "final", "phase"),
    [
        ("Never", ContainerState(), ContainerState(), False, "Pending"),
        ("Never", running(), ContainerState(), False, "Running"),
        ("Never", ended(0), running(), False, "Running"),
        ("Never", ended(0), ended(0), True, "Succeeded"),
        ("Never", ended(0), ended(1), True, "Failed"),
        ("OnFailure", ended(0), ended(1), False, "Running"),
        ("OnFailure", ended(0), ended(1), True, "Failed"),
        ("OnFailure", ended(0), ended(0), True, "Succeeded"),
        ("Always", ended(0), ended(0), False, "Running"),
    ],
)
def test_the_phase_is_derived_from_the_containers(
    restart: str, first: ContainerState, second: ContainerState, final: bool, phase: str
) -> None:
    assert status_of(new_pod(restart), first, second, final=final)["phase"] == phase


def test_a_failed_init_container_fails_a_pod_that_never_restarts() -> None:
    states = ContainerState(), ContainerState()
    assert status_of(new_pod(init=True), *states, init=ended(1))["phase"] == "Failed"
    assert status_of(new_pod("OnFailure", init=True), *states, init=ended(1))["phase"] == "Pending"


def test_a_pod_is_ready_while_all_its_containers_run() -> None:
    conditions = {one["type"]: one for one in status_of(new_pod(), running(), running())["conditions"]}
    assert {name: one["status"] for name, one in conditions.items()} == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }
    waiting = {one["type"]: one for one in status_of(new_pod(), running(), ContainerState())["conditions"]}
    assert waiting["Ready"]["message"] == "containers with unready status: [b]"


def test_transition_times_change_only_with_the_status_and_foreign_conditions_are_kept() -> None:
    pod = new_pod()
    pod["status"]["conditions"] = [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T11:00:00Z"},
        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"},
    ]
    conditions = {one["type"]: one for one in status_of(pod, running(), running())["conditions"]}
    assert conditions["Ready"]["lastTransitionTime"] == "2026-01-01T11:00:00Z"
    assert conditions["DisruptionTarget"]["reason"] == "EvictionByEvictionAPI"


def test_a_final_verdict_overrides_the_container_states() -> None:
    state = PodState({"a": ended(0), "b": ended(0)}, verdict=Verdict("Failed", "DeadlineExceeded", "too long"))
    status = pod_status(new_pod(), state, address="127.0.0.1", now=NOW)
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "DeadlineExceeded", "too long")


def test_each_container_state_is_reported() -> None:
    again = ContainerState(waiting=("CrashLoopBackOff", "back-off"), last=ended(3).ended, restarts=2)
    first, second = status_of(new_pod("OnFailure"), running(), again)["containerStatuses"]
    assert first["state"] == {"running": {"startedAt": "1970-01-01T00:16:40Z"}}
    assert first["ready"] is True
    assert second["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    assert second["restartCount"] == 2
    assert second["lastState"]["terminated"]["exitCode"] == 3


@pytest.mark.parametrize(
    ("outcome", "reason", "message"),
    [
        (Outcome(0, 1, 2), "Completed", "said"),
        (Outcome(1, 1, 2), "Error", "said"),
        (Outcome(128, 1, 2, 0, "StartError", "no such file"), "StartError", "no such file"),
    ],
)
def test_termination_reasons_and_messages(outcome: Outcome, reason: str, message: str) -> None:
    state = terminated(outcome, container_id="herder://x", message="said")
    assert (state["reason"], state["message"]) == (reason, message)


@pytest.mark.parametrize("written", [b"x" * 5000 + b"end", "ü".encode() * 3000 + b"end", b"\xff" * 5000 + b"end"])
def test_the_last_4096_bytes_of_a_termination_message_are_kept(tmp_path: Path, written: bytes) -> None:
    (tmp_path / "message").write_bytes(written)
    kept = last_bytes(tmp_path / "message", MESSAGE_BYTES)
    assert kept.endswith("end")
    assert 4090 < len(kept.encode()) <= 4096


def test_a_termination_message_that_was_never_written_is_empty(tmp_path: Path) -> None:
    assert last_bytes(tmp_path / "none", MESSAGE_BYTES) == ""
