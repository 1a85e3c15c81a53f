"""MachineHealthCheck reconciler: select targets, evaluate their health, and start remediations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from herder.api.capi.conditions import (
    condition,
    find,
    is_false,
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
from herder.api.events import normal, recorded, warning
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.writes import PROGRESS_DEBOUNCE, delete, object_patch, owner_reference, ref, status_patch, with_owner
from herder.controllers.capi.machinehealthcheck.budget import Budget, budget
from herder.controllers.capi.machinehealthcheck.health import SUCCEEDED, Health, State, Target, evaluate
from herder.controllers.capi.machinehealthcheck.rate_limit import RemediationBatch, next_batch, rate_of
from herder.controllers.capi.machinehealthcheck.remediation import (
    ConditionReport,
    External,
    is_owner_remediating,
    owner_remediation_requested,
    patch_machine,
    waiting_for_provider,
    without_template,
)
from herder.controllers.capi.machinehealthcheck.restores import restore_hold
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import (
    DONE,
    Decision,
    Event,
    Observe,
    Parallel,
    Patch,
    Ref,
    Write,
    Writes,
    waiting,
)
from herder.engine.runtime.handlers import DynamicWatches, Indexed, Watches, changed
from herder.engine.runtime.view import Observed, Unreachable, View

OF_CLUSTER = "health-check.cluster"
BY_LABEL = "health-check.label"
PACE_SECONDS = 5.0  # A pass evaluates all targets, and timeouts are minutes.


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
    if (hold := restore_hold(view, check, cluster)) is not None:
        report = _not_allowed(hold.reason, hold.message)
        return Decision(writes=_status(view, check, cluster, {"remediationsAllowed": 0}, report), wake_at=hold.until)
    nodes = _nodes(view, cluster)
    adopted = Decision(writes=_adopt(check, cluster))
    if isinstance(nodes, Decision):
        return adopted + nodes
    if adopted.writes:
        return adopted + Decision(observe=nodes.observe)  # The status must be written over the revision that was read.
    return _reconcile_targets(view, check, cluster, nodes)


def _adopt(check: Object, cluster: Object) -> tuple[Patch, ...]:
    owned = with_owner(check, owner_reference(CLUSTER, cluster, controller=False))
    meta = {**owned["metadata"], "labels": {**labels_of(check), CLUSTER_NAME: cluster["metadata"]["name"]}}
    return object_patch(MACHINE_HEALTH_CHECK, check, {**owned, "metadata": meta}, "it belongs to its Cluster")


# --- targets --------------------------------------------------------------------------------------------------------


class Nodes(NamedTuple):
    """Nodes by name; None if the cluster has no Nodes to check yet."""

    by_name: dict[str, Object] | None
    observe: tuple[Observe, ...] = ()


def _nodes(view: View, cluster: Object) -> Nodes | Decision:
    """Read the Nodes. Without them nothing is decided: an unreachable cluster says nothing about its Machines."""
    if not is_true(cluster, "ControlPlaneInitialized"):
        return Nodes(None)
    subscription = all_nodes(cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"]))
    match view.observed(subscription):
        case Observed(objects):
            return Nodes({node["metadata"]["name"]: node for node in objects}, (subscription,))
        case Unreachable(reason):
            message = f"the workload cluster cannot be reached: {reason}"
            return Decision(observe=(subscription,)) + waiting(message, ref(CLUSTER, cluster))
        case None:
            return Decision(observe=(subscription,)) + waiting(
                "waiting for the first list of Nodes", ref(CLUSTER, cluster)
            )


def _targets(view: View, check: Object, nodes: Nodes) -> list[Target]:
    of_cluster = cluster_key(view.namespace, check["spec"]["clusterName"])
    selector = label_selector_from_object(check["spec"].get("selector") or {})
    machines = view.select(MACHINE, labels=selector, index=(OF_CLUSTER, of_cluster))
    return [_target(machine, nodes) for machine in machines if not _is_excluded(machine)]


def _is_excluded(machine: Object) -> bool:
    return bool({PAUSED, SKIP_REMEDIATION} & annotations_of(machine).keys())


def _target(machine: Object, nodes: Nodes) -> Target:
    name = ((machine.get("status") or {}).get("nodeRef") or {}).get("name")
    if not name or nodes.by_name is None:
        return Target(machine)
    node = nodes.by_name.get(name)
    return Target(machine, node, node_gone=node is None)


# --- remediation ----------------------------------------------------------------------------------------------------


class CheckedMachine(NamedTuple):
    """A Machine and its health."""

    machine: Object
    health: Health


def _reconcile_targets(view: View, check: Object, cluster: Object, nodes: Nodes) -> Decision:
    targets = _targets(view, check, nodes)
    checked = [CheckedMachine(target.machine, evaluate(target, check, cluster, view.now)) for target in targets]
    healthy = [each for each in checked if each.health.state is State.HEALTHY]
    unhealthy = [each for each in checked if each.health.state is State.UNHEALTHY]
    verdict = budget(check, [each.health.state for each in checked])
    external = _external(view, check)
    batch = RemediationBatch((), rate_of(check))
    if verdict.allowed and not (external and external.problem):
        batch = _next_batch(view, check, external, unhealthy, healthy, len(checked))
    counts = {
        "expectedMachines": len(checked),
        "currentHealthy": len(healthy),
        "remediationsAllowed": verdict.left,
        "targets": sorted(each.machine["metadata"]["name"] for each in checked),
        "observedGeneration": check["metadata"].get("generation", 0),
    }
    problem = external.problem if external and verdict.allowed and unhealthy else ""
    wakes = (batch.deferred_until, *(each.health.recheck_at for each in checked))
    return Decision(
        writes=(
            *_status(view, check, cluster, counts, _allowed(verdict, batch, problem)),
            *_record_rate(check, batch),
            *_parallel(_remediate(view, external, unhealthy, batch, allowed=verdict.allowed)),
            *_parallel(_recover(view, external, healthy)),
        ),
        observe=nodes.observe,
        wake_at=min((at for at in wakes if at), default=None),
    )


def _external(view: View, check: Object) -> External | None:
    reference = (check["spec"].get("remediation") or {}).get("templateRef")
    return External(view, check, reference) if reference else None


def _next_batch(
    view: View,
    check: Object,
    external: External | None,
    unhealthy: Iterable[CheckedMachine],
    healthy: Iterable[CheckedMachine],
    total: int,
) -> RemediationBatch:
    idle = [each.machine for each in unhealthy if not is_deleting(each.machine) and not _is_remediating(each, external)]
    marked = [machine for machine in idle if REMEDIATE_MACHINE in annotations_of(machine)]
    unmarked = [machine for machine in idle if REMEDIATE_MACHINE not in annotations_of(machine)]
    batch = next_batch(rate_of(check), unmarked, [each.machine for each in healthy], total, view.now)
    return batch._replace(start=[*marked, *batch.start])


def _is_remediating(each: CheckedMachine, external: External | None) -> bool:
    return external.has_request(each.machine) if external else is_owner_remediating(each.machine)


def _record_rate(check: Object, batch: RemediationBatch) -> tuple[Patch, ...]:
    if batch.rate == rate_of(check):
        return ()
    kept = {"metadata": {"annotations": {REMEDIATION_PACE: batch.rate.to_json()}}}
    return (Patch(ref(MACHINE_HEALTH_CHECK, check), kept, "record the remediation rate before the remediations start"),)


def _remediate(
    view: View,
    external: External | None,
    unhealthy: Iterable[CheckedMachine],
    batch: RemediationBatch,
    *,
    allowed: bool,
) -> Iterable[Write]:
    """Report all unhealthy Machines, and start the remediation of those in this batch."""
    start = {machine["metadata"]["name"] for machine in batch.start}
    for machine, health in unhealthy:
        report = ConditionReport.of(health)
        if external is None:
            if machine["metadata"]["name"] in start or (allowed and is_owner_remediating(machine)):
                report += owner_remediation_requested(machine)
        elif external.problem and allowed:
            report += without_template(external.problem)
        elif machine["metadata"]["name"] in start:
            report += waiting_for_provider(machine)
            yield external.create(machine)
        patches = patch_machine(view, machine, report, "the Machine is unhealthy")
        yield from recorded(patches, _marked_unhealthy(view, machine, report))


def _marked_unhealthy(view: View, machine: Object, report: ConditionReport) -> Iterable[Event]:
    is_new = not is_false(machine, SUCCEEDED)
    if is_new and any(each["type"] == SUCCEEDED and each["status"] == "False" for each in report.conditions):
        name, check = machine["metadata"]["name"], f"{view.namespace}/{view.name}"
        message = f"Machine {view.namespace}/{name} has been marked as unhealthy by {check}"
        yield normal(MACHINE, machine, "MachineMarkedUnhealthy", message)


def _recover(view: View, external: External | None, healthy: Iterable[CheckedMachine]) -> Iterable[Write]:
    for machine, health in healthy:
        request = external.own_request(machine) if external else None
        if external and request is not None and not is_deleting(request):
            yield delete(external.kind, request, "its Machine is healthy")
        yield from patch_machine(
            view, machine, ConditionReport.of(health), "the Machine is healthy", debounce=PROGRESS_DEBOUNCE
        )


def _parallel(writes: Iterable[Write]) -> Writes:
    made = tuple(writes)
    return (Parallel(made),) if made else ()


# --- status ---------------------------------------------------------------------------------------------------------

ALLOWED = "RemediationAllowed"
TEMPLATE_AVAILABLE = "ExternalRemediationTemplateAvailable"


def _allowed(verdict: Budget, batch: RemediationBatch, problem: str) -> ConditionReport:
    if not verdict.allowed:
        report = _not_allowed("TooManyUnhealthy", verdict.message)
    else:
        report = ConditionReport(
            (condition(ALLOWED, "True", ALLOWED, _deferred_message(batch)),), (legacy(ALLOWED, "True"),)
        )
    if problem:
        report += ConditionReport(
            (), (legacy(TEMPLATE_AVAILABLE, "False", "ExternalRemediationTemplateNotFound", "Error", problem),)
        )
    return report


def _not_allowed(reason: str, message: str) -> ConditionReport:
    return ConditionReport(
        (condition(ALLOWED, "False", reason, message),), (legacy(ALLOWED, "False", reason, "Warning", message),)
    )


def _deferred_message(batch: RemediationBatch) -> str:
    if not batch.deferred or batch.deferred_until is None:
        return ""
    return f"{batch.deferred} remediations are deferred until {timestamp(batch.deferred_until)} by the rate limit"


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
    debounce = 0.0 if news else PROGRESS_DEBOUNCE
    patches = status_patch(
        MACHINE_HEALTH_CHECK, check, status, "update the MachineHealthCheck status", debounce=debounce
    )
    has_unhealthy = counts.get("currentHealthy", 0) < counts.get("expectedMachines", 0)
    return recorded(patches, _restricted(check, report) if has_unhealthy else ())


def _restricted(check: Object, report: ConditionReport) -> Iterable[Event]:
    for each in report.conditions:
        if each["type"] == ALLOWED and each["status"] == "False" and not is_false(check, ALLOWED):
            yield warning(MACHINE_HEALTH_CHECK, check, "RemediationRestricted", each["message"])


def _status_of(check: Object, type_: str) -> str:
    return str((find(check, type_) or {}).get("status", ""))


# --- watches --------------------------------------------------------------------------------------------------------


def _cluster_of(obj: Object) -> Iterable[str]:
    """Indexer: the cluster of a check or Machine."""
    yield cluster_key(obj["metadata"]["namespace"], obj["spec"]["clusterName"])


def _first_label(check: Object) -> Iterable[str]:
    """Indexer: one of the labels that the check selects by, so that only Machines with that label trigger it."""
    wanted = sorted(((check["spec"].get("selector") or {}).get("matchLabels") or {}).items())
    named = "=".join(wanted[0]) if wanted else ""
    return [f"{cluster}|{named}" for cluster in _cluster_of(check)]


def _labels_of_machine(machine: Object) -> Iterable[str]:
    named = ("", *map("=".join, labels_of(machine).items()))
    return [f"{cluster}|{each}" for cluster in _cluster_of(machine) for each in named]


def _cluster_by_label(request: Object) -> Iterable[str]:
    if CLUSTER_NAME in labels_of(request):
        yield cluster_key(request["metadata"]["namespace"], labels_of(request)[CLUSTER_NAME])


def _cluster_of_control_plane(control_plane: Object) -> Iterable[str]:
    name = (control_plane.get("spec") or {}).get("clusterName") or control_plane["metadata"]["name"]
    yield cluster_key(control_plane["metadata"]["namespace"], name)


def _cluster_index_key(cluster: Object) -> Iterable[str]:
    yield cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"])


def _cluster_predicate(change: Change) -> bool:
    return _cluster_facts(change.old) != _cluster_facts(change.new)


def _cluster_facts(cluster: Object | None) -> object:
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
        Watches(CLUSTER, Indexed(OF_CLUSTER, _cluster_index_key), _cluster_predicate),
        Watches(
            CONTROL_PLANE,
            Indexed(OF_CLUSTER, _cluster_of_control_plane),
            changed("status.operation.phase", "status.operationHistory"),
            optional=True,
        ),
        Watches(DEFINITION),
    ),
    predicate=changed("spec", "metadata.labels", "metadata.annotations", "metadata.ownerReferences"),
    # Remediation requests and templates of providers; requests carry the label of their Cluster.
    dynamic_watches=DynamicWatches(Indexed(OF_CLUSTER, _cluster_by_label), changed("metadata.deletionTimestamp")),
    indexes={
        MACHINE: {OF_CLUSTER: _cluster_of},
        MACHINE_HEALTH_CHECK: {OF_CLUSTER: _cluster_of, BY_LABEL: _first_label},
    },
    cluster_of=lambda check: next(iter(_cluster_of(check))),
    pace=PACE_SECONDS,
)
