"""Kinds of provisioned clusters (rke.cattle.io), and the typed Secrets that are watched with their data."""

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

# Secrets whose data is read, watched by type so that no other Secret is kept in memory.
PLAN_SECRET = SECRET.only(f"type={PLAN_SECRET_TYPE}")
TOKENS_SECRET = SECRET.only(f"type={TOKENS_SECRET_TYPE}")
STATE_SECRET = SECRET.only(f"type={STATE_SECRET_TYPE}")
