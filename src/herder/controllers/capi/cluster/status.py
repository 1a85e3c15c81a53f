"""The status of a Cluster, written once for each real change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from herder.api.capi.conditions import Condition, condition, merged
from herder.api.capi.contract import control_plane
from herder.api.capi.kinds import CLUSTER
from herder.api.spans import version_numbers
from herder.api.writing import PROGRESS_PATIENCE, status_patch
from herder.controllers.capi.cluster import members
from herder.controllers.capi.cluster.conditions import conditions_of, settled_at
from herder.controllers.capi.cluster.legacy import deprecated
from herder.controllers.capi.cluster.references import failure_domains
from herder.controllers.capi.cluster.scene import Scene
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision

MOST_VERSIONS = 32

NOT_DELETING = condition("Deleting", "False", "NotDeleting")

_COUNTERS = ("desiredReplicas", "replicas", "readyReplicas", "availableReplicas", "upToDateReplicas")
_AWAITED = ("Available", "RemoteConnectionProbe", "InfrastructureReady", "ControlPlaneInitialized", "Paused")


def report(scene: Scene, deleting: Condition = NOT_DELETING) -> Decision:
    known = scene.cluster.get("status") or {}
    wanted = {
        **known,
        "phase": _phase(scene),
        "initialization": _initialization(scene),
        "controlPlane": _control_plane(scene),
        "workers": _workers(scene),
        "failureDomains": failure_domains(scene),
        "observedGeneration": _observed_generation(scene),
        "conditions": _conditions(scene, deleting),
        "deprecated": deprecated(scene),
    }
    status = {field: value for field, value in wanted.items() if value}
    patience = 0.0 if _matters(known, status) else PROGRESS_PATIENCE
    writes = status_patch(CLUSTER, scene.cluster, status, "tell how the cluster is", patience=patience)
    return Decision(writes=writes, wake_at=settled_at(scene))


def report_paused(scene: Scene, paused: Condition) -> Decision:
    """Nothing but that: while it is paused, the rest stands as it was."""
    known = scene.cluster.get("status") or {}
    listed = merged(known.get("conditions"), [paused], scene.view.now, generation=_generation(scene))
    return Decision(writes=status_patch(CLUSTER, scene.cluster, {**known, "conditions": listed}, "tell of the pause"))


def _conditions(scene: Scene, deleting: Condition) -> list[Condition]:
    wanted = conditions_of(scene, deleting)
    return merged(scene.status("conditions", []), wanted, scene.view.now, generation=_generation(scene))


def _matters(known: Object, status: Object) -> bool:
    """Whether somebody waits for just this change, so that it must be told at once."""
    if any(known.get(field) != status.get(field) for field in ("phase", "initialization")):
        return True
    if any(_status_of(known, type_) != _status_of(status, type_) for type_ in _AWAITED):
        return True
    stuck = _reason_of(status, "Deleting") == "InternalError" != _reason_of(known, "Deleting")
    return stuck or _failed(known) != _failed(status)


def _status_of(status: Object, type_: str) -> str | None:
    return next((known["status"] for known in status.get("conditions") or () if known["type"] == type_), None)


def _reason_of(status: Object, type_: str) -> str | None:
    return next((known["reason"] for known in status.get("conditions") or () if known["type"] == type_), None)


def _failed(status: Object) -> str | None:
    message: str | None = ((status.get("deprecated") or {}).get("v1beta1") or {}).get("failureMessage")
    return message


def _phase(scene: Scene) -> str:
    if scene.deleting:
        return "Deleting"
    if scene.provisioned and scene.endpoint.valid:
        return "Provisioned"
    named = scene.infrastructure is not None or scene.control_plane is not None
    return "Provisioning" if named else "Pending"


def _initialization(scene: Scene) -> Object:
    steps = {"infrastructureProvisioned": scene.provisioned, "controlPlaneInitialized": scene.initialized}
    return {step: True for step, taken in steps.items() if taken}


def _observed_generation(scene: Scene) -> int:
    """That of a spec which could be acted on in full."""
    named = [external for external in (scene.infrastructure, scene.control_plane) if external is not None]
    if any(external.problem for external in named):
        return int(scene.status("observedGeneration", 0))
    return _generation(scene)


def _generation(scene: Scene) -> int:
    return int(scene.cluster["metadata"].get("generation") or 0)


# --- counters -------------------------------------------------------------------------------------------------------


def _control_plane(scene: Scene) -> Object:
    plane = scene.control_plane
    if plane is None:
        counts = _group(scene, members.CONTROL_PLANE_MACHINE)
        machines = scene.members.machines(members.CONTROL_PLANE_MACHINE)
        return _filled(counts, _versions(_of_machines(machines)))
    if plane.obj is None:
        return {}
    readers = (
        control_plane.desired_replicas,
        control_plane.replicas,
        control_plane.ready_replicas,
        control_plane.available_replicas,
        control_plane.up_to_date_replicas,
    )
    obj, contract = plane.obj, plane.contract
    counts = dict(zip(_COUNTERS, (read(obj, contract) for read in readers), strict=True))
    return _filled(counts, _versions(control_plane.versions(obj, contract)))


def _workers(scene: Scene) -> Object:
    pools = [*scene.members.deployments, *scene.members.standalone_sets]
    counted = [_of_pool(pool) for pool in pools] + [_group(scene, members.STANDALONE)]
    counts = {name: _sum(counts.get(name) for counts in counted) for name in _COUNTERS}
    versions = [entry for pool in pools for entry in (pool.get("status") or {}).get("versions") or ()]
    return _filled(counts, _versions([*versions, *_of_machines(scene.members.machines(members.STANDALONE))]))


def _group(scene: Scene, group: str) -> dict[str, int | None]:
    """Machines on their own: that one is there means that it is wanted."""
    total = scene.members.count(group)
    facts = (members.READY, members.AVAILABLE, members.UP_TO_DATE)
    counts = [total, total, *(scene.members.count(group, fact) for fact in facts)]
    return {name: count or None for name, count in zip(_COUNTERS, counts, strict=True)}


def _of_pool(pool: Object) -> dict[str, int | None]:
    status = pool.get("status") or {}
    return {"desiredReplicas": pool["spec"].get("replicas")} | {name: status.get(name) for name in _COUNTERS[1:]}


def _sum(counts: Iterable[int | None]) -> int | None:
    """None as long as nobody has counted."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _filled(counts: dict[str, int | None], versions: list[Object]) -> Object:
    filled: Object = {name: count for name, count in counts.items() if count is not None}
    return filled | {"versions": versions} if versions else filled


def _of_machines(machines: Iterable[Object]) -> list[Object]:
    return [
        {"version": version, "replicas": 1} for machine in machines if (version := members.kubelet_version(machine))
    ]


def _versions(entries: Iterable[Object]) -> list[Object]:
    counts: Counter[str] = Counter()
    for entry in entries:
        counts[str(entry.get("version", ""))] += int(entry.get("replicas") or 0)
    known = [{"version": version, "replicas": count} for version, count in counts.items() if version and count > 0]
    return sorted(known, key=lambda entry: _age(str(entry["version"])))[:MOST_VERSIONS]


def _age(version: str) -> tuple[list[int], str]:
    """Oldest first: by numbers, and the suffixes that distributions add by letter."""
    numbers, _, suffix = version.lstrip("v").partition("+")
    return version_numbers(numbers), suffix
