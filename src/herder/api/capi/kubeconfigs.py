"""The kubeconfig Secret of a Cluster: created when the endpoint is known, renewed before its client certificate
expires.

Reconcilers never see the CA key. The effect's performer reads it, signs a client certificate and returns the
kubeconfig, which is stored in the Secret only.
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
from herder.api.times import parse_time
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Create, Decision, Effect, Patch, Ref, Wait
from herder.engine.runtime.view import View

PERFORMER = "kubeconfig"
"""`{namespace, cluster, server}` → `{kubeconfig (base64), expires, renew}`."""
KEY = "value"


def reconcile_kubeconfig(view: View, cluster: Object, server: str, owner: Object) -> Decision:
    """Create or renew the kubeconfig Secret; `owner` is the owner reference of a new Secret."""
    kept = view.get(SECRET_METADATA, kubeconfig_secret(cluster["metadata"]["name"]))
    renewal = _renewal(kept)
    if kept is not None and (renewal is None or renewal > view.now):
        return Decision(wake_at=renewal)
    effect = _effect(view, cluster, server, kept)
    result = view.result(effect.key)
    if result is None or not result.done:
        reason = f"cannot create the kubeconfig: {result.error}" if result else "creating the kubeconfig"
        return Decision(effects=(effect,), wait=Wait(reason))
    return Decision(writes=(_write(cluster, kept, owner, result.value),))


def _effect(view: View, cluster: Object, server: str, kept: Object | None) -> Effect:
    """The key includes the revisions of the CA and of the Secret, so that the effect runs again as soon as the CA
    appears.
    """
    meta = cluster["metadata"]
    authority = view.get(SECRET_METADATA, authority_secret(meta["name"]))
    key = (meta["uid"], PERFORMER, server, _revision(authority), _revision(kept))
    arguments = {"namespace": meta["namespace"], "cluster": meta["name"], "server": server}
    return Effect(PERFORMER, key, arguments, "create the kubeconfig of the cluster")


def _write(cluster: Object, kept: Object | None, owner: Object, issued: Object) -> Create | Patch:
    meta = cluster["metadata"]
    annotations = {CERTIFICATE_EXPIRY: issued["expires"], CERTIFICATE_RENEWAL: issued["renew"]}
    data = {KEY: issued["kubeconfig"]}
    name = kubeconfig_secret(meta["name"])
    if kept is not None:
        patch = {"metadata": {"annotations": annotations}, "data": data}
        return Patch(Ref(SECRET, name, meta["namespace"]), patch, "the client certificate is due for renewal")
    metadata = {
        "name": name,
        "namespace": meta["namespace"],
        "labels": {CLUSTER_NAME: meta["name"]},
        "annotations": annotations,
        "ownerReferences": [owner],
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": SECRET_TYPE, "data": data}
    return Create(SECRET, secret, "create the kubeconfig of the cluster")


def _renewal(secret: Object | None) -> datetime | None:
    """Return the renewal time; None for a Secret that a user provides and renews."""
    return parse_time(annotations_of(secret).get(CERTIFICATE_RENEWAL)) if secret else None


def _revision(obj: Object | None) -> str:
    return str(obj["metadata"]["resourceVersion"]) if obj else ""
