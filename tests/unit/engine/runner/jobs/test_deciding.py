"""What the Job controller decides, as tables; that both controllers agree is shown by the Jobs on both engines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from herder.engine.meta.kinds import Object
from herder.engine.runner.jobs import indexes
from herder.engine.runner.jobs.plan import Backoff, Plan, condition_of, decide
from herder.engine.runner.jobs.template import FINALIZER, pod_for

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def a_job(status: Object | None = None, **spec: Any) -> Object:
    template = {"spec": {"restartPolicy": spec.pop("restartPolicy", "Never"), "containers": [{"name": "main"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "n", "uid": "job-uid", "resourceVersion": "1"},
        "spec": {"parallelism": 1, "completions": 1, "backoffLimit": 6, "template": template, **spec},
        "status": status or {},
    }


def a_pod(uid: str, phase: str = "Running", *, tracked: bool = True, **meta: Any) -> Object:
    metadata = {"name": uid, "namespace": "n", "uid": uid, "creationTimestamp": "2026-01-01T11:59:00Z", **meta}
    if tracked:
        metadata["finalizers"] = [FINALIZER]
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase}}


def decided(job: Object, *pods: Object, at: datetime = NOW, backoff: Backoff | None = None) -> Plan:
    return decide(job, pods, at, backoff or Backoff())


def following(job: Object, plan: Plan) -> Object:
    """The Job after the plan's status was written."""
    return {**job, "status": plan.status or job["status"]}


def reasons(job: Object) -> dict[str, str]:
    return {one["type"]: one["reason"] for one in job["status"].get("conditions") or () if one["status"] == "True"}


def test_a_new_job_gets_its_pods_and_a_start_time() -> None:
    plan = decided(a_job(parallelism=2, completions=3))
    assert plan.create == [None, None]
    assert plan.status is not None
    assert (plan.status["startTime"], plan.status["active"]) == ("2026-01-01T12:00:00Z", 2)


def test_never_more_pods_than_completions_are_missing() -> None:
    job = a_job({"succeeded": 2, "startTime": "2026-01-01T12:00:00Z"}, parallelism=5, completions=3)
    assert decided(job).create == [None]


@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
@pytest.mark.parametrize(("active", "created"), [(0, 20), (100, 10), (110, 0)])
def test_the_pods_of_one_job_have_a_limit(mode: str, active: int, created: int) -> None:
    """Else any user fills the store with one Job, and Jobs that create machines wait until that is done."""
    job = a_job(parallelism=100_000, completions=100_000, completionMode=mode)
    indexed = {"batch.kubernetes.io/job-completion-index": ""} if mode == "Indexed" else {}
    pods = [a_pod(f"p{n}", annotations={key: str(n) for key in indexed}) for n in range(active)]
    plan = decided(job, *pods)
    assert (len(plan.create), plan.delete) == (created, [])


def test_surplus_pods_go_the_waiting_and_youngest_first() -> None:
    old = a_pod("old", "Running")
    young = a_pod("young", "Running", creationTimestamp="2026-01-01T11:59:30Z")
    waiting = a_pod("waiting", "Pending")
    plan = decided(a_job(parallelism=1, completions=5), old, young, waiting)
    assert [pod["metadata"]["name"] for pod in plan.delete] == ["waiting", "young"]
    assert plan.create == []


def test_a_success_is_noted_then_released_then_counted_then_the_job_is_complete() -> None:
    job, pod = a_job({"startTime": "2026-01-01T11:59:00Z"}), a_pod("p", "Succeeded")
    noting = decided(job, pod)
    assert noting.status is not None
    assert noting.status["uncountedTerminatedPods"] == {"succeeded": ["p"]}
    assert noting.status.get("succeeded", 0) == 0
    assert [one["metadata"]["uid"] for one in noting.release] == ["p"]
    assert noting.create == []
    counting = decided(following(job, noting), a_pod("p", "Succeeded", tracked=False))
    assert counting.status is not None
    assert (counting.status["succeeded"], counting.status["uncountedTerminatedPods"]) == (1, {})
    assert reasons(following(job, counting)) == {
        "SuccessCriteriaMet": "CompletionsReached",
        "Complete": "CompletionsReached",
    }
    assert counting.status["completionTime"] == "2026-01-01T12:00:00Z"


@pytest.mark.parametrize("crash_after", ["note", "release"])
def test_a_crash_at_any_step_neither_loses_nor_doubles_a_pod(crash_after: str) -> None:
    job, pod = a_job({"startTime": "2026-01-01T11:59:00Z"}, completions=5), a_pod("p", "Succeeded")
    job = following(job, decided(job, pod))
    seen = pod if crash_after == "note" else a_pod("p", "Succeeded", tracked=False)
    again = decided(job, seen)  # a controller that knows nothing but the objects
    job = following(job, again)
    final = decided(job, a_pod("p", "Succeeded", tracked=False))
    job = following(job, final)
    assert (job["status"]["succeeded"], job["status"]["uncountedTerminatedPods"]) == (1, {})


def test_a_noted_pod_that_vanished_is_counted_all_the_same() -> None:
    job = a_job({"startTime": "2026-01-01T11:59:00Z", "uncountedTerminatedPods": {"failed": ["gone"]}})
    plan = decided(job)
    assert plan.status is not None
    assert plan.status["failed"] == 1


def test_nothing_changes_nothing() -> None:
    job = a_job()
    pod = a_pod("p", "Running")
    settled = following(job, decided(job, pod))
    plan = decided(settled, pod)
    assert (plan.status, plan.create, plan.delete, plan.release) == (None, [], [], [])


@pytest.mark.parametrize(("failures", "seconds"), [(1, 10), (2, 20), (3, 40), (7, 600), (40, 600)])
def test_the_pause_doubles_with_each_failure_in_a_row(failures: int, seconds: int) -> None:
    plan = decided(a_job(), backoff=Backoff(failures, NOW))
    assert plan.create == []
    assert plan.wake_at == NOW + timedelta(seconds=seconds)
    late = decided(a_job(), at=NOW + timedelta(seconds=seconds), backoff=Backoff(failures, NOW))
    assert late.create == [None]


def test_a_success_ends_the_pause() -> None:
    plan = decided(a_job(completions=2), a_pod("p", "Succeeded"), backoff=Backoff(5, NOW))
    assert plan.backoff.failures == 0
    assert plan.create == [None]


def test_more_failures_than_the_limit_fail_the_job_once_all_is_counted() -> None:
    job = a_job({"startTime": "2026-01-01T11:59:00Z"}, backoffLimit=0)
    first = decided(job, a_pod("p", "Failed"))
    job = following(job, first)
    assert reasons(job) == {"FailureTarget": "BackoffLimitExceeded"}
    second = decided(job, a_pod("p", "Failed", tracked=False))
    job = following(job, second)
    assert reasons(job) == {"FailureTarget": "BackoffLimitExceeded", "Failed": "BackoffLimitExceeded"}
    assert job["status"]["failed"] == 1
    assert second.events == [("Warning", "BackoffLimitExceeded", "Job has reached the specified backoff limit")]


@pytest.mark.parametrize(("limit", "restarts", "fails"), [(0, 0, False), (0, 1, True), (2, 1, False), (2, 2, True)])
def test_restarts_within_a_pod_count_towards_the_limit(limit: int, restarts: int, fails: bool) -> None:
    pod = a_pod("p", "Running")
    pod["status"]["containerStatuses"] = [{"name": "main", "restartCount": restarts, "state": {}}]
    plan = decided(a_job(backoffLimit=limit, restartPolicy="OnFailure"), pod)
    assert bool(plan.delete) is fails


def test_the_deadline_ends_active_pods_and_waits_for_them() -> None:
    job = a_job({"startTime": "2026-01-01T11:59:00Z"}, activeDeadlineSeconds=60)
    plan = decided(job, a_pod("p", "Running"))
    assert [pod["metadata"]["name"] for pod in plan.delete] == ["p"]
    job = following(job, plan)
    assert reasons(job) == {"FailureTarget": "DeadlineExceeded"}
    going = a_pod("p", "Running", tracked=False, deletionTimestamp="2026-01-01T12:00:30Z")
    assert reasons(following(job, decided(job, going))) == {"FailureTarget": "DeadlineExceeded"}
    over = following(job, decided(job))
    assert reasons(over)["Failed"] == "DeadlineExceeded"
    assert over["status"]["failed"] == 1


def test_before_the_deadline_it_wakes_for_it() -> None:
    job = a_job({"startTime": "2026-01-01T11:59:30Z"}, activeDeadlineSeconds=60)
    assert decided(job, a_pod("p")).wake_at == NOW + timedelta(seconds=30)


def test_suspending_deletes_pods_and_resuming_starts_the_clock_anew() -> None:
    job = a_job({"startTime": "2026-01-01T11:00:00Z"}, suspend=True)
    plan = decided(job, a_pod("p", "Running"))
    assert [pod["metadata"]["name"] for pod in plan.delete] == ["p"]
    job = following(job, plan)
    assert "startTime" not in job["status"]
    assert reasons(job) == {"Suspended": "JobSuspended"}
    job["spec"]["suspend"] = False
    job = following(job, decided(job))
    assert job["status"]["startTime"] == "2026-01-01T12:00:00Z"
    assert condition_of(job["status"], "Suspended") is None


def test_a_finished_job_is_removed_when_its_time_is_over() -> None:
    done = {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T11:59:30Z"}]}
    job = a_job(done, ttlSecondsAfterFinished=60)
    early = decided(job)
    assert (early.remove_job, early.wake_at) == (False, NOW + timedelta(seconds=30))
    assert decided(job, at=NOW + timedelta(seconds=30)).remove_job


def test_a_job_that_is_being_deleted_lets_its_pods_go_and_makes_none() -> None:
    job = a_job()
    job["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    plan = decided(job, a_pod("p", "Running"))
    assert plan.create == []
    assert [pod["metadata"]["name"] for pod in plan.release] == ["p"]


def test_an_ignored_failure_does_not_count_and_a_hopeless_one_ends_all() -> None:
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}},
    ]
    job = a_job({"startTime": "2026-01-01T11:59:00Z"}, backoffLimit=0, podFailurePolicy={"rules": rules})
    evicted = a_pod("p", "Failed")
    evicted["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    plan = decided(job, evicted)
    assert plan.status is not None
    assert plan.status["uncountedTerminatedPods"] == {}
    assert "conditions" not in plan.status
    hopeless = a_pod("q", "Failed")
    hopeless["status"]["containerStatuses"] = [
        {"name": "main", "state": {"terminated": {"exitCode": 2, "finishedAt": "2026-01-01T12:00:00Z"}}}
    ]
    plan = decided(job, hopeless)
    assert plan.status is not None
    (condition,) = plan.status["conditions"]
    assert condition["reason"] == "PodFailurePolicy"
    assert condition["message"] == (
        "Container main for pod n/q failed with exit code 2 matching FailJob rule at index 1"
    )


def test_indexes_are_given_out_once_and_done_ones_are_remembered() -> None:
    job = a_job({"completedIndexes": "0,2"}, completionMode="Indexed", completions=5, parallelism=5)
    busy = a_pod("p", annotations={indexes.ANNOTATION: "3"})
    assert decided(job, busy).create == [1, 4]
    done = a_pod("q", "Succeeded", annotations={indexes.ANNOTATION: "1"})
    plan = decided(job, done)
    assert plan.status is not None
    assert (plan.status["completedIndexes"], plan.status["succeeded"]) == ("0-2", 3)


@pytest.mark.parametrize(
    ("text", "found"), [("", set()), ("3", {3}), ("1,2", {1, 2}), ("0-2,5", {0, 1, 2, 5}), ("1,2,4-6", {1, 2, 4, 5, 6})]
)
def test_indexes_are_written_as_the_real_controller_writes_them(text: str, found: set[int]) -> None:
    assert indexes.parse(text) == found
    assert indexes.render(found) == text


def test_the_pod_carries_what_tracks_it() -> None:
    job = a_job()
    pod = pod_for(job, 2)
    assert pod["metadata"]["generateName"] == "j-2-"
    assert pod["metadata"]["finalizers"] == [FINALIZER]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    assert pod["spec"]["hostname"] == "j-2"
    assert pod["spec"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"
    assert "env" not in job["spec"]["template"]["spec"]["containers"][0]


# --- what users may write -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [2**33, 2**40, 2**63 - 1])
def test_a_deadline_beyond_all_calendars_never_comes(seconds: int) -> None:
    plan = decided(a_job(activeDeadlineSeconds=seconds))
    assert plan.create == [None]
    ended = {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T12:00:00Z"}]}
    assert not decided(a_job(ended, ttlSecondsAfterFinished=seconds)).remove_job


@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "x"])
def test_a_pod_with_an_unusable_index_is_surplus(text: str) -> None:
    odd = a_pod("odd", annotations={indexes.ANNOTATION: text})
    plan = decided(a_job(completionMode="Indexed", completions=2), odd)
    assert plan.delete == [odd]


class _Pod(dict[str, Any]):
    """A pod that must not be compared with others: with thousands of them that would stall the server."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("pods are compared")


def test_pods_are_not_compared_with_each_other() -> None:
    pods = [_Pod(a_pod(f"p{number}")) for number in range(3)]
    assert len(decided(a_job(completionMode="Indexed", completions=2), *pods).delete) == 3
