"""Plans of the Job controller. The tests of Jobs on both engines show that it agrees with the upstream controller."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from herder.engine.meta.kinds import Object
from herder.engine.runner.jobs import indexes
from herder.engine.runner.jobs.plan import Backoff, Plan, condition_of, decide
from herder.engine.runner.jobs.template import FINALIZER, pod_for

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def new_job(status: Object | None = None, **spec: Any) -> Object:
    template = {"spec": {"restartPolicy": spec.pop("restartPolicy", "Never"), "containers": [{"name": "main"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "n", "uid": "job-uid", "resourceVersion": "1"},
        "spec": {"parallelism": 1, "completions": 1, "backoffLimit": 6, "template": template, **spec},
        "status": status or {},
    }


def new_pod(uid: str, phase: str = "Running", *, tracked: bool = True, **meta: Any) -> Object:
    metadata = {"name": uid, "namespace": "n", "uid": uid, "creationTimestamp": "2026-01-01T11:59:00Z", **meta}
    if tracked:
        metadata["finalizers"] = [FINALIZER]
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase}}


def make_plan(job: Object, *pods: Object, at: datetime = NOW, backoff: Backoff | None = None) -> Plan:
    return decide(job, pods, at, backoff or Backoff())


def apply_status(job: Object, plan: Plan) -> Object:
    """Return the Job after the plan's status was written."""
    return {**job, "status": plan.status or job["status"]}


def reasons(job: Object) -> dict[str, str]:
    return {one["type"]: one["reason"] for one in job["status"].get("conditions") or () if one["status"] == "True"}


def test_a_new_job_gets_its_pods_and_a_start_time() -> None:
    plan = make_plan(new_job(parallelism=2, completions=3))
    assert plan.create == [None, None]
    assert plan.status is not None
    assert (plan.status["startTime"], plan.status["active"]) == ("2026-01-01T12:00:00Z", 2)


def test_no_more_pods_are_created_than_completions_remain() -> None:
    job = new_job({"succeeded": 2, "startTime": "2026-01-01T12:00:00Z"}, parallelism=5, completions=3)
    assert make_plan(job).create == [None]


@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
@pytest.mark.parametrize(("active", "created"), [(0, 20), (100, 10), (110, 0)])
def test_the_number_of_pods_of_one_job_is_limited(mode: str, active: int, created: int) -> None:
    """Otherwise one Job could fill the store, and Jobs that create machines would wait for it."""
    job = new_job(parallelism=100_000, completions=100_000, completionMode=mode)
    indexed = {"batch.kubernetes.io/job-completion-index": ""} if mode == "Indexed" else {}
    pods = [new_pod(f"p{n}", annotations={key: str(n) for key in indexed}) for n in range(active)]
    plan = make_plan(job, *pods)
    assert (len(plan.create), plan.delete) == (created, [])


def test_surplus_pods_are_deleted_pending_and_youngest_first() -> None:
    old = new_pod("old", "Running")
    young = new_pod("young", "Running", creationTimestamp="2026-01-01T11:59:30Z")
    waiting = new_pod("waiting", "Pending")
    plan = make_plan(new_job(parallelism=1, completions=5), old, young, waiting)
    assert [pod["metadata"]["name"] for pod in plan.delete] == ["waiting", "young"]
    assert plan.create == []


def test_a_succeeded_pod_is_recorded_released_and_counted_before_completion() -> None:
    job, pod = new_job({"startTime": "2026-01-01T11:59:00Z"}), new_pod("p", "Succeeded")
    noting = make_plan(job, pod)
    assert noting.status is not None
    assert noting.status["uncountedTerminatedPods"] == {"succeeded": ["p"]}
    assert noting.status.get("succeeded", 0) == 0
    assert [one["metadata"]["uid"] for one in noting.release] == ["p"]
    assert noting.create == []
    counting = make_plan(apply_status(job, noting), new_pod("p", "Succeeded", tracked=False))
    assert counting.status is not None
    assert (counting.status["succeeded"], counting.status["uncountedTerminatedPods"]) == (1, {})
    assert reasons(apply_status(job, counting)) == {
        "SuccessCriteriaMet": "CompletionsReached",
        "Complete": "CompletionsReached",
    }
    assert counting.status["completionTime"] == "2026-01-01T12:00:00Z"


@pytest.mark.parametrize("crash_after", ["note", "release"])
def test_a_crash_at_any_step_counts_each_pod_exactly_once(crash_after: str) -> None:
    job, pod = new_job({"startTime": "2026-01-01T11:59:00Z"}, completions=5), new_pod("p", "Succeeded")
    job = apply_status(job, make_plan(job, pod))
    seen = pod if crash_after == "note" else new_pod("p", "Succeeded", tracked=False)
    again = make_plan(job, seen)  # a restarted controller that knows only the objects
    job = apply_status(job, again)
    final = make_plan(job, new_pod("p", "Succeeded", tracked=False))
    job = apply_status(job, final)
    assert (job["status"]["succeeded"], job["status"]["uncountedTerminatedPods"]) == (1, {})


def test_a_recorded_pod_that_disappeared_is_still_counted() -> None:
    job = new_job({"startTime": "2026-01-01T11:59:00Z", "uncountedTerminatedPods": {"failed": ["gone"]}})
    plan = make_plan(job)
    assert plan.status is not None
    assert plan.status["failed"] == 1


def test_an_unchanged_job_has_an_empty_plan() -> None:
    job = new_job()
    pod = new_pod("p", "Running")
    settled = apply_status(job, make_plan(job, pod))
    plan = make_plan(settled, pod)
    assert (plan.status, plan.create, plan.delete, plan.release) == (None, [], [], [])


@pytest.mark.parametrize(("failures", "seconds"), [(1, 10), (2, 20), (3, 40), (7, 600), (40, 600)])
def test_the_backoff_doubles_with_each_consecutive_failure(failures: int, seconds: int) -> None:
    plan = make_plan(new_job(), backoff=Backoff(failures, NOW))
    assert plan.create == []
    assert plan.wake_at == NOW + timedelta(seconds=seconds)
    late = make_plan(new_job(), at=NOW + timedelta(seconds=seconds), backoff=Backoff(failures, NOW))
    assert late.create == [None]


def test_a_success_resets_the_backoff() -> None:
    plan = make_plan(new_job(completions=2), new_pod("p", "Succeeded"), backoff=Backoff(5, NOW))
    assert plan.backoff.failures == 0
    assert plan.create == [None]


def test_failures_over_the_limit_fail_the_job_once_all_pods_are_counted() -> None:
    job = new_job({"startTime": "2026-01-01T11:59:00Z"}, backoffLimit=0)
    first = make_plan(job, new_pod("p", "Failed"))
    job = apply_status(job, first)
    assert reasons(job) == {"FailureTarget": "BackoffLimitExceeded"}
    second = make_plan(job, new_pod("p", "Failed", tracked=False))
    job = apply_status(job, second)
    assert reasons(job) == {"FailureTarget": "BackoffLimitExceeded", "Failed": "BackoffLimitExceeded"}
    assert job["status"]["failed"] == 1
    assert second.events == [("Warning", "BackoffLimitExceeded", "Job has reached the specified backoff limit")]


@pytest.mark.parametrize(("limit", "restarts", "fails"), [(0, 0, False), (0, 1, True), (2, 1, False), (2, 2, True)])
def test_restarts_within_a_pod_count_towards_the_limit(limit: int, restarts: int, fails: bool) -> None:
    pod = new_pod("p", "Running")
    pod["status"]["containerStatuses"] = [{"name": "main", "restartCount": restarts, "state": {}}]
    plan = make_plan(new_job(backoffLimit=limit, restartPolicy="OnFailure"), pod)
    assert bool(plan.delete) is fails


def test_the_deadline_deletes_active_pods_and_waits_for_them() -> None:
    job = new_job({"startTime": "2026-01-01T11:59:00Z"}, activeDeadlineSeconds=60)
    plan = make_plan(job, new_pod("p", "Running"))
    assert [pod["metadata"]["name"] for pod in plan.delete] == ["p"]
    job = apply_status(job, plan)
    assert reasons(job) == {"FailureTarget": "DeadlineExceeded"}
    deleting = new_pod("p", "Running", tracked=False, deletionTimestamp="2026-01-01T12:00:30Z")
    assert reasons(apply_status(job, make_plan(job, deleting))) == {"FailureTarget": "DeadlineExceeded"}
    over = apply_status(job, make_plan(job))
    assert reasons(over)["Failed"] == "DeadlineExceeded"
    assert over["status"]["failed"] == 1


def test_the_plan_is_requeued_at_the_deadline() -> None:
    job = new_job({"startTime": "2026-01-01T11:59:30Z"}, activeDeadlineSeconds=60)
    assert make_plan(job, new_pod("p")).wake_at == NOW + timedelta(seconds=30)


def test_suspending_deletes_pods_and_resuming_resets_the_start_time() -> None:
    job = new_job({"startTime": "2026-01-01T11:00:00Z"}, suspend=True)
    plan = make_plan(job, new_pod("p", "Running"))
    assert [pod["metadata"]["name"] for pod in plan.delete] == ["p"]
    job = apply_status(job, plan)
    assert "startTime" not in job["status"]
    assert reasons(job) == {"Suspended": "JobSuspended"}
    job["spec"]["suspend"] = False
    job = apply_status(job, make_plan(job))
    assert job["status"]["startTime"] == "2026-01-01T12:00:00Z"
    assert condition_of(job["status"], "Suspended") is None


def test_a_finished_job_is_deleted_after_its_ttl() -> None:
    done = {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T11:59:30Z"}]}
    job = new_job(done, ttlSecondsAfterFinished=60)
    early = make_plan(job)
    assert (early.remove_job, early.wake_at) == (False, NOW + timedelta(seconds=30))
    assert make_plan(job, at=NOW + timedelta(seconds=30)).remove_job


def test_a_deleting_job_releases_its_pods_and_creates_none() -> None:
    job = new_job()
    job["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    plan = make_plan(job, new_pod("p", "Running"))
    assert plan.create == []
    assert [pod["metadata"]["name"] for pod in plan.release] == ["p"]


def test_failure_policy_ignore_does_not_count_and_fail_job_ends_the_job() -> None:
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}},
    ]
    job = new_job({"startTime": "2026-01-01T11:59:00Z"}, backoffLimit=0, podFailurePolicy={"rules": rules})
    evicted = new_pod("p", "Failed")
    evicted["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    plan = make_plan(job, evicted)
    assert plan.status is not None
    assert plan.status["uncountedTerminatedPods"] == {}
    assert "conditions" not in plan.status
    hopeless = new_pod("q", "Failed")
    hopeless["status"]["containerStatuses"] = [
        {"name": "main", "state": {"terminated": {"exitCode": 2, "finishedAt": "2026-01-01T12:00:00Z"}}}
    ]
    plan = make_plan(job, hopeless)
    assert plan.status is not None
    (condition,) = plan.status["conditions"]
    assert condition["reason"] == "PodFailurePolicy"
    assert condition["message"] == (
        "Container main for pod n/q failed with exit code 2 matching FailJob rule at index 1"
    )


def test_indexes_are_assigned_once_and_completed_ones_are_recorded() -> None:
    job = new_job({"completedIndexes": "0,2"}, completionMode="Indexed", completions=5, parallelism=5)
    busy = new_pod("p", annotations={indexes.ANNOTATION: "3"})
    assert make_plan(job, busy).create == [1, 4]
    done = new_pod("q", "Succeeded", annotations={indexes.ANNOTATION: "1"})
    plan = make_plan(job, done)
    assert plan.status is not None
    assert (plan.status["completedIndexes"], plan.status["succeeded"]) == ("0-2", 3)


@pytest.mark.parametrize(
    ("text", "found"), [("", set()), ("3", {3}), ("1,2", {1, 2}), ("0-2,5", {0, 1, 2, 5}), ("1,2,4-6", {1, 2, 4, 5, 6})]
)
def test_completed_indexes_are_formatted_as_by_kubernetes(text: str, found: set[int]) -> None:
    assert indexes.parse(text) == found
    assert indexes.render(found) == text


def test_indexed_pods_have_tracking_finalizer_owner_and_index() -> None:
    job = new_job()
    pod = pod_for(job, 2)
    assert pod["metadata"]["generateName"] == "j-2-"
    assert pod["metadata"]["finalizers"] == [FINALIZER]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    assert pod["spec"]["hostname"] == "j-2"
    assert pod["spec"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"
    assert "env" not in job["spec"]["template"]["spec"]["containers"][0]


# --- invalid user input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [2**33, 2**40, 2**63 - 1])
def test_a_deadline_beyond_the_calendar_never_expires(seconds: int) -> None:
    plan = make_plan(new_job(activeDeadlineSeconds=seconds))
    assert plan.create == [None]
    ended = {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T12:00:00Z"}]}
    assert not make_plan(new_job(ended, ttlSecondsAfterFinished=seconds)).remove_job


@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "x"])
def test_a_pod_with_an_unusable_index_is_surplus(text: str) -> None:
    odd = new_pod("odd", annotations={indexes.ANNOTATION: text})
    plan = make_plan(new_job(completionMode="Indexed", completions=2), odd)
    assert plan.delete == [odd]


class _Pod(dict[str, Any]):
    """A pod that fails when compared: comparing thousands of pods would stall the server."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("pods are compared")


def test_pods_are_not_compared_with_each_other() -> None:
    pods = [_Pod(new_pod(f"p{number}")) for number in range(3)]
    assert len(make_plan(new_job(completionMode="Indexed", completions=2), *pods).delete) == 3
