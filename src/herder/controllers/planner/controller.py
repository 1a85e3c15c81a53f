"""The planner: an RKEControlPlane and its machines, brought to the plans that its spec asks for."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api import settings
from herder.api.capi.conditions import find
from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET_METADATA
from herder.api.capi.names import CLUSTER_NAME, cluster_key, is_deleting
from herder.api.guards import plan_acts
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.syncing import PRE_BOOTSTRAPPED, SYNCED_FIRST_TO, synced_first_to
from herder.api.rke import names
from herder.api.rke.kinds import BEACON, BOOTSTRAP, CONTROL_PLANE, PLAN_SECRET, STATE_SECRET, TOKENS_SECRET
from herder.api.settings import SETTING
from herder.api.writing import ref
from herder.controllers.planner import messages
from herder.controllers.planner.distributions.choosing import UnknownVersion, distribution_of
from herder.controllers.planner.distributions.interface import Distribution, Reference
from herder.controllers.planner.entries import BY_CLUSTER, by_cluster, entries_named
from herder.controllers.planner.inputs import CONFIG_MAP_METADATA, needs
from herder.controllers.planner.planning import Result, Scene, plan
from herder.controllers.planner.reports import report_control_plane, report_error, report_machine, uninitialize
from herder.controllers.planner.resting import BY_STATE, STANDINGS, by_state
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Parallel, Patch, Wait, Write, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed, labelled
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
        return waiting(f"Beacon {view.namespace}/{view.name} does not exist, so nobody may write plans")
    writer = _writer(beacon)
    if writer not in ("", names.PLANNER):
        return waiting(f"plans are written by {writer} now", ref(BEACON, beacon))
    return _pass(view, control_plane, cluster, beacon)


def _cluster(view: View, control_plane: Object) -> Object | None:
    """The Cluster API Cluster that owns it."""
    for reference in control_plane["metadata"].get("ownerReferences") or ():
        if (reference["apiVersion"].rpartition("/")[0], reference["kind"]) == CLUSTER.group_kind:
            found = view.get(CLUSTER, reference["name"])
            if found is not None and found["metadata"]["uid"] == reference["uid"]:
                return found
    return None


def _unpaused(cluster: Object) -> tuple[Patch, ...]:
    """Whoever deletes a cluster that is paused wants it to go: Cluster API would wait for ever."""
    if not (cluster.get("spec") or {}).get("paused"):
        return ()
    return (Patch(ref(CLUSTER, cluster), {"spec": {"paused": False}}, "it is being deleted"),)


def _writer(beacon: Object) -> str:
    return str((beacon.get("status") or {}).get("owner") or "")


# --- one pass -------------------------------------------------------------------------------------------------------


def _pass(view: View, control_plane: Object, cluster: Object, beacon: Object) -> Decision:
    try:
        distribution = distribution_of(control_plane["spec"].get("kubernetesVersion") or "")
    except UnknownVersion as unknown:
        return Decision(writes=report_error(control_plane, str(unknown), view.now), wait=Wait(str(unknown)))
    scene = _scene(view, control_plane, cluster, distribution)
    result = plan(scene) if _has_infrastructure(cluster) else Result(waiting=messages.INFRASTRUCTURE)
    return _carried_out(scene, result, beacon)


def _scene(view: View, control_plane: Object, cluster: Object, distribution: Distribution) -> Scene:
    """Workers at rest are not looked at, unless they are joined by another port than this distribution has."""
    scope = cluster_key(view.namespace, cluster["metadata"]["name"])
    ports = (0, distribution.supervisor_port)
    standings = view.groups(STANDINGS, scope)
    resting = {rest: keys for rest, keys in standings.items() if rest is not None and rest.port in ports}
    others = [key for rest, keys in standings.items() if rest not in resting for key in keys]
    entries = entries_named(view, others)
    return Scene(view, control_plane, cluster, distribution, view.count(MACHINE, (BY_CLUSTER, scope)), entries, resting)


def _has_infrastructure(cluster: Object) -> bool:
    return bool(((cluster.get("status") or {}).get("initialization") or {}).get("infrastructureProvisioned"))


def _carried_out(scene: Scene, result: Result, beacon: Object) -> Decision:
    """Whose turn it is stands before the plans, and is given back when there are none left to write."""
    done = not (result.waiting or result.error or result.unfinished)
    owner = names.PLANNER if result.plans else "" if done else _writer(beacon)
    writes: list[Write | Parallel] = [*_turn(beacon, owner), *result.writes]
    refused = scene.view.refused if result.writes else None
    if refused is not None:
        # Told before it is tried again, since nothing comes after what is refused.
        writes = [*report_control_plane(scene, Result(waiting=str(refused))), *writes]
    elif not result.unfinished:
        report = [patch for standing in result.standings for patch in report_machine(standing, scene.view.now)]
        writes += [Parallel(tuple(report))] if report else []
        writes += uninitialize(scene.cluster, scene.view.now) if result.initialized is False else ()
        writes += report_control_plane(scene, result)
    reason = str(refused or "") or result.error or result.waiting
    wait = Wait(reason, ref(CONTROL_PLANE, scene.control_plane)) if reason else None
    return Decision(writes=tuple(writes), effects=tuple(result.effects), wait=wait, wake_at=result.wake_at)


def _turn(beacon: Object, owner: str) -> tuple[Patch, ...]:
    if _writer(beacon) == owner:
        return ()
    version = beacon["metadata"]["resourceVersion"]
    why = "plans are written now" if owner else "all plans are written"
    return (Patch(ref(BEACON, beacon), {"status": {"owner": owner}}, why, "status", version),)


# --- what wakes it --------------------------------------------------------------------------------------------------


def _needs(control_plane: Object) -> Iterable[str]:
    try:
        distribution = distribution_of(control_plane["spec"].get("kubernetesVersion") or "")
    except UnknownVersion:
        return ()
    return (*map(str, needs(control_plane, distribution)), _first_things(control_plane))


def _as_needed(obj: Object) -> Iterable[str]:
    meta = obj["metadata"]
    return (str(Reference(obj["kind"], meta["namespace"], meta["name"])),)


def _first_things(control_plane: Object) -> str:
    """By what Secrets name the cluster that must have them before all else."""
    return f"{control_plane['metadata']['namespace']}/{control_plane['spec'].get('clusterName')}"


def _managed_as(control_plane: Object) -> Iterable[str]:
    """Indexer."""
    return (control_plane["spec"].get("managementClusterName") or "",)


def _has_first_things(change: Change) -> bool:
    conditions = [find(each or {}, PRE_BOOTSTRAPPED) or {} for each in (change.old, change.new)]
    return (conditions[0].get("status"), conditions[0].get("message")) != (
        conditions[1].get("status"),
        conditions[1].get("message"),
    )


def _everything(setting: Object) -> Iterable[str]:
    return (ALL,) if setting["metadata"]["name"] in _SETTINGS else ()


def _of_tokens(secret: Object) -> Iterable[Key]:
    owners = secret["metadata"].get("ownerReferences") or ()
    return [Key(secret["metadata"]["namespace"], each["name"]) for each in owners if each["kind"] == CONTROL_PLANE.kind]


def _of_cluster(cluster: Object) -> Iterable[Key]:
    """The control plane has its Cluster's name, or is named by it."""
    reference = (cluster.get("spec") or {}).get("controlPlaneRef") or {}
    ours = reference.get("kind") == CONTROL_PLANE.kind
    return (Key(cluster["metadata"]["namespace"], reference["name"]),) if ours else ()


_planned = labelled(CLUSTER_NAME)

CONTROLLER = Controller(
    name="planner",
    kind=CONTROL_PLANE,
    reconcile=reconcile,
    predicate=changed("spec", "status", "metadata.annotations", "metadata.labels", "metadata.deletionTimestamp"),
    watches=(
        Watches(CLUSTER, _of_cluster, changed("spec", "status.initialization", "metadata")),
        Watches(MACHINE, _planned, changed("metadata.labels", "metadata.deletionTimestamp", "spec", "status")),
        Watches(PLAN_SECRET, labelled(names.CLUSTER_NAME)),
        Watches(TOKENS_SECRET, _of_tokens),
        Watches(STATE_SECRET, _planned, changed("data")),  # a driver's machine has its addresses there
        Watches(SECRET_METADATA, Indexed(NEEDS, _as_needed)),
        Watches(SECRET_METADATA, Indexed(NEEDS, synced_first_to)),
        Watches(MANAGEMENT_CLUSTER, Indexed(BY_MANAGEMENT, lambda obj: (obj["metadata"]["name"],)), _has_first_things),
        Watches(CONFIG_MAP_METADATA, Indexed(NEEDS, _as_needed)),
        Watches(BOOTSTRAP),
        Watches(BEACON, lambda beacon: (Key(beacon["metadata"]["namespace"], beacon["metadata"]["name"]),)),
        Watches(SETTING, Indexed(ALL, _everything), changed("value")),
    ),
    indexes={
        CONTROL_PLANE: {NEEDS: _needs, ALL: lambda _control_plane: (ALL,), BY_MANAGEMENT: _managed_as},
        SECRET_METADATA: {SYNCED_FIRST_TO: synced_first_to},
        MACHINE: {BY_CLUSTER: by_cluster, BY_STATE: by_state},
        PLAN_SECRET: {**plan_acts.INDEXES},
    },
    groupings=(STANDINGS, plan_acts.TRAITS),
    cluster_of=lambda plane: cluster_key(plane["metadata"]["namespace"], plane["metadata"]["name"]),
    pace=0.1,  # a burst of agents' reports is one pass
)
