"""What agents report on plan Secrets, kept where others look for it; and plans that failed, asked for again in time."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta

from herder.api.capi.conditions import find, timestamp
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import PAUSED, annotations_of, cluster_key, is_deleting, is_paused
from herder.api.guards import plan_acts
from herder.api.machines.credentials import hidden
from herder.api.moments import moment
from herder.api.numbers import integer
from herder.api.rke import names
from herder.api.rke import plan_secret as secrets
from herder.api.rke.kinds import BEACON, CONTROL_PLANE, PLAN_SECRET, TOKENS_SECRET
from herder.api.rke.plan_secret import PlanSecret, encoded, zipped
from herder.api.writing import ref
from herder.controllers.planner.distributions.choosing import UnknownVersion, distribution_of
from herder.controllers.planner.distributions.interface import Roles
from herder.controllers.planner.plan_writes import UNLIMITED, asked, room_for
from herder.controllers.planner.rendering import Mark
from herder.controllers.planner.reports import machine_condition
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Patch, Wait
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import View

FAILED, FAILED_ON = "failed-plans", "failed-plans-on"
COOLDOWN = timedelta(seconds=30)
MOST_COOLDOWNS = 10  # so a plan that goes on to fail is asked for every five minutes
TAIL = 600  # characters of what an instruction said last


def reconcile(view: View) -> Decision:
    found = view.get(PLAN_SECRET, view.name)
    if found is None or is_deleting(found):
        return DONE
    plan = PlanSecret(found)
    if not plan.has_plan:
        return DONE
    kept = Decision(writes=_kept(plan, view.now))
    return kept + (_failed(view, plan) if plan.failed else _worked(view, plan))


# --- what is kept of a report ---------------------------------------------------------------------------------------


def _kept(plan: PlanSecret, now: datetime) -> tuple[Patch, ...]:
    data: Object = {}
    marks: Object = {}
    if not plan.failed and plan.text(secrets.APPLIED_CHECKSUM) == plan.checksum and not _is_copied(plan):
        applied = encoded(plan.plan_bytes)
        data |= {**room_for(plan, len(applied)), secrets.APPLIED_PLAN: applied}
    data |= _purged(plan)
    if plan.probe_statuses and plan.healthy and not plan.probes_passed:
        marks[names.PROBES_PASSED] = timestamp(now)
    if plan.failed and names.PLAN_FAILED not in plan.annotations:
        marks[names.PLAN_FAILED] = timestamp(now)
    if _is_foreign(plan):
        marks[names.PLAN_INPUTS] = None
    changes = {"data": data} if data else {}
    changes |= {"metadata": {"annotations": marks}} if marks else {}
    return _patch(plan, changes, "what the agent reported") if changes else ()


def _is_copied(plan: PlanSecret) -> bool:
    return plan.raw(secrets.APPLIED_PLAN) == plan.plan_bytes


def _purged(plan: PlanSecret) -> Object:
    """Outputs of periodic instructions that the plan no longer has."""
    known = {each.name for each in (plan.plan.periodic_instructions if plan.plan else ())}
    left = {name: output for name, output in plan.periodic_outputs.items() if name in known}
    if len(left) == len(plan.periodic_outputs):
        return {}
    return {secrets.PERIODIC_OUTPUT: encoded(zipped(left)) if left else ""}


def _is_foreign(plan: PlanSecret) -> bool:
    """Somebody else has changed the plan: what is known of its making no longer holds, so it is made anew."""
    known = Mark.of(plan.annotations).checksum
    return bool(known) and known != plan.checksum


def _patch(plan: PlanSecret, changes: Object, reason: str) -> tuple[Patch, ...]:
    version = plan.secret["metadata"]["resourceVersion"]
    return (Patch(ref(PLAN_SECRET, plan.secret), changes, reason, "", version),)


# --- a plan that worked, or has yet to ------------------------------------------------------------------------------


def _worked(view: View, plan: PlanSecret) -> Decision:
    """A failure stays told while the plan is tried again, until it has worked."""
    machine = _machine(view, plan)
    if machine is None or (_attempts(plan) > 1 and not plan.in_sync):
        return DONE
    return Decision(writes=machine_condition(machine, names.PLAN_APPLIED, ("True", names.PLAN_APPLIED, ""), view.now))


def _machine(view: View, plan: PlanSecret) -> Object | None:
    name = plan.labels.get(names.MACHINE_NAME)
    return view.get(MACHINE, name) if name else None


def _attempts(plan: PlanSecret) -> int:
    return max(integer(plan.annotations.get(names.PLAN_ATTEMPTS, ""), 1), 0)


# --- a plan that failed ---------------------------------------------------------------------------------------------


def _failed(view: View, plan: PlanSecret) -> Decision:
    machine = _machine(view, plan)
    due = _retried_at(plan, view.now)
    decision = Decision(writes=_report_failure(view, plan, machine, due) if machine is not None else ())
    if plan.state != secrets.FAILED:
        return decision + Decision(wait=Wait("its agent, which knows no state, tries again by itself"))
    if due is None:
        return decision + Decision(wait=Wait(f"it has failed {_attempts(plan)} times, which is the most that it may"))
    if due > view.now or names.PLAN_FAILED not in plan.annotations:
        return decision + Decision(wait=Wait("it is tried again after a pause"), wake_at=due)
    if held := _held(view, plan):
        return decision + Decision(wait=Wait(held))
    return decision + Decision(writes=_ask_again(plan, view.now))


def _retried_at(plan: PlanSecret, now: datetime) -> datetime | None:
    """None where it has been tried as often as it may."""
    limit = plan.number(secrets.MAX_FAILURES, UNLIMITED)
    if limit != UNLIMITED and _attempts(plan) >= limit:
        return None
    failed = moment(plan.annotations.get(names.PLAN_FAILED, "")) or now
    return failed + COOLDOWN * min(_attempts(plan), MOST_COOLDOWNS)


def _held(view: View, plan: PlanSecret) -> str:
    """Why nothing may be asked of the machine now."""
    name = plan.labels.get(names.CLUSTER_NAME, "")
    control_plane, beacon = view.get(CONTROL_PLANE, name), view.get(BEACON, name)
    if control_plane is None or is_deleting(control_plane):
        return "its cluster is going"
    writer = str(((beacon or {}).get("status") or {}).get("owner") or "")
    if writer not in ("", names.PLANNER):
        return f"plans are written by {writer} now"
    machine = _machine(view, plan)
    paused = [is_paused(view.get(CLUSTER, name), obj) for obj in (control_plane, machine) if obj is not None]
    return "it is paused" if any(paused) else ""


def _ask_again(plan: PlanSecret, now: datetime) -> tuple[Patch, ...]:
    marks = {
        names.PLAN_ATTEMPTS: str(_attempts(plan) + 1),
        names.PLAN_FAILED: None,
        names.PLAN_UPDATED: timestamp(now),
        names.PROBES_PASSED: "",
    }
    return _patch(plan, {"metadata": {"annotations": marks}, "data": asked()}, "a plan that failed is tried again")


def _report_failure(view: View, plan: PlanSecret, machine: Object, due: datetime | None) -> tuple[Patch, ...]:
    """Told with the first report of a failure: some agents take their evidence back with the next one."""
    known = find(machine, names.PLAN_APPLIED) or {}
    attempt = f"attempt {_attempts(plan)}"
    text = known.get("message", "")
    is_reported = attempt in text and (view.refused is None or str(view.refused) in text)
    if known.get("status") == "False" and is_reported and plan.evidence is None:
        return ()
    units = f"rancher-system-agent.service{_unit(view, plan)}"
    words = [f"error applying plan -- check {units} logs on node for more information"]
    evidence = plan.evidence
    if evidence is not None:
        named = f'instruction "{evidence.instruction}" failed'
        words.append(named if evidence.instruction else "it failed before any instruction")
        words += [f"exit code {evidence.exit_code}"] if evidence.exit_code else []
        words += [evidence.error] if evidence.error else []
    words.append(f"{attempt}, " + (f"the next at {timestamp(due)}" if due else "the last that it may have"))
    words += [str(view.refused)] if view.refused else []
    tail = f": {_tail(view, plan, evidence.tail)}" if evidence and evidence.tail.strip() else ""
    message = "; ".join(words) + tail
    return machine_condition(machine, names.PLAN_APPLIED, ("False", "Error", message), view.now)


def _unit(view: View, plan: PlanSecret) -> str:
    control_plane = view.get(CONTROL_PLANE, plan.labels.get(names.CLUSTER_NAME, ""))
    try:
        distribution = distribution_of(((control_plane or {}).get("spec") or {}).get("kubernetesVersion") or "")
    except UnknownVersion:
        return ""
    return f" and {distribution.unit(Roles(plan.is_etcd, plan.is_control_plane, plan.is_worker))}.service"


def _tail(view: View, plan: PlanSecret, said: str) -> str:
    """The end of what was said, without what machines join with."""
    tokens = view.get(TOKENS_SECRET, names.tokens_secret(plan.labels.get(names.CLUSTER_NAME, "")))
    values = ((tokens or {}).get("data") or {}).values()
    text = hidden(said, [base64.b64decode(value).decode(errors="replace") for value in values]).strip()
    return text if len(text) <= TAIL else f"…{text[-TAIL:]}"


def _failed_in(secret: Object) -> list[str]:
    """Those that wait for their cluster to go on."""
    cluster = (secret["metadata"].get("labels") or {}).get(names.CLUSTER_NAME)
    return [cluster_key(secret["metadata"]["namespace"], cluster)] if cluster and PlanSecret(secret).failed else []


def _failed_on(secret: Object) -> list[str]:
    """Those that wait for their machine to go on."""
    machine = (secret["metadata"].get("labels") or {}).get(names.MACHINE_NAME)
    return [cluster_key(secret["metadata"]["namespace"], machine)] if machine and PlanSecret(secret).failed else []


def _paused_or_let_go_on(change: Change) -> bool:
    return len({PAUSED in annotations_of(obj) for obj in (change.old, change.new) if obj is not None}) == 2


def _named(obj: Object) -> list[str]:
    return [cluster_key(obj["metadata"]["namespace"], obj["metadata"]["name"])]


CONTROLLER = Controller(
    name="plan-secret",
    kind=PLAN_SECRET,
    reconcile=reconcile,
    predicate=changed("data", "metadata.annotations"),
    watches=(
        Watches(MACHINE, Indexed(FAILED_ON, _named), _paused_or_let_go_on),
        Watches(CONTROL_PLANE, Indexed(FAILED, _named), changed("metadata.annotations")),
        Watches(CLUSTER, Indexed(FAILED, _named), changed("spec.paused")),
        Watches(BEACON, Indexed(FAILED, _named), changed("status.owner")),
        Watches(TOKENS_SECRET),
    ),
    indexes={PLAN_SECRET: {FAILED: _failed_in, FAILED_ON: _failed_on, **plan_acts.INDEXES}},
    groupings=(plan_acts.TRAITS,),
    cluster_of=lambda secret: cluster_key(
        secret["metadata"]["namespace"], (secret["metadata"].get("labels") or {}).get(names.CLUSTER_NAME, "")
    ),
)
