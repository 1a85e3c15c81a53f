"""Planner: reconcile an RKEControlPlane by writing plans for its machines.

The Beacon of the cluster is a lock: only the controller that its status names may write plans.
"""

from __future__ import annotations

from collections.abc import Iterable

from herder.api import settings
from herder.api.capi.conditions import find
from herder.api.capi.contract import refers_to
from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET_METADATA
from herder.api.capi.names import CLUSTER_NAME, annotations_of, cluster_key, is_deleting, key_of_cluster
from herder.api.guards import plan_changes
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.secret_sync import PRE_BOOTSTRAPPED, SYNCED_BOOTSTRAP_TO, synced_bootstrap_to
from herder.api.rke import names
from herder.api.rke.etcd.snapshots import SNAPSHOTS_OF, control_plane_of, snapshots_of
from herder.api.rke.kinds import (
    BEACON,
    BOOTSTRAP,
    CONTROL_PLANE,
    ETCD_SNAPSHOT,
    PLAN_SECRET,
    STATE_SECRET,
    TOKENS_SECRET,
)
from herder.api.rke.operations import suspension
from herder.api.settings import SETTING
from herder.api.writes import ref, status_patch
from herder.controllers.planner.distributions.interface import Distribution, Reference
from herder.controllers.planner.distributions.lookup import UnknownVersion, distribution_of
from herder.controllers.planner.plan.inputs import CONFIG_MAP_METADATA, agent_customization, needs
from herder.controllers.planner.rollout import messages
from herder.controllers.planner.rollout.agent_versions import AGENTS
from herder.controllers.planner.rollout.certificate_expiry import CERTIFICATE_GROUPS
from herder.controllers.planner.rollout.machines import BY_CLUSTER, by_cluster, entries_by_key
from herder.controllers.planner.rollout.planner import plan
from herder.controllers.planner.rollout.scope import PlanScope, Result
from herder.controllers.planner.rollout.status import report_control_plane, report_error, report_machine, uninitialize
from herder.controllers.planner.rollout.up_to_date import BY_STATE, WORKER_STATES, by_state
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Parallel, Patch, Wait, Write, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed, named_by_label
from herder.engine.runtime.view import View

NEEDS, ALL, BY_MANAGEMENT = "needs", "all-control-planes", "planned-for-management"
_SETTINGS = {
    settings.SERVER_URL,
    settings.SERVER_CERTIFICATES,
    settings.AGENT_IMAGE,
    settings.AGENT_TLS_MODE,
    settings.INSTALLER_IMAGE,
    settings.DEFAULT_REGISTRY,
    settings.RKE2_PRIME_DEFAULT,
}


def reconcile(view: View) -> Decision:
    control_plane = view.get(CONTROL_PLANE, view.name)
    if control_plane is None or is_deleting(control_plane):
        return DONE
    cluster = _cluster(view, control_plane)
    if cluster is None:
        return waiting("CAPI cluster does not exist")
    if is_deleting(cluster):
        return Decision(writes=_unpaused(cluster)) + waiting("the cluster is being deleted", ref(CLUSTER, cluster))
    beacon = view.get(BEACON, view.name)
    if beacon is None:
        missing = waiting(f"Beacon {view.namespace}/{view.name} does not exist; plans cannot be written")
        return Decision(writes=_suspend(control_plane, view)) + missing
    writer = _writer(beacon)
    if writer not in ("", names.PLANNER):
        taken = waiting(f"plans are written by {writer} now", ref(BEACON, beacon))
        return Decision(writes=_suspend(control_plane, view)) + taken
    return _plan_cluster(view, control_plane, cluster, beacon)


def _suspend(control_plane: Object, view: View) -> tuple[Patch, ...]:
    """Suspend the operation in progress: the pass does not get to it."""
    status = {**(control_plane.get("status") or {}), **suspension(control_plane, view.now)}
    return status_patch(CONTROL_PLANE, control_plane, status, "the operation in progress waits")


def _cluster(view: View, control_plane: Object) -> Object | None:
    """The Cluster API Cluster that owns the control plane and refers to it; its machines get the plans."""
    for reference in control_plane["metadata"].get("ownerReferences") or ():
        if (reference["apiVersion"].rpartition("/")[0], reference["kind"]) == CLUSTER.group_kind:
            found = view.get(CLUSTER, reference["name"])
            if found is None or found["metadata"]["uid"] != reference["uid"]:
                continue
            if refers_to((found.get("spec") or {}).get("controlPlaneRef"), CONTROL_PLANE, view.name):
                return found
    return None


def _unpaused(cluster: Object) -> tuple[Patch, ...]:
    """Unpause a cluster that is being deleted: Cluster API never finishes the deletion of a paused one."""
    if not (cluster.get("spec") or {}).get("paused"):
        return ()
    return (Patch(ref(CLUSTER, cluster), {"spec": {"paused": False}}, "it is being deleted"),)


def _writer(beacon: Object) -> str:
    return str((beacon.get("status") or {}).get("owner") or "")


# --- planning ---------------------------------------------------------------------------------------------------------


def _plan_cluster(view: View, control_plane: Object, cluster: Object, beacon: Object) -> Decision:
    try:
        distribution = distribution_of(control_plane["spec"].get("kubernetesVersion") or "")
    except UnknownVersion as unknown:
        writes = (*_suspend(control_plane, view), *report_error(control_plane, str(unknown), view.now))
        return Decision(writes=writes, wait=Wait(str(unknown)))
    scope = _plan_scope(view, control_plane, cluster, distribution)
    if _has_infrastructure(cluster):
        return _decide(scope, plan(scope), beacon)
    waits = Result(waiting=messages.INFRASTRUCTURE, status=suspension(control_plane, view.now))
    return _decide(scope, waits, beacon)


def _plan_scope(view: View, control_plane: Object, cluster: Object, distribution: Distribution) -> PlanScope:
    """Leave out workers that are up to date, unless their join URL has another port than the distribution's."""
    cluster_id = cluster_key(view.namespace, cluster["metadata"]["name"])
    ports = (0, distribution.supervisor_port)
    states = view.groups(WORKER_STATES, cluster_id)
    up_to_date = {state: keys for state, keys in states.items() if state is not None and state.port in ports}
    others = [key for state, keys in states.items() if state not in up_to_date for key in keys]
    entries = entries_by_key(view, others)
    return PlanScope(
        view, control_plane, cluster, distribution, view.count(MACHINE, (BY_CLUSTER, cluster_id)), entries, up_to_date
    )


def _has_infrastructure(cluster: Object) -> bool:
    return bool(((cluster.get("status") or {}).get("initialization") or {}).get("infrastructureProvisioned"))


def _decide(scope: PlanScope, result: Result, beacon: Object) -> Decision:
    """Take the Beacon before writing plans, and release it when no plan is left to write."""
    done = not (result.waiting or result.error or result.unfinished)
    owner = names.PLANNER if result.plans else "" if done else _writer(beacon)
    writes: list[Write | Parallel] = [*_set_beacon_owner(beacon, owner), *result.writes]
    refused = scope.view.refused if result.writes else None
    if refused is not None:
        # The status comes first: writes after a refused one are not executed.
        writes = [*report_control_plane(scope, Result(waiting=str(refused))), *writes]
    elif not result.unfinished:
        report = [
            patch
            for machine_status in result.machine_statuses
            for patch in report_machine(machine_status, scope.view.now)
        ]
        writes += [Parallel(tuple(report))] if report else []
        writes += uninitialize(scope.cluster, scope.view.now) if result.initialized is False else ()
        writes += report_control_plane(scope, result)
    reason = str(refused or "") or result.error or result.waiting
    wait = Wait(reason, ref(CONTROL_PLANE, scope.control_plane)) if reason else None
    return Decision(writes=tuple(writes), effects=tuple(result.effects), wait=wait, wake_at=result.wake_at)


def _set_beacon_owner(beacon: Object, owner: str) -> tuple[Patch, ...]:
    if _writer(beacon) == owner:
        return ()
    version = beacon["metadata"]["resourceVersion"]
    why = "plans are written now" if owner else "all plans are written"
    return (Patch(ref(BEACON, beacon), {"status": {"owner": owner}}, why, "status", version),)


# --- watches ----------------------------------------------------------------------------------------------------------


def _referenced_objects(control_plane: Object) -> Iterable[str]:
    try:
        distribution = distribution_of(control_plane["spec"].get("kubernetesVersion") or "")
    except UnknownVersion:
        return ()
    return (*map(str, needs(control_plane, distribution)), _pre_bootstrap_key(control_plane))


def _reference_key(obj: Object) -> Iterable[str]:
    meta = obj["metadata"]
    return (str(Reference(obj["kind"], meta["namespace"], meta["name"])),)


def _pre_bootstrap_key(control_plane: Object) -> str:
    """The key by which pre-bootstrap Secrets name their cluster."""
    return f"{control_plane['metadata']['namespace']}/{control_plane['spec'].get('clusterName')}"


def _management_name(control_plane: Object) -> Iterable[str]:
    """Indexer."""
    return (control_plane["spec"].get("managementClusterName") or "",)


def _agent_changed(change: Change) -> bool:
    """Whether servers must deploy another cluster agent."""
    return _pre_bootstrap_changed(change) or agent_customization(change.old) != agent_customization(change.new)


def _pre_bootstrap_changed(change: Change) -> bool:
    conditions = [find(each or {}, PRE_BOOTSTRAPPED) or {} for each in (change.old, change.new)]
    return (conditions[0].get("status"), conditions[0].get("message")) != (
        conditions[1].get("status"),
        conditions[1].get("message"),
    )


def _certificates_changed(change: Change) -> bool:
    before, after = (
        annotations_of(each).get(names.CERTIFICATES) if each else None for each in (change.old, change.new)
    )
    return before != after


def _affects_all(setting: Object) -> Iterable[str]:
    return (ALL,) if setting["metadata"]["name"] in _SETTINGS else ()


def _control_plane_of_tokens(secret: Object) -> Iterable[Key]:
    owners = secret["metadata"].get("ownerReferences") or ()
    return [Key(secret["metadata"]["namespace"], each["name"]) for each in owners if each["kind"] == CONTROL_PLANE.kind]


def _control_plane_of_cluster(cluster: Object) -> Iterable[Key]:
    """The RKEControlPlane that the Cluster refers to."""
    reference = (cluster.get("spec") or {}).get("controlPlaneRef") or {}
    ours = reference.get("kind") == CONTROL_PLANE.kind
    return (Key(cluster["metadata"]["namespace"], reference["name"]),) if ours else ()


_by_cluster_label = named_by_label(CLUSTER_NAME)

CONTROLLER = Controller(
    name="planner",
    kind=CONTROL_PLANE,
    reconcile=reconcile,
    predicate=changed("spec", "status", "metadata.annotations", "metadata.labels", "metadata.deletionTimestamp"),
    watches=(
        Watches(CLUSTER, _control_plane_of_cluster, changed("spec", "status.initialization", "metadata")),
        Watches(MACHINE, _by_cluster_label, changed("metadata.labels", "metadata.deletionTimestamp", "spec", "status")),
        Watches(MACHINE, _by_cluster_label, _certificates_changed),
        Watches(PLAN_SECRET, named_by_label(names.CLUSTER_NAME)),
        Watches(TOKENS_SECRET, _control_plane_of_tokens),
        Watches(STATE_SECRET, _by_cluster_label, changed("data")),  # holds the addresses of driver machines
        Watches(SECRET_METADATA, Indexed(NEEDS, _reference_key)),
        Watches(SECRET_METADATA, Indexed(NEEDS, synced_bootstrap_to)),
        Watches(MANAGEMENT_CLUSTER, Indexed(BY_MANAGEMENT, lambda obj: (obj["metadata"]["name"],)), _agent_changed),
        Watches(CONFIG_MAP_METADATA, Indexed(NEEDS, _reference_key)),
        Watches(BOOTSTRAP),
        Watches(ETCD_SNAPSHOT, control_plane_of, changed("metadata.deletionTimestamp", "metadata.finalizers")),
        Watches(BEACON, lambda beacon: (Key(beacon["metadata"]["namespace"], beacon["metadata"]["name"]),)),
        Watches(SETTING, Indexed(ALL, _affects_all), changed("value")),
    ),
    indexes={
        CONTROL_PLANE: {
            NEEDS: _referenced_objects,
            ALL: lambda _control_plane: (ALL,),
            BY_MANAGEMENT: _management_name,
        },
        SECRET_METADATA: {SYNCED_BOOTSTRAP_TO: synced_bootstrap_to},
        MACHINE: {BY_CLUSTER: by_cluster, BY_STATE: by_state},
        PLAN_SECRET: {**plan_changes.INDEXES},
        ETCD_SNAPSHOT: {SNAPSHOTS_OF: snapshots_of},
    },
    groupings=(WORKER_STATES, CERTIFICATE_GROUPS, plan_changes.TRAITS, AGENTS),
    cluster_of=key_of_cluster,
    pace=0.1,  # coalesce bursts of agent reports
)
