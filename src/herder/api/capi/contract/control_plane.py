"""Read a control plane object, according to the provider contract; missing counters are None, missing
versions empty.
"""

from __future__ import annotations

from herder.api.capi.contract import Contract, fields
from herder.api.capi.contract.fields import Endpoint, Failure
from herder.engine.meta.kinds import Object

AVAILABLE = "Available"


def initialized(obj: Object, contract: Contract) -> bool:
    if contract is Contract.V1BETA1:
        return fields.flag(obj, "status", "initialized")
    return fields.flag(obj, "status", "initialization", "controlPlaneInitialized")


def endpoint(obj: Object, _contract: Contract) -> Endpoint:
    return fields.endpoint(obj)


def desired_replicas(obj: Object, _contract: Contract) -> int | None:
    return fields.number(obj, "spec", "replicas")


def replicas(obj: Object, _contract: Contract) -> int | None:
    return fields.number(obj, "status", "replicas")


def ready_replicas(obj: Object, _contract: Contract) -> int | None:
    return fields.number(obj, "status", "readyReplicas")


def available_replicas(obj: Object, contract: Contract) -> int | None:
    """v1beta1 counts the unavailable replicas instead."""
    if contract is Contract.V1BETA2:
        return fields.number(obj, "status", "availableReplicas")
    desired, unavailable = desired_replicas(obj, contract), fields.number(obj, "status", "unavailableReplicas")
    return None if desired is None or unavailable is None else max(desired - unavailable, 0)


def up_to_date_replicas(obj: Object, contract: Contract) -> int | None:
    name = "updatedReplicas" if contract is Contract.V1BETA1 else "upToDateReplicas"
    return fields.number(obj, "status", name)


def version(obj: Object, _contract: Contract) -> str:
    """Return the desired version."""
    return fields.text(obj, "spec", "version")


def status_version(obj: Object, contract: Contract) -> str:
    """Return the lowest version in use; empty until the control plane is initialized."""
    named = fields.text(obj, "status", "version")
    return named or next((str(each.get("version", "")) for each in versions(obj, contract)), "")


def versions(obj: Object, contract: Contract) -> list[Object]:
    """Return `{version, replicas}` entries, the oldest version first."""
    listed = fields.objects(obj, "status", "versions")
    if listed:
        return listed
    only, count = fields.text(obj, "status", "version"), replicas(obj, contract)
    return [{"version": only, "replicas": count}] if only and count is not None else []


def selector(obj: Object, _contract: Contract) -> str:
    return fields.text(obj, "status", "selector")


def externally_managed(obj: Object, _contract: Contract) -> bool:
    """Whether the control plane has no Machines, and no Nodes in the cluster."""
    return fields.flag(obj, "status", "externalManagedControlPlane")


def failure(obj: Object, _contract: Contract) -> Failure:
    return fields.failure(obj)
