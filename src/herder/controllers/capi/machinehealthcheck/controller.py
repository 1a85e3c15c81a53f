"""The MachineHealthCheck controller: its targets, how they are, and what is done about those that are not well."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from herder.api.capi.conditions import (
    condition,
    find,
    is_true,
    legacy,
    merged,
    merged_legacy,
    paused_condition,
    timestamp,
)
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, MACHINE_HEALTH_CHECK
from herder.api.capi.names import (
    CLUSTER_NAME,
    PAUSED,
    REMEDIATE_MACHINE,
    REMEDIATION_PACE,
    SKIP_REMEDIATION,
    annotations_of,
    cluster_key,
    is_deleting,
    is_paused,
    labels_of,
)
from herder.api.capi.nodes import all_nodes
from herder.api.writing import (
    PROGRESS_PATIENCE,
    delete,
    object_patch,
    owner_reference,
    ref,
    status_patch,
    with_owner,
)
from herder.controllers.capi.machinehealthcheck.budget import Budget, budget
from herder.controllers.capi.machinehealthcheck.health import Health, State, Target, examine
from herder.controllers.capi.machinehealthcheck.pacing import Turn, pace_of, take_turns
from herder.controllers.capi.machinehealthcheck.remediation import (
    ConditionReport,
    External,
    handed_to_owner,
    is_handed_to_owner,
    patch_machine,
    waiting_for_provider,
    without_template,
)
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Observe, Parallel, Patch, Ref, Write, Writes, waiting
from herder.engine.runtime.handlers import Follows, Indexed, Watches, changed
from herder.engine.runtime.view import Observed, Unreachable, View

OF_CLUSTER = "health-check.cluster"
BY_LABEL = "health-check.label"
PACE_SECONDS = 5.0  # a pass looks at all targets, and limits are minutes


def reconcile(view: View) -> Decision:
    check = view.get(MACHINE_HEALTH_CHECK, view.name)
    if check is None or is_deleting(check):
        return DONE
    cluster = view.get(CLUSTER, check["spec"]["clusterName"])
    if cluster is None:
        name = check["spec"]["clusterName"]
        return waiting(f"Cluster {name} does not exist", Ref(CLUSTER, name, view.namespace))
    if is_deleting(cluster):
        return waiting("its Cluster is being deleted, and all Machines with it", ref(CLUSTER, cluster))
    if is_paused(cluster, check):
        return Decision(writes=_status(view, check, cluster, {}, ConditionReport()))
    nodes = _nodes(view, cluster)
    claimed = Decision(writes=_claimed(check, cluster))
    if isinstance(nodes, Decision):
        return claimed + nodes
    if claimed.writes:
        return claimed + Decision(observe=nodes.observe)  # what is told is written over what was read
    return _tend(view, check, cluster, nodes)


def _claimed(check: Object, cluster: Object) -> tuple[Patch, ...]:
    owned = with_owner(check, owner_reference(CLUSTER, cluster, controller=False))
    meta = {**owned["metadata"], "labels": {**labels_of(check), CLUSTER_NAME: cluster["metadata"]["name"]}}
    return object_patch(MACHINE_HEALTH_CHECK, check, {**owned, "metadata": meta}, "it belongs to its Cluster")


# --- what is looked at ------------------------------------------------------------------------------------------


class Nodes(NamedTuple):
    """By name; None where the cluster has no Nodes to look at yet."""

    by_name: dict[str, Object] | None
    observe: tuple[Observe, ...] = ()


def _nodes(view: View, cluster: Object) -> Nodes | Decision:
    """Without a look at the Nodes nothing is decided: that the cluster does not answer is not the Machines' fault."""
    if not is_true(cluster, "ControlPlaneInitialized"):
        return Nodes(None)
    wish = all_nodes(cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"]))
    match view.observed(wish):
        case Observed(objects):
            return Nodes({node["metadata"]["name"]: node for node in objects}, (wish,))
        case Unreachable(reason):
            message = f"the workload cluster cannot be reached: {reason}"
            return Decision(observe=(wish,)) + waiting(message, ref(CLUSTER, cluster))
        case None:
            return Decision(observe=(wish,)) + waiting("the Nodes are being looked at", ref(CLUSTER, cluster))


def _targets(view: View, check: Object, nodes: Nodes) -> list[Target]:
    of_cluster = cluster_key(view.namespace, check["spec"]["clusterName"])
    selector = label_selector_from_object(check["spec"].get("selector") or {})
    machines = view.select(MACHINE, labels=selector, index=(OF_CLUSTER, of_cluster))
    return [_target(machine, nodes) for machine in machines if not _is_left_alone(machine)]


def _is_left_alone(machine: Object) -> bool:
    return bool({PAUSED, SKIP_REMEDIATION} & annotations_of(machine).keys())


def _target(machine: Object, nodes: Nodes) -> Target:
    name = ((machine.get("status") or {}).get("nodeRef") or {}).get("name")
    if not name or nodes.by_name is None:
        return Target(machine)
    node = nodes.by_name.get(name)
    return Target(machine, node, node_gone=node is None)


# --- what is done -----------------------------------------------------------------------------------------------


class Examined(NamedTuple):
    machine: Object
    health: Health


def _tend(view: View, check: Object, cluster: Object, nodes: Nodes) -> Decision:
    targets = _targets(view, check, nodes)
    examined = [Examined(target.machine, examine(target, check, cluster, view.now)) for target in targets]
    healthy = [each for each in examined if each.health.state is State.HEALTHY]
    unhealthy = [each for each in examined if each.health.state is State.UNHEALTHY]
    verdict = budget(check, [each.health.state for each in examined])
    external = _external(view, check)
    turn = Turn((), pace_of(check))
    if verdict.allowed and not (external and external.problem):
        turn = _take_turns(view, check, external, unhealthy, healthy, len(examined))
    counts = {
        "expectedMachines": len(examined),
        "currentHealthy": len(healthy),
        "remediationsAllowed": verdict.left,
        "targets": sorted(each.machine["metadata"]["name"] for each in examined),
        "observedGeneration": check["metadata"].get("generation", 0),
    }
    problem = external.problem if external and verdict.allowed and unhealthy else ""
    wakes = (turn.others_at, *(each.health.look_again for each in examined))
    return Decision(
        writes=(
            *_status(view, check, cluster, counts, _allowed(verdict, turn, problem)),
            *_keep_pace(check, turn),
            *_together(_remediate(view, external, unhealthy, turn, allowed=verdict.allowed)),
            *_together(_recover(view, external, healthy)),
        ),
        observe=nodes.observe,
        wake_at=min((at for at in wakes if at), default=None),
    )


def _external(view: View, check: Object) -> External | None:
    reference = (check["spec"].get("remediation") or {}).get("templateRef")
    return External(view, check, reference) if reference else None


def _take_turns(
    view: View,
    check: Object,
    external: External | None,
    unhealthy: Iterable[Examined],
    healthy: Iterable[Examined],
    total: int,
) -> Turn:
    idle = [each.machine for each in unhealthy if not is_deleting(each.machine) and not _has_begun(each, external)]
    marked = [machine for machine in idle if REMEDIATE_MACHINE in annotations_of(machine)]
    unmarked = [machine for machine in idle if REMEDIATE_MACHINE not in annotations_of(machine)]
    turn = take_turns(pace_of(check), unmarked, [each.machine for each in healthy], total, view.now)
    return turn._replace(begin=[*marked, *turn.begin])


def _has_begun(each: Examined, external: External | None) -> bool:
    return external.has_request(each.machine) if external else is_handed_to_owner(each.machine)


def _keep_pace(check: Object, turn: Turn) -> tuple[Patch, ...]:
    if turn.pace == pace_of(check):
        return ()
    kept = {"metadata": {"annotations": {REMEDIATION_PACE: turn.pace.written()}}}
    return (Patch(ref(MACHINE_HEALTH_CHECK, check), kept, "remediations are counted before they begin"),)


def _remediate(
    view: View, external: External | None, unhealthy: Iterable[Examined], turn: Turn, *, allowed: bool
) -> Iterable[Write]:
    """All that are unhealthy are told so; those whose turn it is are handed over."""
    begin = {machine["metadata"]["name"] for machine in turn.begin}
    for machine, health in unhealthy:
        report = ConditionReport.of(health)
        if external is None:
            if machine["metadata"]["name"] in begin or (allowed and is_handed_to_owner(machine)):
                report += handed_to_owner(machine)
        elif external.problem and allowed:
            report += without_template(external.problem)
        elif machine["metadata"]["name"] in begin:
            report += waiting_for_provider(machine)
            yield external.create(machine)
        yield from patch_machine(view, machine, report, "it is unhealthy")


def _recover(view: View, external: External | None, healthy: Iterable[Examined]) -> Iterable[Write]:
    for machine, health in healthy:
        request = external.own_request(machine) if external else None
        if external and request is not None and not is_deleting(request):
            yield delete(external.kind, request, "its Machine is healthy")
        yield from patch_machine(view, machine, ConditionReport.of(health), "it is healthy", patience=PROGRESS_PATIENCE)


def _together(writes: Iterable[Write]) -> Writes:
    made = tuple(writes)
    return (Parallel(made),) if made else ()


# --- what is told -----------------------------------------------------------------------------------------------

ALLOWED = "RemediationAllowed"
TEMPLATE_AVAILABLE = "ExternalRemediationTemplateAvailable"


def _allowed(verdict: Budget, turn: Turn, problem: str) -> ConditionReport:
    if not verdict.allowed:
        reason = "TooManyUnhealthy"
        report = ConditionReport(
            (condition(ALLOWED, "False", reason, verdict.message),),
            (legacy(ALLOWED, "False", reason, "Warning", verdict.message),),
        )
    else:
        report = ConditionReport((condition(ALLOWED, "True", ALLOWED, _others(turn)),), (legacy(ALLOWED, "True"),))
    if problem:
        report += ConditionReport(
            (), (legacy(TEMPLATE_AVAILABLE, "False", "ExternalRemediationTemplateNotFound", "Error", problem),)
        )
    return report


def _others(turn: Turn) -> str:
    if not turn.others or turn.others_at is None:
        return ""
    return (
        f"{turn.others} more wait for their turn at {timestamp(turn.others_at)}, so that not all are replaced at once"
    )


def _status(view: View, check: Object, cluster: Object, counts: Object, report: ConditionReport) -> tuple[Patch, ...]:
    before = check.get("status") or {}
    paused = paused_condition(cluster, check)
    generation = check["metadata"].get("generation", 0)
    status: Object = {
        **before,
        **counts,
        "conditions": merged(before.get("conditions"), [paused, *report.conditions], view.now, generation=generation),
    }
    if report.legacy:
        deprecated = before.get("deprecated") or {}
        older = (deprecated.get("v1beta1") or {}).get("conditions")
        listed = merged_legacy(older, report.legacy, view.now, drop=[TEMPLATE_AVAILABLE])
        status["deprecated"] = {**deprecated, "v1beta1": {**(deprecated.get("v1beta1") or {}), "conditions": listed}}
    news = any(_status_of(check, new["type"]) != new["status"] for new in (paused, *report.conditions))
    patience = 0.0 if news else PROGRESS_PATIENCE
    return status_patch(MACHINE_HEALTH_CHECK, check, status, "tell how its Machines are", patience=patience)


def _status_of(check: Object, type_: str) -> str:
    return str((find(check, type_) or {}).get("status", ""))


# --- what wakes it ----------------------------------------------------------------------------------------------


def _cluster_of(obj: Object) -> Iterable[str]:
    """Of a check or of a Machine."""
    yield cluster_key(obj["metadata"]["namespace"], obj["spec"]["clusterName"])


def _one_label(check: Object) -> Iterable[str]:
    """One of the labels that a check's Machines must have, so that only news of such Machines wake it."""
    wanted = sorted(((check["spec"].get("selector") or {}).get("matchLabels") or {}).items())
    named = "=".join(wanted[0]) if wanted else ""
    return [f"{cluster}|{named}" for cluster in _cluster_of(check)]


def _labels_of_machine(machine: Object) -> Iterable[str]:
    named = ("", *map("=".join, labels_of(machine).items()))
    return [f"{cluster}|{each}" for cluster in _cluster_of(machine) for each in named]


def _cluster_by_label(request: Object) -> Iterable[str]:
    if CLUSTER_NAME in labels_of(request):
        yield cluster_key(request["metadata"]["namespace"], labels_of(request)[CLUSTER_NAME])


def _itself(cluster: Object) -> Iterable[str]:
    yield cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"])


def _cluster_matters(change: Change) -> bool:
    return _of_cluster(change.old) != _of_cluster(change.new)


def _of_cluster(cluster: Object | None) -> object:
    if cluster is None:
        return None
    paused = (cluster.get("spec") or {}).get("paused")
    return paused, find(cluster, "ControlPlaneInitialized"), find(cluster, "InfrastructureReady")


CONTROLLER = Controller(
    name="machinehealthcheck",
    kind=MACHINE_HEALTH_CHECK,
    reconcile=reconcile,
    watches=(
        Watches(
            MACHINE,
            Indexed(BY_LABEL, _labels_of_machine),
            changed(
                "metadata.labels",
                "metadata.annotations",
                "metadata.deletionTimestamp",
                "status.nodeRef",
                "status.conditions",
            ),
        ),
        Watches(CLUSTER, Indexed(OF_CLUSTER, _itself), _cluster_matters),
        Watches(DEFINITION),
    ),
    predicate=changed("spec", "metadata.labels", "metadata.annotations", "metadata.ownerReferences"),
    # Requests and templates of remediation providers; the former carry the label of their Cluster.
    follows=Follows(Indexed(OF_CLUSTER, _cluster_by_label), changed("metadata.deletionTimestamp")),
    indexes={
        MACHINE: {OF_CLUSTER: _cluster_of},
        MACHINE_HEALTH_CHECK: {OF_CLUSTER: _cluster_of, BY_LABEL: _one_label},
    },
    cluster_of=lambda check: next(iter(_cluster_of(check))),
    pace=PACE_SECONDS,
)
