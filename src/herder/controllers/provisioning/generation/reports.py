"""What is told of a provisioned cluster: on its provisioning Cluster, and on the management Cluster beside it."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.conditions import Condition, condition, find, is_true
from herder.api.machines.conditions import merged_with_updates
from herder.api.management import clusters
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import cluster_spec
from herder.api.writing import ref, status_patch
from herder.controllers.provisioning.generation.asked import pools_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Decision, Patch, waiting
from herder.engine.runtime.view import View

MADE, UPDATED, STABLE = "RKECluster", "Updated", "Stable"
COPIES = (UPDATED, clusters.PROVISIONED, clusters.READY)
"""Conditions of the provisioning Cluster that say what its control plane's Ready says."""

AUTOSCALER = "ClusterAutoscalerDeploymentReady"
NO_AUTOSCALER = "no cluster-autoscaler is deployed from here: run one that scales the pools' MachineDeployments"


def report_status(view: View, cluster: Object, plane: Object | None, problem: str = "") -> Decision:
    """What is told is told of the spec of `observedGeneration`: a new one counts as seen once the control plane has it
    and says how far it is with it, or once it is refused."""
    seen = bool(problem) or _is_begun(cluster, plane)
    conditions = [*_conditions(cluster, plane, problem, seen)]
    generation = {"observedGeneration": cluster["metadata"].get("generation", 0)} if seen else {}
    writes = (*told(view, cluster, conditions, **generation), *_report_management(view, cluster, plane))
    return Decision(writes=writes) + (waiting(problem, ref(PROVISIONING_CLUSTER, cluster)) if problem else DONE)


def _is_begun(cluster: Object, plane: Object | None) -> bool:
    if plane is None or (plane.get("status") or {}).get("observedGeneration") != plane["metadata"].get("generation"):
        return False
    known = (cluster.get("status") or {}).get("observedGeneration")
    return known == cluster["metadata"].get("generation") or cluster_spec.is_handed_over(cluster, plane)


def _conditions(cluster: Object, plane: Object | None, problem: str, seen: bool) -> Iterator[Condition]:
    yield condition(MADE, "False", "Error", problem) if problem else condition(MADE, "True", "")
    for to in COPIES:
        if (copy := copied(plane, clusters.READY, to)) is not None:
            yield copy
    if problem:
        yield condition(UPDATED, "False", "Error", problem)  # what is there goes on, but not as it is asked for
    ready = find(plane, clusters.READY) or {}
    if seen and ready.get("reason") == "Error" and ready.get("status") == "False":
        problem = problem or ready.get("message", "")  # of a spec that nothing can be planned from
    under_way = "" if seen and ready.get("status") == "True" else ready.get("message") or clusters.WAITING
    yield from clusters.progress(under_way, problem)
    if any(pool.is_autoscaled for pool in pools_of(cluster)):
        yield condition(AUTOSCALER, "False", "NotDeployed", NO_AUTOSCALER)


def told(view: View, cluster: Object, conditions: list[Condition], **facts: object) -> tuple[Patch, ...]:
    before = cluster.get("status") or {}
    wanted = {each["type"] for each in conditions}
    kept = [each for each in before.get("conditions") or () if each["type"] != AUTOSCALER or AUTOSCALER in wanted]
    status = {**before, **facts, "conditions": merged_with_updates(kept, conditions, view.now)}
    return status_patch(PROVISIONING_CLUSTER, cluster, status, "what became of the cluster")


def copied(source: Object | None, type_: str, to: str) -> Condition | None:
    known = find(source, type_)
    return condition(to, known["status"], known.get("reason", ""), known.get("message", "")) if known else None


# --- the management Cluster -----------------------------------------------------------------------------------------


def management_of(view: View, cluster: Object) -> Object | None:
    name = (cluster.get("status") or {}).get("clusterName")
    management = view.get(MANAGEMENT_CLUSTER, name) if name else None
    meta = cluster["metadata"]
    is_its = management is not None and clusters.belongs(management, meta["namespace"], meta["name"])
    return management if is_its else None


def _report_management(view: View, cluster: Object, plane: Object | None) -> tuple[Patch, ...]:
    """While the cluster is worked on, its control plane says whether it is ready; later, its agent does."""
    management = management_of(view, cluster)
    if plane is None or management is None:
        return ()
    return report_management(view, management, [*_of_plane(plane)], reconciling=not is_true(plane, STABLE))


def _of_plane(plane: Object) -> Iterator[Condition]:
    copies = [(clusters.READY, UPDATED), (clusters.PROVISIONED, clusters.PROVISIONED)]
    if not is_true(plane, STABLE):
        copies.append((clusters.READY, clusters.READY))
    for type_, to in copies:
        if (each := copied(plane, type_, to)) is not None:
            yield each


def report_management(
    view: View, management: Object, conditions: list[Condition], *, reconciling: bool
) -> tuple[Patch, ...]:
    before = management.get("status") or {}
    known = merged_with_updates(before.get("conditions"), conditions, view.now)
    status = {**before, "readyReconciling": reconciling, "conditions": known}
    return status_patch(MANAGEMENT_CLUSTER, management, status, "what its control plane says")
