"""InMemoryControlPlane reconciler: control plane Machines and the cluster's kubeconfig.

The kubeconfig exists before the first Machine, so that controllers can connect when Nodes register. Machines are
created, deleted and replaced one at a time; the control plane is initialized when the first Machine has a Node.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from herder.api.capi.conditions import Condition, find, is_false, is_true, merged, paused_condition
from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET_METADATA
from herder.api.capi.kubeconfigs import reconcile_kubeconfig
from herder.api.capi.membership import of_same_cluster
from herder.api.capi.names import (
    DELETE_MACHINE,
    SECRET_TYPE,
    annotations_of,
    is_deleting,
    is_paused,
    kubeconfig_secret,
)
from herder.api.capi.naming import MAX_NAME, RANDOM_LENGTH
from herder.api.inmemory.behavior import behavior_of
from herder.api.inmemory.kinds import (
    IN_MEMORY_BOOTSTRAP,
    IN_MEMORY_CONTROL_PLANE,
    IN_MEMORY_MACHINE,
    IN_MEMORY_MACHINE_TEMPLATE,
)
from herder.api.inmemory.names import CONTROL_PLANE_FINALIZER, STUCK_DELETION
from herder.api.writes import PROGRESS_DEBOUNCE, delete, object_patch, owner_reference, ref, status_patch, with_owner
from herder.controllers.inmemory.conditions import simulated_failure, status_with
from herder.controllers.inmemory.controlplane import machines as desired
from herder.controllers.inmemory.controlplane.scale import Member, Step, next_step
from herder.controllers.inmemory.controlplane.status import is_initialized, status
from herder.controllers.inmemory.owners import (
    BY_CLUSTER,
    cluster_label,
    group,
    infrastructure_provisioned,
    objects_needing_secret,
    owner_cluster,
    referenced,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Create, Decision, Parallel, Patch, Write, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed, owner
from herder.engine.runtime.view import View

BY_TEMPLATE = "template"
REFERENCE = ("spec", "controlPlaneRef")  # of the Cluster


class ControlPlaneScope(NamedTuple):
    """The objects of one reconciliation."""

    view: View
    plane: Object
    cluster: Object
    machines: list[Object]
    up_to_date_conditions: dict[str, Condition]  # UpToDate condition by Machine name
    members: list[Member]
    template: Object | None


def reconcile(view: View) -> Decision:
    plane = view.get(IN_MEMORY_CONTROL_PLANE, view.name)
    if plane is None:
        return DONE
    cluster = owner_cluster(view, plane, IN_MEMORY_CONTROL_PLANE, *REFERENCE)
    if is_paused(cluster, plane):
        status = status_with(plane, {}, [paused_condition(cluster, plane)], view.now)
        return Decision(writes=status_patch(IN_MEMORY_CONTROL_PLANE, plane, status, "report that it is paused"))
    if cluster is None:
        return _orphaned(plane, view)
    if is_deleting(plane):
        return _reconcile_delete(_new_scope(view, plane, cluster))
    if CONTROL_PLANE_FINALIZER not in (plane["metadata"].get("finalizers") or []):
        return _add_finalizer(plane)
    return _reconcile_normal(_new_scope(view, plane, cluster))


def _new_scope(view: View, plane: Object, cluster: Object) -> ControlPlaneScope:
    machines = of_same_cluster(view.owned(MACHINE, plane["metadata"]["uid"]), cluster["metadata"]["name"])
    up_to_date_conditions = {machine["metadata"]["name"]: _up_to_date(view, plane, machine) for machine in machines}
    members = [_member(machine, up_to_date_conditions[machine["metadata"]["name"]]) for machine in machines]
    template = view.get(IN_MEMORY_MACHINE_TEMPLATE, desired.template_name(plane))
    return ControlPlaneScope(view, plane, cluster, machines, up_to_date_conditions, members, template)


def _up_to_date(view: View, plane: Object, machine: Object) -> Condition:
    infra = view.get(IN_MEMORY_MACHINE, machine["spec"]["infrastructureRef"]["name"])
    return desired.up_to_date(plane, machine, infra, view.now)


def _member(machine: Object, up_to_date_conditions: Condition) -> Member:
    meta = machine["metadata"]
    return Member(
        name=meta["name"],
        created=meta["creationTimestamp"],
        ready=is_true(machine, "Ready"),
        up_to_date=up_to_date_conditions["status"] == "True",
        deleting=is_deleting(machine),
        to_remediate=is_false(machine, "HealthCheckSucceeded") and is_false(machine, "OwnerRemediated"),
        delete_first=DELETE_MACHINE in annotations_of(machine),
    )


def _add_finalizer(plane: Object) -> Decision:
    finalizers = [*(plane["metadata"].get("finalizers") or []), CONTROL_PLANE_FINALIZER]
    return Decision(writes=_with_finalizers(plane, finalizers, "add the finalizer to delete its Machines"))


# --- normal reconciliation ------------------------------------------------------------------------------------------


def _reconcile_normal(scope: ControlPlaneScope) -> Decision:
    behavior = simulated_failure(behavior_of(scope.plane), "the control plane")
    if behavior is not None and not is_initialized(scope.plane):
        return _report_status(scope) + waiting(behavior["message"])
    if not infrastructure_provisioned(scope.cluster):
        return _report_status(scope) + waiting(
            "the cluster's infrastructure is not provisioned", ref(CLUSTER, scope.cluster)
        )
    endpoint = (scope.cluster.get("spec") or {}).get("controlPlaneEndpoint") or {}
    if not endpoint.get("host") or not endpoint.get("port"):
        return _report_status(scope) + waiting("the Cluster has no endpoint yet", ref(CLUSTER, scope.cluster))
    credentials = reconcile_kubeconfig(
        scope.view,
        scope.cluster,
        f"https://{endpoint['host']}:{endpoint['port']}",
        owner_reference(IN_MEMORY_CONTROL_PLANE, scope.plane, controller=True),
    )
    if scope.view.get(SECRET_METADATA, kubeconfig_secret(scope.cluster["metadata"]["name"])) is None:
        return credentials + _report_status(scope)
    blocked = _blocked(scope)
    step = next_step(scope.plane["spec"].get("replicas", 1), scope.members)
    return (
        credentials
        + _own_template(scope)
        + _complete(scope)
        + _sync(scope)
        + (waiting(blocked) if blocked else _execute(step, scope))
        + _report_status(scope, blocked)
        + Decision(wake_at=_next_rollout(scope))
    )


def _blocked(scope: ControlPlaneScope) -> str:
    if is_deleting(scope.cluster):
        return "the Cluster is being deleted"
    reference = scope.plane["spec"]["machineTemplate"]["spec"]["infrastructureRef"]
    if (reference["apiGroup"], reference["kind"]) != IN_MEMORY_MACHINE_TEMPLATE.group_kind:
        return f"spec.machineTemplate.spec.infrastructureRef: {reference['kind']} is not an InMemoryMachineTemplate"
    if scope.template is None:
        return f"{reference['kind']} {reference['name']} does not exist"
    return ""


def _own_template(scope: ControlPlaneScope) -> Decision:
    """Add the Cluster as owner: templates are deleted and moved with their cluster."""
    if scope.template is None:
        return DONE
    wanted = with_owner(scope.template, owner_reference(CLUSTER, scope.cluster, controller=False))
    known = scope.template["metadata"].get("ownerReferences") or []
    if wanted["metadata"]["ownerReferences"][-1] in known:
        return DONE
    return Decision(
        writes=object_patch(
            IN_MEMORY_MACHINE_TEMPLATE, scope.template, wanted, "set the Cluster as owner of the template"
        )
    )


def _complete(scope: ControlPlaneScope) -> Decision:
    """Create the bootstrap and infrastructure objects of Machines, which own them from the start."""
    writes = []
    for machine in scope.machines:
        if is_deleting(machine) or scope.template is None or _provisioned(machine):
            continue
        name = machine["metadata"]["name"]
        if scope.view.get(IN_MEMORY_BOOTSTRAP, name) is None:
            config = desired.bootstrap_config(scope.plane, machine)
            writes.append(Create(IN_MEMORY_BOOTSTRAP, config, "create the bootstrap config of the Machine"))
        if scope.view.get(IN_MEMORY_MACHINE, name) is None:
            infra = desired.infra_machine(scope.plane, machine, scope.template)
            writes.append(Create(IN_MEMORY_MACHINE, infra, "create the infrastructure machine of the Machine"))
    return Decision(writes=(Parallel(tuple(writes)),)) if writes else DONE


def _sync(scope: ControlPlaneScope) -> Decision:
    """Report whether each Machine is up to date, and propagate in-place changes."""
    writes: list[Write] = []
    for machine in scope.machines:
        if is_deleting(machine):
            continue
        writes += _report_machine(machine, scope)
        updated = desired.updated_machine(scope.plane, scope.cluster, machine)
        if not _is_observed(scope.plane) or not desired.has_template_values(machine, updated):
            writes.append(Apply(MACHINE, updated, "propagate the machine template in place"))
        for kind in (IN_MEMORY_BOOTSTRAP, IN_MEMORY_MACHINE):
            part = scope.view.get(kind, machine["metadata"]["name"])
            if part is not None:
                writes += object_patch(
                    kind,
                    part,
                    desired.with_template_metadata(scope.plane, part),
                    "propagate the metadata of the template",
                )
    return Decision(writes=tuple(writes))


def _is_observed(plane: Object) -> bool:
    """Whether fields that the newest spec removed have been removed from the Machines."""
    return bool((plane.get("status") or {}).get("observedGeneration") == plane["metadata"].get("generation"))


def _report_machine(machine: Object, scope: ControlPlaneScope) -> tuple[Patch, ...]:
    known = machine.get("status") or {}
    known_condition = scope.up_to_date_conditions[machine["metadata"]["name"]]
    reported_condition = find(machine, "UpToDate") or {}
    if all(reported_condition.get(field) == known_condition[field] for field in ("status", "reason", "message")):
        return ()
    status = {**known, "conditions": merged(known.get("conditions"), [known_condition], scope.view.now)}
    return status_patch(MACHINE, machine, status, "report whether it is up to date")


def _execute(step: Step, scope: ControlPlaneScope) -> Decision:
    if step.create:
        machine = desired.new_machine(
            scope.plane, scope.cluster, _new_name(scope), desired.failure_domain(scope.cluster, scope.machines)
        )
        return Decision(writes=(Apply(MACHINE, machine, "scale up the control plane"),))
    if step.remove:
        gone = next(machine for machine in scope.machines if machine["metadata"]["name"] == step.remove)
        return Decision(writes=(delete(MACHINE, gone, "scale down or replace the machine"),))
    return waiting(step.waits_for) if step.waits_for else DONE


def _new_name(scope: ControlPlaneScope) -> str:
    """Stable until the Machine exists, then a new one."""
    meta = scope.plane["metadata"]
    known = [machine["metadata"]["uid"] for machine in scope.machines]
    random = scope.view.unique("/".join([meta["uid"], meta["resourceVersion"], *known]), RANDOM_LENGTH)
    return f"{meta['name'][: MAX_NAME - RANDOM_LENGTH - 1]}-{random}"


def _next_rollout(scope: ControlPlaneScope) -> datetime | None:
    after = desired.rollout_after(scope.plane)
    return after if after is not None and after > scope.view.now else None


def _provisioned(machine: Object) -> bool:
    return bool(((machine.get("status") or {}).get("initialization") or {}).get("infrastructureProvisioned"))


# --- deletion -------------------------------------------------------------------------------------------------------


def _reconcile_delete(scope: ControlPlaneScope) -> Decision:
    """Delete Machines first; Secrets are garbage collected."""
    if CONTROL_PLANE_FINALIZER not in (scope.plane["metadata"].get("finalizers") or []):
        return DONE
    if scope.machines:
        gone = tuple(delete(MACHINE, machine, "its control plane is being deleted") for machine in scope.machines)
        return (
            Decision(writes=(Parallel(gone),))
            + _report_status(scope)
            + waiting("waiting for the Machines to be deleted")
        )
    return _released(scope.plane)


def _orphaned(plane: Object, view: View) -> Decision:
    if not is_deleting(plane):
        return waiting("waiting for the Cluster controller to set the owner reference")
    return (
        _released(plane)
        if not view.owned(MACHINE, plane["metadata"]["uid"])
        else waiting("waiting for the Machines to be deleted")
    )


def _released(plane: Object) -> Decision:
    if behavior_of(plane).stuck_deletion:
        return waiting(f"annotation {STUCK_DELETION} blocks the deletion")
    left = [name for name in plane["metadata"].get("finalizers") or [] if name != CONTROL_PLANE_FINALIZER]
    return Decision(writes=_with_finalizers(plane, left, "all Machines are deleted"))


def _with_finalizers(plane: Object, finalizers: list[str], reason: str) -> tuple[Patch, ...]:
    wanted = {**plane, "metadata": {**plane["metadata"], "finalizers": finalizers}}
    return object_patch(IN_MEMORY_CONTROL_PLANE, plane, wanted, reason)


# --- status ---------------------------------------------------------------------------------------------------------


def _report_status(scope: ControlPlaneScope, blocked: str = "") -> Decision:
    fields = status(
        scope.plane, scope.cluster, scope.machines, scope.up_to_date_conditions, scope.members, blocked, scope.view.now
    )
    known = scope.plane.get("status") or {}
    awaited = any(fields.get(field) != known.get(field) for field in ("initialization", "ready", "version"))
    debounce = 0.0 if awaited or is_deleting(scope.plane) else PROGRESS_DEBOUNCE
    return Decision(
        writes=status_patch(
            IN_MEMORY_CONTROL_PLANE, scope.plane, fields, "update the control plane status", debounce=debounce
        )
    )


def _template_of(plane: Object) -> Iterable[str]:
    return (f"{plane['metadata']['namespace']}/{desired.template_name(plane)}",)


def _template_key(template: Object) -> Iterable[str]:
    return (f"{template['metadata']['namespace']}/{template['metadata']['name']}",)


CONTROLLER = Controller(
    name="inmemory-control-plane",
    kind=IN_MEMORY_CONTROL_PLANE,
    reconcile=reconcile,
    watches=(
        Watches(
            CLUSTER,
            referenced(IN_MEMORY_CONTROL_PLANE, *REFERENCE),
            changed(
                ".".join(REFERENCE),
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
        Watches(IN_MEMORY_MACHINE_TEMPLATE, Indexed(BY_TEMPLATE, _template_key), changed()),
        Watches(SECRET_METADATA, objects_needing_secret(kubeconfig_secret), changed(), fields=f"type={SECRET_TYPE}"),
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
    cluster_of=group,
)
