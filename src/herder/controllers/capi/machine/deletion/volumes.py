"""Wait until the volumes of a Node are detached: deleting a machine with an attached disk may lose data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from herder.api.capi.conditions import legacy, timestamp
from herder.api.capi.drain_records import claims_of
from herder.api.capi.kinds import PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from herder.api.capi.names import EXCLUDE_WAIT_FOR_VOLUME_DETACH, annotations_of
from herder.api.capi.typed import mapping, text, texts
from herder.api.writes import PROGRESS_DEBOUNCE
from herder.controllers.capi.machine.deletion.drain.filters import UnknownNamespace, skipped
from herder.controllers.capi.machine.deletion.drain.observation import NotObserved, observe_all, observe_pods
from herder.controllers.capi.machine.deletion.drain.report import named
from herder.controllers.capi.machine.deletion.drain.rules import InvalidRule
from herder.controllers.capi.machine.deletion.node import is_unreachable, why_unreachable
from herder.controllers.capi.machine.deletion.scope import Clock, DeletionScope, earlier
from herder.controllers.capi.machine.deletion.stage import STARTED, Stage, StageDone, StagePending, succeeded
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Observe, Projection, waiting

WAITING = "WaitingForVolumeDetach"
SUCCEEDED = "VolumeDetachSucceeded"
START = "waitForNodeVolumeDetachStartTime"

RECHECK = timedelta(seconds=20)
NAMES_SHOWN = 5
MAX_VOLUMES = 2000
"""Most volumes of a Node that are looked up in one event loop iteration. Kubernetes attaches at most a few hundred."""


def wait_for_volumes(scope: DeletionScope) -> Stage:
    clock = scope.clock(START, "nodeVolumeDetachTimeoutSeconds")
    excluded = EXCLUDE_WAIT_FOR_VOLUME_DETACH in annotations_of(scope.machine)
    if excluded or scope.skips_workloads() or clock.ran_out(scope.view.now):
        return StageDone()
    node = scope.node
    if node.pending:
        return StagePending(*STARTED)
    if node.unreachable is not None:
        return _wait(scope, clock, f"\n* {why_unreachable(node)}", ())
    if node.record is None or is_unreachable(node.record):
        return succeeded(SUCCEEDED)  # No kubelet is there to detach them.
    try:
        return _detached(scope, clock, node.record)
    except (InvalidRule, UnknownNamespace) as error:
        return _wait(scope, clock, f"\n* {error}", ())


def _detached(scope: DeletionScope, clock: Clock, node: Object) -> Stage:
    attachments = Observe(
        scope.workload, VOLUME_ATTACHMENT, projection=ATTACHMENT_RECORD, focus=("node", node["metadata"]["name"])
    )
    found = observe_all(scope.view, (attachments,))
    if isinstance(found, NotObserved):
        return _not_seen(scope, clock, found)
    in_use = {volume["name"] for volume in node["status"].get("volumesAttached") or []}
    by_attachment = {obj["spec"]["source"].get("persistentVolumeName", "") for obj in found[attachments]}
    if not in_use and not by_attachment:
        return succeeded(SUCCEEDED, (attachments,))
    names = in_use | by_attachment
    if len(names) > MAX_VOLUMES:
        return _wait(scope, clock, f"\n* more than {MAX_VOLUMES} volumes of the Node are in use", (attachments,))
    volumes = Observe(scope.workload, PERSISTENT_VOLUME, freshness=RECHECK.total_seconds(), projection=VOLUME_RECORD)
    known = _volumes_named(scope, volumes, names)
    if isinstance(known, NotObserved):
        return _not_seen(scope, clock, known._replace(observe=(attachments, volumes)))
    pods = observe_pods(scope, node)
    if isinstance(pods, NotObserved):
        return _not_seen(scope, clock, pods._replace(observe=(*pods.observe, attachments, volumes)))
    ignored = {claim for pod in skipped(pods.pods, pods.context) for claim in claims_of(pod)}
    observe = (*pods.observe, attachments, volumes)
    left = attached(in_use, by_attachment, known, ignored).lines()
    if not left:
        return succeeded(SUCCEEDED, observe)
    return _wait(scope, clock, "".join(f"\n* {line}" for line in left), observe)


def _volumes_named(scope: DeletionScope, volumes: Observe, names: Collection[str]) -> list[Object] | NotObserved:
    """PersistentVolumes that have one of these names. Others are not read: a cluster may have any number of them."""
    found: dict[str, Object] = {}
    for name in sorted(names):
        focused = replace(volumes, focus=("name", name))
        seen = observe_all(scope.view, (focused,))
        if isinstance(seen, NotObserved):
            return seen
        found |= {volume["metadata"]["name"]: volume for volume in seen[focused]}
        if len(found) > MAX_VOLUMES:
            return NotObserved((), f"more than {MAX_VOLUMES} PersistentVolumes have the names of attached volumes")
    return list(found.values())


class Attached(NamedTuple):
    """Volumes that are still attached. Entries that match no known volume are waited for too."""

    claims: Collection[str] = ()
    unclaimed: Collection[str] = ()  # volumes
    unknown_to_node: Collection[str] = ()  # status.volumesAttached entries without a PersistentVolume
    unknown_to_attachment: Collection[str] = ()  # PersistentVolumes that a VolumeAttachment names but that do not exist

    def lines(self) -> list[str]:
        groups = (
            ("PersistentVolumeClaims", self.claims),
            ("PersistentVolumes without a .spec.claimRef to a PersistentVolumeClaim", self.unclaimed),
            ("Node with .status.volumesAttached entries not matching a PersistentVolume", self.unknown_to_node),
            (
                "VolumeAttachment with .spec.source.persistentVolumeName not matching a PersistentVolume",
                self.unknown_to_attachment,
            ),
        )
        return [f"{what}: {named(sorted(names), NAMES_SHOWN)}" for what, names in groups if names]


def attached(in_use: Set[str], by_attachment: Set[str], volumes: Iterable[Object], ignored: Set[str]) -> Attached:
    """`in_use` are names from the Node's status, `by_attachment` names of PersistentVolumes, `ignored` claims."""
    claims, unclaimed, explained = set(), set(), set()
    for volume in volumes:
        names = set(_names(volume))
        if in_use.isdisjoint(names) and by_attachment.isdisjoint(names):
            continue
        explained |= names
        claim = volume["spec"].get("claimRef") or {}
        if claim.get("kind") == "PersistentVolumeClaim":
            claims.add(f"{claim['namespace']}/{claim['name']}")
        else:
            unclaimed.add(volume["metadata"]["name"])
    return Attached(
        claims - ignored,
        unclaimed,
        in_use - explained,
        {name or "(none)" for name in by_attachment} - explained,
    )


def _names(volume: Object) -> Iterator[str]:
    """Indexer: its own name, and the one in `status.volumesAttached` of a Node."""
    yield volume["metadata"]["name"]
    if csi := volume["spec"].get("csi"):
        yield f"kubernetes.io/csi/{csi.get('driver')}^{csi.get('volumeHandle')}"


def _not_seen(scope: DeletionScope, clock: Clock, unmatched: NotObserved) -> StagePending:
    if unmatched.why:
        return _wait(scope, clock, f"\n* {unmatched.why}", unmatched.observe)
    return StagePending(
        WAITING, f"Looking at the volumes of Node {scope.node.name}", Decision(observe=unmatched.observe)
    )


def _wait(scope: DeletionScope, clock: Clock, details: str, observe: tuple[Observe, ...]) -> StagePending:
    now = scope.view.now
    running = Clock(clock.started or now, clock.limit)
    since = f"Waiting for Node volumes to be detached (started at {timestamp(running.started or now)})"
    condition = legacy(SUCCEEDED, "False", WAITING, "Info", "Waiting for node volumes to be detached")
    started = {} if clock.started else {START: timestamp(now)}
    decision = Decision(observe=observe) + waiting(since + details, wake_at=earlier(now + RECHECK, running.deadline))
    return StagePending(
        WAITING, since + details, decision, (condition,), started, debounce=0.0 if started else PROGRESS_DEBOUNCE
    )


# --- projections of volumes and attachments -------------------------------------------------------------------------


def _attachment(obj: Object) -> Object:
    """Projection of a VolumeAttachment; a detached one is stored without its node, so that the index skips it."""
    spec, is_attached = mapping(obj.get("spec")), bool(mapping(obj.get("status")).get("attached"))
    volume = text(mapping(spec.get("source")).get("persistentVolumeName"))
    node = text(spec.get("nodeName")) if is_attached else ""
    return _record(VOLUME_ATTACHMENT, obj) | {"spec": {"nodeName": node, "source": {"persistentVolumeName": volume}}}


def _by_node(obj: Object) -> Iterator[str]:
    if obj["spec"]["nodeName"]:
        yield obj["spec"]["nodeName"]


def _volume(obj: Object) -> Object:
    spec = mapping(obj.get("spec"))
    kept = {
        "csi": texts(("driver", "volumeHandle"), mapping(spec.get("csi"))),
        "claimRef": texts(("kind", "namespace", "name"), mapping(spec.get("claimRef"))),
    }
    return _record(PERSISTENT_VOLUME, obj) | {"spec": kept}


def _record(kind: Kind, obj: Object) -> Object:
    meta = texts(("name", "uid", "resourceVersion"), mapping(obj.get("metadata")))
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "", **meta}}


ATTACHMENT_RECORD = Projection("volume-attachment", _attachment, {"node": _by_node})
VOLUME_RECORD = Projection("persistent-volume", _volume, {"name": _names})
