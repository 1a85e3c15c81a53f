"""Secrets that are marked for it are brought into their clusters, and followed there. A new cluster that has all that
it must have first is told to have it: then the rest of it is built."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from herder.api.capi.conditions import Condition, condition
from herder.api.capi.kinds import SECRET_METADATA
from herder.api.capi.names import is_deleting
from herder.api.machines.conditions import merged_with_updates
from herder.api.management import clusters, syncing
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.references.approvals import problem
from herder.api.references.catalogue import Target, sync_path
from herder.api.writing import status_patch
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Connect, Decision, Effect, Wait
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import View

BY_PLACE = "synced-into"
"""An index of management Clusters: by the provisioning Cluster that they say they were made for."""


def reconcile(view: View) -> Decision:
    management = view.get(MANAGEMENT_CLUSTER, view.name)
    if management is None or is_deleting(management) or clusters.is_internal(management):
        return DONE
    place = _place(view, management)
    secrets = view.select(SECRET_METADATA, index=(syncing.SYNCED_TO, place)) if place else []
    steps = [_step(view, management, secret, place) for secret in secrets]
    if not steps:
        return DONE
    return _brought(view, management, steps) + _report_status(view, management, steps)


def _place(view: View, management: Object) -> str:
    """What either says of the other alone is no proof: Secrets of one cluster must not get into another."""
    for each in view.select(PROVISIONING_CLUSTER, index=(clusters.BY_MANAGEMENT, view.name)):
        namespace, name = each["metadata"]["namespace"], each["metadata"]["name"]
        if clusters.belongs(management, namespace, name):
            return f"{namespace}/{name}"
    return ""


@dataclass(frozen=True)
class _Step:
    """One Secret on its way. `problem`: why it does not get there, in words."""

    secret: Object
    effect: Effect
    done: bool
    problem: str
    refused: bool

    @property
    def name(self) -> str:
        return f"Secret {self.secret['metadata']['namespace']}/{self.secret['metadata']['name']}"


def _step(view: View, management: Object, secret: Object, place: str) -> _Step:
    """Each state of a Secret is brought once; what comes of an effect is forgotten with the manager, and then it is
    looked at again."""
    meta, (namespace, name) = secret["metadata"], syncing.target_of(secret)
    arguments = {
        "cluster": view.name,
        "source": {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]},
        "target": {"namespace": namespace, "name": name},
    }
    key = (syncing.SYNC_SECRET, management["metadata"]["uid"], meta["uid"], meta["resourceVersion"])
    result = view.result(key)
    refused = syncing.problem_of(secret) or _not_approved(view, secret, place)
    wrong = refused or (result.error if result else "")
    effect = Effect(syncing.SYNC_SECRET, key, arguments, "its owner wants it in the cluster")
    return _Step(secret, effect, not refused and result is not None and result.done, wrong, bool(refused))


def _not_approved(view: View, secret: Object, place: str) -> str:
    """Why its author may not bring it into this cluster; empty where the author may."""
    namespace, _, name = place.partition("/")
    cluster = view.get(PROVISIONING_CLUSTER, name, namespace)
    target = Target(PROVISIONING_CLUSTER.group, PROVISIONING_CLUSTER.plural, namespace, name)
    return problem(secret, sync_path(*syncing.target_of(secret)), target, cluster["metadata"]["uid"] if cluster else "")


def _brought(view: View, management: Object, steps: list[_Step]) -> Decision:
    if not clusters.is_connected(management):
        return DONE
    effects = tuple(each.effect for each in steps if not each.done and not each.refused)
    wrong = next((each for each in steps if each.problem), None)
    wait = Wait(f"{wrong.name}: {wrong.problem}") if wrong else None
    return Decision(effects=effects, observe=(Connect(view.name),) if effects else (), wait=wait)


# --- what comes first -----------------------------------------------------------------------------------------------


def _report_status(view: View, management: Object, steps: list[_Step]) -> Decision:
    """Once it is true it stays so: later changes are followed, and hold nothing up."""
    first = [each for each in steps if syncing.comes_first(each.secret)]
    if not first or syncing.is_pre_bootstrapped(management):
        return DONE
    before = management.get("status") or {}
    conditions = merged_with_updates(before.get("conditions"), [_pre_bootstrapped(management, first)], view.now)
    status = {**before, "conditions": conditions}
    return Decision(writes=status_patch(MANAGEMENT_CLUSTER, management, status, "what the cluster must have first"))


def _pre_bootstrapped(management: Object, first: list[_Step]) -> Condition:
    type_ = syncing.PRE_BOOTSTRAPPED
    if wrong := next((each for each in first if each.problem), None):
        return condition(type_, "False", "Error", f"{wrong.name}: {wrong.problem}")
    if missing := [each.name for each in first if not each.done]:
        connected = clusters.is_connected(management)
        waits = f"waiting for {', '.join(missing)}" if connected else clusters.BEING_BUILT
        return condition(type_, "Unknown", clusters.WAITING, waits)
    return condition(type_, "True", type_)


# --- what sets it off -----------------------------------------------------------------------------------------------


def _made_for(management: Object) -> Iterable[str]:
    """Indexer."""
    spec, known = management.get("spec") or {}, clusters.made_for(management)
    legacy = f"{spec.get('fleetWorkspaceName')}/{management['metadata']['name']}"
    return (known or legacy,)


def _own(provisioning: Object) -> Iterable[str]:
    return (f"{provisioning['metadata']['namespace']}/{provisioning['metadata']['name']}",)


CONTROLLER = Controller(
    name="synced-secrets",
    kind=MANAGEMENT_CLUSTER,
    reconcile=reconcile,
    predicate=changed("metadata.annotations", "metadata.deletionTimestamp"),
    watches=(
        Watches(SECRET_METADATA, Indexed(BY_PLACE, syncing.synced_to)),
        Watches(PROVISIONING_CLUSTER, Indexed(BY_PLACE, _own), changed("status.clusterName")),
    ),
    indexes={
        MANAGEMENT_CLUSTER: {BY_PLACE: _made_for},
        PROVISIONING_CLUSTER: {clusters.BY_MANAGEMENT: clusters.management_name},
        SECRET_METADATA: {syncing.SYNCED_TO: syncing.synced_to},
    },
)
