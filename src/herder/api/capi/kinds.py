"""Kinds of Cluster API, and the Kubernetes kinds that its controllers read."""

from __future__ import annotations

from herder.engine.meta.kinds import Kind

GROUP = "cluster.x-k8s.io"
VERSION = "v1beta2"

CLUSTER = Kind(GROUP, VERSION, "Cluster", "clusters")
MACHINE = Kind(GROUP, VERSION, "Machine", "machines")
MACHINE_SET = Kind(GROUP, VERSION, "MachineSet", "machinesets")
MACHINE_DEPLOYMENT = Kind(GROUP, VERSION, "MachineDeployment", "machinedeployments")
MACHINE_POOL = Kind(GROUP, VERSION, "MachinePool", "machinepools")
MACHINE_HEALTH_CHECK = Kind(GROUP, VERSION, "MachineHealthCheck", "machinehealthchecks")
MACHINE_DRAIN_RULE = Kind(GROUP, VERSION, "MachineDrainRule", "machinedrainrules")
CLUSTER_CLASS = Kind(GROUP, VERSION, "ClusterClass", "clusterclasses")
CLUSTER_RESOURCE_SET = Kind(f"addons.{GROUP}", VERSION, "ClusterResourceSet", "clusterresourcesets")
CLUSTER_RESOURCE_SET_BINDING = Kind(
    f"addons.{GROUP}", VERSION, "ClusterResourceSetBinding", "clusterresourcesetbindings"
)

# Kubernetes kinds. Definitions and Secrets are watched as metadata only: the contract is in a definition's labels, and
# reconcilers need only the existence and resourceVersion of Secrets.
DEFINITION = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
).metadata_only()
SECRET = Kind("", "v1", "Secret", "secrets")
SECRET_METADATA = SECRET.metadata_only()

# Kinds of workload clusters.
NODE = Kind("", "v1", "Node", "nodes", namespaced=False)
POD = Kind("", "v1", "Pod", "pods")
NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
DAEMON_SET = Kind("apps", "v1", "DaemonSet", "daemonsets")
VOLUME_ATTACHMENT = Kind("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", namespaced=False)
PERSISTENT_VOLUME = Kind("", "v1", "PersistentVolume", "persistentvolumes", namespaced=False)
PERSISTENT_VOLUME_CLAIM = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
