"""Failures of machines in the output of a waiting command, and the line that says why a cluster is not ready."""

from __future__ import annotations

from herder.api.capi.kinds import MACHINE
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.cli.cluster.inspect.diagnosis import summary
from herder.cli.cluster.inspect.failures import FailureLog
from herder.cli.cluster.progress import ClusterProgress
from herder.engine.meta.kinds import Object
from tests.support.builders import new_condition, new_object

PLAN = 'error applying plan; instruction "install" failed; exit code 1; attempt {}: no such image'
RETRIED, LAST = "{}, the next at 2026-01-01T12:00:00Z", "{}, the last that it may have"


def machine(name: str, *, created: str = "", plan: str = "", reason: str = "CreateError", pool: str = "main") -> Object:
    text = f"failed creating server [ns/{name}]: CreateError: {created}" if reason == "CreateError" else created
    conditions = [new_condition("InfrastructureReady", "False", reason, message=text)] if created else []
    conditions += [new_condition("PlanApplied", "False", "Error", message=plan)] if plan else []
    return new_object(
        MACHINE, name, "ns", metadata={"labels": {names.POOL_NAME: pool}}, status={"conditions": conditions}
    )


def named(*machines: Object) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in machines}


def test_repeated_failures_are_folded() -> None:
    log = FailureLog()
    first = named(machine("m-1", created="quota of m-1 exceeded"), machine("m-2", created="quota of m-2 exceeded"))
    assert [*log.lines(first)] == [
        "  machine m-1: creation failed: quota of m-1 exceeded",
        "  machine m-2: failed for the same reason as m-1 (2 failures so far)",
    ]
    assert [*log.lines(first)] == [], "nothing is new"
    assert [*log.lines(named(machine("m-3", created="no network")))] == ["  machine m-3: creation failed: no network"]


def test_a_failure_lasts_once_replacements_fail_too() -> None:
    log, quantities = FailureLog(), {"main": 2, "other": 5}
    for name in ("m-1", "m-2", "m-3"):  # both machines, and a replacement
        machines = named(machine(name, created="denied"), machine(f"o-{name}", created="denied", pool="other"))
        list(log.lines(machines))
        assert log.lasting(machines, quantities) == ""
    machines = named(machine("m-4", created="denied"))
    list(log.lines(machines))
    assert log.lasting(machines, quantities) == "machine m-4: creation failed: denied (7 failures for this reason)"
    assert log.lasting(named(machine("m-5")), quantities) == "", "it was created"


def test_a_plan_that_fails_three_times_or_for_the_last_time_ends_the_wait() -> None:
    log = FailureLog()
    for attempt in (1, 2, 3):
        machines = named(machine("m", plan=PLAN.format(RETRIED.format(attempt))))
        (line,) = log.lines(machines)
        assert bool(log.lasting(machines, {"main": 1})) is (attempt == 3), line
    assert line == "  machine m: failed for the same reason again (3 failures so far)"
    last = named(machine("m", plan=PLAN.format(LAST.format(1))))
    assert "exit code 1" in FailureLog().lasting(last, {})


def test_a_machine_that_waits_for_a_user_stalls_the_cluster() -> None:
    progress = ClusterProgress()
    progress.observe(MACHINE, "m", machine("m", created="Secret ns/aws does not exist", reason="NotPrepared"))
    assert progress.stalled_reason == "machine m: creation failed: Secret ns/aws does not exist"


def test_a_pod_that_cannot_start_is_reported() -> None:
    message = "creating server [ns/m] of kind (Amazonec2Machine): pod is waiting: Back-off pulling image"
    pending = machine("m")
    pending["status"]["conditions"] = [new_condition("InfrastructureReady", "Unknown", "Creating", message=message)]
    assert [*FailureLog().lines(named(pending))] == ["  machine m: pod is waiting: Back-off pulling image"]
    assert summary(cluster(), [pending]).endswith(": machine m: pod is waiting: Back-off pulling image")


def cluster(*conditions: Object, provisioned: bool = True, **metadata: object) -> Object:
    spec = {"rkeConfig": {}} if provisioned else {}
    status = {"conditions": [*conditions]}
    return new_object(PROVISIONING_CLUSTER, "meadow", "ns", metadata=metadata, spec=spec, status=status)


def test_the_summary_says_why_a_cluster_is_not_ready() -> None:
    waiting = new_condition("Provisioned", "Unknown", message="waiting for\nviable init node")
    assert summary(cluster(), []) == "cluster meadow is not ready: no controller has seen it yet"
    assert summary(cluster(waiting), []) == "cluster meadow is not ready: waiting for viable init node"
    failing = [machine("b", created="denied"), machine("a", created="quota"), machine("c")]
    why = "machine a: creation failed: quota (1 more machines have failed)"
    assert summary(cluster(waiting), failing) == f"cluster meadow is not ready: {why}"
    stalled = new_condition("Stalled", "True", message="spec.kubernetesVersion: unknown")
    assert summary(cluster(waiting, stalled), failing).endswith(": spec.kubernetesVersion: unknown")
    ready = [new_condition(type_, "True") for type_ in ("Created", "RKECluster", "Provisioned", "Updated", "Ready")]
    assert summary(cluster(*ready), []) == "cluster meadow is ready"


def test_the_summary_of_imported_and_deleted_clusters() -> None:
    lost = new_condition("Connected", "False", "Disconnected", message="Cluster agent is not connected")
    imported = cluster(lost, new_condition("Updated", "Unknown", message="of no interest"), provisioned=False)
    assert summary(imported, []) == "cluster meadow is not ready: Cluster agent is not connected"
    removed = new_condition("Removed", "Unknown", message="waiting for machines [m] to delete")
    deleted = cluster(removed, deletionTimestamp="2026-01-01T12:00:00Z")
    assert summary(deleted, []) == "cluster meadow is being deleted: waiting for machines [m] to delete"
