"""Kinds of the in-memory provider, whose clusters consist of a real API and simulated machines.

InMemoryMachine and InMemoryBootstrapConfig have no status subresource, so that readiness and provider ID are written at
once.
"""

from __future__ import annotations

from herder.engine.meta.kinds import Kind

GROUP = "inmemory.cluster.x-k8s.io"
VERSION = "v1alpha1"

IN_MEMORY_CLUSTER = Kind(GROUP, VERSION, "InMemoryCluster", "inmemoryclusters")
IN_MEMORY_CLUSTER_TEMPLATE = Kind(GROUP, VERSION, "InMemoryClusterTemplate", "inmemoryclustertemplates")
IN_MEMORY_MACHINE = Kind(GROUP, VERSION, "InMemoryMachine", "inmemorymachines")
IN_MEMORY_MACHINE_TEMPLATE = Kind(GROUP, VERSION, "InMemoryMachineTemplate", "inmemorymachinetemplates")
IN_MEMORY_BOOTSTRAP = Kind(GROUP, VERSION, "InMemoryBootstrapConfig", "inmemorybootstrapconfigs")
IN_MEMORY_BOOTSTRAP_TEMPLATE = Kind(
    GROUP, VERSION, "InMemoryBootstrapConfigTemplate", "inmemorybootstrapconfigtemplates"
)
IN_MEMORY_CONTROL_PLANE = Kind(GROUP, VERSION, "InMemoryControlPlane", "inmemorycontrolplanes")
IN_MEMORY_CONTROL_PLANE_TEMPLATE = Kind(GROUP, VERSION, "InMemoryControlPlaneTemplate", "inmemorycontrolplanetemplates")
