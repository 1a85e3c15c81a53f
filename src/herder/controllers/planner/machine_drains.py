"""The other half of a drain: what the planner asks for on a plan Secret, done in the cluster and answered there.

Hooks are annotations of others: each is waited for until it has the value that the drain has.
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
from herder.api.guards import plan_acts
from herder.api.moments import moment
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.plan_secret import PlanSecret
from herder.api.writing import ref
from herder.controllers.planner.emptying import empty
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Patch, Ref, Wait, waiting
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import Observed, Unreachable, View

STARTED = "plan.herder.io/drain-started"
_MARKS = (
    *(names.PRE_DRAIN, names.POST_DRAIN, names.DRAIN_OPTIONS, names.DRAIN_DONE, names.UNCORDON, names.DRAIN_ERROR),
    STARTED,
)
LOOK_AGAIN = timedelta(seconds=20)


def reconcile(view: View) -> Decision:
    secret = view.get(PLAN_SECRET, view.name)
    if secret is None or is_deleting(secret):
        return DONE
    plan = PlanSecret(secret)
    asked = plan.annotations.get(names.DRAIN_OPTIONS, "")
    drains = bool(asked) and plan.annotations.get(names.DRAIN_DONE) != asked
    if not drains and not plan.annotations.get(names.UNCORDON):
        return Decision(writes=_marked(plan, {names.DRAIN_ERROR: None}))
    options = _options(asked)
    if options is None:
        return _cannot(plan, f"annotation {names.DRAIN_OPTIONS}: not a JSON object")
    machine = view.get(MACHINE, plan.labels.get(names.MACHINE_NAME, ""))
    if machine is None or is_deleting(machine):
        return waiting("its Machine goes, and is drained by that")
    node = ((machine.get("status") or {}).get("nodeRef") or {}).get("name") or ""
    drain = _Drain(view, plan, asked, options, node, _target(machine))
    return drain.begin() if drains else drain.end()


def _options(text: str) -> Mapping[str, Any] | None:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (ValueError, RecursionError):
        return None


def _target(machine: Object) -> str:
    return cluster_key(machine["metadata"]["namespace"], machine["spec"]["clusterName"])


class _Drain:
    """One machine's drain, from what was asked of it."""

    def __init__(
        self, view: View, plan: PlanSecret, asked: str, options: Mapping[str, Any], node: str, cluster: str
    ) -> None:
        self._view = view
        self._plan = plan
        self._asked = asked
        self._options = options
        self._node = node
        self._cluster = cluster

    def begin(self) -> Decision:
        """No new Pods, then the hooks before it, then the Pods that are there."""
        if not self._node:
            return self._answer({names.DRAIN_DONE: self._asked})
        cordoned = self._cordoned(True)
        if isinstance(cordoned, Decision):
            return cordoned
        if not cordoned:
            return self._answer({names.DRAIN_DONE: self._asked})
        if waits := self._hooks("preDrainHooks", names.PRE_DRAIN):
            return waits
        return self._empty() if self._options.get("enabled") else self._answer({names.DRAIN_DONE: self._asked})

    def end(self) -> Decision:
        """The hooks after it, then Pods are let in again, and nothing is left of the drain."""
        if waits := self._hooks("postDrainHooks", names.POST_DRAIN):
            return waits
        cordoned = self._cordoned(False) if self._node else False
        if isinstance(cordoned, Decision):
            return cordoned
        hooks = [hook for phase in ("preDrainHooks", "postDrainHooks") for hook in _hooks_of(self._options, phase)]
        return self._answer(dict.fromkeys((*_MARKS, *hooks)))

    def _cordoned(self, wanted: bool) -> Decision | bool:
        """Whether the Node is there, as it should be; else what is done about it first."""
        wish = node_by_name(self._cluster, self._node)
        needs = Decision(observe=(wish,))
        match self._view.observed(wish):
            case None:
                return needs + waiting(f"looking at Node {self._node}")
            case Unreachable(reason):
                later = self._view.now + LOOK_AGAIN
                return needs + _cannot(self._plan, f"error trying to reach service: {reason}") + Decision(wake_at=later)
            case Observed(objects):
                if not objects:
                    return False
                if bool((objects[0].get("spec") or {}).get("unschedulable")) == wanted:
                    return True
                message = "its plan changes" if wanted else "its plan has changed"
                patch = {"spec": {"unschedulable": wanted or None}}
                return needs + Decision(writes=(Patch(Ref(NODE, self._node), patch, message, target=self._cluster),))

    def _hooks(self, phase: str, mark: str) -> Decision | None:
        """What others do first: they are told by the mark, and answer with their own."""
        hooks = _hooks_of(self._options, phase)
        if not hooks:
            return None
        if self._plan.annotations.get(mark) != self._asked:
            return self._answer({mark: self._asked})
        missing = [hook for hook in hooks if self._plan.annotations.get(hook) != self._asked]
        return (
            waiting(f"waiting for {phase}: {', '.join(missing)}", ref(PLAN_SECRET, self._plan.secret))
            if missing
            else None
        )

    def _empty(self) -> Decision:
        started = moment(self._plan.annotations.get(STARTED, ""))
        if started is None:
            return self._answer({STARTED: timestamp(self._view.now)})
        state = empty(
            self._view, self._cluster, self._node, self._options, started, self._plan.secret["metadata"]["uid"]
        )
        if state.done:
            return state.decision + self._answer({names.DRAIN_DONE: self._asked})
        acts = state.decision.writes or state.decision.effects
        problem = str(self._view.refused) if self._view.refused and acts else state.problem
        decision = _cannot(self._plan, problem) if problem else Decision(writes=_marked(self._plan, _NO_ERROR))
        return (
            decision + state.decision + Decision(wait=Wait(state.waiting))
        )  # nothing comes after what a guard refuses

    def _answer(self, marks: Mapping[str, str | None]) -> Decision:
        return Decision(writes=_marked(self._plan, {names.DRAIN_ERROR: None, **marks}))


_NO_ERROR: Mapping[str, str | None] = {names.DRAIN_ERROR: None}


def _hooks_of(options: Mapping[str, Any], phase: str) -> list[str]:
    return [str(hook["annotation"]) for hook in options.get(phase) or () if hook.get("annotation")]


def _cannot(plan: PlanSecret, why: str) -> Decision:
    return Decision(writes=_marked(plan, {names.DRAIN_ERROR: why}), wait=Wait(why))


def _marked(plan: PlanSecret, marks: Mapping[str, str | None]) -> tuple[Patch, ...]:
    news = {name: value for name, value in marks.items() if plan.annotations.get(name) != value}
    if not news:
        return ()
    version = plan.secret["metadata"]["resourceVersion"]
    return (
        Patch(ref(PLAN_SECRET, plan.secret), {"metadata": {"annotations": news}}, "how far its drain is", "", version),
    )


CONTROLLER = Controller(
    name="machine-drain",
    kind=PLAN_SECRET,
    reconcile=reconcile,
    predicate=changed("metadata.annotations"),
    watches=(Watches(MACHINE), Watches(CLUSTER)),
    indexes={PLAN_SECRET: {**plan_acts.INDEXES}},
    groupings=(plan_acts.TRAITS,),
    cluster_of=lambda secret: cluster_key(
        secret["metadata"]["namespace"], (secret["metadata"].get("labels") or {}).get(names.CLUSTER_NAME, "")
    ),
)
