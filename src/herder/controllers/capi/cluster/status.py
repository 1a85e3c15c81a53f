"""Status of a Cluster: phase, counters, conditions; written only when something changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from herder.api.capi.conditions import Condition, condition, merged
from herder.api.capi.contract import control_plane
from herder.api.capi.kinds import CLUSTER
from herder.api.durations import version_numbers
from herder.api.events import normal, recorded
from herder.api.writes import PROGRESS_DEBOUNCE, status_patch
from herder.controllers.capi.cluster import members
from herder.controllers.capi.cluster.conditions import conditions_of, next_up_to_date_check
from herder.controllers.capi.cluster.legacy import deprecated
from herder.controllers.capi.cluster.references import failure_domains
from herder.controllers.capi.cluster.scope import ClusterScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Event

MOST_VERSIONS = 32

NOT_DELETING = condition("Deleting", "False", "NotDeleting")

_STEPS = {"infrastructureProvisioned": "InfrastructureReady", "controlPlaneInitialized": "ControlPlaneInitialized"}
"""Steps of the initialization, and the reasons of the Events about them."""

_COUNTERS = ("desiredReplicas", "replicas", "readyReplicas", "availableReplicas", "upToDateReplicas")
_AWAITED = ("Available", "RemoteConnectionProbe", "InfrastructureReady", "ControlPlaneInitialized", "Paused")


def report(scope: ClusterScope, deleting: Condition = NOT_DELETING) -> Decision:
    known = scope.cluster.get("status") or {}
    wanted = {
        **known,
        "phase": _phase(scope),
        "initialization": _initialization(scope),
        "controlPlane": _control_plane(scope),
        "workers": _workers(scope),
        "failureDomains": failure_domains(scope),
        "observedGeneration": _observed_generation(scope),
        "conditions": _conditions(scope, deleting),
        "deprecated": deprecated(scope),
    }
    status = {field: value for field, value in wanted.items() if value}
    debounce = 0.0 if _is_awaited_change(known, status) else PROGRESS_DEBOUNCE
    patches = status_patch(CLUSTER, scope.cluster, status, "update the Cluster status", debounce=debounce)
    writes = recorded(patches, _events(scope.cluster, known, status))
    return Decision(writes=writes, wake_at=next_up_to_date_check(scope))


def _events(cluster: Object, before: Object, after: Object) -> Iterator[Event]:
    name, known = cluster["metadata"]["name"], before.get("initialization") or {}
    for step, reason in _STEPS.items():
        if after.get("initialization", {}).get(step) and not known.get(step):
            field = step[0].upper() + step[1:]
            yield normal(CLUSTER, cluster, reason, f"Cluster {name} {field} is now True")
    if after["phase"] != before.get("phase"):
        yield normal(CLUSTER, cluster, after["phase"], f"Cluster {name} is {after['phase']}")


def report_paused(scope: ClusterScope, paused: Condition) -> Decision:
    """Report only the Paused condition and keep the rest of the status."""
    known = scope.cluster.get("status") or {}
    listed = merged(known.get("conditions"), [paused], scope.view.now, generation=_generation(scope))
    return Decision(
        writes=status_patch(
            CLUSTER, scope.cluster, {**known, "conditions": listed}, "report that the Cluster is paused"
        )
    )


def _conditions(scope: ClusterScope, deleting: Condition) -> list[Condition]:
    wanted = conditions_of(scope, deleting)
    return merged(scope.status("conditions", []), wanted, scope.view.now, generation=_generation(scope))


def _is_awaited_change(known: Object, status: Object) -> bool:
    """Whether clients wait for this change, so that it must be written immediately."""
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


def _phase(scope: ClusterScope) -> str:
    if scope.deleting:
        return "Deleting"
    if scope.provisioned and scope.endpoint.valid:
        return "Provisioned"
    named = scope.infrastructure is not None or scope.control_plane is not None
    return "Provisioning" if named else "Pending"


def _initialization(scope: ClusterScope) -> Object:
    steps = {"infrastructureProvisioned": scope.provisioned, "controlPlaneInitialized": scope.initialized}
    return {step: True for step, taken in steps.items() if taken}


def _observed_generation(scope: ClusterScope) -> int:
    """Generation of the last spec whose references could all be resolved."""
    named = [external for external in (scope.infrastructure, scope.control_plane) if external is not None]
    if any(external.problem for external in named):
        return int(scope.status("observedGeneration", 0))
    return _generation(scope)


def _generation(scope: ClusterScope) -> int:
    return int(scope.cluster["metadata"].get("generation") or 0)


# --- counters -------------------------------------------------------------------------------------------------------


def _control_plane(scope: ClusterScope) -> Object:
    plane = scope.control_plane
    if plane is None:
        counts = _group(scope, members.CONTROL_PLANE_MACHINE)
        machines = scope.members.machines(members.CONTROL_PLANE_MACHINE)
        return _replica_counts(counts, _versions(_of_machines(machines)))
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
    return _replica_counts(counts, _versions(control_plane.versions(obj, contract)))


def _workers(scope: ClusterScope) -> Object:
    pools = [*scope.members.deployments, *scope.members.standalone_sets]
    counted = [_of_pool(pool) for pool in pools] + [_group(scope, members.STANDALONE)]
    counts = {name: _sum(counts.get(name) for counts in counted) for name in _COUNTERS}
    versions = [entry for pool in pools for entry in (pool.get("status") or {}).get("versions") or ()]
    return _replica_counts(counts, _versions([*versions, *_of_machines(scope.members.machines(members.STANDALONE))]))


def _group(scope: ClusterScope, group: str) -> dict[str, int | None]:
    """Counters of standalone Machines, each of which counts as desired."""
    total = scope.members.count(group)
    facts = (members.READY, members.AVAILABLE, members.UP_TO_DATE)
    counts = [total, total, *(scope.members.count(group, fact) for fact in facts)]
    return {name: count or None for name, count in zip(_COUNTERS, counts, strict=True)}


def _of_pool(pool: Object) -> dict[str, int | None]:
    status = pool.get("status") or {}
    return {"desiredReplicas": pool["spec"].get("replicas")} | {name: status.get(name) for name in _COUNTERS[1:]}


def _sum(counts: Iterable[int | None]) -> int | None:
    """Sum of the known counts; None if none is known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _replica_counts(counts: dict[str, int | None], versions: list[Object]) -> Object:
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
    return sorted(known, key=lambda entry: _version_order(str(entry["version"])))[:MOST_VERSIONS]


def _version_order(version: str) -> tuple[list[int], str]:
    """Sort key, oldest first: numerically, then by the distribution's suffix."""
    numbers, _, suffix = version.lstrip("v").partition("+")
    return version_numbers(numbers), suffix
