"""Generate the MachineDeployment of a machine pool, and its MachineHealthCheck if the pool requests one."""

from __future__ import annotations

from herder.api import gojson
from herder.api.capi import names as core
from herder.api.capi.admission import machine_deployment as admission
from herder.api.capi.admission.values import value
from herder.api.capi.contract import reference_group
from herder.api.capi.kinds import MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK
from herder.api.go_durations import whole_seconds
from herder.api.machines.names import HOSTNAME_LIMIT
from herder.api.references.approvals import APPROVED, Approval, derived_reference
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP_TEMPLATE
from herder.api.rke.machines.removal import NODE_DELETION_SECONDS
from herder.controllers.provisioning.cluster.desired import Pool
from herder.controllers.provisioning.cluster.templates import bootstrap_template_name
from herder.engine.meta.kinds import Kind, Object

# --- machines ---------------------------------------------------------------------------------------------------------


def machine_deployment(pool: Pool, template: Object | None) -> Object:
    """`template`: the generated machine template; None if another provider has its own."""
    given, cluster = pool.spec, pool.cluster["metadata"]["name"]
    labels = {**(given.get("labels") or {}), **(given.get("machineDeploymentLabels") or {})}
    annotations = {**_annotations(pool), **_autoscaling(pool), **_approved(pool)}
    obj = _object(MACHINE_DEPLOYMENT, pool)
    obj["metadata"] |= {"labels": {**labels, names.OPERATING_SYSTEM: pool.operating_system}}
    obj["metadata"] |= {"annotations": annotations} if annotations else {}
    spec: Object = {
        "clusterName": cluster,
        "rollout": {"strategy": _strategy(pool)},
        "deletion": {"order": "Oldest"},
        "template": _machine(pool, template),
        "paused": bool(given.get("paused")),
    }
    if has_fixed_size(pool):
        spec["replicas"] = given["quantity"]
    return _with_defaults(pool, obj | {"spec": spec})


def has_fixed_size(pool: Pool) -> bool:
    """Whether the pool sets the number of its machines. Otherwise the autoscaler does, or users scale the
    MachineDeployment."""
    return not pool.is_autoscaled and pool.spec.get("quantity") is not None


def _with_defaults(pool: Pool, deployment: Object) -> Object:
    """Apply the defaults of admission, which API servers without webhooks do not apply.

    Replicas that the pool does not set are left out, because apply would reset them; see `first_replicas`.
    """
    complete = admission.default(deployment, None)
    if has_fixed_size(pool):
        return complete
    return {**complete, "spec": {name: value for name, value in complete["spec"].items() if name != "replicas"}}


def first_replicas(deployment: Object) -> int | None:
    """Replicas of a stored MachineDeployment that nobody has set; None if they are set."""
    if value(deployment, "spec", "replicas") is not None:
        return None
    replicas: int | None = value(admission.default(deployment, None), "spec", "replicas")
    return replicas


def _annotations(pool: Pool) -> dict[str, str]:
    """The user's annotations, except the record of approvals, which only the manager may write."""
    given = pool.spec.get("machineDeploymentAnnotations") or {}
    return {name: value for name, value in given.items() if name != APPROVED}


def _approved(pool: Pool) -> dict[str, str]:
    """Bind the pool to the template that its author was allowed to use: Cluster API's core compares UIDs.

    Generated templates belong to the manager and need no approval.
    """
    if pool.uses_node_driver:
        return {}
    kind, namespace = BOOTSTRAP_TEMPLATE, pool.cluster["metadata"]["namespace"]
    configuration, template = (f"spec.template.spec.{field}" for field in ("bootstrap.configRef", "infrastructureRef"))
    bootstrap = Approval(configuration, kind.plural, bootstrap_template_name(pool), kind.group, namespace)
    return derived_reference(pool.cluster, pool.config_path, template, (bootstrap,))


def _autoscaling(pool: Pool) -> dict[str, str]:
    sizes = {core.AUTOSCALER_MIN: "autoscalingMinSize", core.AUTOSCALER_MAX: "autoscalingMaxSize"}
    return {key: str(int(pool.spec[field])) for key, field in sizes.items() if pool.spec.get(field) is not None}


def _strategy(pool: Pool) -> Object:
    rolling = {key: value for key, value in (pool.spec.get("rollingUpdate") or {}).items() if value is not None}
    return {"type": "RollingUpdate"} | ({"rollingUpdate": rolling} if rolling else {})


def _machine(pool: Pool, template: Object | None) -> Object:
    cluster = pool.cluster["metadata"]["name"]
    annotations = _machine_annotations(pool)
    obj: Object = {
        "metadata": {"labels": _machine_labels(pool), **({"annotations": annotations} if annotations else {})},
        "spec": {
            "clusterName": cluster,
            "bootstrap": {
                "configRef": {
                    "apiGroup": BOOTSTRAP_TEMPLATE.group,
                    "kind": BOOTSTRAP_TEMPLATE.kind,
                    "name": bootstrap_template_name(pool),
                }
            },
            "infrastructureRef": _infrastructure(pool, template),
            "deletion": {"nodeDeletionTimeoutSeconds": NODE_DELETION_SECONDS},
        },
    }
    if timeout := pool.spec.get("drainBeforeDeleteTimeout"):
        obj["spec"]["deletion"] |= {"nodeDrainTimeoutSeconds": whole_seconds(timeout)}
    return obj


def _machine_labels(pool: Pool) -> dict[str, str]:
    """Labels of the machines. The user's cannot override cluster, pool and roles."""
    cluster = pool.cluster["metadata"]["name"]
    roles = dict.fromkeys(pool.role_labels, "true")
    if names.CONTROL_PLANE_ROLE in roles:
        roles[core.CONTROL_PLANE] = "true"
    return {
        **(pool.spec.get("labels") or {}),
        core.CLUSTER_NAME: cluster,
        names.CLUSTER_NAME: cluster,
        core.DEPLOYMENT_NAME: pool.deployment,
        names.POOL_NAME: pool.name,
        names.OPERATING_SYSTEM: pool.operating_system,
        **roles,
    }


def _machine_annotations(pool: Pool) -> dict[str, str]:
    annotations: dict[str, str] = {}
    if not pool.spec.get("drainBeforeDelete"):
        annotations[core.EXCLUDE_NODE_DRAINING] = "true"
    if pool.hostname_limit:
        annotations[HOSTNAME_LIMIT] = str(pool.hostname_limit)
    if labels := pool.spec.get("labels"):
        annotations[names.LABELS] = gojson.marshal(labels).decode()
    if taints := pool.spec.get("taints"):
        annotations[names.TAINTS] = _taints(taints)
    return annotations


def _taints(taints: list[Object]) -> str:
    """Taints as JSON with Go's field order, which is not alphabetical."""
    parts = ("key", "value", "effect", "timeAdded")
    ordered = [{part: taint[part] for part in parts if taint.get(part)} for taint in taints]
    return gojson.marshal_struct(ordered).decode()


def _infrastructure(pool: Pool, template: Object | None) -> Object:
    if template is None:
        config = pool.config
        return {"apiGroup": reference_group(config), "kind": config["kind"], "name": config["name"]}
    kind = pool.kinds.template
    return {"apiGroup": kind.group, "kind": kind.kind, "name": template["metadata"]["name"]}


# --- health checks ----------------------------------------------------------------------------------------------------


def health_check(pool: Pool) -> Object | None:
    """The MachineHealthCheck; None if the pool sets no unhealthyNodeTimeout."""
    timeout = whole_seconds(pool.spec.get("unhealthyNodeTimeout") or "0")
    if not timeout:
        return None
    checks: Object = {
        "unhealthyNodeConditions": [
            {"type": "Ready", "status": status, "timeoutSeconds": timeout} for status in ("Unknown", "False")
        ]
    }
    if startup := pool.spec.get("nodeStartupTimeout"):
        checks["nodeStartupTimeoutSeconds"] = whole_seconds(startup)
    trigger = _trigger(pool)
    spec = {
        "clusterName": pool.cluster["metadata"]["name"],
        "selector": {"matchLabels": {core.DEPLOYMENT_NAME: pool.deployment}},
        "checks": checks,
        **({"remediation": {"triggerIf": trigger}} if trigger else {}),
    }
    return _object(MACHINE_HEALTH_CHECK, pool) | {"spec": spec}


def _trigger(pool: Pool) -> Object:
    trigger: Object = {}
    if most := pool.spec.get("maxUnhealthy"):
        trigger["unhealthyLessThanOrEqualTo"] = int(most) if most.isdigit() else most
    if within := pool.spec.get("unhealthyRange"):
        trigger["unhealthyInRange"] = within
    return trigger


def _object(kind: Kind, pool: Pool) -> Object:
    place = {"name": pool.deployment, "namespace": pool.cluster["metadata"]["namespace"]}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": place}
