"""Reconcile plan Secrets: record what agents report, set PlanApplied on Machines and retry failed plans."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from herder.api.capi.conditions import find, timestamp
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import PAUSED, annotations_of, cluster_key, is_deleting, is_paused
from herder.api.events import recorded, warning
from herder.api.guards import plan_changes
from herder.api.numbers import parse_int64
from herder.api.rke import names
from herder.api.rke.etcd.snapshots import SNAPSHOTS_ON, is_in_s3, machines_of, snapshots_on
from herder.api.rke.events import cluster_events
from herder.api.rke.kinds import BEACON, CONTROL_PLANE, ETCD_SNAPSHOT, PLAN_SECRET, TOKENS_SECRET
from herder.api.rke.node import plan_secret as secrets
from herder.api.rke.node.certificates import parse_report, to_annotation
from herder.api.rke.node.plan import CERTIFICATE_EXPIRY, SNAPSHOT_HASHES
from herder.api.rke.node.plan_secret import PlanSecret, encoded, zipped
from herder.api.rke.node.snapshot_hashes import parse_hashes
from herder.api.times import parse_time
from herder.api.writes import ref
from herder.controllers.planner.distributions.interface import Roles
from herder.controllers.planner.distributions.lookup import UnknownVersion, distribution_of
from herder.controllers.planner.plan.render import PlanRecord
from herder.controllers.planner.plan.tokens import redact_tokens
from herder.controllers.planner.plan.writes import UNLIMITED, pending_state, reports_to_drop
from herder.controllers.planner.rollout.status import machine_condition
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, WARNING, Decision, Event, Patch, Wait
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import View

FAILED, FAILED_ON = "failed-plans", "failed-plans-on"
PLAN_FAILED = "PlanFailed"
COOLDOWN = timedelta(seconds=30)
MAX_COOLDOWNS = 10  # a plan that keeps failing is retried every five minutes
OUTPUT_TAIL = 600  # characters of an instruction's output
MAX_REPACKED = 128 << 10
"""Bytes of outputs to compress again, on the event loop; larger ones are dropped until the agent reports them again."""


def reconcile(view: View) -> Decision:
    found = view.get(PLAN_SECRET, view.name)
    if found is None or is_deleting(found):
        return DONE
    plan = PlanSecret(found)
    if not plan.has_plan:
        return DONE
    reports = (*_record_report(plan, view.now), *_record_certificates(view, plan), *_record_hashes(view, plan))
    recorded = Decision(writes=reports)
    return recorded + (_reconcile_failed(view, plan) if plan.failed else _reconcile_applied(view, plan))


# --- reports of the agent ---------------------------------------------------------------------------------------------


def _record_report(plan: PlanSecret, now: datetime) -> tuple[Patch, ...]:
    data: Object = {}
    annotations: Object = {}
    if not plan.failed and plan.text(secrets.APPLIED_CHECKSUM) == plan.checksum and not _is_copied(plan):
        applied = encoded(plan.plan_bytes)
        data |= {**reports_to_drop(plan, len(applied)), secrets.APPLIED_PLAN: applied}
    data |= _stale_periodic_outputs(plan)
    if plan.probe_statuses and plan.healthy and not plan.probes_passed:
        annotations[names.PROBES_PASSED] = timestamp(now)
    if plan.failed and names.PLAN_FAILED not in plan.annotations:
        annotations[names.PLAN_FAILED] = timestamp(now)
    if _is_modified_by_others(plan):
        annotations[names.PLAN_INPUTS] = None
    changes = {"data": data} if data else {}
    changes |= {"metadata": {"annotations": annotations}} if annotations else {}
    return _patch(plan, changes, "report of the agent") if changes else ()


def _is_copied(plan: PlanSecret) -> bool:
    return plan.raw(secrets.APPLIED_PLAN) == plan.plan_bytes


def _stale_periodic_outputs(plan: PlanSecret) -> Object:
    """Drop outputs of periodic instructions that the plan no longer contains."""
    known = {each.name for each in (plan.plan.periodic_instructions if plan.plan else ())}
    left = {name: output for name, output in plan.periodic_outputs.items() if name in known}
    if len(left) == len(plan.periodic_outputs):
        return {}
    is_small = len(msgspec.json.encode(left)) <= MAX_REPACKED
    return {secrets.PERIODIC_OUTPUT: encoded(zipped(left)) if left and is_small else ""}


def _record_certificates(view: View, plan: PlanSecret) -> tuple[Patch, ...]:
    """Copy the report of the machine's certificates to its Machine.

    Without a report it stays as it is: plans of tasks may lack the instruction. Without a task, a plan that lacks it
    withdraws the report, which nothing would update.
    """
    machine = _machine(view, plan)
    if machine is None or is_deleting(machine) or machine["metadata"]["namespace"] != view.namespace:
        return ()
    known = annotations_of(machine).get(names.CERTIFICATES)
    output = plan.periodic_outputs.get(CERTIFICATE_EXPIRY)
    found = known
    if output is not None and (output.stdout or not output.exit_code):
        found = to_annotation(parse_report(output.stdout or b""))
    is_reported = plan.plan is not None and plan.plan.reports_certificates
    if not is_reported and names.PLAN_TASK not in plan.annotations:
        found = None
    if found == known:
        return ()
    change = {"metadata": {"annotations": {names.CERTIFICATES: found}}}
    return (Patch(ref(MACHINE, machine), change, "expiry of its certificates"),)


def _record_hashes(view: View, plan: PlanSecret) -> Iterator[Patch]:
    """Record the hashes of snapshots on the machine that have none, such as those that K3s and RKE2 take by schedule.

    The first one counts, also if the file changes later: a restore requires it. So the write fails if another client
    has changed the object.
    """
    output, machine = plan.periodic_outputs.get(SNAPSHOT_HASHES), _machine(view, plan)
    is_reported = plan.plan is not None and plan.plan.reports_snapshots
    if output is None or not is_reported or machine is None or machine["metadata"]["namespace"] != view.namespace:
        return
    hashes = parse_hashes(output.stdout or b"")
    snapshots = view.select(ETCD_SNAPSHOT, namespace=view.namespace, index=(SNAPSHOTS_ON, machine["metadata"]["uid"]))
    for each in snapshots:
        found = hashes.get(str((each.get("snapshotFile") or {}).get("name")))
        if found and not is_in_s3(each) and not is_deleting(each) and names.SNAPSHOT_SHA256 not in annotations_of(each):
            change = {"metadata": {"annotations": {names.SNAPSHOT_SHA256: found}}}
            version = each["metadata"]["resourceVersion"]
            yield Patch(ref(ETCD_SNAPSHOT, each), change, "the hash of its file", "", version)


def _is_modified_by_others(plan: PlanSecret) -> bool:
    """Whether another client changed the plan: its recorded inputs no longer hold, so it is rendered again."""
    known = PlanRecord.of(plan.annotations).checksum
    return bool(known) and known != plan.checksum


def _patch(plan: PlanSecret, changes: Object, reason: str) -> tuple[Patch, ...]:
    version = plan.secret["metadata"]["resourceVersion"]
    return (Patch(ref(PLAN_SECRET, plan.secret), changes, reason, "", version),)


# --- applied and pending plans ----------------------------------------------------------------------------------------


def _reconcile_applied(view: View, plan: PlanSecret) -> Decision:
    """Set PlanApplied to true. A failure stays reported during retries, until the plan has succeeded."""
    machine = _machine(view, plan)
    if machine is None or (_attempts(plan) > 1 and not plan.in_sync):
        return DONE
    return Decision(writes=machine_condition(machine, names.PLAN_APPLIED, ("True", names.PLAN_APPLIED, ""), view.now))


def _machine(view: View, plan: PlanSecret) -> Object | None:
    name = plan.labels.get(names.MACHINE_NAME)
    return view.get(MACHINE, name) if name else None


def _attempts(plan: PlanSecret) -> int:
    return max(parse_int64(plan.annotations.get(names.PLAN_ATTEMPTS, ""), 1), 0)


# --- failed plans -----------------------------------------------------------------------------------------------------


def _reconcile_failed(view: View, plan: PlanSecret) -> Decision:
    machine = _machine(view, plan)
    retry_at = _retry_time(plan, view.now)
    decision = Decision(writes=_report_failure(view, plan, machine, retry_at) if machine is not None else ())
    if plan.state != secrets.FAILED:
        return decision + Decision(wait=Wait("the agent has no plan-state support; it retries by itself"))
    if retry_at is None:
        return decision + Decision(wait=Wait(f"plan failed {_attempts(plan)} times; no attempts left"))
    if retry_at > view.now or names.PLAN_FAILED not in plan.annotations:
        return decision + Decision(
            wait=Wait("plan failed; waiting for the cooldown before the next attempt"), wake_at=retry_at
        )
    if blocker := _retry_blocker(view, plan):
        return decision + Decision(wait=Wait(blocker))
    return decision + Decision(writes=_retry(plan, view.now))


def _retry_time(plan: PlanSecret, now: datetime) -> datetime | None:
    """When the plan is retried; None if it has no attempts left."""
    limit = plan.number(secrets.MAX_FAILURES, UNLIMITED)
    if limit != UNLIMITED and _attempts(plan) >= limit:
        return None
    failed = parse_time(plan.annotations.get(names.PLAN_FAILED, "")) or now
    return failed + COOLDOWN * min(_attempts(plan), MAX_COOLDOWNS)


def _retry_blocker(view: View, plan: PlanSecret) -> str:
    """Why the plan must not be retried now; empty if it may."""
    name = plan.labels.get(names.CLUSTER_NAME, "")
    control_plane, beacon = view.get(CONTROL_PLANE, name), view.get(BEACON, name)
    if control_plane is None or is_deleting(control_plane):
        return "its cluster is being deleted"
    writer = str(((beacon or {}).get("status") or {}).get("owner") or "")
    if writer not in ("", names.PLANNER):
        return f"plans are written by {writer} now"
    machine = _machine(view, plan)
    paused = [is_paused(view.get(CLUSTER, name), obj) for obj in (control_plane, machine) if obj is not None]
    return "it is paused" if any(paused) else ""


def _retry(plan: PlanSecret, now: datetime) -> tuple[Patch, ...]:
    annotations = {
        names.PLAN_ATTEMPTS: str(_attempts(plan) + 1),
        names.PLAN_FAILED: None,
        names.PLAN_UPDATED: timestamp(now),
        names.PROBES_PASSED: "",
    }
    return _patch(plan, {"metadata": {"annotations": annotations}, "data": pending_state()}, "retry a failed plan")


def _report_failure(view: View, plan: PlanSecret, machine: Object, retry_at: datetime | None) -> tuple[Patch, ...]:
    """Report a failure with its first evidence: some agents withdraw the evidence with their next report."""
    known = find(machine, names.PLAN_APPLIED) or {}
    attempt = f"attempt {_attempts(plan)}"
    text = known.get("message", "")
    is_reported = attempt in text and (view.refused is None or str(view.refused) in text)
    if known.get("status") == "False" and is_reported and plan.evidence is None:
        return ()
    units = f"rancher-system-agent.service{_unit(view, plan)}"
    parts = [f"error applying plan -- check {units} logs on node for more information"]
    evidence = plan.evidence
    if evidence is not None:
        named = f'instruction "{evidence.instruction}" failed'
        parts.append(named if evidence.instruction else "it failed before any instruction")
        parts += [f"exit code {evidence.exit_code}"] if evidence.exit_code else []
        parts += [evidence.error] if evidence.error else []
    parts.append(f"{attempt}, " + (f"the next at {timestamp(retry_at)}" if retry_at else "the last that it may have"))
    parts += [str(view.refused)] if view.refused else []
    tail = f": {_tail(view, plan, evidence.tail)}" if evidence and evidence.tail.strip() else ""
    message = "; ".join(parts) + tail
    patches = machine_condition(machine, names.PLAN_APPLIED, ("False", "Error", message), view.now)
    return recorded(patches, _failure_events(view, plan, machine, "; ".join(parts[1:-1]) + tail))


def _failure_events(view: View, plan: PlanSecret, machine: Object, why: str) -> Iterator[Event]:
    """Report each failed attempt on the Machine, and on the cluster that it belongs to."""
    if (find(machine, names.PLAN_APPLIED) or {}).get("status") == "False" and plan.evidence is None:
        return
    cluster, name = plan.labels.get(names.CLUSTER_NAME, ""), machine["metadata"]["name"]
    message = f"plan of machine {name} failed (attempt {_attempts(plan)}): {why}"
    yield warning(MACHINE, machine, PLAN_FAILED, message)
    yield from cluster_events(
        view.get(CLUSTER, cluster), view.get(CONTROL_PLANE, cluster), PLAN_FAILED, message, WARNING
    )


def _unit(view: View, plan: PlanSecret) -> str:
    control_plane = view.get(CONTROL_PLANE, plan.labels.get(names.CLUSTER_NAME, ""))
    try:
        distribution = distribution_of(((control_plane or {}).get("spec") or {}).get("kubernetesVersion") or "")
    except UnknownVersion:
        return ""
    return f" and {distribution.unit(Roles(plan.is_etcd, plan.is_control_plane, plan.is_worker))}.service"


def _tail(view: View, plan: PlanSecret, output: str) -> str:
    """The end of the output, with join tokens redacted."""
    text = redact_tokens(view, plan.labels.get(names.CLUSTER_NAME, ""), output).strip()
    return text if len(text) <= OUTPUT_TAIL else f"…{text[-OUTPUT_TAIL:]}"


def _failed_by_cluster(secret: Object) -> list[str]:
    """Index: failed plans by cluster, which may be paused."""
    cluster = (secret["metadata"].get("labels") or {}).get(names.CLUSTER_NAME)
    return [cluster_key(secret["metadata"]["namespace"], cluster)] if cluster and PlanSecret(secret).failed else []


def _failed_by_machine(secret: Object) -> list[str]:
    """Index: failed plans by Machine, which may be paused."""
    machine = (secret["metadata"].get("labels") or {}).get(names.MACHINE_NAME)
    return [cluster_key(secret["metadata"]["namespace"], machine)] if machine and PlanSecret(secret).failed else []


def _pause_changed(change: Change) -> bool:
    return len({PAUSED in annotations_of(obj) for obj in (change.old, change.new) if obj is not None}) == 2


def _by_name(obj: Object) -> list[str]:
    return [cluster_key(obj["metadata"]["namespace"], obj["metadata"]["name"])]


CONTROLLER = Controller(
    name="plan-secret",
    kind=PLAN_SECRET,
    reconcile=reconcile,
    predicate=changed("data", "metadata.annotations"),
    watches=(
        Watches(MACHINE, Indexed(FAILED_ON, _by_name), _pause_changed),
        Watches(CONTROL_PLANE, Indexed(FAILED, _by_name), changed("metadata.annotations")),
        Watches(CLUSTER, Indexed(FAILED, _by_name), changed("spec.paused")),
        Watches(BEACON, Indexed(FAILED, _by_name), changed("status.owner")),
        Watches(TOKENS_SECRET),
        Watches(ETCD_SNAPSHOT, Indexed(plan_changes.PLAN_OF, machines_of), changed("metadata.annotations")),
    ),
    indexes={
        PLAN_SECRET: {FAILED: _failed_by_cluster, FAILED_ON: _failed_by_machine, **plan_changes.INDEXES},
        ETCD_SNAPSHOT: {SNAPSHOTS_ON: snapshots_on},
    },
    groupings=(plan_changes.TRAITS,),
    cluster_of=lambda secret: cluster_key(
        secret["metadata"]["namespace"], (secret["metadata"].get("labels") or {}).get(names.CLUSTER_NAME, "")
    ),
)
