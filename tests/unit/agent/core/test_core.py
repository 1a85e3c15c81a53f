"""The agent's core: both plan protocols, with an in-memory Secret and node."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from herder.agent.core import outputs
from herder.agent.core.events import AcquireInterlock, Event, Finished, RequestFailed, Run, Secret, SecretSeen, Write
from herder.agent.core.plan import checksum
from tests.support.manager.node_agents import decoded_outputs, unpack
from tests.unit.agent.core.simulated_node import SimulatedNode, plan

PENDING = {"plan": plan("one", "two"), "plan-state": "pending"}


# --- protocol with plan-state ---------------------------------------------------------------------------------------


def test_a_pending_plan_is_committed_run_and_reported() -> None:
    node = SimulatedNode(PENDING)
    assert [write["plan-state"] for write in node.writes] == [b"in-progress", b"succeeded"]
    assert node.ran == [("one", 1), ("two", 1)]
    assert node.value_of("plan-revision") == "1"
    assert node.value_of("applied-checksum") == checksum(PENDING["plan"].encode())
    assert decoded_outputs(node.data["applied-output"]) == {"one": "out of one\n", "two": "out of two\n"}  # type: ignore[index]
    assert (node.value_of("failure-count"), node.value_of("success-count")) == ("0", "1")
    assert node.value_of("failed-checksum") == node.value_of("failed-output") == ""
    assert node.value_of("last-apply-time") == outputs.unix_date(node.now)
    assert node.value_of("probe-statuses") == "{}"
    assert unpack((node.data or {})["applied-periodic-output"]) == {}


def test_in_progress_is_written_before_anything_is_run() -> None:
    order: list[str] = []
    node = SimulatedNode(PENDING, boot=False)
    node.before = lambda action: order.append(type(action).__name__)
    node.boot()
    assert order.index("Write") < order.index("AcquireInterlock") < order.index("WriteFiles") < order.index("Run")


def test_results_are_on_disk_before_they_are_reported() -> None:
    node = SimulatedNode(PENDING, boot=False)

    def check(action: object) -> None:
        if isinstance(action, Write) and action.data["plan-state"] == b"succeeded":
            assert node.disk is not None
            assert node.disk.result is not None

    node.before = check
    node.boot()
    assert node.state == "succeeded"


def test_a_failure_stops_the_plan_and_stays_reported() -> None:
    node = SimulatedNode({"plan": plan("one", "bad", "three"), "plan-state": "pending"}, boot=False)
    node.exit_codes["bad"] = 7
    node.boot().wait(600)
    assert node.ran == [("one", 1), ("bad", 1)]
    assert node.state == "failed"
    assert node.value_of("failed-checksum") == checksum(node.value_of("plan").encode())
    assert decoded_outputs((node.data or {})["failed-output"]) == {"one": "out of one\n", "bad": "out of bad\n"}
    assert (node.value_of("failure-count"), node.value_of("success-count")) == ("1", "0")
    assert "applied-checksum" not in (node.data or {})
    evidence = json.loads(node.value_of("failed-evidence"))
    assert evidence == {"instruction": "bad", "index": 1, "exitCode": 7, "error": "", "tail": "a reason"}


def test_the_planner_requests_retries_and_they_start_at_attempt_one() -> None:
    node = SimulatedNode({"plan": plan("bad"), "plan-state": "pending"}, boot=False)
    node.exit_codes["bad"] = 1
    node.boot()
    node.edit(plan_state="pending")
    node.process_events()
    assert node.value_of("failure-count") == "2"
    node.exit_codes.clear()
    node.edit(plan_state="pending")
    node.process_events()
    assert node.ran == [("bad", 1)] * 3
    assert node.state == "succeeded"
    assert node.value_of("plan-revision") == "3"
    assert (node.value_of("failure-count"), node.value_of("failed-checksum"), node.value_of("failed-evidence")) == (
        "0",
        "",
        "",
    )


def test_failures_of_another_plan_do_not_count() -> None:
    node = SimulatedNode({"plan": plan("bad"), "plan-state": "pending"}, boot=False)
    node.exit_codes["bad"] = 1
    node.boot()
    node.edit(plan=plan("bad", note="another"), plan_state="pending")
    node.process_events()
    assert node.value_of("failure-count") == "1"


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_final_state_is_kept_when_the_plan_changes(state: str) -> None:
    node = SimulatedNode({"plan": plan("one"), "plan-state": state, "applied-periodic-output": outputs.pack({})})
    node.edit(plan=plan("two"))
    node.process_events()
    assert node.ran == []
    assert "applied-checksum" not in (node.data or {})


def test_a_secret_from_a_backup_is_not_run_and_the_newer_plan_is_reported() -> None:
    node = SimulatedNode(PENDING)
    old = dict(node.data or {})
    node.edit(plan=plan("new"), plan_state="pending")
    node.process_events()
    newest, ran = checksum(node.value_of("plan").encode()), len(node.ran)
    node.set(old)
    node.process_events()
    assert len(node.ran) == ran
    assert (node.value_of("local-applied-checksum"), node.value_of("local-plan-revision")) == (newest, "2")
    assert (node.value_of("plan-revision"), node.state) == ("1", "succeeded")
    writes = len(node.writes)
    node.boot()
    assert len(node.writes) == writes, "it is reported once"

    node.edit(plan=plan("next"), plan_state="pending")
    node.process_events()
    assert node.ran[-1] == ("next", 1)
    assert node.value_of("plan-revision") == "3", "revisions continue above those of the machine"


def test_nothing_runs_without_a_plan() -> None:
    node = SimulatedNode({})
    assert (node.writes, node.ran) == ([], [])
    node.edit(plan=plan("one"), plan_state="pending")
    node.process_events()
    assert node.state == "succeeded"


def test_an_invalid_plan_fails_with_the_reason() -> None:
    node = SimulatedNode({"plan": '{"instructions": {}}', "plan-state": "pending"})
    assert node.state == "failed"
    assert (
        json.loads(node.value_of("failed-evidence"))["error"] == "plan.instructions: expected a list, found an object"
    )


def test_an_unwritable_file_fails_the_plan_before_its_instructions() -> None:
    node = SimulatedNode(PENDING, boot=False)
    node.file_error = "file /x: no"
    node.boot()
    assert (node.state, node.ran) == ("failed", [])
    assert json.loads(node.value_of("failed-evidence"))["error"] == "file /x: no"


# --- crashes, conflicts, lost responses ------------------------------------------------------------------------------


def running(data: Mapping[str, str]) -> SimulatedNode:
    """Return a node that reported in-progress; the test decides how its first instruction ends."""
    node = SimulatedNode(data, boot=False)
    node.held = {Run}
    node.boot()
    assert node.state == "in-progress"
    node.held = set()
    return node


def disconnected_during_a_run() -> SimulatedNode:
    """Return a node that reported in-progress and then lost its connection to the API server."""
    node = SimulatedNode(PENDING, boot=False)
    node.after = lambda action: setattr(node, "reachable", node.reachable and not isinstance(action, AcquireInterlock))
    node.boot()
    node.after = lambda action: None
    assert node.state == "in-progress"
    return node


def test_an_unreported_result_is_reported_after_a_restart_without_running_again() -> None:
    node = disconnected_during_a_run()
    node.reachable = True
    node.boot()
    assert node.state == "succeeded"
    assert node.ran == [("one", 1), ("two", 1)]


def test_a_result_is_reported_when_the_server_is_reachable_again() -> None:
    node = disconnected_during_a_run()
    assert node.wait(300).state == "in-progress"
    node.reachable = True
    node.wait(61)
    assert node.state == "succeeded"
    assert node.ran == [("one", 1), ("two", 1)]


def test_an_interrupted_plan_restarts_with_the_next_attempt_number() -> None:
    node = running(PENDING)
    node.boot()
    assert node.ran == [("one", 2), ("two", 2)]
    assert node.state == "succeeded"


def test_an_interrupted_plan_of_another_agent_continues_its_failure_count() -> None:
    node = SimulatedNode({"plan": plan("one"), "plan-state": "in-progress", "plan-revision": "4", "failure-count": "2"})
    assert node.ran == [("one", 3)]
    assert (node.state, node.value_of("plan-revision")) == ("succeeded", "4")


def test_an_unrelated_edit_during_a_run_is_kept() -> None:
    node = running(PENDING)
    node.edit(probe_period_seconds="9")
    node.deliver(Finished(0, b"out of one"))
    node.process_events()
    assert (node.state, node.value_of("probe-period-seconds")) == ("succeeded", "9")


def test_a_plan_replaced_during_its_run_reports_nothing() -> None:
    node = running({"plan": plan("old"), "plan-state": "pending"})
    node.edit(plan=plan("new"), plan_state="pending")
    node.deliver(Finished(1))
    node.process_events()
    assert node.ran == [("new", 1)]
    assert (node.state, node.value_of("plan-revision"), node.value_of("failure-count")) == ("succeeded", "2", "0")


def test_a_plan_requested_again_during_its_run_runs_again() -> None:
    node = running({"plan": plan("one"), "plan-state": "pending"})
    node.edit(plan_state="pending")
    node.deliver(Finished(0))
    node.process_events()
    assert node.ran == [("one", 1)]
    assert (node.state, node.value_of("plan-revision")) == ("succeeded", "2")


def test_a_write_with_a_lost_response_is_read_back_and_not_repeated() -> None:
    node = SimulatedNode(PENDING, boot=False)
    node.lose_responses = True
    node.boot().wait(600)
    assert node.state == "succeeded"
    assert node.ran == [("one", 1), ("two", 1)]
    assert [write["plan-state"] for write in node.writes] == [b"in-progress", b"succeeded"]


def test_a_stale_read_is_ignored() -> None:
    node = SimulatedNode(PENDING)
    stale = Secret(node.uid, "1", {"plan": plan("stale").encode(), "plan-state": b"pending"})
    node.deliver(SecretSeen(stale))
    node.process_events()
    assert node.state == "succeeded"
    assert ("stale", 1) not in node.ran


def test_a_direct_read_of_a_restored_store_is_trusted() -> None:
    node = SimulatedNode(PENDING)
    node.version = 7
    node.data = {"plan": plan("restored").encode(), "plan-state": b"pending"}
    node.deliver(SecretSeen(node.secret(), True))
    node.process_events()
    assert node.ran[-1] == ("restored", 1)
    assert node.state == "succeeded"


def test_a_recreated_secret_is_a_new_one() -> None:
    node = SimulatedNode({"plan": plan("one")})
    node.delete()
    node.set({"plan": plan("one"), "applied-checksum": checksum(plan("one").encode())}, uid="uid-2")
    node.process_events()
    assert node.ran == [("one", 1), ("one", 1)]


def test_outputs_that_are_too_large_are_omitted_from_the_report() -> None:
    node = SimulatedNode(PENDING, boot=False)
    write = node.write

    def refuse(action: Write) -> Event:
        if unpack(action.data.get("applied-output", b"")):
            return RequestFailed("413: too large", too_large=True)
        return write(action)

    node.write = refuse  # type: ignore[method-assign]
    node.boot().wait(60)
    assert node.state == "succeeded"
    assert decoded_outputs((node.data or {})["applied-output"]) == {}


def test_a_plan_waits_for_a_pending_restart() -> None:
    node = SimulatedNode({"plan": plan("one"), "applied-checksum": checksum(plan("one").encode())}, boot=False)
    node.blocked = "a restart is pending"
    node.boot().wait(30)
    assert node.ran == []
    node.blocked = ""
    node.wait(2)
    assert node.ran == [("one", 1)]


# --- protocol without plan-state -------------------------------------------------------------------------------------


def test_without_states_a_plan_is_applied_if_its_checksum_is_not_the_applied_one() -> None:
    node = SimulatedNode({"plan": plan("one")})
    assert "plan-state" not in (node.data or {})
    assert "plan-revision" not in (node.data or {})
    node.edit(plan=plan("two"))
    node.process_events()
    node.edit(probe_period_seconds="7")
    node.process_events()
    assert node.ran == [("one", 1), ("two", 1)]
    assert node.value_of("success-count") == "2"


def test_without_states_the_first_plan_after_a_start_is_applied_again() -> None:
    node = SimulatedNode({"plan": plan("one")})
    node.boot()
    assert node.ran == [("one", 1), ("one", 1)]
    assert node.value_of("success-count") == "2"


def test_without_states_an_unreported_result_is_reported_and_not_run_again() -> None:
    node = SimulatedNode({"plan": plan("one")}, boot=False)
    node.reachable = False
    node.boot()
    node.reachable = True
    node.boot()
    assert node.ran == [("one", 1)]
    assert node.value_of("success-count") == "1"


def test_without_states_a_failure_is_retried_every_30_seconds_up_to_the_limit() -> None:
    node = SimulatedNode({"plan": plan("bad"), "max-failures": "3"}, boot=False)
    node.exit_codes["bad"] = 1
    node.boot()
    assert node.ran == [("bad", 1)]
    node.wait(29)
    assert node.ran == [("bad", 1)]
    node.wait(2)
    assert node.ran == [("bad", 1), ("bad", 2)]
    node.wait(600)
    assert node.ran == [("bad", 1), ("bad", 2), ("bad", 3)]
    assert node.value_of("failure-count") == "3"
    node.boot().wait(600)
    assert len(node.ran) == 3


@pytest.mark.parametrize("limit", [None, "-1"])
def test_without_states_and_without_a_limit_retries_never_end(limit: str | None) -> None:
    node = SimulatedNode({"plan": plan("bad"), **({"max-failures": limit} if limit else {})}, boot=False)
    node.exit_codes["bad"] = 1
    node.boot().wait(329)
    assert len(node.ran) == 11


# --- periodic instructions --------------------------------------------------------------------------------------------


def periodic_of(node: SimulatedNode) -> dict[str, dict[str, object]]:
    return unpack((node.data or {})["applied-periodic-output"])


def test_periodic_instructions_run_with_the_plan_and_then_by_their_period() -> None:
    node = SimulatedNode({"plan": plan("one", periodic={"often": 60, "seldom": 600}), "plan-state": "pending"})
    assert node.ran == [("one", 1), ("often", 1), ("seldom", 1)]
    node.wait(301)
    assert [name for name, _ in node.ran[3:]] == ["often"] * 5
    assert periodic_of(node)["often"]["lastSuccessfulRunTime"] == outputs.unix_date(node.now - 1)
    assert periodic_of(node)["often"]["stdout"] == outputs.to_base64(b"out of often\n")


def test_periodic_instructions_run_after_a_failed_plan() -> None:
    node = SimulatedNode({"plan": plan("bad", periodic={"often": 60}), "plan-state": "pending"}, boot=False)
    node.exit_codes["bad"] = 1
    node.boot().wait(61)
    assert node.ran == [("bad", 1), ("often", 1), ("often", 1)]


def test_a_failing_periodic_instruction_backs_off_and_does_not_block_the_others() -> None:
    node = SimulatedNode({"plan": plan(periodic={"bad": 60, "after": 600}), "plan-state": "pending"}, boot=False)
    node.exit_codes["bad"] = 3
    node.boot()
    assert node.ran == [("bad", 1), ("after", 1)]
    node.wait(29)
    assert len(node.ran) == 2
    node.wait(2)
    assert node.ran[2:] == [("bad", 2)]
    node.wait(60)
    assert node.ran[3:] == [("bad", 3)]
    status = periodic_of(node)["bad"]
    assert (status["exitCode"], status["failures"], status["lastSuccessfulRunTime"]) == (3, 3, "")
    assert status["lastFailedRunTime"]


# --- probes ---------------------------------------------------------------------------------------------------------


def test_a_plan_is_not_healthy_before_its_probes_succeed() -> None:
    node = SimulatedNode({"plan": plan("one", probes=("a", "b")), "plan-state": "pending"})
    assert [json.loads(write.get("probe-statuses", b"null")) for write in node.writes] == [
        None,
        {"a": {}, "b": {}},
        {"a": {"healthy": True, "successCount": 1}, "b": {"healthy": True, "successCount": 1}},
    ]


def test_unchanged_probe_results_cause_no_write() -> None:
    node = SimulatedNode({"plan": plan("one", probes=("a",)), "plan-state": "pending"})
    written = len(node.writes)
    node.wait(600)
    assert len(node.writes) == written


def test_health_changes_at_the_threshold_with_a_reason() -> None:
    node = SimulatedNode({"plan": plan("one", probes=("a",)), "plan-state": "pending"})
    node.healthy["a"] = False
    node.wait(11)
    assert json.loads(node.value_of("probe-statuses"))["a"]["healthy"]
    node.wait(5)
    assert json.loads(node.value_of("probe-statuses")) == {"a": {"failureCount": 3}}
    assert json.loads(node.value_of("probe-errors")) == {"a": "refused"}
    node.healthy["a"] = True
    node.wait(6)
    assert json.loads(node.value_of("probe-statuses")) == {"a": {"healthy": True, "successCount": 1}}
    assert json.loads(node.value_of("probe-errors")) == {}


def test_statuses_of_removed_probes_are_deleted() -> None:
    node = SimulatedNode({"plan": plan("one", probes=("a", "b")), "plan-state": "pending"})
    node.edit(plan=plan("one", probes=("b",)), plan_state="pending")
    node.process_events()
    assert list(json.loads(node.value_of("probe-statuses"))) == ["b"]


def test_the_secret_sets_the_probe_period() -> None:
    node = SimulatedNode({"plan": plan("one", probes=("a",)), "plan-state": "pending", "probe-period-seconds": "60"})
    node.healthy["a"] = False
    node.wait(119)
    assert json.loads(node.value_of("probe-statuses"))["a"]["healthy"]
    node.wait(62)
    assert json.loads(node.value_of("probe-statuses")) == {"a": {"failureCount": 3}}
