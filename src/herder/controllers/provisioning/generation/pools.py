"""A pool as Cluster API has it: a MachineDeployment, and a MachineHealthCheck where one is asked for."""

from __future__ import annotations

from herder.api import gojson
from herder.api.capi import names as core
from herder.api.capi.contract import reference_group
from herder.api.capi.kinds import MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK
from herder.api.machines.names import HOSTNAME_LIMIT
from herder.api.rke import names
from herder.api.rke.durations import whole_seconds
from herder.api.rke.kinds import BOOTSTRAP_TEMPLATE
from herder.api.rke.removal import NODE_DELETION_SECONDS
from herder.controllers.provisioning.generation.asked import Pool
from herder.controllers.provisioning.generation.templates import bootstrap_template_name
from herder.engine.meta.kinds import Kind, Object

# --- machines -------------------------------------------------------------------------------------------------------


def machine_deployment(pool: Pool, template: Object | None) -> Object:
    """`template` is the machine template that was made for the pool; None where another provider has its own."""
    given, cluster = pool.spec, pool.cluster["metadata"]["name"]
    labels = {**(given.get("labels") or {}), **(given.get("machineDeploymentLabels") or {})}
    annotations = {**(given.get("machineDeploymentAnnotations") or {}), **_autoscaling(pool)}
    made = _object(MACHINE_DEPLOYMENT, pool)
    made["metadata"] |= {"labels": {**labels, names.OPERATING_SYSTEM: pool.operating_system}}
    made["metadata"] |= {"annotations": annotations} if annotations else {}
    spec: Object = {
        "clusterName": cluster,
        "rollout": {"strategy": _strategy(pool)},
        "deletion": {"order": "Oldest"},
        "template": _machine(pool, template),
        "paused": bool(given.get("paused")),
    }
    if not pool.is_autoscaled and given.get("quantity") is not None:
        spec["replicas"] = given["quantity"]  # of an autoscaled pool the number is the autoscaler's
    return made | {"spec": spec}


def _autoscaling(pool: Pool) -> dict[str, str]:
    sizes = {core.AUTOSCALER_MIN: "autoscalingMinSize", core.AUTOSCALER_MAX: "autoscalingMaxSize"}
    return {key: str(int(pool.spec[field])) for key, field in sizes.items() if pool.spec.get(field) is not None}


def _strategy(pool: Pool) -> Object:
    rolling = {key: value for key, value in (pool.spec.get("rollingUpdate") or {}).items() if value is not None}
    return {"type": "RollingUpdate"} | ({"rollingUpdate": rolling} if rolling else {})


def _machine(pool: Pool, template: Object | None) -> Object:
    cluster = pool.cluster["metadata"]["name"]
    annotations = _machine_annotations(pool)
    made: Object = {
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
        made["spec"]["deletion"] |= {"nodeDrainTimeoutSeconds": whole_seconds(timeout)}
    return made


def _machine_labels(pool: Pool) -> dict[str, str]:
    """A user's own do not stand in for those that tell whose a machine is and what it serves as."""
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
        annotations[names.LABELS] = gojson.marshalled(labels).decode()
    if taints := pool.spec.get("taints"):
        annotations[names.TAINTS] = _taints(taints)
    return annotations


def _taints(taints: list[Object]) -> str:
    """In the order of fields that Go has, which is not that of the alphabet."""
    parts = ("key", "value", "effect", "timeAdded")
    ordered = [{part: taint[part] for part in parts if taint.get(part)} for taint in taints]
    return gojson.in_given_order(ordered).decode()


def _infrastructure(pool: Pool, template: Object | None) -> Object:
    if template is None:
        config = pool.config
        return {"apiGroup": reference_group(config), "kind": config["kind"], "name": config["name"]}
    kind = pool.kinds.template
    return {"apiGroup": kind.group, "kind": kind.kind, "name": template["metadata"]["name"]}


# --- their health ---------------------------------------------------------------------------------------------------


def health_check(pool: Pool) -> Object | None:
    """None where nobody asked for unhealthy machines to be replaced."""
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
