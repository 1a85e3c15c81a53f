"""Reconcile ClusterRegistrationTokens: token Secret, rotation before expiry, and install commands in the status.

An effect creates and rotates tokens, so that no decision, and no log of decisions, contains one.
"""

from __future__ import annotations

from collections.abc import Iterable

from herder.api import settings
from herder.api.capi.kinds import SECRET_METADATA
from herder.api.capi.names import is_deleting
from herder.api.management import names
from herder.api.management.commands import commands
from herder.api.management.kinds import MANAGEMENT_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.registration import RENEW, Lifetime, rotation_time
from herder.api.settings import SETTING
from herder.api.times import parse_time
from herder.api.writes import difference, owner_reference, ref
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Effect, Patch, requesting, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed, owner
from herder.engine.runtime.view import View

ALL, BY_CLUSTER = "all", "cluster"
_SETTINGS = {settings.SERVER_URL, settings.SERVER_CERTIFICATES, settings.REGISTRATION_TTL, settings.REGISTRATION_GRACE}


def reconcile(view: View) -> Decision:
    registration = view.get(REGISTRATION_TOKEN, view.name)
    if registration is None or is_deleting(registration):
        return DONE
    cluster = view.get(MANAGEMENT_CLUSTER, view.namespace)
    if cluster is None or is_deleting(cluster):
        return DONE  # Its namespace is deleted, too, with the Secret first.
    reference = ref(REGISTRATION_TOKEN, registration)
    if (registration.get("spec") or {}).get("clusterName") != view.namespace:
        return waiting(
            f'spec.clusterName: must be "{view.namespace}", the cluster of its namespace; a token cannot register '
            "another cluster",
            reference,
        )
    return _with_token(view, registration)


def _with_token(view: View, registration: Object) -> Decision:
    lifetime = Lifetime.of(
        registration["spec"], view.setting(settings.REGISTRATION_TTL), view.setting(settings.REGISTRATION_GRACE)
    )
    status = registration.get("status") or {}
    secret = view.get(SECRET_METADATA, names.token_secret(view.name))
    expires = parse_time(status.get("expiresAt"))
    renewal = rotation_time(expires, lifetime, registration["metadata"]["uid"]) if expires else view.now
    if secret is not None and renewal > view.now:
        return _report_status(view, registration, {}) + Decision(wake_at=renewal)
    effect = _renew(registration, secret, lifetime, status)
    result = view.result(effect.key)
    if result is None or not result.done:
        return requesting(effect, result, "waiting for the registration token")
    writes = _report_status(view, registration, result.value)
    # A new Secret appears in the cache soon. If it is still missing, it was deleted and must be created again.
    return writes if secret is not None else writes + Decision(effects=(effect,))


def _renew(registration: Object, secret: Object | None, lifetime: Lifetime, status: Object) -> Effect:
    """The effect that creates or rotates the token, keyed by the token that it replaces, so that it runs once.

    A Secret that is deleted after the status was written is created again under another key; one that is deleted
    earlier, when the effect is repeated.
    """
    meta = registration["metadata"]
    key = (RENEW, meta["uid"], status.get("expiresAt") or "", secret["metadata"]["uid"] if secret else "")
    arguments = {
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
        "lifetime": lifetime,
        "owner": owner_reference(REGISTRATION_TOKEN, registration, controller=True),
    }
    reason = "the token expires" if secret else "the token does not exist yet"
    return Effect(RENEW, key, arguments, reason, repeat=secret is None)


def _report_status(view: View, registration: Object, times: Object) -> Decision:
    """Write the status, which is no subresource of this kind. Older managers kept the token in it: clear that."""
    before = registration.get("status") or {}
    install_commands = commands(
        view.setting(settings.SERVER_URL), view.namespace, view.setting(settings.SERVER_CERTIFICATES)
    )
    wanted = {**before, **install_commands, **times, "token": "", "tokenSecretName": names.token_secret(view.name)}
    changes = difference(before, wanted)
    write = Patch(ref(REGISTRATION_TOKEN, registration), {"status": changes}, "how agents register")
    problem = (
        ""
        if install_commands
        else "setting server-url: not set, so agents cannot register; set it to the URL of this server"
    )
    return Decision(writes=(write,) if changes else ()) + (waiting(problem) if problem else DONE)


def _affects_all(setting: Object) -> Iterable[str]:
    return (ALL,) if setting["metadata"]["name"] in _SETTINGS else ()


def _cluster_name(cluster: Object) -> Iterable[str]:
    return (str(cluster["metadata"]["name"]),)


def _namespace(registration: Object) -> Iterable[str]:
    return (str(registration["metadata"]["namespace"]),)


CONTROLLER = Controller(
    name="registration-token",
    kind=REGISTRATION_TOKEN,
    reconcile=reconcile,
    watches=(
        Watches(MANAGEMENT_CLUSTER, Indexed(BY_CLUSTER, _cluster_name), changed("metadata.deletionTimestamp")),
        Watches(SECRET_METADATA, owner(REGISTRATION_TOKEN), changed()),
        Watches(SETTING, Indexed(ALL, _affects_all), changed("value")),
    ),
    indexes={REGISTRATION_TOKEN: {ALL: lambda _registration: (ALL,), BY_CLUSTER: _namespace}},
    cluster_of=lambda token: str(token["metadata"]["namespace"]),
)
