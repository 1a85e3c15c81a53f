"""Machines: what wakes them, and the order of a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from herder.api.capi.conditions import is_true
from herder.api.capi.contract import definition_name, reference_group
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.names import (
    DEPLOYMENT_NAME,
    MACHINE_FINALIZER,
    REVISION,
    annotations_of,
    cluster_key,
    is_deleting,
    is_paused,
    labels_of,
)
from herder.api.writing import object_patch
from herder.controllers.capi.machine import deletion
from herder.controllers.capi.machine.bootstrap import Bootstrap, bootstrap
from herder.controllers.capi.machine.infrastructure import Infrastructure, infrastructure
from herder.controllers.capi.machine.node import look
from herder.controllers.capi.machine.node_sync import recorded, sync
from herder.controllers.capi.machine.ownership import adopted, claim, with_finalizer
from herder.controllers.capi.machine.scene import Scene, status_of, survey
from herder.controllers.capi.machine.status import LEGACY_OWNED, OWNED, Findings, report_paused, report_status
from herder.engine.control.cache import Change, Indexer
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Parallel, Patch, Ref, Writes, waiting
from herder.engine.runtime.handlers import Follows, Indexed, Matters, Watches, changed
from herder.engine.runtime.view import View


def reconcile(view: View) -> Decision:
    machine = view.get(MACHINE, view.name)
    if machine is None or _is_through(machine):
        return DONE
    cluster = view.get(CLUSTER, machine["spec"]["clusterName"])
    if cluster is None and not is_deleting(machine):
        missing = Ref(CLUSTER, machine["spec"]["clusterName"], view.namespace)
        return waiting(f"{missing} does not exist", missing)
    if not _is_guarded(machine):
        return Decision(object_patch(MACHINE, machine, with_finalizer(machine), "it is removed in order"))
    if is_paused(cluster, machine):
        return Decision(report_paused(machine, cluster, view.now))
    return _tend(view, survey(view, machine, cluster or _gone(machine)))


def _is_guarded(machine: Object) -> bool:
    return MACHINE_FINALIZER in (machine["metadata"].get("finalizers") or ())


def _is_through(machine: Object) -> bool:
    """It is going, and all that had to be done before is done."""
    return is_deleting(machine) and not _is_guarded(machine)


def _gone(machine: Object) -> Object:
    """A Cluster that is no more is, to a Machine that goes after it, like one that is going."""
    name, namespace = machine["spec"]["clusterName"], machine["metadata"]["namespace"]
    going = machine["metadata"]["deletionTimestamp"]
    return {"metadata": {"name": name, "namespace": namespace, "uid": "", "deletionTimestamp": going}}


def _tend(view: View, scene: Scene) -> Decision:
    """Bootstrap data, infrastructure, Node; and the way out for a Machine that goes.

    What belongs in the Machine itself is written first, and its status in the next pass: a status is written only
    over the revision that it was made from.
    """
    data, host = bootstrap(scene), infrastructure(scene)
    changes = () if scene.deleting else _changes(view, scene, data, host)
    sight = look(view, scene, host.provider_id or scene.machine["spec"].get("providerID") or "")
    decision = Decision(changes + _claims(scene), observe=sight.observe)
    if sight.node is not None and not scene.deleting:
        decision += Decision(sync(view, scene, sight.node))
    if changes:
        return decision
    if not scene.deleting:
        return decision + report_status(Findings(scene, data, host, sight), view.now)
    step = deletion.step(
        view, scene.machine, scene.cluster, infrastructure=scene.infrastructure, bootstrap=scene.bootstrap
    )
    if step.finished:
        return step.decision
    return decision + report_status(Findings(scene, data, host, sight, step), view.now) + step.decision


def _changes(view: View, scene: Scene, data: Bootstrap, host: Infrastructure) -> tuple[Patch, ...]:
    """What the providers found out, in the Machine's spec, and the Machine in its Cluster's hands."""
    wanted = recorded(scene, adopted(scene.machine, scene.cluster), view.setting)
    spec = {**wanted["spec"]}
    if data.secret:
        spec["bootstrap"] = {**(spec.get("bootstrap") or {}), "dataSecretName": data.secret}
    if host.provider_id:
        spec["providerID"] = host.provider_id
    if host.wanted_domain:
        spec["failureDomain"] = host.wanted_domain
    return object_patch(MACHINE, scene.machine, {**wanted, "spec": spec}, "what its providers found out")


def _claims(scene: Scene) -> Writes:
    if scene.deleting:
        return ()
    patches = claim(scene, scene.bootstrap) + claim(scene, scene.infrastructure)
    return (Parallel(patches),) if patches else ()


# --- what wakes a Machine --------------------------------------------------------------------------------------------


def _differs(facts: Callable[[Object], Any]) -> Matters:
    """Additions and removals, and changes of these facts."""

    def matters(change: Change) -> bool:
        return change.old is None or change.new is None or facts(change.old) != facts(change.new)

    return matters


def _of_machine(machine: Object) -> Any:
    """All but what this controller itself tells in the status."""
    meta = machine["metadata"]
    legacy = (status_of(machine, "deprecated", {}).get("v1beta1") or {}).get("conditions") or ()
    return (
        machine["spec"],
        [meta.get(part) for part in ("labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp")],
        status_of(machine, "deletion", None),
        [known for known in status_of(machine, "conditions", ()) if known["type"] not in OWNED],
        [known for known in legacy if known["type"] not in LEGACY_OWNED],
    )


def _of_cluster(cluster: Object) -> Any:
    spec = cluster.get("spec") or {}
    return (
        spec.get("paused"),
        spec.get("controlPlaneRef"),
        status_of(cluster, "initialization", {}).get("infrastructureProvisioned"),
        is_true(cluster, "ControlPlaneInitialized"),
        is_deleting(cluster),
    )


def _of_template(obj: Object) -> Any:
    """What of a MachineSet or a MachineDeployment tells whether a Machine is up to date."""
    template = obj["spec"]["template"]["spec"]
    return (
        [template.get(part) for part in ("version", "failureDomain", "bootstrap", "infrastructureRef")],
        obj["spec"].get("rollout"),
        annotations_of(obj).get(REVISION),
        labels_of(obj).get(DEPLOYMENT_NAME),
    )


def _own_name(obj: Object) -> Iterable[str]:
    meta = obj["metadata"]
    return (f"{meta['namespace']}/{meta['name']}",)


def _own_uid(obj: Object) -> Iterable[str]:
    return (obj["metadata"]["uid"],)


def _own_reference(obj: Object) -> Iterable[str]:
    group = obj["apiVersion"].rpartition("/")[0]
    return (_reference(group, obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]),)


def _reference(group: str, kind: str, namespace: str, name: str) -> str:
    return f"{group}/{kind}/{namespace}/{name}"


def _cluster_of(machine: Object) -> str:
    return cluster_key(machine["metadata"]["namespace"], machine["spec"]["clusterName"])


def _by_deployment(machine: Object) -> Iterable[str]:
    name = labels_of(machine).get(DEPLOYMENT_NAME)
    return (f"{machine['metadata']['namespace']}/{name}",) if name else ()


def _by_reference(machine: Object) -> Iterable[str]:
    namespace = machine["metadata"]["namespace"]
    return [
        _reference(reference_group(reference), reference["kind"], namespace, reference["name"])
        for reference in _references(machine)
    ]


def _by_definition(machine: Object) -> Iterable[str]:
    return [definition_name(reference_group(reference), reference["kind"]) for reference in _references(machine)]


def _references(machine: Object) -> list[Object]:
    spec = machine["spec"]
    found = ((spec.get("bootstrap") or {}).get("configRef"), spec.get("infrastructureRef"))
    return [reference for reference in found if reference]


_INDEXES: dict[str, Indexer] = {
    "machine.cluster": lambda machine: (_cluster_of(machine),),
    "machine.deployment": _by_deployment,
    "machine.reference": _by_reference,
    "machine.definition": _by_definition,
}

CONTROLLER = Controller(
    name="machine",
    kind=MACHINE,
    reconcile=reconcile,
    predicate=_differs(_of_machine),
    watches=(
        Watches(CLUSTER, Indexed("machine.cluster", _own_name), _differs(_of_cluster)),
        Watches(MACHINE_SET, Indexed("controller", _own_uid), _differs(_of_template)),
        Watches(MACHINE_DEPLOYMENT, Indexed("machine.deployment", _own_name), _differs(_of_template)),
        Watches(
            DEFINITION,
            Indexed("machine.definition", lambda obj: (obj["metadata"]["name"],)),
            changed("metadata.labels"),
        ),
        *deletion.WATCHES,
    ),
    # By the Machine's own references: its objects wake it whoever owns them yet.
    follows=Follows(
        Indexed("machine.reference", _own_reference),
        changed(
            "metadata.labels",
            "metadata.annotations",
            "metadata.ownerReferences",
            "metadata.deletionTimestamp",
            "spec",
            "status",
        ),
    ),
    indexes={**deletion.INDEXES, MACHINE: {**deletion.INDEXES.get(MACHINE, {}), **_INDEXES}},
    workers=16,
    cluster_of=_cluster_of,
)
