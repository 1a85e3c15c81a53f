"""The status of a provisioning Cluster.

One function writes all of it. The conditions of an imported cluster follow from its management Cluster; those of a
provisioned one from its RKEControlPlane, its Machines, and the problem that keeps its objects from being generated.
`status.ready` and `status.display` follow from the conditions.
"""

from __future__ import annotations

from collections.abc import Iterator

from herder.api import observe_only
from herder.api.capi.conditions import Condition, condition, find, is_false, is_true
from herder.api.capi.kinds import MACHINE, MACHINE_DEPLOYMENT
from herder.api.events import recorded
from herder.api.machines.conditions import merged_with_updates
from herder.api.management import clusters, display, secret_sync
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import cluster_spec
from herder.api.rke.distributions import release_of
from herder.api.rke.fields.table import refused_values
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.machines.health import BY_LOST, BY_READY, BY_REGISTERED, lost_node
from herder.api.rke.node.certificates import CERTIFICATES_VALID
from herder.api.writes import PROGRESS_DEBOUNCE, ref, status_patch
from herder.controllers.provisioning.cluster.desired import Pool, pools_of
from herder.controllers.provisioning.cluster.events import condition_events
from herder.controllers.provisioning.management_cluster.status import UPDATED, copied
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Decision, Patch, waiting
from herder.engine.runtime.view import View

GENERATED = "RKECluster"
COPIES = (UPDATED, clusters.PROVISIONED, clusters.READY)
"""Conditions of the provisioning Cluster that say what its control plane's Ready says. Ready is also False while the
agent is disconnected or the spec cannot be applied.
"""

AUTOSCALER = "ClusterAutoscalerDeploymentReady"
NO_AUTOSCALER = "cluster-autoscaler is not deployed by Herder; run one that scales the pools' MachineDeployments"


FIELDS_IGNORED = "FieldsIgnored"
"""Reports stored values that the distribution does not support; admission rejects new ones."""
_MAX_FIELDS, _MAX_FIELD_LENGTH = 10, 200
_OPTIONAL = (AUTOSCALER, FIELDS_IGNORED, observe_only.CONDITION)  # conditions that are removed when they do not apply


def report_status(
    view: View,
    cluster: Object,
    management: Object | None,
    *,
    name: str = "",
    kubeconfig: str = "",
    naming_problem: str = "",
    problem: str = "",
) -> Decision:
    """Write the status.

    `name`: of the management Cluster; `kubeconfig`: the Secret with its kubeconfig; `naming_problem`: why it has no
    management Cluster; `problem`: why its objects cannot be generated.
    """
    before = cluster.get("status") or {}
    problem = naming_problem or problem
    conditions = [_created(management, naming_problem), *_mirrored(cluster, management), *_ignored_fields(cluster)]
    conditions += _observe_only(cluster)
    reported, observed = _progress(view, cluster, before, management, problem)
    facts: Object = {
        "agentDeployed": management is not None and clusters.is_provisioned(management),
        "fleetWorkspaceName": view.namespace,
        **({"clusterName": name} if name else {}),
        **({"clientSecretName": kubeconfig} if kubeconfig else {}),
        **({"observedGeneration": cluster["metadata"].get("generation", 0)} if observed else {}),
    }
    writes = patch_status(view, cluster, [*conditions, *reported], management=management, **facts)
    return Decision(writes=writes) + (waiting(problem, ref(PROVISIONING_CLUSTER, cluster)) if problem else DONE)


def patch_status(
    view: View, cluster: Object, conditions: list[Condition], *, management: Object | None = None, **facts: object
) -> tuple[Patch, ...]:
    before = cluster.get("status") or {}
    wanted = {each["type"] for each in conditions}
    kept = [each for each in before.get("conditions") or () if each["type"] not in _OPTIONAL or each["type"] in wanted]
    status = {**before, **facts, "conditions": merged_with_updates(kept, conditions, view.now)}
    reported = {**cluster, "status": status}
    status["ready"] = is_true(reported, clusters.READY)
    status["display"] = _display(view, reported, management)
    only_counts = {**status, "display": before.get("display")} == before
    debounce = PROGRESS_DEBOUNCE if only_counts else 0.0
    patches = status_patch(PROVISIONING_CLUSTER, cluster, status, "the state of the cluster", debounce=debounce)
    return recorded(patches, condition_events(cluster, conditions))


# --- columns ----------------------------------------------------------------------------------------------------------


def _display(view: View, cluster: Object, management: Object | None) -> Object:
    status, known = cluster["status"], cluster["status"].get("display") or {}
    provisioned = clusters.is_provisioned_here(cluster)
    initial = display.PROVISIONING if provisioned else display.PENDING
    seen = (management or {}).get("status") or {}
    running = (seen.get("info") or {}).get("kubernetesVersion") or known.get("version") or ""
    nodes = (seen.get("display") or {}).get("readyNodes") or known.get("readyMachines") or ""
    machines = _ready_machines(view, cluster) if provisioned else nodes
    plane = view.get(CONTROL_PLANE, view.name)
    return {
        **display.summarize(
            cluster,
            was_ready=cluster_spec.was_applied(plane) if provisioned else bool(status.get("clientSecretName")),
            is_applied=_is_applied(cluster, plane),
            initial=initial,
        ),
        **({"version": version} if (version := _version(cluster, running)) else {}),
        **({"readyMachines": machines} if machines else {}),
    }


def _is_applied(cluster: Object, plane: Object | None) -> bool:
    """Whether its current spec was applied on all machines. The digest is computed only where it matters."""
    observed = cluster["status"].get("observedGeneration") == cluster["metadata"].get("generation")
    is_relevant = observed and is_false(cluster, display.NODES_HEALTHY)
    return is_relevant and plane is not None and cluster_spec.is_applied(plane)


def _version(cluster: Object, running: str) -> str:
    """The version that runs; as the spec has it, unless the spec has another release."""
    wanted = str((cluster.get("spec") or {}).get("kubernetesVersion") or "")
    is_current = not running or release_of(running) == release_of(wanted)
    return wanted if wanted and is_current else running


def _ready_machines(view: View, cluster: Object) -> str:
    """Ready and desired machines. Users decide the number of registered machines: as many as exist."""
    if not view.is_served(MACHINE):
        return ""
    ready, registered = (view.count(MACHINE, (index, str(view.key))) for index in (BY_READY, BY_REGISTERED))
    return f"{ready}/{registered + sum(_desired(view, pool) for pool in pools_of(cluster))}"


def _desired(view: View, pool: Pool) -> int:
    quantity = pool.spec.get("quantity")
    if quantity is not None and not pool.is_autoscaled:
        return int(quantity)
    deployment = view.get(MACHINE_DEPLOYMENT, pool.deployment) or {}
    return int((deployment.get("spec") or {}).get("replicas") or pool.spec.get("autoscalingMinSize") or 1)


def _ignored_fields(cluster: Object) -> Iterator[Condition]:
    found = [f"{each.field[:_MAX_FIELD_LENGTH]}: {each.reason}" for each in refused_values(cluster)]
    if found:
        more = [f"and {len(found) - _MAX_FIELDS} more"] if len(found) > _MAX_FIELDS else []
        yield condition(FIELDS_IGNORED, "True", "NotSupported", "\n".join((*found[:_MAX_FIELDS], *more)))


# --- from the management Cluster --------------------------------------------------------------------------------------


def _created(management: Object | None, problem: str) -> Condition:
    if problem:
        return condition(clusters.CREATED, "False", "Error", problem)
    if management is None:
        return condition(clusters.CREATED, "Unknown", clusters.WAITING, "its management Cluster is being created")
    return condition(clusters.CREATED, "True", clusters.CREATED)


def _mirrored(cluster: Object, management: Object | None) -> Iterator[Condition]:
    """Conditions copied from the management Cluster. Ready of a provisioned cluster follows its control plane."""
    types = (clusters.CONNECTED, clusters.PROVISIONED, clusters.READY, display.NODES_HEALTHY)
    for type_ in types[:1] if clusters.is_provisioned_here(cluster) else types:
        if (copy := copied(management, type_, type_)) is not None:
            yield _with_since(copy, management)


def _with_since(copy: Condition, management: Object | None) -> Condition:
    if management is None or copy["message"] != clusters.NOT_CONNECTED:
        return copy
    return {**copy, "message": display.disconnected_since(management)}


def _progress(
    view: View, cluster: Object, before: Object, management: Object | None, problem: str
) -> tuple[list[Condition], bool]:
    """Conditions about the spec of `observedGeneration`, and whether that is the newest one.

    A new spec of a provisioned cluster counts as seen once the control plane has it and reports on it, or once it is
    refused.
    """
    if not clusters.is_provisioned_here(cluster):
        connected = management is not None and clusters.has_connected(management)
        return [*clusters.progress("" if connected else clusters.WAITING, problem)], True
    if not before.get("clusterName") and not problem:
        return [], False  # nothing is generated before the management Cluster has a name
    plane = view.get(CONTROL_PLANE, view.name)
    observed = bool(problem) or _is_observed(cluster, plane)
    refusal = secret_sync.refusal(management, plane)
    reported = {each["type"]: each for each in _conditions(cluster, plane, problem, refusal, observed)}
    disconnected = management if display.is_disconnected(management) else None
    reported |= {each["type"]: each for each in _health(view, reported, disconnected)}
    return [*reported.values()], observed


def _observe_only(cluster: Object) -> Iterator[Condition]:
    mark = observe_only.mark_of(cluster)
    if mark is not None:
        message = observe_only.message(cluster["metadata"]["name"], mark)
        yield condition(observe_only.CONDITION, "True", "Restored", message)


# --- from the control plane -------------------------------------------------------------------------------------------


def _is_observed(cluster: Object, plane: Object | None) -> bool:
    if plane is None or (plane.get("status") or {}).get("observedGeneration") != plane["metadata"].get("generation"):
        return False
    known = (cluster.get("status") or {}).get("observedGeneration")
    return known == cluster["metadata"].get("generation") or cluster_spec.is_control_plane_current(cluster, plane)


def _conditions(
    cluster: Object, plane: Object | None, problem: str, refusal: str, observed: bool
) -> Iterator[Condition]:
    """`problem`: why its objects cannot be generated; `refusal`: why a Secret that it needs is not synced."""
    yield condition(GENERATED, "False", "Error", problem) if problem else condition(GENERATED, "True", "")
    for to in COPIES:
        if (copy := copied(plane, clusters.READY, to)) is not None:
            yield copy
    if (certificates := copied(plane, CERTIFICATES_VALID, CERTIFICATES_VALID)) is not None:
        yield certificates
    if problem:
        yield condition(UPDATED, "False", "Error", problem)  # existing machines keep running with the old spec
    ready = find(plane, clusters.READY) or {}
    if observed and ready.get("reason") == "Error" and ready.get("status") == "False":
        problem = problem or ready.get("message", "")  # the planner rejects the spec
    progress_message = "" if observed and ready.get("status") == "True" else ready.get("message") or clusters.WAITING
    reason = "Error" if problem or not refusal else secret_sync.REFUSED
    yield from clusters.progress(progress_message, problem or refusal, reason)
    if any(pool.is_autoscaled for pool in pools_of(cluster)):
        yield condition(AUTOSCALER, "False", "NotDeployed", NO_AUTOSCALER)


# --- from Machines and agent ------------------------------------------------------------------------------------------


def _health(view: View, reported: dict[str, Condition], disconnected: Object | None) -> Iterator[Condition]:
    """NodesHealthy, and Ready where more than the rollout decides. `disconnected`: the management Cluster, if its
    agent is lost.
    """
    if disconnected is not None:
        lost = condition(clusters.READY, "False", clusters.DISCONNECTED, display.disconnected_since(disconnected))
        yield from (lost, display.unknown_nodes_condition(lost))
        return
    if reported[clusters.STALLED]["status"] == "True":
        yield condition(clusters.READY, "False", clusters.STALLED, reported[clusters.STALLED]["message"])
    if view.is_served(MACHINE):
        lost_machines = view.select(MACHINE, index=(BY_LOST, str(view.key)))
        yield display.nodes_condition([lost_node(each) for each in lost_machines])
