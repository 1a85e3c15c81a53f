"""The labels by which clusterctl knows definitions: whose they are, and that `move` takes their objects along."""

from __future__ import annotations

from herder.api.capi.names import PROVIDER

CLUSTERCTL = "clusterctl.cluster.x-k8s.io"
CORE_LABELS = {PROVIDER: "cluster-api", CLUSTERCTL: ""}
