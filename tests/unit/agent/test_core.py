"""The daemon's core: both protocols, told as stories of a Secret and a machine in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from herder.agent.core import outputs
from herder.agent.core.events import AcquireInterlock, Event, Finished, RequestFailed, Run, Secret, SecretSeen, Write
from herder.agent.core.plan import checksum
from tests.support.node_agents import said, unpacked
from tests.unit.agent.world import World, plan

PENDING = {"plan": plan("one", "two"), "plan-state": "pending"}


# --- the protocol with states ---------------------------------------------------------------------------------------


def test_a_pending_plan_is_committed_run_and_reported() -> None:
    world = World(PENDING)
    assert [write["plan-state"] for write in world.writes] == [b"in-progress", b"succeeded"]
    assert world.ran == [("one", 1), ("two", 1)]
    assert world.said("plan-revision") == "1"
    assert world.said("applied-checksum") == checksum(PENDING["plan"].encode())
    assert said(world.data["applied-output"]) == {"one": "out of one\n", "two": "out of two\n"}  # type: ignore[index]
    assert (world.said("failure-count"), world.said("success-count")) == ("0", "1")
    assert world.said("failed-checksum") == world.said("failed-output") == ""
    assert world.said("last-apply-time") == outputs.unix_date(world.now)
    assert world.said("probe-statuses") == "{}"
    assert unpacked((world.data or {})["applied-periodic-output"]) == {}


def test_in_progress_is_written_before_anything_is_run() -> None:
    order: list[str] = []
    world = World(PENDING, boot=False)
    world.before = lambda action: order.append(type(action).__name__)
    world.boot()
    assert order.index("Write") < order.index("AcquireInterlock") < order.index("WriteFiles") < order.index("Run")


def test_results_are_on_disk_before_they_are_reported() -> None:
    world = World(PENDING, boot=False)

    def check(action: object) -> None:
        if isinstance(action, Write) and action.data["plan-state"] == b"succeeded":
            assert world.disk is not None
            assert world.disk.result is not None

    world.before = check
    world.boot()
    assert world.state == "succeeded"


def test_a_failure_stops_the_plan_and_stays_told() -> None:
    world = World({"plan": plan("one", "bad", "three"), "plan-state": "pending"}, boot=False)
    world.exit_codes["bad"] = 7
    world.boot().wait(600)
    assert world.ran == [("one", 1), ("bad", 1)]
    assert world.state == "failed"
    assert world.said("failed-checksum") == checksum(world.said("plan").encode())
    assert said((world.data or {})["failed-output"]) == {"one": "out of one\n", "bad": "out of bad\n"}
    assert (world.said("failure-count"), world.said("success-count")) == ("1", "0")
    assert "applied-checksum" not in (world.data or {})
    evidence = json.loads(world.said("failed-evidence"))
    assert evidence == {"instruction": "bad", "index": 1, "exitCode": 7, "error": "", "tail": "a reason"}


def test_a_retry_is_the_planners_to_order_and_begins_at_attempt_one() -> None:
    world = World({"plan": plan("bad"), "plan-state": "pending"}, boot=False)
    world.exit_codes["bad"] = 1
    world.boot()
    world.edit(plan_state="pending")
    world.settle()
    assert world.said("failure-count") == "2"
    world.exit_codes.clear()
    world.edit(plan_state="pending")
    world.settle()
    assert world.ran == [("bad", 1)] * 3
    assert world.state == "succeeded"
    assert world.said("plan-revision") == "3"
    assert (world.said("failure-count"), world.said("failed-checksum"), world.said("failed-evidence")) == ("0", "", "")


def test_failures_of_another_plan_do_not_count() -> None:
    world = World({"plan": plan("bad"), "plan-state": "pending"}, boot=False)
    world.exit_codes["bad"] = 1
    world.boot()
    world.edit(plan=plan("bad", note="another"), plan_state="pending")
    world.settle()
    assert world.said("failure-count") == "1"


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_state_that_is_final_is_left_alone_also_when_the_plan_changes(state: str) -> None:
    world = World({"plan": plan("one"), "plan-state": state, "applied-periodic-output": outputs.pack({})})
    world.edit(plan=plan("two"))
    world.settle()
    assert world.ran == []
    assert "applied-checksum" not in (world.data or {})


def test_nothing_is_done_without_a_plan() -> None:
    world = World({})
    assert (world.writes, world.ran) == ([], [])
    world.edit(plan=plan("one"), plan_state="pending")
    world.settle()
    assert world.state == "succeeded"


def test_a_plan_that_cannot_be_read_has_failed_and_says_why() -> None:
    world = World({"plan": '{"instructions": {}}', "plan-state": "pending"})
    assert world.state == "failed"
    assert json.loads(world.said("failed-evidence"))["error"] == "plan.instructions: expected a list, found an object"


def test_a_file_that_cannot_be_written_fails_the_plan_before_its_instructions() -> None:
    world = World(PENDING, boot=False)
    world.file_error = "file /x: no"
    world.boot()
    assert (world.state, world.ran) == ("failed", [])
    assert json.loads(world.said("failed-evidence"))["error"] == "file /x: no"


# --- crashes, conflicts, lost answers --------------------------------------------------------------------------------


def running(data: Mapping[str, str]) -> World:
    """Has told that it begins; how its first instruction ends is up to the test."""
    world = World(data, boot=False)
    world.held = {Run}
    world.boot()
    assert world.state == "in-progress"
    world.held = set()
    return world


def cut_off_while_it_runs() -> World:
    """Has told that it begins, and reaches nobody since."""
    world = World(PENDING, boot=False)
    world.after = lambda action: setattr(
        world, "reachable", world.reachable and not isinstance(action, AcquireInterlock)
    )
    world.boot()
    world.after = lambda action: None
    assert world.state == "in-progress"
    return world


def test_a_result_that_could_not_be_told_is_told_after_a_restart_and_not_run_again() -> None:
    world = cut_off_while_it_runs()
    world.reachable = True
    world.boot()
    assert world.state == "succeeded"
    assert world.ran == [("one", 1), ("two", 1)]


def test_a_result_waits_for_the_server_and_is_told_then() -> None:
    world = cut_off_while_it_runs()
    assert world.wait(300).state == "in-progress"
    world.reachable = True
    world.wait(61)
    assert world.state == "succeeded"
    assert world.ran == [("one", 1), ("two", 1)]


def test_an_interrupted_plan_begins_anew_with_an_attempt_of_its_own() -> None:
    world = running(PENDING)
    world.boot()
    assert world.ran == [("one", 2), ("two", 2)]
    assert world.state == "succeeded"


def test_an_interrupted_plan_of_another_daemon_follows_the_failure_count() -> None:
    world = World({"plan": plan("one"), "plan-state": "in-progress", "plan-revision": "4", "failure-count": "2"})
    assert world.ran == [("one", 3)]
    assert (world.state, world.said("plan-revision")) == ("succeeded", "4")


def test_an_edit_of_something_else_while_a_plan_runs_is_kept() -> None:
    world = running(PENDING)
    world.edit(probe_period_seconds="9")
    world.tell(Finished(0, b"out of one"))
    world.settle()
    assert (world.state, world.said("probe-period-seconds")) == ("succeeded", "9")


def test_a_plan_that_was_replaced_while_it_ran_reports_nothing() -> None:
    world = running({"plan": plan("old"), "plan-state": "pending"})
    world.edit(plan=plan("new"), plan_state="pending")
    world.tell(Finished(1))
    world.settle()
    assert world.ran == [("new", 1)]
    assert (world.state, world.said("plan-revision"), world.said("failure-count")) == ("succeeded", "2", "0")


def test_the_same_plan_ordered_again_while_it_runs_is_run_again() -> None:
    world = running({"plan": plan("one"), "plan-state": "pending"})
    world.edit(plan_state="pending")
    world.tell(Finished(0))
    world.settle()
    assert world.ran == [("one", 1)]
    assert (world.state, world.said("plan-revision")) == ("succeeded", "2")


def test_a_write_whose_answer_is_lost_is_looked_up_and_not_repeated() -> None:
    world = World(PENDING, boot=False)
    world.lose_answers = True
    world.boot().wait(600)
    assert world.state == "succeeded"
    assert world.ran == [("one", 1), ("two", 1)]
    assert [write["plan-state"] for write in world.writes] == [b"in-progress", b"succeeded"]


def test_a_stale_read_is_no_error_and_changes_nothing() -> None:
    world = World(PENDING)
    stale = Secret(world.uid, "1", {"plan": plan("stale").encode(), "plan-state": b"pending"})
    world.tell(SecretSeen(stale))
    world.settle()
    assert world.state == "succeeded"
    assert ("stale", 1) not in world.ran


def test_a_store_that_went_back_in_time_is_believed_when_it_is_asked_directly() -> None:
    world = World(PENDING)
    world.version = 7
    world.data = {"plan": plan("restored").encode(), "plan-state": b"pending"}
    world.tell(SecretSeen(world.secret(), True))
    world.settle()
    assert world.ran[-1] == ("restored", 1)
    assert world.state == "succeeded"


def test_a_secret_made_anew_is_a_new_one() -> None:
    world = World({"plan": plan("one")})
    world.delete()
    world.set({"plan": plan("one"), "applied-checksum": checksum(plan("one").encode())}, uid="uid-2")
    world.settle()
    assert world.ran == [("one", 1), ("one", 1)]


def test_outputs_that_are_too_large_are_left_out_rather_than_never_told() -> None:
    world = World(PENDING, boot=False)
    write = world.write

    def refuse(action: Write) -> Event:
        if unpacked(action.data.get("applied-output", b"")):
            return RequestFailed("413: too large", too_large=True)
        return write(action)

    world.write = refuse  # type: ignore[method-assign]
    world.boot().wait(60)
    assert world.state == "succeeded"
    assert said((world.data or {})["applied-output"]) == {}


def test_a_pending_restart_is_waited_for_and_forgets_nothing() -> None:
    world = World({"plan": plan("one"), "applied-checksum": checksum(plan("one").encode())}, boot=False)
    world.blocked = "a restart is pending"
    world.boot().wait(30)
    assert world.ran == []
    world.blocked = ""
    world.wait(2)
    assert world.ran == [("one", 1)]


# --- the protocol without states -------------------------------------------------------------------------------------


def test_without_states_a_plan_is_applied_when_its_checksum_is_not_the_applied_one() -> None:
    world = World({"plan": plan("one")})
    assert "plan-state" not in (world.data or {})
    assert "plan-revision" not in (world.data or {})
    world.edit(plan=plan("two"))
    world.settle()
    world.edit(probe_period_seconds="7")
    world.settle()
    assert world.ran == [("one", 1), ("two", 1)]
    assert world.said("success-count") == "2"


def test_without_states_the_first_plan_after_a_start_is_applied_again() -> None:
    world = World({"plan": plan("one")})
    world.boot()
    assert world.ran == [("one", 1), ("one", 1)]
    assert world.said("success-count") == "2"


def test_without_states_a_result_that_was_not_told_is_told_and_not_run_again() -> None:
    world = World({"plan": plan("one")}, boot=False)
    world.reachable = False
    world.boot()
    world.reachable = True
    world.boot()
    assert world.ran == [("one", 1)]
    assert world.said("success-count") == "1"


def test_without_states_a_failure_is_tried_again_after_half_a_minute_until_there_were_too_many() -> None:
    world = World({"plan": plan("bad"), "max-failures": "3"}, boot=False)
    world.exit_codes["bad"] = 1
    world.boot()
    assert world.ran == [("bad", 1)]
    world.wait(29)
    assert world.ran == [("bad", 1)]
    world.wait(2)
    assert world.ran == [("bad", 1), ("bad", 2)]
    world.wait(600)
    assert world.ran == [("bad", 1), ("bad", 2), ("bad", 3)]
    assert world.said("failure-count") == "3"
    world.boot().wait(600)
    assert len(world.ran) == 3


@pytest.mark.parametrize("limit", [None, "-1"])
def test_without_states_and_without_a_limit_it_is_tried_for_ever(limit: str | None) -> None:
    world = World({"plan": plan("bad"), **({"max-failures": limit} if limit else {})}, boot=False)
    world.exit_codes["bad"] = 1
    world.boot().wait(329)
    assert len(world.ran) == 11


# --- periodic instructions --------------------------------------------------------------------------------------------


def periodic_of(world: World) -> dict[str, dict[str, object]]:
    return unpacked((world.data or {})["applied-periodic-output"])


def test_periodic_instructions_run_with_the_plan_and_then_by_their_period() -> None:
    world = World({"plan": plan("one", periodic={"often": 60, "seldom": 600}), "plan-state": "pending"})
    assert world.ran == [("one", 1), ("often", 1), ("seldom", 1)]
    world.wait(301)
    assert [name for name, _ in world.ran[3:]] == ["often"] * 5
    assert periodic_of(world)["often"]["lastSuccessfulRunTime"] == outputs.unix_date(world.now - 1)
    assert periodic_of(world)["often"]["stdout"] == outputs.to_base64(b"out of often\n")


def test_periodic_instructions_run_also_when_the_plan_has_failed() -> None:
    world = World({"plan": plan("bad", periodic={"often": 60}), "plan-state": "pending"}, boot=False)
    world.exit_codes["bad"] = 1
    world.boot().wait(61)
    assert world.ran == [("bad", 1), ("often", 1), ("often", 1)]


def test_a_periodic_instruction_that_fails_waits_longer_each_time_and_holds_up_those_after_it_once() -> None:
    world = World({"plan": plan(periodic={"bad": 60, "after": 600}), "plan-state": "pending"}, boot=False)
    world.exit_codes["bad"] = 3
    world.boot()
    assert world.ran == [("bad", 1), ("after", 1)]
    world.wait(29)
    assert len(world.ran) == 2
    world.wait(2)
    assert world.ran[2:] == [("bad", 2)]
    world.wait(60)
    assert world.ran[3:] == [("bad", 3)]
    told = periodic_of(world)["bad"]
    assert (told["exitCode"], told["failures"], told["lastSuccessfulRunTime"]) == (3, 3, "")
    assert told["lastFailedRunTime"]


# --- probes ---------------------------------------------------------------------------------------------------------


def test_a_plan_is_not_healthy_before_its_probes_have_answered() -> None:
    world = World({"plan": plan("one", probes=("a", "b")), "plan-state": "pending"})
    assert [json.loads(write.get("probe-statuses", b"null")) for write in world.writes] == [
        None,
        {"a": {}, "b": {}},
        {"a": {"healthy": True, "successCount": 1}, "b": {"healthy": True, "successCount": 1}},
    ]


def test_probes_that_stay_as_they_are_cost_no_write() -> None:
    world = World({"plan": plan("one", probes=("a",)), "plan-state": "pending"})
    written = len(world.writes)
    world.wait(600)
    assert len(world.writes) == written


def test_health_flips_at_the_threshold_and_says_why() -> None:
    world = World({"plan": plan("one", probes=("a",)), "plan-state": "pending"})
    world.healthy["a"] = False
    world.wait(11)
    assert json.loads(world.said("probe-statuses"))["a"]["healthy"]
    world.wait(5)
    assert json.loads(world.said("probe-statuses")) == {"a": {"failureCount": 3}}
    assert json.loads(world.said("probe-errors")) == {"a": "refused"}
    world.healthy["a"] = True
    world.wait(6)
    assert json.loads(world.said("probe-statuses")) == {"a": {"healthy": True, "successCount": 1}}
    assert json.loads(world.said("probe-errors")) == {}


def test_probes_that_are_not_in_the_plan_any_more_are_forgotten() -> None:
    world = World({"plan": plan("one", probes=("a", "b")), "plan-state": "pending"})
    world.edit(plan=plan("one", probes=("b",)), plan_state="pending")
    world.settle()
    assert list(json.loads(world.said("probe-statuses"))) == ["b"]


def test_the_period_of_probes_is_the_secrets_to_say() -> None:
    world = World({"plan": plan("one", probes=("a",)), "plan-state": "pending", "probe-period-seconds": "60"})
    world.healthy["a"] = False
    world.wait(119)
    assert json.loads(world.said("probe-statuses"))["a"]["healthy"]
    world.wait(62)
    assert json.loads(world.said("probe-statuses")) == {"a": {"failureCount": 3}}
