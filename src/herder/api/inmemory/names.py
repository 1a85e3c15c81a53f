"""Finalizers, effects and annotations of the in-memory provider; annotations inject delays and faults.

An annotation applies to the object it is set on. For machines, set it in a template's metadata, which is copied to each
of them, or on a single InMemoryMachine. Delays are seconds (`2`, `0.5`), optionally with a spread (`2±20%`); the
default is none.
"""

from __future__ import annotations

from herder.api.inmemory.kinds import GROUP

CLUSTER_FINALIZER = f"inmemorycluster.{GROUP}"
MACHINE_FINALIZER = f"inmemorymachine.{GROUP}"
CONTROL_PLANE_FINALIZER = f"inmemorycontrolplane.{GROUP}"

# Delays.
API_DELAY = f"{GROUP}/api-delay"
"""InMemoryCluster: delay from creation until the workload API is up."""
BOOTSTRAP_DELAY = f"{GROUP}/bootstrap-delay"
"""InMemoryBootstrapConfig: delay from when the cluster is ready for the machine until the bootstrap data exists."""
START_DELAY = f"{GROUP}/start-delay"
"""InMemoryMachine: delay from when the bootstrap data exists until the machine runs."""
NODE_DELAY = f"{GROUP}/node-delay"
"""InMemoryMachine: delay from when the machine runs until its Node joins."""

# Faults.
FAIL = f"{GROUP}/fail"
"""All kinds: fail terminally with this reason."""
NEVER_READY = f"{GROUP}/never-ready"
"""All kinds: `true` keeps the object from becoming ready, without an error."""
STUCK_DELETION = f"{GROUP}/stuck-deletion"
"""InMemoryCluster, InMemoryMachine, InMemoryControlPlane: `true` keeps the finalizer while it is set."""
NODE_READY = f"{GROUP}/node-ready"
"""InMemoryMachine: status of the Node's Ready condition (`True`, `False`, `Unknown`), or `Absent` for no Node."""
NODE_CONDITIONS = f"{GROUP}/node-conditions"
"""InMemoryMachine: additional conditions of the Node, a JSON object such as `{"DiskPressure": "True"}`."""
API_FAULT = f"{GROUP}/api-fault"
"""InMemoryCluster: the workload API refuses connections (`refuse`), accepts them without responding (`hang`), or delays
each response (`slow=0.5`).
"""

# Effects, with their arguments and results.
MAKE_AUTHORITY = "certificate-authority"
"""`{name}` → `{"tls.crt", "tls.key"}`, both base64, as in a Secret."""
SERVE_WORKLOAD = "serve-workload"
"""`{namespace, cluster, port, fault}` (port 0: any) → `{host, port, fault}`: address and current fault of the API."""
SET_WORKLOAD_FAULT = "set-workload-fault"
"""`{namespace, cluster, fault}`: `fault` as in the annotation, empty for none."""
STOP_WORKLOAD = "stop-workload"
"""`{namespace, cluster}`: stop the API and delete its data."""

SENTINEL_FILE = "/run/cluster-api/bootstrap-success.complete"


def provider_id(namespace: str, cluster: str, name: str) -> str:
    return f"inmemory:///{namespace}/{cluster}/{name}"
