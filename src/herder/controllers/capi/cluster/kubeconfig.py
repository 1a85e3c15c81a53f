"""The kubeconfig Secret of a Cluster whose control plane is plain Machines: no provider is there to make it."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.kinds import CLUSTER
from herder.api.capi.kubeconfigs import keep_kubeconfig
from herder.api.capi.names import authority_secret, kubeconfig_secret
from herder.api.writing import owner_reference
from herder.controllers.capi.cluster.scene import Scene
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision


def provide(scene: Scene) -> Decision:
    if scene.control_plane is not None or not scene.endpoint.valid:
        return Decision()
    owner = owner_reference(CLUSTER, scene.cluster, controller=False)
    return keep_kubeconfig(scene.view, scene.cluster, f"https://{scene.endpoint}", owner)


def secret_owners(secret: Object) -> Iterator[Key]:
    """The Cluster that a kubeconfig or authority Secret is named after."""
    name: str = secret["metadata"]["name"]
    for suffix in (kubeconfig_secret(""), authority_secret("")):
        if name.endswith(suffix):
            yield Key(secret["metadata"]["namespace"], name.removesuffix(suffix))
