"""Kubeconfig Secret of a Cluster without a control plane provider, which would otherwise create it."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.kinds import CLUSTER
from herder.api.capi.kubeconfigs import reconcile_kubeconfig
from herder.api.capi.names import authority_secret, kubeconfig_secret
from herder.api.writes import owner_reference
from herder.controllers.capi.cluster.scope import ClusterScope
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision


def provide(scope: ClusterScope) -> Decision:
    if scope.control_plane is not None or not scope.endpoint.valid:
        return Decision()
    owner = owner_reference(CLUSTER, scope.cluster, controller=False)
    return reconcile_kubeconfig(scope.view, scope.cluster, f"https://{scope.endpoint}", owner)


def secret_owners(secret: Object) -> Iterator[Key]:
    """Map a kubeconfig or CA Secret to the Cluster in its name."""
    name: str = secret["metadata"]["name"]
    for suffix in (kubeconfig_secret(""), authority_secret("")):
        if name.endswith(suffix):
            yield Key(secret["metadata"]["namespace"], name.removesuffix(suffix))
