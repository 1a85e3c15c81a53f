"""Drain and uncordon Nodes as the planner requests it, through annotations of the plan Secret (`request.py`).

Users can add hooks: annotations that other programs set to the value of the request when their part is done. The drain
waits for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import CLUSTER, MACHINE, NODE
from herder.api.capi.names import cluster_key, is_deleting
from herder.api.capi.nodes import node_by_name
from herder.api.events import normal, warning
from herder.api.guards import plan_changes
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.plan_secret import PlanSecret
from herder.api.times import parse_time
from herder.api.writes import ref
from herder.controllers.planner.drain.pods import drain_pods
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Event, Patch, Ref, Wait, waiting
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import Observed, Unreachable, View

_ANNOTATIONS = (
    *(names.PRE_DRAIN, names.POST_DRAIN, names.DRAIN_OPTIONS, names.DRAIN_DONE, names.UNCORDON, names.DRAIN_ERROR),
    names.DRAIN_STARTED,
)
RETRY_INTERVAL = timedelta(seconds=20)


def reconcile(view: View) -> Decision:
    secret = view.get(PLAN_SECRET, view.name)
    if secret is None or is_deleting(secret):
        return DONE
    plan = PlanSecret(secret)
    requested = plan.annotations.get(names.DRAIN_OPTIONS, "")
    is_requested = bool(requested) and plan.annotations.get(names.DRAIN_DONE) != requested
    if not is_requested and not plan.annotations.get(names.UNCORDON):
        return Decision(writes=_annotation_patch(plan, {names.DRAIN_ERROR: None}))
    options = _options(requested)
    if options is None:
        return _report_error(plan, f"annotation {names.DRAIN_OPTIONS}: not a JSON object")
    machine = view.get(MACHINE, plan.labels.get(names.MACHINE_NAME, ""))
    if machine is None or is_deleting(machine):
        return waiting("Machine is being deleted; Cluster API drains it")
    node = ((machine.get("status") or {}).get("nodeRef") or {}).get("name") or ""
    machine_drain = _MachineDrain(view, plan, requested, options, node, machine)
    return machine_drain.drain() if is_requested else machine_drain.uncordon()


def _options(text: str) -> Mapping[str, Any] | None:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (ValueError, RecursionError):
        return None


def _target(machine: Object) -> str:
    return cluster_key(machine["metadata"]["namespace"], machine["spec"]["clusterName"])


class _MachineDrain:
    """The drain of one machine. `requested` is the text of the options, which identifies the request."""

    def __init__(
        self, view: View, plan: PlanSecret, requested: str, options: Mapping[str, Any], node: str, machine: Object
    ) -> None:
        self._view = view
        self._plan = plan
        self._requested = requested
        self._options = options
        self._node = node
        self._machine = machine
        self._cluster = _target(machine)

    def drain(self) -> Decision:
        """Cordon the Node, wait for the pre-drain hooks, then evict the Pods."""
        if not self._node:
            return self._annotate({names.DRAIN_DONE: self._requested})
        result = self._ensure_cordon(True)
        if isinstance(result, Decision):
            return result
        if not result:
            return self._annotate({names.DRAIN_DONE: self._requested})
        if wait := self._wait_for_hooks("preDrainHooks", names.PRE_DRAIN):
            return wait
        return (
            self._evict_pods() if self._options.get("enabled") else self._annotate({names.DRAIN_DONE: self._requested})
        )

    def uncordon(self) -> Decision:
        """Wait for the post-drain hooks, uncordon the Node and remove all drain annotations."""
        if wait := self._wait_for_hooks("postDrainHooks", names.POST_DRAIN):
            return wait
        result = self._ensure_cordon(False) if self._node else False
        if isinstance(result, Decision):
            return result
        hooks = [hook for phase in ("preDrainHooks", "postDrainHooks") for hook in _hooks_of(self._options, phase)]
        return self._annotate(dict.fromkeys((*_ANNOTATIONS, *hooks)))

    def _ensure_cordon(self, wanted: bool) -> Decision | bool:
        """Whether the Node exists and is cordoned as wanted; a Decision if it must be read or patched first."""
        subscription = node_by_name(self._cluster, self._node)
        needs = Decision(observe=(subscription,))
        match self._view.observed(subscription):
            case None:
                return needs + waiting(f"reading Node {self._node}")
            case Unreachable(reason):
                retry_at = self._view.now + RETRY_INTERVAL
                return (
                    needs
                    + _report_error(self._plan, f"error trying to reach service: {reason}")
                    + Decision(wake_at=retry_at)
                )
            case Observed(objects):
                if not objects:
                    return False
                if bool((objects[0].get("spec") or {}).get("unschedulable")) == wanted:
                    return True
                message = "its plan changes" if wanted else "its plan has changed"
                patch = {"spec": {"unschedulable": wanted or None}}
                return needs + Decision(writes=(Patch(Ref(NODE, self._node), patch, message, target=self._cluster),))

    def _wait_for_hooks(self, phase: str, annotation: str) -> Decision | None:
        """Announce the phase with an annotation, and wait until every hook has answered. None if all have."""
        hooks = _hooks_of(self._options, phase)
        if not hooks:
            return None
        if self._plan.annotations.get(annotation) != self._requested:
            return self._annotate({annotation: self._requested})
        missing = [hook for hook in hooks if self._plan.annotations.get(hook) != self._requested]
        return (
            waiting(f"waiting for {phase}: {', '.join(missing)}", ref(PLAN_SECRET, self._plan.secret))
            if missing
            else None
        )

    def _evict_pods(self) -> Decision:
        started = parse_time(self._plan.annotations.get(names.DRAIN_STARTED, ""))
        if started is None:
            return self._annotate({names.DRAIN_STARTED: timestamp(self._view.now)})
        state = drain_pods(
            self._view, self._cluster, self._node, self._options, started, self._plan.secret["metadata"]["uid"]
        )
        if state.done:
            return state.decision + self._annotate(
                {names.DRAIN_DONE: self._requested},
                normal(
                    MACHINE, self._machine, "SuccessfulDrainNode", f'success draining Machine\'s node "{self._node}"'
                ),
            )
        has_actions = state.decision.writes or state.decision.effects
        problem = str(self._view.refused) if self._view.refused and has_actions else state.problem
        decision = (
            _report_error(self._plan, problem, self._failed(problem))
            if problem
            else Decision(writes=_annotation_patch(self._plan, _NO_ERROR))
        )
        return (
            decision + state.decision + Decision(wait=Wait(state.waiting))
        )  # the status comes first: writes after a refused one are not executed

    def _failed(self, problem: str) -> Event:
        message = f'error draining Machine\'s node "{self._node}": {problem}'
        return warning(MACHINE, self._machine, "FailedDrainNode", message)

    def _annotate(self, annotations: Mapping[str, str | None], *events: Event) -> Decision:
        return Decision(writes=_annotation_patch(self._plan, {names.DRAIN_ERROR: None, **annotations}, *events))


_NO_ERROR: Mapping[str, str | None] = {names.DRAIN_ERROR: None}


def _hooks_of(options: Mapping[str, Any], phase: str) -> list[str]:
    return [str(hook["annotation"]) for hook in options.get(phase) or () if hook.get("annotation")]


def _report_error(plan: PlanSecret, why: str, *events: Event) -> Decision:
    return Decision(writes=_annotation_patch(plan, {names.DRAIN_ERROR: why}, *events), wait=Wait(why))


def _annotation_patch(plan: PlanSecret, annotations: Mapping[str, str | None], *events: Event) -> tuple[Patch, ...]:
    changes = {name: value for name, value in annotations.items() if plan.annotations.get(name) != value}
    if not changes:
        return ()
    version = plan.secret["metadata"]["resourceVersion"]
    return (
        Patch(
            ref(PLAN_SECRET, plan.secret),
            {"metadata": {"annotations": changes}},
            "progress of the drain",
            "",
            version,
            events=events,
        ),
    )


CONTROLLER = Controller(
    name="machine-drain",
    kind=PLAN_SECRET,
    reconcile=reconcile,
    predicate=changed("metadata.annotations"),
    watches=(Watches(MACHINE), Watches(CLUSTER)),
    indexes={PLAN_SECRET: {**plan_changes.INDEXES}},
    groupings=(plan_changes.TRAITS,),
    cluster_of=lambda secret: cluster_key(
        secret["metadata"]["namespace"], (secret["metadata"].get("labels") or {}).get(names.CLUSTER_NAME, "")
    ),
)
