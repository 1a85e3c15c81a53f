"""Labels by which clusterctl identifies the provider of a definition and moves its objects."""

from __future__ import annotations

from herder.api.capi.names import PROVIDER

CLUSTERCTL = "clusterctl.cluster.x-k8s.io"
CORE_LABELS = {PROVIDER: "cluster-api", CLUSTERCTL: ""}
