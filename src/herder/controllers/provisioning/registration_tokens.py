"""A ClusterRegistrationToken has its token in a Secret, replaced when its time is over, and tells how it is used.

Tokens are made and replaced by an effect: no decision, and so no log of decisions, ever holds one.
"""

from __future__ import annotations

from collections.abc import Iterable

from herder.api import settings
from herder.api.capi.kinds import SECRET_METADATA
from herder.api.capi.names import is_deleting
from herder.api.management import names
from herder.api.management.commands import commands
from herder.api.management.kinds import REGISTRATION_TOKEN
from herder.api.management.registration import RENEW, Lifetime, replaced_at
from herder.api.moments import moment
from herder.api.settings import SETTING
from herder.api.writing import difference, owner_reference, ref
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Effect, Patch, requesting, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed, owner
from herder.engine.runtime.view import View

ALL = "all"
_SETTINGS = {settings.SERVER_URL, settings.SERVER_CERTIFICATES, settings.REGISTRATION_TTL, settings.REGISTRATION_GRACE}


def reconcile(view: View) -> Decision:
    registration = view.get(REGISTRATION_TOKEN, view.name)
    if registration is None or is_deleting(registration):
        return DONE
    here = ref(REGISTRATION_TOKEN, registration)
    if (registration.get("spec") or {}).get("clusterName") != view.namespace:
        return waiting(
            f'spec.clusterName: must be "{view.namespace}", the cluster that the namespace belongs to: a token never '
            "opens another one",
            here,
        )
    return _with_token(view, registration)


def _with_token(view: View, registration: Object) -> Decision:
    lifetime = Lifetime.of(
        registration["spec"], view.setting(settings.REGISTRATION_TTL), view.setting(settings.REGISTRATION_GRACE)
    )
    status = registration.get("status") or {}
    secret = view.get(SECRET_METADATA, names.token_secret(view.name))
    expires = moment(status.get("expiresAt"))
    renewal = replaced_at(expires, lifetime, registration["metadata"]["uid"]) if expires else view.now
    if secret is not None and renewal > view.now:
        return _report_status(view, registration, {}) + Decision(wake_at=renewal)
    effect = _renew(registration, secret, lifetime, status)
    result = view.result(effect.key)
    if result is None or not result.done:
        return requesting(effect, result, "waiting for the registration token")
    writes = _report_status(view, registration, result.value)
    # A Secret that was created is in the cache soon. One that is still missing was deleted: it is created again.
    return writes if secret is not None else writes + Decision(effects=(effect,))


def _renew(registration: Object, secret: Object | None, lifetime: Lifetime, status: Object) -> Effect:
    """Keyed by what it replaces: requested again it has nothing left to do, unless there is no Secret at all.

    A Secret that is deleted after its status was written is created again at once, by another key; one that is deleted
    before is created again when the effect is repeated.
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
    reason = "the token's time is over" if secret else "there is no token yet"
    return Effect(RENEW, key, arguments, reason, repeat=secret is None)


def _report_status(view: View, registration: Object, times: Object) -> Decision:
    """The status is no subresource of this kind. `token` is where older managers kept it: it is not left there."""
    before = registration.get("status") or {}
    install_commands = commands(
        view.setting(settings.SERVER_URL), view.namespace, view.setting(settings.SERVER_CERTIFICATES)
    )
    wanted = {**before, **install_commands, **times, "token": "", "tokenSecretName": names.token_secret(view.name)}
    changes = difference(before, wanted)
    write = Patch(ref(REGISTRATION_TOKEN, registration), {"status": changes}, "how agents register")
    lacking = "" if install_commands else "setting server-url: not set, so nobody can be told how to come here"
    return Decision(writes=(write,) if changes else ()) + (waiting(lacking) if lacking else DONE)


def _everything(setting: Object) -> Iterable[str]:
    return (ALL,) if setting["metadata"]["name"] in _SETTINGS else ()


CONTROLLER = Controller(
    name="registration-token",
    kind=REGISTRATION_TOKEN,
    reconcile=reconcile,
    watches=(
        Watches(SECRET_METADATA, owner(REGISTRATION_TOKEN), changed()),
        Watches(SETTING, Indexed(ALL, _everything), changed("value")),
    ),
    indexes={REGISTRATION_TOKEN: {ALL: lambda _registration: (ALL,)}},
)
