"""Words of the in-memory provider: finalizers, effects, and the annotations that set what goes slowly or wrong.

An annotation counts on the object whose behaviour it changes. For machines it is given in the metadata of a template,
from where it comes to each of them; put on one InMemoryMachine later, it changes that machine alone. Delays are
seconds (`2`, `0.5`), with a spread if wanted (`2±20%`); none means no waiting at all.
"""

from __future__ import annotations

from herder.api.inmemory.kinds import GROUP

CLUSTER_FINALIZER = f"inmemorycluster.{GROUP}"
MACHINE_FINALIZER = f"inmemorymachine.{GROUP}"
CONTROL_PLANE_FINALIZER = f"inmemorycontrolplane.{GROUP}"

# Delays.
API_DELAY = f"{GROUP}/api-delay"
"""InMemoryCluster: from its creation until the workload API is there."""
BOOTSTRAP_DELAY = f"{GROUP}/bootstrap-delay"
"""InMemoryBootstrapConfig: from when the cluster is ready for the machine until the bootstrap data are made."""
START_DELAY = f"{GROUP}/start-delay"
"""InMemoryMachine: from when the bootstrap data are there until the machine runs."""
NODE_DELAY = f"{GROUP}/node-delay"
"""InMemoryMachine: from when the machine runs until its Node joins."""

# What goes wrong.
FAIL = f"{GROUP}/fail"
"""All: fail for good, with this reason."""
NEVER_READY = f"{GROUP}/never-ready"
"""All: `true` keeps the object from ever becoming ready, without an error."""
STUCK_DELETION = f"{GROUP}/stuck-deletion"
"""InMemoryCluster, InMemoryMachine, InMemoryControlPlane: `true` keeps the finalizer for as long as it is there."""
NODE_READY = f"{GROUP}/node-ready"
"""InMemoryMachine: the status of the Node's Ready condition (`True`, `False`, `Unknown`), or `Absent`: no Node."""
NODE_CONDITIONS = f"{GROUP}/node-conditions"
"""InMemoryMachine: further conditions of the Node, a JSON object such as `{"DiskPressure": "True"}`."""
API_FAULT = f"{GROUP}/api-fault"
"""InMemoryCluster: the workload API refuses connections (`refuse`), takes them and never answers (`hang`), or answers
each request so many seconds late (`slow=0.5`)."""

# Effects, and what they are asked with and bring.
MAKE_AUTHORITY = "certificate-authority"
"""`{name}` → `{"tls.crt", "tls.key"}`, both base64, as a Secret holds them."""
SERVE_WORKLOAD = "serve-workload"
"""`{namespace, cluster, port, fault}` (port 0: any) → `{host, port, fault}`: where the API answers, and how badly."""
SET_WORKLOAD_FAULT = "set-workload-fault"
"""`{namespace, cluster, fault}`: `fault` as in the annotation, empty for none."""
STOP_WORKLOAD = "stop-workload"
"""`{namespace, cluster}`: the API ends, and what it stored is gone."""

SENTINEL_FILE = "/run/cluster-api/bootstrap-success.complete"


def provider_id(namespace: str, cluster: str, name: str) -> str:
    return f"inmemory:///{namespace}/{cluster}/{name}"
