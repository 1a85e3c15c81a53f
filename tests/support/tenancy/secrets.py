"""Secrets of other users, and those on which the manager reports machines."""

from __future__ import annotations

from typing import Any

from herder.api.capi.kinds import SECRET
from herder.api.machines.credentials import CREATED_BY, CREATOR, CREDENTIAL_TYPE, RIGHTS_FINALIZER
from herder.api.machines.jobs import CREDENTIAL_ANNOTATION
from herder.api.machines.names import STATE_SECRET_TYPE
from herder.api.rke import names
from herder.engine.meta.kinds import Object
from tests.support.tenancy.case import Case, encoded, orphaned, secret
from tests.support.tenancy.users import USER

UNNAMED = (
    secret("a credential", "unnamed-cc", type=CREDENTIAL_TYPE),
    secret("a credential of older managers", "unnamed-old", "cattle-global-data"),
    secret("a registry's login", "unnamed-registry", type=names.AUTH_SECRET_TYPE),
)
"""Secrets without the creator annotation: the embedded server adds it, a policy can only reject them."""


REDIRECTED = tuple(
    Case(
        f"the credential of a machine becomes {value}",
        SECRET,
        {"name": "edited-machine-state", "namespace": "fleet-default"}
        | {"annotations": {CREDENTIAL_ANNOTATION: "a/b"}},
        {"type": STATE_SECRET_TYPE},
        {"metadata": {"annotations": {CREDENTIAL_ANNOTATION: value}}},
    )
    for value in ("cattle-global-data/theirs", None)
)
"""Writes by which an editor makes the manager report a machine on a Secret of another namespace."""
EDITED = (
    orphaned(SECRET, "edited-plain", "fleet-default", type="Opaque")[0],
    Case(
        "a label of a credential",
        SECRET,
        {"name": "edited-5", "namespace": "fleet-default", "finalizers": [RIGHTS_FINALIZER]},
        {"type": CREDENTIAL_TYPE},
        {"metadata": {"labels": {"a": "b"}}},
    ),
    Case(
        "the state of a machine",
        SECRET,
        {"name": "edited-2-machine-state", "namespace": "fleet-default"}
        | {"annotations": {CREDENTIAL_ANNOTATION: "a/b"}},
        {"type": STATE_SECRET_TYPE},
        {"stringData": {"key": "value"}},
    ),
)


def _of_creator(id_: str, patch: Object) -> Case:
    meta = {"name": "held", "namespace": "cattle-global-data", "annotations": {CREATED_BY: "somebody"}}
    return Case(id_, SECRET, meta, {"type": CREDENTIAL_TYPE}, patch)


def _taken(name: str, patch: Object, marks: Object | None = None, **fields: Any) -> Case:
    meta = {"name": name, "namespace": "fleet-default", "annotations": {CREATOR: "somebody", **(marks or {})}}
    return Case(name, SECRET, meta, {"data": {"zz-vcenter": encoded("theirs")}, **fields}, patch)


TAKEN = (
    _taken("taken-plain", {"stringData": {"password": "value"}}),
    _taken("taken-registry", {"data": {"password": encoded("value")}}, type=names.AUTH_SECRET_TYPE),
    _taken("taken-credential", {"data": {"password": encoded("value")}}, type=CREDENTIAL_TYPE),
    _taken("taken-marked", {"stringData": {"password": "value"}}, {CREATED_BY: ""}),
)
"""What an administrator's `kubectl apply` sends if a user created a Secret of that name: keys and annotations of that
user remain, such as the cluster that the content is synced into, or the server that gets the password."""

OVERWRITTEN = (
    _of_creator("its data", {"stringData": {"key": "value"}}),
    _of_creator("its creator", {"metadata": {"annotations": {CREATED_BY: USER}}}),
    _of_creator("no creator", {"metadata": {"annotations": {CREATED_BY: None}}}),
)
"""Writes to a credential that another user created and can read."""
