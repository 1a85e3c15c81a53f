"""Expire bootstrap tokens: mark the token of an install script as invalid when its time to live is over."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api import settings
from herder.api.capi.kinds import SECRET, SECRET_METADATA
from herder.api.capi.names import annotations_of, is_deleting
from herder.api.rke import names
from herder.api.rke.node.bootstrap_token import expires_at, is_invalidated
from herder.api.settings import SETTING
from herder.api.writes import ref
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Patch
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import View

BOOTSTRAP_TOKENS = "bootstrap-tokens"
_SETTINGS = {settings.NODE_TOKENS_EXPIRE, settings.NODE_TOKEN_UNUSED_TTL, settings.NODE_TOKEN_USED_TTL}
_annotations_changed = changed("metadata.annotations")


def reconcile(view: View) -> Decision:
    secret = view.get(SECRET_METADATA, view.name)
    if secret is None or not _is_bootstrap_token(secret) or is_deleting(secret) or is_invalidated(secret):
        return DONE
    expiry = expires_at(secret, view.setting)
    if expiry is None:
        return DONE
    if view.now < expiry:
        return Decision(wake_at=expiry)
    mark = {"metadata": {"annotations": {names.TOKEN_INVALIDATED: "true"}}}
    return Decision(writes=(Patch(ref(SECRET, secret), mark, "the bootstrap token has expired"),))


def _is_bootstrap_token(secret: Object) -> bool:
    return annotations_of(secret).get(names.BOOTSTRAP_TOKEN) == "true"


def _indexed(secret: Object) -> Iterable[str]:
    """Indexer: tokens that are still valid."""
    return (BOOTSTRAP_TOKENS,) if _is_bootstrap_token(secret) and not is_invalidated(secret) else ()


def _all_key(setting: Object) -> Iterable[str]:
    return (BOOTSTRAP_TOKENS,) if setting["metadata"]["name"] in _SETTINGS else ()


def _predicate(change: Change) -> bool:
    return change.new is not None and _is_bootstrap_token(change.new) and _annotations_changed(change)


CONTROLLER = Controller(
    name="bootstrap-token",
    kind=SECRET_METADATA,
    reconcile=reconcile,
    watches=(Watches(SETTING, Indexed(BOOTSTRAP_TOKENS, _all_key), changed("value")),),
    predicate=_predicate,
    indexes={SECRET_METADATA: {BOOTSTRAP_TOKENS: _indexed}},
)
