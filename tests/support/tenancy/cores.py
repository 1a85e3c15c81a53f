"""Signs of a Cluster API core, and workloads that are none."""

from __future__ import annotations

from herder.api.capi.core import DEPLOYMENT, LEASE, LEASE_NAME
from herder.api.capi.inventory import CORE_PROVIDER, PROVIDERS
from herder.api.capi.names import PROVIDER
from herder.engine.meta.kinds import Object
from tests.support.tenancy.case import Case

_POD = {"metadata": {"labels": {"app": "core"}}, "spec": {"containers": [{"name": "core", "image": "core"}]}}
_CORE = {PROVIDER: "cluster-api"}


def _deployment(id_: str, name: str, labels: Object, patch: Object | None = None, replicas: int = 1) -> Case:
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "core"}}, "template": _POD}
    return Case(id_, DEPLOYMENT, {"name": name, "namespace": "fleet-default", "labels": labels}, {"spec": spec}, patch)


def _lease(id_: str, name: str, patch: Object | None = None) -> Case:
    return Case(id_, LEASE, {"name": name, "namespace": "fleet-default"}, {"spec": {"holderIdentity": "core"}}, patch)


SIGNS_OF_A_CORE = (
    _lease("the Lease of a core", LEASE_NAME),
    _lease("the Lease of a core is renewed", LEASE_NAME, {"spec": {"holderIdentity": "another"}}),
    _deployment("the Deployment of a core", "core", _CORE),
    _deployment("a Deployment is labeled", "core-2", {}, {"metadata": {"labels": _CORE}}),
    Case(
        "a core in the inventory of clusterctl",
        PROVIDERS,
        {"name": "cluster-api", "namespace": "fleet-default"},
        {"type": CORE_PROVIDER, "providerName": "cluster-api"},
    ),
    _deployment("the Deployment of a core is scaled up", "core-3", _CORE, {"spec": {"replicas": 1}}, replicas=0),
)
"""Objects that disable the built-in Cluster API core for all users, because another core seems to be installed."""
OTHER_WORKLOADS = (
    _lease("a Lease", "tenancy-leader"),
    _deployment("a Deployment", "tenancy-deployment", {"app": "web"}),
    _deployment("a Deployment of a core is annotated", "core-4", _CORE, {"metadata": {"annotations": {"a": "b"}}}),
)
