"""What is filled in and what is refused when a provisioning Cluster is written, beyond what its schema refuses.

As for Cluster API's kinds (`api/capi/admission`): pure functions, called in the embedded server's own chain and by
webhooks elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from herder.api.capi.admission import Admission
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.admission import cluster
from herder.engine.meta.kinds import Kind

__all__ = ["RULES"]

RULES: Mapping[Kind, Admission] = {PROVISIONING_CLUSTER: Admission(cluster.validate, cluster.default)}
