"""The kinds of clusters that are provisioned here: what one provisioning Cluster becomes."""

from __future__ import annotations

from herder.api.capi.kinds import SECRET
from herder.api.machines.names import STATE_SECRET_TYPE
from herder.api.rke.names import PLAN_SECRET_TYPE, TOKENS_SECRET_TYPE
from herder.engine.meta.kinds import Kind

GROUP, VERSION = "rke.cattle.io", "v1"

RKE_CLUSTER = Kind(GROUP, VERSION, "RKECluster", "rkeclusters")
CONTROL_PLANE = Kind(GROUP, VERSION, "RKEControlPlane", "rkecontrolplanes")
BOOTSTRAP = Kind(GROUP, VERSION, "RKEBootstrap", "rkebootstraps")
BOOTSTRAP_TEMPLATE = Kind(GROUP, VERSION, "RKEBootstrapTemplate", "rkebootstraptemplates")
CUSTOM_MACHINE = Kind(GROUP, VERSION, "CustomMachine", "custommachines")
ETCD_SNAPSHOT = Kind(GROUP, VERSION, "ETCDSnapshot", "etcdsnapshots")

BEACON = Kind("plan.cattle.io", "v1alpha1", "Beacon", "beacons")

# Secrets whose contents are read: each type is kept by itself, and no other Secret is in memory for their sake.
PLAN_SECRET = SECRET.only(f"type={PLAN_SECRET_TYPE}")
TOKENS_SECRET = SECRET.only(f"type={TOKENS_SECRET_TYPE}")
STATE_SECRET = SECRET.only(f"type={STATE_SECRET_TYPE}")
