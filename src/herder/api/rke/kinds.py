"""The kinds of clusters that are provisioned here: what one provisioning Cluster becomes."""

from __future__ import annotations

from herder.engine.meta.kinds import Kind

GROUP, VERSION = "rke.cattle.io", "v1"

RKE_CLUSTER = Kind(GROUP, VERSION, "RKECluster", "rkeclusters")
CONTROL_PLANE = Kind(GROUP, VERSION, "RKEControlPlane", "rkecontrolplanes")
BOOTSTRAP = Kind(GROUP, VERSION, "RKEBootstrap", "rkebootstraps")
BOOTSTRAP_TEMPLATE = Kind(GROUP, VERSION, "RKEBootstrapTemplate", "rkebootstraptemplates")
CUSTOM_MACHINE = Kind(GROUP, VERSION, "CustomMachine", "custommachines")
ETCD_SNAPSHOT = Kind(GROUP, VERSION, "ETCDSnapshot", "etcdsnapshots")

BEACON = Kind("plan.cattle.io", "v1alpha1", "Beacon", "beacons")
