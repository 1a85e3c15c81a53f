"""InMemoryControlPlane: the Machines that a cluster's control plane consists of, and the kubeconfig to reach it with.

The kubeconfig is there before the first Machine, so whoever follows the Machines' Nodes finds a way in. Machines come,
go and are replaced one at a time; the control plane is initialized when the first of them has its Node.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from herder.api.capi.conditions import Condition, find, is_false, is_true, merged, paused_condition
from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET_METADATA
from herder.api.capi.kubeconfigs import keep_kubeconfig
from herder.api.capi.names import (
    DELETE_MACHINE,
    SECRET_TYPE,
    annotations_of,
    is_deleting,
    is_paused,
    kubeconfig_secret,
)
from herder.api.capi.naming import MAX_NAME, RANDOM_LENGTH
from herder.api.inmemory.behaviour import behaviour
from herder.api.inmemory.kinds import (
    IN_MEMORY_BOOTSTRAP,
    IN_MEMORY_CONTROL_PLANE,
    IN_MEMORY_MACHINE,
    IN_MEMORY_MACHINE_TEMPLATE,
)
from herder.api.inmemory.names import CONTROL_PLANE_FINALIZER, STUCK_DELETION
from herder.api.writing import (
    PROGRESS_PATIENCE,
    delete,
    object_patch,
    owner_reference,
    ref,
    status_patch,
    with_owner,
)
from herder.controllers.inmemory.controlplane import machines as making
from herder.controllers.inmemory.controlplane.planning import Member, Step, next_step
from herder.controllers.inmemory.controlplane.status import is_initialized, status
from herder.controllers.inmemory.reports import status_with, trouble
from herder.controllers.inmemory.surroundings import (
    BY_CLUSTER,
    all_that_need,
    cluster_label,
    infrastructure_provisioned,
    owner_cluster,
    referred,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Create, Decision, Parallel, Patch, Write, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed, owner
from herder.engine.runtime.view import View

BY_TEMPLATE = "template"


class Scene(NamedTuple):
    """All that one pass looks at."""

    view: View
    plane: Object
    cluster: Object
    machines: list[Object]
    judged: dict[str, Condition]  # each Machine's UpToDate condition
    members: list[Member]
    template: Object | None


def reconcile(view: View) -> Decision:
    plane = view.get(IN_MEMORY_CONTROL_PLANE, view.name)
    if plane is None:
        return DONE
    cluster = owner_cluster(view, plane)
    if is_paused(cluster, plane):
        status = status_with(plane, {}, [paused_condition(cluster, plane)], view.now)
        return Decision(writes=status_patch(IN_MEMORY_CONTROL_PLANE, plane, status, "tell that it is paused"))
    if cluster is None:
        return _orphaned(plane, view)
    if is_deleting(plane):
        return _remove(_scene(view, plane, cluster))
    if CONTROL_PLANE_FINALIZER not in (plane["metadata"].get("finalizers") or []):
        return _add_finalizer(plane)
    return _live(_scene(view, plane, cluster))


def _scene(view: View, plane: Object, cluster: Object) -> Scene:
    machines = view.owned(MACHINE, plane["metadata"]["uid"])
    judged = {machine["metadata"]["name"]: _judge(view, plane, machine) for machine in machines}
    members = [_member(machine, judged[machine["metadata"]["name"]]) for machine in machines]
    template = view.get(IN_MEMORY_MACHINE_TEMPLATE, making.template_name(plane))
    return Scene(view, plane, cluster, machines, judged, members, template)


def _judge(view: View, plane: Object, machine: Object) -> Condition:
    infra = view.get(IN_MEMORY_MACHINE, machine["spec"]["infrastructureRef"]["name"])
    return making.up_to_date(plane, machine, infra, view.now)


def _member(machine: Object, judged: Condition) -> Member:
    meta = machine["metadata"]
    return Member(
        name=meta["name"],
        created=meta["creationTimestamp"],
        ready=is_true(machine, "Ready"),
        up_to_date=judged["status"] == "True",
        deleting=is_deleting(machine),
        to_remediate=is_false(machine, "HealthCheckSucceeded") and is_false(machine, "OwnerRemediated"),
        unwanted=DELETE_MACHINE in annotations_of(machine),
    )


def _add_finalizer(plane: Object) -> Decision:
    finalizers = [*(plane["metadata"].get("finalizers") or []), CONTROL_PLANE_FINALIZER]
    return Decision(writes=_with_finalizers(plane, finalizers, "its Machines must be removed before it goes"))


# --- while it lives ---------------------------------------------------------------------------------------------


def _live(scene: Scene) -> Decision:
    asked = trouble(behaviour(scene.plane), "the control plane")
    if asked is not None and not is_initialized(scene.plane):
        return _report_status(scene) + waiting(asked["message"])
    if not infrastructure_provisioned(scene.cluster):
        return _report_status(scene) + waiting(
            "the cluster's infrastructure is not provisioned", ref(CLUSTER, scene.cluster)
        )
    endpoint = (scene.cluster.get("spec") or {}).get("controlPlaneEndpoint") or {}
    if not endpoint.get("host") or not endpoint.get("port"):
        return _report_status(scene) + waiting("the Cluster has no endpoint yet", ref(CLUSTER, scene.cluster))
    credentials = keep_kubeconfig(
        scene.view,
        scene.cluster,
        f"https://{endpoint['host']}:{endpoint['port']}",
        owner_reference(IN_MEMORY_CONTROL_PLANE, scene.plane, controller=True),
    )
    if scene.view.get(SECRET_METADATA, kubeconfig_secret(scene.cluster["metadata"]["name"])) is None:
        return credentials + _report_status(scene)
    blocked = _blocked(scene)
    step = next_step(scene.plane["spec"].get("replicas", 1), scene.members)
    return (
        credentials
        + _own_template(scene)
        + _complete(scene)
        + _sync(scene)
        + (waiting(blocked) if blocked else _take(step, scene))
        + _report_status(scene, blocked)
        + Decision(wake_at=_next_rollout(scene))
    )


def _blocked(scene: Scene) -> str:
    if is_deleting(scene.cluster):
        return "the Cluster is being deleted"
    reference = scene.plane["spec"]["machineTemplate"]["spec"]["infrastructureRef"]
    if (reference["apiGroup"], reference["kind"]) != IN_MEMORY_MACHINE_TEMPLATE.group_kind:
        return f"spec.machineTemplate.spec.infrastructureRef: {reference['kind']} is not an InMemoryMachineTemplate"
    if scene.template is None:
        return f"{reference['kind']} {reference['name']} does not exist"
    return ""


def _own_template(scene: Scene) -> Decision:
    """Templates go with their cluster, and move with it."""
    if scene.template is None:
        return DONE
    wanted = with_owner(scene.template, owner_reference(CLUSTER, scene.cluster, controller=False))
    known = scene.template["metadata"].get("ownerReferences") or []
    if wanted["metadata"]["ownerReferences"][-1] in known:
        return DONE
    return Decision(writes=object_patch(IN_MEMORY_MACHINE_TEMPLATE, scene.template, wanted, "the Cluster's template"))


def _complete(scene: Scene) -> Decision:
    """Machines are made first, then what belongs to them, which is theirs from the start."""
    writes = []
    for machine in scene.machines:
        if is_deleting(machine) or scene.template is None or _provisioned(machine):
            continue
        name = machine["metadata"]["name"]
        if scene.view.get(IN_MEMORY_BOOTSTRAP, name) is None:
            config = making.bootstrap_config(scene.plane, machine)
            writes.append(Create(IN_MEMORY_BOOTSTRAP, config, "a machine needs bootstrap data"))
        if scene.view.get(IN_MEMORY_MACHINE, name) is None:
            infra = making.infra_machine(scene.plane, machine, scene.template)
            writes.append(Create(IN_MEMORY_MACHINE, infra, "a Machine needs a machine"))
    return Decision(writes=(Parallel(tuple(writes)),)) if writes else DONE


def _sync(scene: Scene) -> Decision:
    """Whether each Machine is up to date, and what may change in place."""
    writes: list[Write] = []
    for machine in scene.machines:
        if is_deleting(machine):
            continue
        writes += _report_machine(machine, scene)
        kept = making.kept_machine(scene.plane, scene.cluster, machine)
        if not _is_observed(scene.plane) or not making.is_in_step(machine, kept):
            writes.append(Apply(MACHINE, kept, "follow the control plane's template"))
        for kind in (IN_MEMORY_BOOTSTRAP, IN_MEMORY_MACHINE):
            part = scene.view.get(kind, machine["metadata"]["name"])
            if part is not None:
                writes += object_patch(kind, part, making.with_template_metadata(scene.plane, part), "as its template")
    return Decision(writes=tuple(writes))


def _is_observed(plane: Object) -> bool:
    """What the newest spec no longer asks for has been taken from the Machines."""
    return bool((plane.get("status") or {}).get("observedGeneration") == plane["metadata"].get("generation"))


def _report_machine(machine: Object, scene: Scene) -> tuple[Patch, ...]:
    known = machine.get("status") or {}
    verdict = scene.judged[machine["metadata"]["name"]]
    said = find(machine, "UpToDate") or {}
    if all(said.get(field) == verdict[field] for field in ("status", "reason", "message")):
        return ()
    status = {**known, "conditions": merged(known.get("conditions"), [verdict], scene.view.now)}
    return status_patch(MACHINE, machine, status, "tell whether it is up to date")


def _take(step: Step, scene: Scene) -> Decision:
    if step.create:
        machine = making.new_machine(
            scene.plane, scene.cluster, _new_name(scene), making.failure_domain(scene.cluster, scene.machines)
        )
        return Decision(writes=(Apply(MACHINE, machine, "the control plane needs another machine"),))
    if step.remove:
        gone = next(machine for machine in scene.machines if machine["metadata"]["name"] == step.remove)
        return Decision(writes=(delete(MACHINE, gone, "the control plane needs it no more"),))
    return waiting(step.waits_for) if step.waits_for else DONE


def _new_name(scene: Scene) -> str:
    """The same until the machine is there, and another one then."""
    meta = scene.plane["metadata"]
    known = [machine["metadata"]["uid"] for machine in scene.machines]
    random = scene.view.unique("/".join([meta["uid"], meta["resourceVersion"], *known]), RANDOM_LENGTH)
    return f"{meta['name'][: MAX_NAME - RANDOM_LENGTH - 1]}-{random}"


def _next_rollout(scene: Scene) -> datetime | None:
    after = making.rollout_after(scene.plane)
    return after if after is not None and after > scene.view.now else None


def _provisioned(machine: Object) -> bool:
    return bool(((machine.get("status") or {}).get("initialization") or {}).get("infrastructureProvisioned"))


# --- the end ----------------------------------------------------------------------------------------------------


def _remove(scene: Scene) -> Decision:
    """Machines first; Secrets go with their owner."""
    if CONTROL_PLANE_FINALIZER not in (scene.plane["metadata"].get("finalizers") or []):
        return DONE
    if scene.machines:
        gone = tuple(delete(MACHINE, machine, "its control plane goes") for machine in scene.machines)
        return Decision(writes=(Parallel(gone),)) + _report_status(scene) + waiting("the Machines go first")
    return _released(scene.plane)


def _orphaned(plane: Object, view: View) -> Decision:
    if not is_deleting(plane):
        return waiting("the core has yet to make it a Cluster's")
    return _released(plane) if not view.owned(MACHINE, plane["metadata"]["uid"]) else waiting("the Machines go first")


def _released(plane: Object) -> Decision:
    if behaviour(plane).stuck_deletion:
        return waiting(f"annotation {STUCK_DELETION} keeps it")
    left = [name for name in plane["metadata"].get("finalizers") or [] if name != CONTROL_PLANE_FINALIZER]
    return Decision(writes=_with_finalizers(plane, left, "nothing is left"))


def _with_finalizers(plane: Object, finalizers: list[str], reason: str) -> tuple[Patch, ...]:
    wanted = {**plane, "metadata": {**plane["metadata"], "finalizers": finalizers}}
    return object_patch(IN_MEMORY_CONTROL_PLANE, plane, wanted, reason)


# --- what it tells ----------------------------------------------------------------------------------------------


def _report_status(scene: Scene, blocked: str = "") -> Decision:
    fields = status(scene.plane, scene.cluster, scene.machines, scene.judged, scene.members, blocked, scene.view.now)
    known = scene.plane.get("status") or {}
    awaited = any(fields.get(field) != known.get(field) for field in ("initialization", "ready", "version"))
    patience = 0.0 if awaited or is_deleting(scene.plane) else PROGRESS_PATIENCE
    return Decision(
        writes=status_patch(IN_MEMORY_CONTROL_PLANE, scene.plane, fields, "tell how far it is", patience=patience)
    )


def _template_of(plane: Object) -> Iterable[str]:
    return (f"{plane['metadata']['namespace']}/{making.template_name(plane)}",)


def _template_itself(template: Object) -> Iterable[str]:
    return (f"{template['metadata']['namespace']}/{template['metadata']['name']}",)


CONTROLLER = Controller(
    name="inmemory-control-plane",
    kind=IN_MEMORY_CONTROL_PLANE,
    reconcile=reconcile,
    watches=(
        Watches(
            CLUSTER,
            referred(IN_MEMORY_CONTROL_PLANE, "spec", "controlPlaneRef"),
            changed(
                "spec.paused",
                "spec.controlPlaneEndpoint",
                "status.initialization.infrastructureProvisioned",
                "status.failureDomains",
                "metadata.deletionTimestamp",
            ),
        ),
        Watches(
            MACHINE,
            owner(IN_MEMORY_CONTROL_PLANE),
            changed("metadata.deletionTimestamp", "metadata.annotations", "status.conditions", "status.nodeRef"),
        ),
        Watches(IN_MEMORY_MACHINE),
        Watches(IN_MEMORY_BOOTSTRAP),
        Watches(IN_MEMORY_MACHINE_TEMPLATE, Indexed(BY_TEMPLATE, _template_itself), changed()),
        Watches(SECRET_METADATA, all_that_need(kubeconfig_secret), changed(), fields=f"type={SECRET_TYPE}"),
    ),
    predicate=changed(
        "metadata.annotations",
        "metadata.labels",
        "metadata.ownerReferences",
        "metadata.finalizers",
        "metadata.deletionTimestamp",
        "spec",
    ),
    indexes={IN_MEMORY_CONTROL_PLANE: {BY_CLUSTER: cluster_label, BY_TEMPLATE: _template_of}},
)
