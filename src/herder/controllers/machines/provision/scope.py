"""Scope of one reconciliation of a machine: owner, Job and state Secret."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from herder.api.capi.contract import reference_group
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_SET, POD, SECRET_METADATA
from herder.api.capi.names import annotations_of, labels_of
from herder.api.machines import names
from herder.api.machines.archive import FAILED_IN, NAMESPACE_OF
from herder.api.machines.jobs import JOB
from herder.api.machines.kinds import driver_of
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.view import View

BY_MACHINE, BY_MACHINE_SET = "infra-machine", "machine-set"
FINISHED_PODS = ("Succeeded", "Failed")


class JobOutcome(StrEnum):
    """Outcome of a Job, by the type of its condition."""

    COMPLETE = "Complete"
    FAILED = "Failed"


_OUTCOMES = tuple(outcome.value for outcome in JobOutcome)


@dataclass(frozen=True)
class ProvisionScope:
    """The machine object and everything that belongs to it."""

    view: View
    kind: Kind
    infra: Object
    machine: Object | None  # its owner
    cluster: Object | None
    state: Object | None  # metadata of its state Secret
    job: Object | None  # creating or removing Job; there is never more than one

    @property
    def driver(self) -> str:
        return driver_of(self.kind.kind)

    @property
    def namespace(self) -> str:
        return str(self.infra["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.infra["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.infra["metadata"]["uid"])

    @property
    def machine_name(self) -> str:
        if self.machine is not None:
            return str(self.machine["metadata"]["name"])
        return labels_of(self.infra).get(names.MACHINE_NAME_LABEL) or self.name

    @property
    def machine_set(self) -> str:
        """Name of the MachineSet that replaces the Machine; empty if none does."""
        owners = (self.machine or {"metadata": {}})["metadata"].get("ownerReferences") or ()
        return next((str(owner["name"]) for owner in owners if _is_machine_set(owner)), "")

    @property
    def status(self) -> Object:
        return self.infra.get("status") or {}

    @property
    def description(self) -> str:
        """How upstream's messages name the machine."""
        return (
            f"server [{self.namespace}/{self.name}] of kind ({self.kind.kind}) for machine {self.machine_name} "
            "in infrastructure provider"
        )


def new_scope(view: View, kind: Kind, infra: Object) -> ProvisionScope:
    machine = _owner(view, infra)
    cluster = view.get(CLUSTER, machine["spec"]["clusterName"]) if machine is not None else None
    state = view.get(SECRET_METADATA, names.state_secret(infra["metadata"]["name"]))
    jobs = view.owned(JOB, infra["metadata"]["uid"])
    return ProvisionScope(view, kind, infra, machine, cluster, state, jobs[0] if jobs else None)


def _owner(view: View, infra: Object) -> Object | None:
    for reference in infra["metadata"].get("ownerReferences") or ():
        if (reference["apiVersion"].rpartition("/")[0], reference["kind"]) == MACHINE.group_kind:
            found = view.get(MACHINE, reference["name"])
            if found is not None and found["metadata"]["uid"] == reference["uid"] and _references(found, infra):
                return found
    return None


def _references(machine: Object, infra: Object) -> bool:
    """Whether the Machine references this object: an owner reference alone is no proof, as its author writes it."""
    reference = machine["spec"].get("infrastructureRef") or {}
    own = infra["apiVersion"].rpartition("/")[0], infra["kind"], infra["metadata"]["name"]
    return (reference_group(reference), reference.get("kind"), reference.get("name")) == own


def _is_machine_set(owner: Object) -> bool:
    group_kind = (owner["apiVersion"].rpartition("/")[0], owner["kind"])
    return bool(owner.get("controller")) and group_kind == MACHINE_SET.group_kind


def foreign_state_owner(scope: ProvisionScope) -> str:
    """Kind and name of another machine that owns the state Secret; its name is truncated and lacks the kind."""
    labels = labels_of(scope.state) if scope.state is not None else {}
    own = names.safe_concat(scope.name)
    kind, name = labels.get(names.INFRA_KIND_LABEL, ""), labels.get(names.INFRA_NAME_LABEL, own)
    return f"{kind} {name}" if kind and (kind, name) != (scope.kind.kind, own) else ""


# --- Jobs and pods --------------------------------------------------------------------------------------------------


def job_outcome(job: Object) -> JobOutcome | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    true = {known["type"] for known in conditions if known["status"] == "True"}
    return next((outcome for outcome in JobOutcome if outcome in true), None)


def ended_at(job: Object) -> str:
    """Completion time; empty if the API server does not report it."""
    status = job.get("status") or {}
    times = [known.get("lastTransitionTime") for known in status.get("conditions") or () if known["type"] in _OUTCOMES]
    return str(status.get("completionTime") or next(iter(times), "") or "")


def removes(job: Object) -> bool:
    return names.INFRA_REMOVE_LABEL in labels_of(job)


def newest_pod(view: View, job: Object) -> Object | None:
    pods = view.owned(POD, job["metadata"]["uid"])
    return max(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]), default=None)


def has_started(scope: ProvisionScope, job: Object) -> bool:
    """Whether a container of the Job has ever run, as far as is known."""
    status = (newest_pod(scope.view, job) or {}).get("status") or {}
    states = [container.get("state") or {} for container in status.get("containerStatuses") or ()]
    return status.get("phase", "Pending") != "Pending" or any(state.keys() - {"waiting"} for state in states)


def live_pod(scope: ProvisionScope) -> Object | None:
    """A pod that still runs although its Job is deleted."""
    named = _infra_machine(scope.namespace, scope.kind.kind, names.safe_concat(scope.name))
    pods = scope.view.select(POD, index=(BY_MACHINE, named))
    return next((pod for pod in pods if (pod.get("status") or {}).get("phase") not in FINISHED_PODS), None)


def machine_of_pod(pod: Object) -> Iterable[str]:
    """Indexer: the machine of a Job's pod."""
    kind, name = (labels_of(pod).get(label) for label in (names.INFRA_KIND_LABEL, names.INFRA_NAME_LABEL))
    return (_infra_machine(pod["metadata"]["namespace"], kind, name),) if kind and name else ()


def failed_machine_set(log: Object) -> Iterable[str]:
    """Indexer: the MachineSet of a machine that could not be created, from its archived log."""
    if log["metadata"]["namespace"] != names.ARCHIVE_NAMESPACE:
        return ()  # A ConfigMap in a user's namespace; its annotations could name any MachineSet.
    annotations = annotations_of(log)
    return (f"{annotations.get(NAMESPACE_OF)}/{annotations[FAILED_IN]}",) if FAILED_IN in annotations else ()


def _infra_machine(namespace: str, kind: str, name: str) -> str:
    return f"{kind} {namespace}/{name}"


def is_forced(infra: Object) -> bool:
    return annotations_of(infra).get(names.FORCE_REMOVE) == "true"
