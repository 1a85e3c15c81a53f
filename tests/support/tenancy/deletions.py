"""Deletions after which rights would outlast the object or its creator."""

from __future__ import annotations

from herder.api.capi.kinds import SECRET
from herder.api.identity.creators import CREATOR_BOUND
from herder.api.machines.credentials import CREDENTIAL_TYPE, RIGHTS_FINALIZER
from herder.api.management.clusters import NAMESPACE_CREATED
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from tests.support.tenancy.case import Case, managed, orphaned

ORPHANED = (
    *orphaned(MANAGEMENT_CLUSTER, "c-orphans", spec={}),
    *orphaned(PROVISIONING_CLUSTER, "orphans", "fleet-default", spec={}),
    *orphaned(SECRET, "orphans", "fleet-default", type=CREDENTIAL_TYPE),
    managed("a cluster is given the finalizer", "c-orphans", {"metadata": {"finalizers": ["orphan"]}}),
    Case(
        "a cluster without the finalizer that ends rights is deleted",
        MANAGEMENT_CLUSTER,
        {"name": "c-open", "annotations": {CREATOR_BOUND: "true"}},
        {"spec": {}},
        delete_options={"propagationPolicy": "Background"},
    ),
    Case(
        "an administrator's cluster without that finalizer is deleted",
        MANAGEMENT_CLUSTER,
        {"name": "c-open-2"},
        {"spec": {}},
        delete_options={"propagationPolicy": "Background"},
        status={"conditions": [{"type": NAMESPACE_CREATED, "status": "True"}]},
    ),
    Case(
        "a credential loses the finalizer that ends rights",
        SECRET,
        {"name": "held", "namespace": "fleet-default", "finalizers": [RIGHTS_FINALIZER]},
        {"type": CREDENTIAL_TYPE},
        {"metadata": {"finalizers": None}},
    ),
)
"""Writes and deletions that would leave objects behind that grant rights by the name of the deleted object."""


OUTLASTING = (
    *orphaned(SECRET, "edited", "fleet-default", type=CREDENTIAL_TYPE),
    Case(
        "a credential is given the finalizer",
        SECRET,
        {"name": "edited-3", "namespace": "fleet-default"},
        {"type": CREDENTIAL_TYPE},
        {"metadata": {"finalizers": ["orphan"]}},
    ),
    Case(
        "a credential loses the finalizer that ends rights",
        SECRET,
        {"name": "edited-4", "namespace": "fleet-default", "finalizers": [RIGHTS_FINALIZER]},
        {"type": CREDENTIAL_TYPE},
        {"metadata": {"finalizers": None}},
    ),
)
"""Writes and deletions by which an editor keeps the rights of a creator when those of an editor end."""
