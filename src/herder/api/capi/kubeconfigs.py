"""The kubeconfig Secret of a cluster: made when its endpoint is known, and made anew before its certificate ends.

The authority's key is never seen here. Who performs the effect reads it, signs a client certificate and hands back
the finished file, which goes into the Secret and nowhere else.
"""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.kinds import SECRET, SECRET_METADATA
from herder.api.capi.names import (
    CERTIFICATE_EXPIRY,
    CERTIFICATE_RENEWAL,
    CLUSTER_NAME,
    SECRET_TYPE,
    annotations_of,
    authority_secret,
    kubeconfig_secret,
)
from herder.api.moments import moment
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Create, Decision, Effect, Patch, Ref, Wait
from herder.engine.runtime.view import View

PERFORMER = "kubeconfig"
"""`{namespace, cluster, server}` → `{kubeconfig (base64), expires, renew}`."""
KEY = "value"


def keep_kubeconfig(view: View, cluster: Object, server: str, owner: Object) -> Decision:
    """`owner` is the owner reference of a Secret that has to be made."""
    kept = view.get(SECRET_METADATA, kubeconfig_secret(cluster["metadata"]["name"]))
    renewal = _renewal(kept)
    if kept is not None and (renewal is None or renewal > view.now):
        return Decision(wake_at=renewal)
    effect = _effect(view, cluster, server, kept)
    result = view.result(effect.key)
    if result is None or not result.done:
        reason = f"the kubeconfig cannot be made: {result.error}" if result else "the kubeconfig is being made"
        return Decision(effects=(effect,), wait=Wait(reason))
    return Decision(writes=(_write(cluster, kept, owner, result.value),))


def _effect(view: View, cluster: Object, server: str, kept: Object | None) -> Effect:
    """Another one whenever the authority or the Secret is another: so it is tried at once when the authority comes."""
    meta = cluster["metadata"]
    authority = view.get(SECRET_METADATA, authority_secret(meta["name"]))
    key = (meta["uid"], PERFORMER, server, _revision(authority), _revision(kept))
    arguments = {"namespace": meta["namespace"], "cluster": meta["name"], "server": server}
    return Effect(PERFORMER, key, arguments, "clients need a way in")


def _write(cluster: Object, kept: Object | None, owner: Object, made: Object) -> Create | Patch:
    meta = cluster["metadata"]
    annotations = {CERTIFICATE_EXPIRY: made["expires"], CERTIFICATE_RENEWAL: made["renew"]}
    data = {KEY: made["kubeconfig"]}
    name = kubeconfig_secret(meta["name"])
    if kept is not None:
        patch = {"metadata": {"annotations": annotations}, "data": data}
        return Patch(Ref(SECRET, name, meta["namespace"]), patch, "half of the certificate's life is over")
    metadata = {
        "name": name,
        "namespace": meta["namespace"],
        "labels": {CLUSTER_NAME: meta["name"]},
        "annotations": annotations,
        "ownerReferences": [owner],
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": SECRET_TYPE, "data": data}
    return Create(SECRET, secret, "clients need a way in")


def _renewal(secret: Object | None) -> datetime | None:
    """None for a Secret that somebody else made, which is theirs to renew."""
    return moment(annotations_of(secret).get(CERTIFICATE_RENEWAL)) if secret else None


def _revision(obj: Object | None) -> str:
    return str(obj["metadata"]["resourceVersion"]) if obj else ""
