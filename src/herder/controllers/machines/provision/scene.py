"""What surrounds one machine: whose it is, its Job and what is recorded of it."""

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


class Ended(StrEnum):
    """How a Job ended, in the words of its conditions."""

    COMPLETE = "Complete"
    FAILED = "Failed"


_ENDINGS = tuple(outcome.value for outcome in Ended)


@dataclass(frozen=True)
class Scene:
    view: View
    kind: Kind
    infra: Object
    machine: Object | None  # that owns it
    cluster: Object | None
    state: Object | None  # the metadata of its state Secret
    job: Object | None  # that creates or removes it; there is never more than one

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
        """The name of the MachineSet that makes another in its place; "" where nobody does."""
        owners = (self.machine or {"metadata": {}})["metadata"].get("ownerReferences") or ()
        return next((str(owner["name"]) for owner in owners if _is_machine_set(owner)), "")

    @property
    def status(self) -> Object:
        return self.infra.get("status") or {}

    @property
    def told(self) -> str:
        """As messages name it."""
        return (
            f"server [{self.namespace}/{self.name}] of kind ({self.kind.kind}) for machine {self.machine_name} "
            "in infrastructure provider"
        )


def survey(view: View, kind: Kind, infra: Object) -> Scene:
    machine = _owner(view, infra)
    cluster = view.get(CLUSTER, machine["spec"]["clusterName"]) if machine is not None else None
    state = view.get(SECRET_METADATA, names.state_secret(infra["metadata"]["name"]))
    jobs = view.owned(JOB, infra["metadata"]["uid"])
    return Scene(view, kind, infra, machine, cluster, state, jobs[0] if jobs else None)


def _owner(view: View, infra: Object) -> Object | None:
    for reference in infra["metadata"].get("ownerReferences") or ():
        if (reference["apiVersion"].rpartition("/")[0], reference["kind"]) == MACHINE.group_kind:
            found = view.get(MACHINE, reference["name"])
            if found is not None and found["metadata"]["uid"] == reference["uid"] and _names(found, infra):
                return found
    return None


def _names(machine: Object, infra: Object) -> bool:
    """An owner reference proves nothing, since whoever writes the object writes it: the Machine must name it too."""
    reference = machine["spec"].get("infrastructureRef") or {}
    own = infra["apiVersion"].rpartition("/")[0], infra["kind"], infra["metadata"]["name"]
    return (reference_group(reference), reference.get("kind"), reference.get("name")) == own


def _is_machine_set(owner: Object) -> bool:
    group_kind = (owner["apiVersion"].rpartition("/")[0], owner["kind"])
    return bool(owner.get("controller")) and group_kind == MACHINE_SET.group_kind


def state_of_another(scene: Scene) -> str:
    """Kind and name of another machine, if the state Secret is that one's: its name is made without the kind, and that
    of a long name is cut."""
    labels = labels_of(scene.state) if scene.state is not None else {}
    own = names.safe_concat(scene.name)
    kind, name = labels.get(names.INFRA_KIND_LABEL, ""), labels.get(names.INFRA_NAME_LABEL, own)
    return f"{kind} {name}" if kind and (kind, name) != (scene.kind.kind, own) else ""


# --- Jobs and their pods --------------------------------------------------------------------------------------------


def ended(job: Object) -> Ended | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    true = {known["type"] for known in conditions if known["status"] == "True"}
    return next((outcome for outcome in Ended if outcome in true), None)


def ended_at(job: Object) -> str:
    """As a timestamp; "" where the server does not say."""
    status = job.get("status") or {}
    times = [known.get("lastTransitionTime") for known in status.get("conditions") or () if known["type"] in _ENDINGS]
    return str(status.get("completionTime") or next(iter(times), "") or "")


def removes(job: Object) -> bool:
    return names.INFRA_REMOVE_LABEL in labels_of(job)


def newest_pod(view: View, job: Object) -> Object | None:
    pods = view.owned(POD, job["metadata"]["uid"])
    return max(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]), default=None)


def has_begun(scene: Scene, job: Object) -> bool:
    """Whether a container of the Job has ever run, as far as is known here."""
    status = (newest_pod(scene.view, job) or {}).get("status") or {}
    states = [container.get("state") or {} for container in status.get("containerStatuses") or ()]
    return status.get("phase", "Pending") != "Pending" or any(state.keys() - {"waiting"} for state in states)


def live_pod(scene: Scene) -> Object | None:
    """A pod that still runs although its Job is gone."""
    named = _infra_machine(scene.namespace, scene.kind.kind, names.safe_concat(scene.name))
    pods = scene.view.select(POD, index=(BY_MACHINE, named))
    return next((pod for pod in pods if (pod.get("status") or {}).get("phase") not in FINISHED_PODS), None)


def machine_of_pod(pod: Object) -> Iterable[str]:
    """Indexer: the machine that a pod of a Job is at work for."""
    kind, name = (labels_of(pod).get(label) for label in (names.INFRA_KIND_LABEL, names.INFRA_NAME_LABEL))
    return (_infra_machine(pod["metadata"]["namespace"], kind, name),) if kind and name else ()


def set_of_failure(log: Object) -> Iterable[str]:
    """Indexer: the MachineSet of a machine that could not be created, by its log in the archive."""
    if log["metadata"]["namespace"] != names.ARCHIVE_NAMESPACE:
        return ()  # of a user, whose annotations could name any MachineSet
    annotations = annotations_of(log)
    return (f"{annotations.get(NAMESPACE_OF)}/{annotations[FAILED_IN]}",) if FAILED_IN in annotations else ()


def _infra_machine(namespace: str, kind: str, name: str) -> str:
    return f"{kind} {namespace}/{name}"


def is_forced(infra: Object) -> bool:
    return annotations_of(infra).get(names.FORCE_REMOVE) == "true"
