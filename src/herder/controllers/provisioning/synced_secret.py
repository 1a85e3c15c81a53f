"""Synchronize annotated Secrets into their managed clusters, and keep them up to date.

Some must exist before a new cluster is built: the PreBootstrapped condition reports when they do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from herder.api.capi.conditions import Condition, condition
from herder.api.capi.kinds import SECRET_METADATA
from herder.api.capi.names import is_deleting
from herder.api.machines.conditions import merged_with_updates
from herder.api.management import clusters, secret_sync
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.references.approvals import REVIEW, problem
from herder.api.references.catalogue import Target, sync_path
from herder.api.writes import status_patch
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Connect, Decision, Effect, Wait
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import View

BY_PROVISIONING = "synced-into"
"""Index of management Clusters by the provisioning Cluster that they claim to belong to."""


def reconcile(view: View) -> Decision:
    management = view.get(MANAGEMENT_CLUSTER, view.name)
    if management is None or is_deleting(management) or clusters.is_internal(management):
        return DONE
    source = _provisioning_key(view, management)
    secrets = view.select(SECRET_METADATA, index=(secret_sync.SYNCED_TO, source)) if source else []
    syncs = [_sync_of(view, management, secret, source) for secret in secrets]
    if not syncs:
        return DONE
    return _sync(view, management, syncs) + _report_status(view, management, syncs)


def _provisioning_key(view: View, management: Object) -> str:
    """The paired provisioning Cluster. Both must name each other, or Secrets could leak into another cluster."""
    for each in view.select(PROVISIONING_CLUSTER, index=(clusters.BY_MANAGEMENT, view.name)):
        namespace, name = each["metadata"]["namespace"], each["metadata"]["name"]
        if clusters.are_paired(management, namespace, name):
            return f"{namespace}/{name}"
    return ""


@dataclass(frozen=True)
class _SecretSync:
    """The synchronization of one Secret. `problem`: why it fails."""

    secret: Object
    effect: Effect
    done: bool
    problem: str
    refused: bool

    @property
    def name(self) -> str:
        return f"Secret {self.secret['metadata']['namespace']}/{self.secret['metadata']['name']}"


def _sync_of(view: View, management: Object, secret: Object, source: str) -> _SecretSync:
    """Each version of a Secret is synchronized once. After a restart of the manager, it is checked again."""
    meta, (namespace, name) = secret["metadata"], secret_sync.target_of(secret)
    arguments = {
        "cluster": view.name,
        "source": {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]},
        "target": {"namespace": namespace, "name": name},
    }
    key = (secret_sync.SYNC_SECRET, management["metadata"]["uid"], meta["uid"], meta["resourceVersion"])
    result = view.result(key)
    refused = secret_sync.sync_problem(secret) or _not_approved(view, secret, source)
    failed = refused or (result.error if result else "")
    effect = Effect(secret_sync.SYNC_SECRET, key, arguments, "synchronize the Secret into its cluster")
    return _SecretSync(secret, effect, not refused and result is not None and result.done, failed, bool(refused))


def _not_approved(view: View, secret: Object, source: str) -> str:
    """Why the Secret's author may not synchronize it into this cluster; empty if the author may."""
    namespace, _, name = source.partition("/")
    cluster = view.get(PROVISIONING_CLUSTER, name, namespace)
    target = Target(PROVISIONING_CLUSTER.group, PROVISIONING_CLUSTER.plural, namespace, name)
    uid, meta = cluster["metadata"]["uid"] if cluster else "", secret["metadata"]
    found = problem(secret, sync_path(*secret_sync.target_of(secret)), target, uid)
    command = f'kubectl -n {meta["namespace"]} annotate secret {meta["name"]} {REVIEW}="$(date)" --overwrite'
    return f"{found}: {command}" if found else ""


def _sync(view: View, management: Object, syncs: list[_SecretSync]) -> Decision:
    if not clusters.is_connected(management):
        return DONE
    effects = tuple(each.effect for each in syncs if not each.done and not each.refused)
    failed = next((each for each in syncs if each.problem), None)
    wait = Wait(f"{failed.name}: {failed.problem}") if failed else None
    return Decision(effects=effects, observe=(Connect(view.name),) if effects else (), wait=wait)


# --- pre-bootstrap ----------------------------------------------------------------------------------------------------


def _report_status(view: View, management: Object, syncs: list[_SecretSync]) -> Decision:
    """Set PreBootstrapped. It stays true: later changes are synchronized without blocking anything."""
    pre_bootstrap = [each for each in syncs if secret_sync.is_pre_bootstrap_secret(each.secret)]
    if not pre_bootstrap or secret_sync.is_pre_bootstrapped(management):
        return DONE
    before = management.get("status") or {}
    conditions = merged_with_updates(before.get("conditions"), [_pre_bootstrapped(management, pre_bootstrap)], view.now)
    status = {**before, "conditions": conditions}
    return Decision(writes=status_patch(MANAGEMENT_CLUSTER, management, status, "state of the pre-bootstrap Secrets"))


def _pre_bootstrapped(management: Object, pre_bootstrap: list[_SecretSync]) -> Condition:
    type_ = secret_sync.PRE_BOOTSTRAPPED
    failures = sorted((each for each in pre_bootstrap if each.problem), key=lambda each: not each.refused)
    if failures:
        failed = failures[0]
        reason = secret_sync.REFUSED if failed.refused else "Error"
        return condition(type_, "False", reason, f"{failed.name}: {failed.problem}")
    if missing := [each.name for each in pre_bootstrap if not each.done]:
        connected = clusters.is_connected(management)
        message = f"waiting for {', '.join(missing)}" if connected else clusters.BEING_BUILT
        return condition(type_, "Unknown", clusters.WAITING, message)
    return condition(type_, "True", type_)


# --- watches ----------------------------------------------------------------------------------------------------------


def _source_key(management: Object) -> Iterable[str]:
    """Index by the provisioning Cluster that it claims."""
    spec, known = management.get("spec") or {}, clusters.source_provisioning_cluster(management)
    legacy = f"{spec.get('fleetWorkspaceName')}/{management['metadata']['name']}"
    return (known or legacy,)


def _key(provisioning: Object) -> Iterable[str]:
    return (f"{provisioning['metadata']['namespace']}/{provisioning['metadata']['name']}",)


CONTROLLER = Controller(
    name="synced-secrets",
    kind=MANAGEMENT_CLUSTER,
    reconcile=reconcile,
    predicate=changed("metadata.annotations", "metadata.deletionTimestamp"),
    watches=(
        Watches(SECRET_METADATA, Indexed(BY_PROVISIONING, secret_sync.synced_to)),
        Watches(PROVISIONING_CLUSTER, Indexed(BY_PROVISIONING, _key), changed("status.clusterName")),
    ),
    indexes={
        MANAGEMENT_CLUSTER: {BY_PROVISIONING: _source_key},
        PROVISIONING_CLUSTER: {clusters.BY_MANAGEMENT: clusters.management_name},
        SECRET_METADATA: {secret_sync.SYNCED_TO: secret_sync.synced_to},
    },
    cluster_of=lambda cluster: str(cluster["metadata"]["name"]),
)
