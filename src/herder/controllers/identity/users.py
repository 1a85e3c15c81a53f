"""Delete the bindings of a deleted user, so that a new user of the same name does not inherit them."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.names import is_deleting
from herder.api.identity.roles import subject_of
from herder.api.management.kinds import CLUSTER_BINDING, GLOBAL_ROLE_BINDING, PROJECT_BINDING, USER
from herder.api.writes import delete, object_patch
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Write
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import View

FINALIZER = "management.herder.io/user"
BY_SUBJECT = "subject"
_KINDS = (GLOBAL_ROLE_BINDING, CLUSTER_BINDING, PROJECT_BINDING)


def reconcile(view: View) -> Decision:
    user = view.get(USER, view.name)
    if user is None:
        return DONE
    kept = FINALIZER in (user["metadata"].get("finalizers") or ())
    if not is_deleting(user):
        return DONE if kept else Decision(writes=_finalizer(user, add=True))
    return _remove(view, user) if kept else DONE


def _remove(view: View, user: Object) -> Decision:
    """Delete the bindings without waiting: those of a disconnected cluster are finalized when it reconnects."""
    named = ((kind, each) for kind in _KINDS for each in view.select(kind, index=(BY_SUBJECT, view.name)))
    left = tuple(delete(kind, each, "its user is deleted") for kind, each in named if not is_deleting(each))
    return Decision(writes=left or _finalizer(user, add=False))


def _finalizer(user: Object, *, add: bool) -> tuple[Write, ...]:
    others = [each for each in user["metadata"].get("finalizers") or () if each != FINALIZER]
    wanted = {**user["metadata"], "finalizers": [*others, FINALIZER] if add else others}
    reason = "add the finalizer to delete its bindings" if add else "its bindings are deleted"
    return object_patch(USER, user, {**user, "metadata": wanted}, reason)


def _subject(binding: Object) -> Iterable[str]:
    subject = subject_of(binding)
    return (subject["name"],) if isinstance(subject, dict) and subject["kind"] == "User" else ()


def _user(binding: Object) -> Iterable[Key]:
    return (Key("", name) for name in _subject(binding))


CONTROLLER = Controller(
    name="user",
    kind=USER,
    reconcile=reconcile,
    watches=tuple(Watches(kind, _user, changed("metadata.deletionTimestamp")) for kind in _KINDS),
    predicate=changed("metadata.finalizers", "metadata.deletionTimestamp"),
    indexes={kind: {BY_SUBJECT: _subject} for kind in _KINDS},
)
