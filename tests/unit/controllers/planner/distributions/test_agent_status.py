"""Why the pod of the cluster agent does not start: who reports it, when, and how the report is read."""

from __future__ import annotations

import gzip
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from herder.api.capi.conditions import timestamp
from herder.api.capi.names import PAUSED
from herder.api.rke import names
from herder.api.rke.node.plan import AGENT_STATUS, CERTIFICATE_EXPIRY, SNAPSHOT_HASHES, Plan
from herder.api.rke.node.plan_secret import PeriodicOutput, encoded, zipped
from herder.controllers.planner.distributions.agent_status import describe_agent, status_instruction
from herder.controllers.planner.distributions.interface import Roles
from herder.controllers.planner.distributions.kubeadm.distribution import Kubeadm
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.controllers.planner.rollout.agent_wait import REPORTED_AFTER, AgentWait, wait_for_agent
from herder.controllers.planner.rollout.machines import PlanEntry
from tests.support.builders import new_condition
from tests.support.views import NOW
from tests.unit.controllers.planner.distributions import inputs, test_kubeadm
from tests.unit.controllers.planner.objects import ETCD, SERVER, WORKER, entry, plan_of

STATUS = status_instruction("kubectl")
REPORTING = msgspec.structs.replace(plan_of(), periodic_instructions=(STATUS,))
LONG_AGO, OVERDUE, RECENT = NOW - timedelta(hours=1), NOW - REPORTED_AFTER, NOW - REPORTED_AFTER / 2
POD = "pod cattle-cluster-agent-1 2026-01-01T00%3A00%3A00Z Pending  \n"


# --- who reports, and when --------------------------------------------------------------------------------------------


def server(
    name: str = "a",
    roles: tuple[str, ...] = SERVER,
    *,
    passed: datetime = OVERDUE,
    since: datetime = LONG_AGO,
    status: str = "Unknown",
    plan: Plan | None = None,
    **options: Any,
) -> PlanEntry:
    """A machine that waits. Its probes have `passed`, and its condition changed at `since`."""
    conditions = [new_condition("InfrastructureReady"), new_condition("Reconciled", status, since=since)]
    annotations = {names.PROBES_PASSED: timestamp(passed)}
    plan = plan_of() if plan is None else plan
    return entry(name, roles, plan=plan, annotations=annotations, status={"conditions": conditions}, **options)


def wait(*entries: PlanEntry, connected: bool = False) -> AgentWait:
    return wait_for_agent(entries, connected=connected, now=NOW)


def test_a_machine_reports_after_two_minutes() -> None:
    assert wait(server(passed=RECENT)) == AgentWait(due=RECENT + REPORTED_AFTER)
    assert wait(server()) == AgentWait("a")
    assert wait(server(), connected=True) == AgentWait()


def test_a_lost_agent_is_not_overdue_at_once() -> None:
    """The plan was applied long ago; the condition records when the agent was lost."""
    assert wait(server(passed=LONG_AGO, status="True")) == AgentWait()
    assert wait(server(passed=LONG_AGO, since=RECENT)) == AgentWait(due=RECENT + REPORTED_AFTER)
    assert wait(server(passed=LONG_AGO, since=OVERDUE)) == AgentWait("a")


def test_one_control_plane_machine_reports() -> None:
    assert wait(server("b"), server("a"), server("0", (WORKER,))).reporter == "a"
    assert wait(server("a"), server("b", init=True)).reporter == "b"
    assert wait(server("a", (ETCD,), init=True), server("b")).reporter == "b"
    assert wait(server("a", (WORKER,)), server("b", (ETCD,))) == AgentWait()


def test_no_machine_reports_before_its_plan_is_applied() -> None:
    assert wait(server(state="in-progress")) == AgentWait()
    assert wait(server(unhealthy=True)) == AgentWait()


def test_a_machine_reports_until_the_agent_is_connected() -> None:
    reporting = server(plan=REPORTING, passed=NOW)
    assert wait(reporting).reporter == "a"
    assert wait(server(plan=REPORTING, state="in-progress")).reporter == "a"
    assert wait(reporting, connected=True) == AgentWait()


def test_the_plan_of_a_paused_machine_does_not_change() -> None:
    for plan, connected in ((plan_of(), False), (REPORTING, False), (REPORTING, True)):
        paused = server(plan=plan)
        paused.machine["metadata"]["annotations"] = {PAUSED: ""}
        assert bool(wait(paused, connected=connected).reporter) is plan.reports_agent


def test_the_report_is_read_from_the_plan_secret() -> None:
    waiting = f"{POD}container waiting ErrImagePull no+such+image \n".encode()
    output = PeriodicOutput(AGENT_STATUS, waiting, last_successful_run_time="now")
    data = {AGENT_STATUS: msgspec.to_builtins(output)}
    reporting = server(plan=REPORTING)
    reporting.plan.secret["data"]["applied-periodic-output"] = encoded(zipped(data))
    assert wait(reporting).problem == "cattle-cluster-agent-1: ErrImagePull: no such image"
    assert wait(reporting, connected=True).problem == ""


@pytest.mark.parametrize(
    "value",
    [b"", b"no gzip", gzip.compress(b"[]", mtime=0), gzip.compress(b'{"cluster-agent-status":{"stdout":7}}', mtime=0)],
)
def test_an_unreadable_report_is_ignored(value: bytes) -> None:
    reporting = server(plan=REPORTING)
    reporting.plan.secret["data"]["applied-periodic-output"] = encoded(value)
    assert wait(reporting) == AgentWait("a")


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "command", "first"),
    [
        ("v1.33.4+k3s1", "k3s", ("kubectl", "--kubeconfig=/var/lib/rancher/k3s/server/cred/admin.kubeconfig")),
        (
            "v1.33.4+rke2r1",
            "/var/lib/rancher/rke2/bin/kubectl",
            ("--kubeconfig=/var/lib/rancher/rke2/server/cred/admin.kubeconfig",),
        ),
        ("v1.36.3+kubeadm1", "/usr/local/bin/kubectl", ("--kubeconfig=/etc/kubernetes/admin.conf",)),
    ],
)
def test_the_instruction_is_all_that_changes(version: str, command: str, first: tuple[str, ...]) -> None:
    distribution = distribution_of(version)
    is_kubeadm = isinstance(distribution, Kubeadm)
    cluster = test_kubeadm.cluster() if is_kubeadm else inputs.cluster(version)
    before = distribution.render(cluster, inputs.server())
    after = distribution.render(cluster, inputs.server(reports_agent=True))
    (status,) = [each for each in after.periodic_instructions if each.name == AGENT_STATUS]
    assert (status.name, status.command, status.script) == (AGENT_STATUS, command, "")
    assert status.args[: len(first)] == first
    assert status.args[len(first) : -1] == STATUS.args[:-1]
    assert (
        msgspec.structs.replace(after, periodic_instructions=before.periodic_instructions).to_json() == before.to_json()
    )
    assert not before.reports_agent
    assert after.disruptive_parts() == before.disruptive_parts()
    assert distribution.drain_hash(after) == distribution.drain_hash(before)


def test_it_follows_instructions_that_others_depend_on() -> None:
    etcd = inputs.server(roles=Roles(etcd=True), reports_agent=True)
    plan = distribution_of(inputs.VERSION).render(inputs.cluster(), etcd)
    reports = [AGENT_STATUS, CERTIFICATE_EXPIRY, SNAPSHOT_HASHES]
    assert [each.name for each in plan.periodic_instructions] == ["capture-address", "etcd-name", *reports]
    other = msgspec.structs.replace(plan, periodic_instructions=plan.periodic_instructions[1:])
    assert other.disruptive_parts() != plan.disruptive_parts()


def test_the_embedded_distribution_runs_no_pod() -> None:
    assert not distribution_of("v1.36.0+herder1").runs_agent_pod


# --- output -----------------------------------------------------------------------------------------------------------


def described(stdout: str | bytes, **fields: Any) -> str:
    raw = stdout.encode() if isinstance(stdout, str) else stdout
    return describe_agent(PeriodicOutput(AGENT_STATUS, raw, **({"last_successful_run_time": "now"} | fields)))


@pytest.mark.parametrize(
    ("output", "description"),
    [
        ("", "it has no pod in namespace cattle-system"),
        (
            "event 1 cattle-cluster-agent-1 FailedCreate exceeded+quota\n",
            "it has no pod in namespace cattle-system: FailedCreate: exceeded quota",
        ),
        (POD, "cattle-cluster-agent-1: Pending"),
        (f"{POD}container waiting ContainerCreating  \n", "cattle-cluster-agent-1: ContainerCreating"),
        (
            f"{POD}container waiting ContainerCreating  \nevent 2 cattle-cluster-agent-1 FailedMount no+Secret\n"
            "event 1 cattle-cluster-agent-1 FailedScheduling no+node\nevent 3 cattle-cluster-agent-0 Killing other\n",
            "cattle-cluster-agent-1: FailedMount: no Secret",
        ),
        (
            f"{POD}container waiting ImagePullBackOff Back-off \nevent 2 cattle-cluster-agent-1 Failed Error%3A+Err\n"
            "event 1 cattle-cluster-agent-1 Failed not+found\n",
            "cattle-cluster-agent-1: ImagePullBackOff: Back-off; Failed: not found",
        ),
        (
            f"{POD}container waiting CrashLoopBackOff back-off \ncontainer last Error no+CA 1\n",
            "cattle-cluster-agent-1: CrashLoopBackOff: back-off; exit code 1: Error: no CA",
        ),
        (
            f"{POD}unscheduled Unschedulable 0/1+nodes\nevent 1 cattle-cluster-agent-1 FailedScheduling 0/1+nodes\n",
            "cattle-cluster-agent-1: Unschedulable: 0/1 nodes",
        ),
        ("pod cattle-cluster-agent-1 1 Failed Evicted low+disk\n", "cattle-cluster-agent-1: Evicted: low disk"),
        (
            "pod cattle-cluster-agent-1 1 Running  \n",
            "cattle-cluster-agent-1: it runs, but it has not connected; see kubectl logs -n cattle-system "
            "cattle-cluster-agent-1",
        ),
        (f"pod cattle-cluster-agent-0 2025 Failed Evicted \n{POD}", "cattle-cluster-agent-1: Pending"),
    ],
)
def test_the_newest_pod_is_described(output: str, description: str) -> None:
    assert described(output) == description


def test_a_failure_of_kubectl_is_reported() -> None:
    assert described(POD, exit_code=1, stderr=b"refused\n") == "its pods cannot be listed: refused"
    assert described(POD, exit_code=127) == "its pods cannot be listed: exit code 127"
    assert describe_agent(PeriodicOutput(AGENT_STATUS)) == describe_agent(None) == ""


@pytest.mark.parametrize(
    "output",
    [
        b"\xff\xfe\x00" * 1000,
        b"pod\n" * 100_000,
        b"pod " + b"x" * (4 << 20),
        b"container waiting Error message 1\nunscheduled a b\n",
        b"pod %1b%5b2J%00 1 Failed %0d%0a%07 %zz%\n",
        b"pod a 1 Failed " + b"%F0%9F%90%91" * 10_000 + b" \n",
        b"event  " * 50_000,
        b"pod a 1 Failed r m\n" + b"container waiting r m 1\n" * 100_000,
        b"\x1b[31m" * 1000,
    ],
)
def test_a_hostile_report_is_one_short_line(output: bytes) -> None:
    for text in (described(output), described(b"", exit_code=1, stderr=output)):
        assert text
        assert len(text) <= 1024
        assert text.replace("\ufffd", "?").isprintable()
