"""CustomResourceDefinitions of Cluster API.

Only v1beta2 is stored and served: without a conversion webhook, a second served version would lose every field that was
renamed between the two.
"""

from __future__ import annotations

from herder.api.capi.crds.addons import CLUSTER_RESOURCE_SET, CLUSTER_RESOURCE_SET_BINDING
from herder.api.capi.crds.clusters import CLUSTER, CLUSTER_CLASS
from herder.api.capi.crds.health import MACHINE_DRAIN_RULE, MACHINE_HEALTH_CHECK
from herder.api.capi.crds.machines import MACHINE, MACHINE_DEPLOYMENT, MACHINE_POOL, MACHINE_SET
from herder.engine.meta.kinds import Object

CRDS: tuple[Object, ...] = (
    CLUSTER,
    MACHINE,
    MACHINE_SET,
    MACHINE_DEPLOYMENT,
    MACHINE_POOL,
    MACHINE_HEALTH_CHECK,
    MACHINE_DRAIN_RULE,
    CLUSTER_CLASS,
    CLUSTER_RESOURCE_SET,
    CLUSTER_RESOURCE_SET_BINDING,
)
