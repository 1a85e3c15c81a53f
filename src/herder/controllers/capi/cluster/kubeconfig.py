"""The kubeconfig Secret of a Cluster whose control plane consists of plain Machines: no provider is there to make it.

The authority's key is never seen here. Who performs the effect reads it, signs a client certificate and hands back
the finished file, which goes into the Secret and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from herder.api.capi.kinds import CLUSTER, SECRET, SECRET_METADATA
from herder.api.capi.names import (
    CERTIFICATE_EXPIRY,
    CERTIFICATE_RENEWAL,
    CLUSTER_NAME,
    SECRET_TYPE,
    annotations_of,
    authority_secret,
    kubeconfig_secret,
)
from herder.api.writing import owner_reference
from herder.controllers.capi.cluster.scene import Scene
from herder.engine.meta.kinds import Object
from herder.engine.runtime.cache import Key
from herder.engine.runtime.decision import Create, Decision, Effect, Patch, Ref, Wait

PERFORMER = "kubeconfig"
KEY = "value"


def provide(scene: Scene) -> Decision:
    if scene.control_plane is not None or not scene.endpoint.valid:
        return Decision()
    renewal = _renewal(scene.kubeconfig)
    if scene.kubeconfig is not None and (renewal is None or renewal > scene.view.now):
        return Decision(wake_at=renewal)
    effect = _effect(scene)
    result = scene.view.result(effect.key)
    if result is None or not result.done:
        reason = f"the kubeconfig cannot be made: {result.error}" if result else "the kubeconfig is being made"
        return Decision(effects=(effect,), wait=Wait(reason))
    return Decision(writes=(_write(scene, result.value),))


def secret_owners(secret: Object) -> Iterator[Key]:
    """The Cluster that a kubeconfig or authority Secret is named after."""
    name: str = secret["metadata"]["name"]
    for suffix in (kubeconfig_secret(""), authority_secret("")):
        if name.endswith(suffix):
            yield Key(secret["metadata"]["namespace"], name.removesuffix(suffix))


def _effect(scene: Scene) -> Effect:
    """Another one whenever the authority or the Secret is another: so it is tried at once when the authority comes."""
    meta = scene.cluster["metadata"]
    authority = scene.view.get(SECRET_METADATA, authority_secret(meta["name"]))
    server = f"https://{scene.endpoint}"
    key = (meta["uid"], PERFORMER, server, _revision(authority), _revision(scene.kubeconfig))
    arguments = {"namespace": meta["namespace"], "cluster": meta["name"], "server": server}
    return Effect(PERFORMER, key, arguments, "clients need a way in")


def _write(scene: Scene, made: Object) -> Create | Patch:
    """`made` is {kubeconfig (base64), expires, renew}."""
    meta = scene.cluster["metadata"]
    annotations = {CERTIFICATE_EXPIRY: made["expires"], CERTIFICATE_RENEWAL: made["renew"]}
    data = {KEY: made["kubeconfig"]}
    name = kubeconfig_secret(meta["name"])
    if scene.kubeconfig is not None:
        patch = {"metadata": {"annotations": annotations}, "data": data}
        return Patch(Ref(SECRET, name, meta["namespace"]), patch, "half of the certificate's life is over")
    metadata = {
        "name": name,
        "namespace": meta["namespace"],
        "labels": {CLUSTER_NAME: meta["name"]},
        "annotations": annotations,
        "ownerReferences": [owner_reference(CLUSTER, scene.cluster, controller=False)],
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": SECRET_TYPE, "data": data}
    return Create(SECRET, secret, "clients need a way in")


def _renewal(secret: Object | None) -> datetime | None:
    """None for a Secret that somebody else made, which is theirs to renew."""
    told = annotations_of(secret).get(CERTIFICATE_RENEWAL) if secret else None
    try:
        renewal = datetime.fromisoformat(told) if told else None
    except ValueError:
        return None
    return renewal if renewal is None or renewal.tzinfo is not None else None


def _revision(obj: Object | None) -> str:
    return str(obj["metadata"]["resourceVersion"]) if obj else ""
