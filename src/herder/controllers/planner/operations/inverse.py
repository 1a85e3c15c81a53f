"""The snapshot that undoes an operation or a change of the version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from herder.api.capi.conditions import timestamp
from herder.api.capi.names import annotations_of
from herder.api.rke import operations
from herder.api.rke.etcd.restore import VERSION, mode_of
from herder.api.rke.etcd.snapshots import SNAPSHOTS_OF, is_in_s3
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.names import SNAPSHOT_SHA256
from herder.api.times import parse_time
from herder.controllers.planner.operations.interface import OperationScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Create, Write

SKEW = timedelta(hours=1)
"""How far the clock of a server may be ahead. A snapshot of a later time would hide what its restore loses."""


def saved_inverse(scope: OperationScope, writes: Sequence[Write]) -> Mapping[str, str]:
    """The request that undoes the operation, with a snapshot that this run has saved.

    `writes` record the snapshots. After a crash, some are recorded already.
    """
    chosen = max(_saved(scope, writes), key=_preference, default=None)
    if chosen is None:
        return {"message": "it cannot be undone: servers have reported no snapshot"}
    sha256 = annotations_of(chosen).get(SNAPSHOT_SHA256, "")
    return {
        "kind": operations.RESTORE,
        "name": chosen["metadata"]["name"],
        "restoreRKEConfig": VERSION if scope.run.kind == operations.UPGRADE_SNAPSHOT else mode_of(scope.request),
        "snapshotTime": _time(chosen),
        **({"snapshotSHA256": sha256} if sha256 else {}),
    }


def hash_that_undoes(status: Object, snapshot: str) -> str:
    """The hash of a snapshot when it was saved, if it undoes an operation or upgrade; empty if no record has one.

    Its ETCDSnapshot may be another one of the same name: who can write to the bucket can delete the object until the
    first one is deleted too, and then add an object with another hash.
    """
    runs = [*(status.get("operationHistory") or ()), status.get("operation") or {}]
    undo, record = [each.get("inverse") or {} for each in runs], status.get("rollback") or {}
    found = [(each.get("name"), each.get("snapshotSHA256")) for each in undo]
    found.append((record.get("snapshot"), record.get("snapshotSHA256")))
    return next((str(sha256) for name, sha256 in found if name == snapshot and sha256), "")


def _saved(scope: OperationScope, writes: Sequence[Write]) -> list[Object]:
    view = scope.planning.view
    known = view.select(ETCD_SNAPSHOT, index=(SNAPSHOTS_OF, f"{view.namespace}/{view.name}"))
    begun = scope.run.started_at.replace(microsecond=0)
    recorded = [each for each in known if (at := _created(each)) is not None and at >= begun]
    created = [each.obj for each in writes if isinstance(each, Create) and each.kind == ETCD_SNAPSHOT]
    found = [each for each in (*recorded, *created) if _file(each).get("status") != "failed"]
    saved = {_file(each).get("name") for each in found if not is_in_s3(each)}
    # Who can write to the bucket can add objects with any name. Those of this run have a file on their server too.
    return [each for each in found if _file(each).get("name") in saved and _time(each) <= timestamp(view.now + SKEW)]


def _created(snapshot: Object) -> datetime | None:
    return parse_time(str(snapshot["metadata"].get("creationTimestamp") or ""))


def _preference(snapshot: Object) -> tuple[str, bool, str]:
    """The newest one; of several at the same time, one in S3, which outlives its machine."""
    return _time(snapshot), is_in_s3(snapshot), str(snapshot["metadata"]["name"])


def _file(snapshot: Object) -> Object:
    found: Object = snapshot.get("snapshotFile") or {}
    return found


def _time(snapshot: Object) -> str:
    return str(_file(snapshot).get("createdAt") or snapshot["metadata"].get("creationTimestamp") or "")
