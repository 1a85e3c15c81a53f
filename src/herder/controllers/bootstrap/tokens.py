"""The token in an install script is good for one machine's first minutes: when its time is over, it is marked so."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api import settings
from herder.api.capi.kinds import SECRET, SECRET_METADATA
from herder.api.capi.names import annotations_of, is_deleting
from herder.api.rke import names
from herder.api.rke.bootstrap_tokens import ends_at, is_invalidated
from herder.api.settings import SETTING
from herder.api.writing import ref
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Patch
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import View

BOOTSTRAP_TOKENS = "bootstrap-tokens"
_SETTINGS = {settings.NODE_TOKENS_EXPIRE, settings.NODE_TOKEN_UNUSED, settings.NODE_TOKEN_USED}
_of_interest = changed("metadata.annotations")


def reconcile(view: View) -> Decision:
    secret = view.get(SECRET_METADATA, view.name)
    if secret is None or not _is_bootstrap_token(secret) or is_deleting(secret) or is_invalidated(secret):
        return DONE
    ends = ends_at(secret, view.setting)
    if ends is None:
        return DONE
    if view.now < ends:
        return Decision(wake_at=ends)
    mark = {"metadata": {"annotations": {names.TOKEN_INVALIDATED: "true"}}}
    return Decision(writes=(Patch(ref(SECRET, secret), mark, "the token's time is over"),))


def _is_bootstrap_token(secret: Object) -> bool:
    return annotations_of(secret).get(names.BOOTSTRAP_TOKEN) == "true"


def _indexed(secret: Object) -> Iterable[str]:
    """Indexer: tokens that still count."""
    return (BOOTSTRAP_TOKENS,) if _is_bootstrap_token(secret) and not is_invalidated(secret) else ()


def _everything(setting: Object) -> Iterable[str]:
    return (BOOTSTRAP_TOKENS,) if setting["metadata"]["name"] in _SETTINGS else ()


def _matters(change: Change) -> bool:
    return change.new is not None and _is_bootstrap_token(change.new) and _of_interest(change)


CONTROLLER = Controller(
    name="bootstrap-token",
    kind=SECRET_METADATA,
    reconcile=reconcile,
    watches=(Watches(SETTING, Indexed(BOOTSTRAP_TOKENS, _everything), changed("value")),),
    predicate=_matters,
    indexes={SECRET_METADATA: {BOOTSTRAP_TOKENS: _indexed}},
)
