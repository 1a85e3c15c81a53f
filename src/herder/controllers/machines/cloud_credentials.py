"""Cloud credentials: grant the creator access, and report which machines use a credential."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

from herder.api.capi.kinds import SECRET, SECRET_METADATA
from herder.api.capi.names import annotations_of, is_deleting, labels_of
from herder.api.machines import names
from herder.api.machines.credentials import (
    CREATED_BY,
    CREATOR,
    CREDENTIAL_TYPE,
    GLOBAL_NAMESPACE,
    RIGHTS_FINALIZER,
    USED_BY,
)
from herder.api.machines.jobs import CREDENTIAL_ANNOTATION, ROLE, ROLE_BINDING
from herder.api.rke.kinds import STATE_SECRET
from herder.api.writes import PROGRESS_DEBOUNCE, delete, object_patch, owner_reference, owners, ref
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Create, Decision, Delete, Parallel, Patch, waiting
from herder.engine.runtime.handlers import Watches, changed, itself, owner
from herder.engine.runtime.view import View

BY_CREDENTIAL, BY_OWNER = "cloud-credential", "owner-uid"
MACHINES_SHOWN = 10
RETRY = timedelta(seconds=5)  # Roles of a deleted and recreated Secret are garbage collected meanwhile.
_USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,200}")


def reconcile(view: View) -> Decision:
    secret = view.get(SECRET, view.name)  # Only the watch on credential Secrets triggers this controller.
    if secret is None:
        other = view.get(SECRET_METADATA, view.name)
        return _report_usage(view, other) if other is not None else DONE
    if is_deleting(secret):
        return _revoke(view, secret)
    return _grant_creator(view, secret) + _report_usage(view, secret)


# --- creator --------------------------------------------------------------------------------------------------------


def _grant_creator(view: View, secret: Object) -> Decision:
    """Grant the creator access to the Secret by a Role and RoleBinding.

    The annotation is removed once it is processed: a creator who loses the rights later does not regain them.
    """
    creator = annotations_of(secret).get(CREATOR)
    if not creator:
        return Decision(writes=_finalizer(secret, add=True)) if _revocations(view, secret) else DONE
    if not _USER_NAME.fullmatch(creator):
        return waiting(f'annotation {CREATOR}: "{creator}" is not a valid user name')
    wanted = ((ROLE, _role(secret, creator)), (ROLE_BINDING, _binding(secret, creator)))
    known = [view.get(kind, obj["metadata"]["name"]) for kind, obj in wanted]
    for found in known:
        if found is not None and not _is_owned(found, secret):
            # Someone may have bound a still empty Role of this name, and would get the rights too.
            message = f"{found['kind']} {view.namespace}/{found['metadata']['name']} has another owner; delete it"
            return waiting(message, ref(SECRET, secret), wake_at=view.now + RETRY)
    # Create instead of apply, so that an object that appears meanwhile is not changed.
    rights = tuple(
        Create(kind, obj, "grant the creator access to the credential")
        for (kind, obj), found in zip(wanted, known, strict=True)
        if found is None
    )
    consumed = Patch(
        ref(SECRET, secret),
        {"metadata": {"annotations": {CREATOR: None, CREATED_BY: creator}}},
        "the creator has been granted access",
    )
    # The finalizer comes first: if the Secret was recreated since it was read, nothing is granted.
    granted = (Parallel(rights),) if rights else ()
    return Decision(writes=(*_finalizer(secret, add=True), *granted, consumed))


def _is_owned(obj: Object, secret: Object) -> bool:
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == secret["metadata"]["uid"] for owner in owners)


def _revoke(view: View, secret: Object) -> Decision:
    """Delete the creator's rights before the Secret's name becomes free.

    Rights refer to names. The garbage collector would delete them too, but only after everything else in its queue.
    """
    rights = tuple(_revocations(view, secret))
    return Decision(writes=(*((Parallel(rights),) if rights else ()), *_finalizer(secret, add=False)))


def _revocations(view: View, secret: Object) -> list[Delete]:
    """Deletes of each RoleBinding and Role that the Secret owns, bindings first."""
    index, reason = (BY_OWNER, secret["metadata"]["uid"]), "revoke the creator's access"
    return [delete(kind, each, reason) for kind in (ROLE_BINDING, ROLE) for each in view.select(kind, index=index)]


def _finalizer(secret: Object, *, add: bool) -> tuple[Patch, ...]:
    others = [each for each in secret["metadata"].get("finalizers") or () if each != RIGHTS_FINALIZER]
    wanted = {
        **secret,
        "metadata": {**secret["metadata"], "finalizers": [*others, RIGHTS_FINALIZER] if add else others},
    }
    reason = "keep the Secret until the creator's access is revoked" if add else "the creator's access is revoked"
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
        "name": names.granted_role(names.CREDENTIAL_ROLE, creator, secret["metadata"]["name"]),
        "namespace": secret["metadata"]["namespace"],
        "ownerReferences": [owner_reference(SECRET, secret, controller=False)],
    }


# --- usage ----------------------------------------------------------------------------------------------------------


def _report_usage(view: View, secret: Object) -> Decision:
    """Record the machines that use the credential, from their state Secrets.

    State Secrets exist as long as their machines, and users cannot create Secrets of their type.
    """
    named = view.select(STATE_SECRET, index=(BY_CREDENTIAL, _credential_key(secret)))
    states = [state for state in named if not _predates(state, secret)]
    message = ", ".join(_machine(state) for state in states[:MACHINES_SHOWN])
    if len(states) > MACHINES_SHOWN:
        message += f" and {len(states) - MACHINES_SHOWN} more"
    if message == annotations_of(secret).get(USED_BY, ""):
        return DONE
    patch = {"metadata": {"annotations": {USED_BY: message or None}}}
    write = Patch(ref(SECRET, secret), patch, "record which machines use the credential", debounce=PROGRESS_DEBOUNCE)
    return Decision(writes=(write,))


def _predates(state: Object, secret: Object) -> bool:
    """Whether the machine was created with an earlier credential of the same name, which may be another user's.

    The creator of the credential reads the annotation, and must not learn the names of that user's machines.
    """
    created, since = (str(each["metadata"].get("creationTimestamp") or "") for each in (state, secret))
    return bool(created) and created < since


def _machine(state: Object) -> str:
    labels = labels_of(state)
    return f"{labels.get(names.INFRA_KIND_LABEL)}/{labels.get(names.INFRA_NAME_LABEL)}"


def _credential_key(secret: Object) -> str:
    return f"{secret['metadata']['namespace']}/{secret['metadata']['name']}"


# --- watches --------------------------------------------------------------------------------------------------------


def _credential_of(state: Object) -> Iterable[str]:
    """Indexer: the credential that a machine was created with, from its state Secret.

    Editors of the namespace can change the annotation. It must not make the manager write to another namespace.
    """
    place = annotations_of(state).get(CREDENTIAL_ANNOTATION, "")
    namespace, slash, _ = place.partition("/")
    return (place,) if slash and namespace in (state["metadata"]["namespace"], GLOBAL_NAMESPACE) else ()


def _used_credential(state: Object) -> Iterable[Key]:
    for place in _credential_of(state):
        namespace, _, name = place.partition("/")
        yield Key(namespace, name)


def _never(_change: Change) -> bool:
    """Do not reconcile on Secret events: Secrets are many, and credentials have their own watch by type."""
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
    pace=PROGRESS_DEBOUNCE,
)
