"""Defaulting and validation of provisioning Clusters, beyond their schema.

Pure functions like those of `api/capi/admission`: the embedded API server calls them in process, kube-apiserver through
webhooks.
"""

from __future__ import annotations

from collections.abc import Mapping

from herder.api.capi.admission import Admission
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.admission import cluster
from herder.engine.meta.kinds import Kind

__all__ = ["RULES"]

RULES: Mapping[Kind, Admission] = {PROVISIONING_CLUSTER: Admission(cluster.validate, cluster.default)}
