"""Schema of Cluster.spec.topology, as upstream defines it; stored only, no controller acts on it."""

from __future__ import annotations

from herder.api.capi.crds import pieces
from herder.api.capi.crds.health import CHECKS, REMEDIATION
from herder.api.capi.crds.schema import ANYTHING, BOOLEAN, INT_OR_STRING, Schema, atomic_list, map_list, record, string

_VARIABLES = map_list(["name"], record({"name!": string(min=1, max=256), "value!": ANYTHING}), min=1, max=1000)
_OVERRIDES = record({"overrides": _VARIABLES}, filled=True)
_CLASS = string(min=1, max=256)
_NAME = string(min=1, max=63, pattern=pieces.SUBDOMAIN)


def _health_check(remediation: dict[str, Schema]) -> Schema:
    return record({"enabled": BOOLEAN, "checks": CHECKS, "remediation": record(remediation, filled=True)}, filled=True)


_MACHINES: dict[str, Schema] = {
    "metadata": pieces.METADATA,
    "replicas": pieces.COUNT,
    "taints": pieces.TAINTS,
    "variables": _OVERRIDES,
}

_CONTROL_PLANE = record(
    _MACHINES
    | {
        "deletion": pieces.MACHINE_DELETION,
        "healthCheck": _health_check(REMEDIATION),
        "readinessGates": pieces.GATES,
        "rollout": record(pieces.AFTER, filled=True),
    },
    filled=True,
)

_MACHINE_DEPLOYMENT = record(
    _MACHINES
    | {
        "class!": _CLASS,
        "name!": _NAME,
        "deletion": pieces.CLASS_DELETION,
        "failureDomain": pieces.FAILURE_DOMAIN,
        "healthCheck": _health_check(REMEDIATION | {"maxInFlight": INT_OR_STRING}),
        "minReadySeconds": pieces.SECONDS,
        "readinessGates": pieces.GATES,
        "rollout": pieces.ROLLOUT,
    }
)

_MACHINE_POOL = record(
    _MACHINES
    | {
        "class!": _CLASS,
        "name!": _NAME,
        "deletion": pieces.MACHINE_DELETION,
        "failureDomains": atomic_list(string(min=1, max=256), min=1, max=100),
        "minReadySeconds": pieces.SECONDS,
    }
)

TOPOLOGY = record(
    {
        "classRef!": record(
            {"name!": pieces.OBJECT_NAME, "namespace": string(min=1, max=63, pattern=pieces.LABEL)},
        ),
        "version!": pieces.VERSION,
        "variables": _VARIABLES,
        "controlPlane": _CONTROL_PLANE,
        "workers": record(
            {
                "machineDeployments": map_list(["name"], _MACHINE_DEPLOYMENT, min=1, max=2000),
                "machinePools": map_list(["name"], _MACHINE_POOL, min=1, max=2000),
            },
            filled=True,
        ),
    }
)
