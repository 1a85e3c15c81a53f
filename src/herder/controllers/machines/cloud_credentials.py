"""Cloud credentials: whoever made one may use and delete it, and everyone sees which machines it is used by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

from herder.api.capi.kinds import SECRET, SECRET_METADATA
from herder.api.capi.names import annotations_of, is_deleting, labels_of
from herder.api.machines import names
from herder.api.machines.credentials import CREATOR, CREDENTIAL_TYPE, GLOBAL_NAMESPACE, RIGHTS_FINALIZER, USED_BY
from herder.api.machines.jobs import CREDENTIAL_ANNOTATION, ROLE, ROLE_BINDING
from herder.api.rke.kinds import STATE_SECRET
from herder.api.writing import PROGRESS_PATIENCE, delete, object_patch, owner_reference, owners, ref
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Create, Decision, Delete, Parallel, Patch, waiting
from herder.engine.runtime.handlers import Watches, changed, itself, owner
from herder.engine.runtime.view import View

BY_CREDENTIAL, BY_OWNER = "cloud-credential", "owner-uid"
MACHINES_SHOWN = 10
RETRY = timedelta(seconds=5)  # Roles of a Secret that was deleted and recreated are collected meanwhile
_USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,200}")


def reconcile(view: View) -> Decision:
    secret = view.get(SECRET, view.name)  # a credential; of the two watches, this one wakes us
    if secret is None:
        other = view.get(SECRET_METADATA, view.name)
        return _users(view, other) if other is not None else DONE
    if is_deleting(secret):
        return _end_rights(view, secret)
    return _creators_rights(view, secret) + _users(view, secret)


# --- its creator ----------------------------------------------------------------------------------------------------


def _creators_rights(view: View, secret: Object) -> Decision:
    """The annotation is dropped once it is heeded: who loses the rights later does not get them back by it."""
    creator = annotations_of(secret).get(CREATOR)
    if not creator:
        return Decision(writes=_finalizer(secret, add=True)) if _rights(view, secret) else DONE
    if not _USER_NAME.fullmatch(creator):
        return waiting(f'annotation {CREATOR}: "{creator}" is not the name of a user')
    wanted = ((ROLE, _role(secret, creator)), (ROLE_BINDING, _binding(secret, creator)))
    known = [view.get(kind, obj["metadata"]["name"]) for kind, obj in wanted]
    for found in known:
        if found is not None and not _is_owned(found, secret):
            # Whoever bound a Role of this name, which may still be empty, would get the rights too.
            message = f"{found['kind']} {view.namespace}/{found['metadata']['name']} belongs to someone else; delete it"
            return waiting(message, ref(SECRET, secret), wake_at=view.now + RETRY)
    # Created rather than applied, so that one that appears meanwhile is not filled.
    rights = tuple(
        Create(kind, obj, "its creator may use it")
        for (kind, obj), found in zip(wanted, known, strict=True)
        if found is None
    )
    heeded = Patch(ref(SECRET, secret), {"metadata": {"annotations": {CREATOR: None}}}, "its creator has the rights")
    # The finalizer first: if the Secret was replaced by another of its name since it was read, nothing is granted.
    granted = (Parallel(rights),) if rights else ()
    return Decision(writes=(*_finalizer(secret, add=True), *granted, heeded))


def _is_owned(obj: Object, secret: Object) -> bool:
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == secret["metadata"]["uid"] for owner in owners)


def _end_rights(view: View, secret: Object) -> Decision:
    """Rights go by name, so they end before another object can have it. The garbage collector would delete them too,
    but some time later: after everything else that it has to delete."""
    rights = tuple(_rights(view, secret))
    return Decision(writes=(*((Parallel(rights),) if rights else ()), *_finalizer(secret, add=False)))


def _rights(view: View, secret: Object) -> list[Delete]:
    """The deletion of each Role and RoleBinding that the Secret owns, the binding first."""
    index, reason = (BY_OWNER, secret["metadata"]["uid"]), "the rights of its creator end with it"
    return [delete(kind, each, reason) for kind in (ROLE_BINDING, ROLE) for each in view.select(kind, index=index)]


def _finalizer(secret: Object, *, add: bool) -> tuple[Patch, ...]:
    others = [each for each in secret["metadata"].get("finalizers") or () if each != RIGHTS_FINALIZER]
    wanted = {
        **secret,
        "metadata": {**secret["metadata"], "finalizers": [*others, RIGHTS_FINALIZER] if add else others},
    }
    reason = "its name is kept until the rights of its creator have ended" if add else "nobody has rights by its name"
    return object_patch(SECRET, secret, wanted, reason)


def _role(secret: Object, creator: str) -> Object:
    rule = {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": [secret["metadata"]["name"]],
        "verbs": ["get", "update", "delete"],
    }
    return {"apiVersion": ROLE.api_version, "kind": ROLE.kind, "metadata": _meta(secret, creator), "rules": [rule]}


def _binding(secret: Object, creator: str) -> Object:
    meta = _meta(secret, creator)
    return {
        "apiVersion": ROLE_BINDING.api_version,
        "kind": ROLE_BINDING.kind,
        "metadata": meta,
        "roleRef": {"apiGroup": ROLE.group, "kind": ROLE.kind, "name": meta["name"]},
        "subjects": [{"apiGroup": ROLE.group, "kind": "User", "name": creator}],
    }


def _meta(secret: Object, creator: str) -> Object:
    return {
        "name": names.safe_concat(creator, secret["metadata"]["name"]),
        "namespace": secret["metadata"]["namespace"],
        "ownerReferences": [owner_reference(SECRET, secret, controller=False)],
    }


# --- its users ------------------------------------------------------------------------------------------------------


def _users(view: View, secret: Object) -> Decision:
    """By the state Secrets of machines, which live as long as the machines do. Users cannot create any of the type."""
    states = view.select(STATE_SECRET, index=(BY_CREDENTIAL, _place(secret)))
    message = ", ".join(_machine(state) for state in states[:MACHINES_SHOWN])
    if len(states) > MACHINES_SHOWN:
        message += f" and {len(states) - MACHINES_SHOWN} more"
    if message == annotations_of(secret).get(USED_BY, ""):
        return DONE
    patch = {"metadata": {"annotations": {USED_BY: message or None}}}
    write = Patch(ref(SECRET, secret), patch, "which machines use it", patience=PROGRESS_PATIENCE)
    return Decision(writes=(write,))


def _machine(state: Object) -> str:
    labels = labels_of(state)
    return f"{labels.get(names.INFRA_KIND_LABEL)}/{labels.get(names.INFRA_NAME_LABEL)}"


def _place(secret: Object) -> str:
    return f"{secret['metadata']['namespace']}/{secret['metadata']['name']}"


# --- what sets it off -----------------------------------------------------------------------------------------------


def _credential_of(state: Object) -> Iterable[str]:
    """Indexer: the credential that a machine was made with, by its state Secret.

    Editors of its namespace can change the annotation. They must not make the manager write in another namespace.
    """
    place = annotations_of(state).get(CREDENTIAL_ANNOTATION, "")
    namespace, slash, _ = place.partition("/")
    return (place,) if slash and namespace in (state["metadata"]["namespace"], GLOBAL_NAMESPACE) else ()


def _used_credential(state: Object) -> Iterable[Key]:
    for place in _credential_of(state):
        namespace, _, name = place.partition("/")
        yield Key(namespace, name)


def _never(_change: Change) -> bool:
    """Secrets are many, and few of them are credentials: those tell of themselves by their type."""
    return False


CONTROLLER = Controller(
    name="secret",
    kind=SECRET_METADATA,
    reconcile=reconcile,
    watches=(
        Watches(
            SECRET,
            itself,
            changed("metadata.annotations", "metadata.finalizers", "metadata.deletionTimestamp"),
            fields=f"type={CREDENTIAL_TYPE}",
        ),
        Watches(ROLE, owner(SECRET, controller=False), changed()),
        Watches(ROLE_BINDING, owner(SECRET, controller=False), changed()),
        Watches(STATE_SECRET, _used_credential, changed("metadata.annotations")),
    ),
    predicate=_never,
    indexes={
        STATE_SECRET: {BY_CREDENTIAL: _credential_of},
        ROLE: {BY_OWNER: owners},
        ROLE_BINDING: {BY_OWNER: owners},
    },
    pace=PROGRESS_PATIENCE,
)
