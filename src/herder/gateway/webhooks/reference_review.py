"""AdmissionReview of references, for all kinds that have some."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from herder.api.capi.core import MUTATING_WEBHOOKS
from herder.api.capi.kinds import SECRET
from herder.api.machines.credentials import CREATED_BY, CREATOR
from herder.api.machines.kinds import CONFIG_GROUP
from herder.api.management.secret_sync import SYNC, SYNC_BOOTSTRAP
from herder.api.references.approvals import APPROVED
from herder.api.references.catalogue import DRIVER_GROUPS, KINDS
from herder.engine.client.client import Client
from herder.engine.meta.errors import BadRequest, Forbidden, Invalid
from herder.engine.meta.kinds import GroupKind, GroupResource, GroupVersionResource, Kind, Object
from herder.engine.wire import User
from herder.gateway.admission.access import Access
from herder.gateway.admission.references import ReferenceAdmission, Write
from herder.gateway.admission.restores import RestoreAdmission
from herder.gateway.webhooks.configurations import RULED, Configuration, Webhook
from herder.gateway.webhooks.reviews import answered, refused, review_request

NAME, PATH = "herder-references", "/references"
_SELF_REVIEW = GroupVersionResource("authentication.k8s.io", "v1", "selfsubjectreviews")
_OPERATIONS = ("CREATE", "UPDATE")


async def own_user(client: Client) -> User:
    """The user that the API server authenticates this client as."""
    review = {"apiVersion": _SELF_REVIEW.api_version, "kind": "SelfSubjectReview"}
    answer = await client.create(_SELF_REVIEW, review)
    return _user(answer["status"]["userInfo"])


# --- configuration --------------------------------------------------------------------------------------------------

_MARKS = "metadata.?annotations"
_SYNCED = " || ".join(f"object.{_MARKS}[?'{mark}'].hasValue()" for mark in (SYNC, SYNC_BOOTSTRAP, APPROVED))
_WAS_RECORDED = f"(request.operation == 'UPDATE' && oldObject.{_MARKS}[?'{APPROVED}'].hasValue())"
_BY_CREATOR = " || ".join(
    f"oldObject.{_MARKS}[?'{mark}'].orValue('') == request.userInfo.username" for mark in (CREATED_BY, CREATOR)
)
_IS_OWN = f"(request.operation == 'UPDATE' && object.?data != oldObject.?data && ({_BY_CREATOR}))"
"""The creator of a Secret changes its content."""


def configurations(manager: User) -> tuple[Configuration, ...]:
    """Webhook configuration. `manager` is the user that controllers write as; most of its writes need no review."""
    quoted = manager.name.replace("\\", "\\\\").replace("'", "\\'")
    concerned = f"(request.userInfo.username != '{quoted}' || {_WAS_RECORDED})"
    hooks = [_hook(kind, f"references.{kind.plural}.{kind.group}") for kind in KINDS]
    for group in DRIVER_GROUPS:
        # The fields of machine configs are not in a spec, so every update is reviewed.
        concerns = "true" if group == CONFIG_GROUP else RULED
        hooks.append(_hook(Kind(group, "v1", "*", "*"), f"references.{group}", concerns=concerns))
    content = f"{RULED} || object.?data != oldObject.?data"
    hooks.append(_hook(SECRET, "references.secrets.herder.io", f"{_SYNCED} || {_WAS_RECORDED} || {_IS_OWN}", content))
    limited = tuple(hook._replace(only=f"({hook.only}) && {concerned}") for hook in hooks)
    return (Configuration(MUTATING_WEBHOOKS, NAME, limited),)


def _hook(kind: Kind, name: str, only: str = "true", concerns: str = RULED) -> Webhook:
    return Webhook(name, PATH, kind, _OPERATIONS, concerns, only)


# --- reviews --------------------------------------------------------------------------------------------------------


class ReferenceReviews:
    """Answers AdmissionReviews."""

    def __init__(self, client: Client, manager: User) -> None:
        self._admission = ReferenceAdmission(client, Access(client).may, manager)
        self._restores = RestoreAdmission(client)

    async def __call__(self, body: bytes) -> bytes:
        request = review_request(body)
        write = _write(request)
        try:
            restored = await self._restores.admit(write)
            admitted = await self._admission.admit(restored)
        except (Forbidden, Invalid) as error:
            return answered(request, refused(error))
        if admitted is write.obj:
            return answered(request, {})
        spec = [] if restored is write else [{"op": "replace", "path": "/spec", "value": restored.obj["spec"]}]
        patch = msgspec.json.encode([*spec, *_annotations_patch(write.obj, admitted)])
        return answered(request, {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()})


def _annotations_patch(obj: Object, admitted: Object) -> list[Object]:
    """Reference admission changes only annotations."""
    path, had = "/metadata/annotations", "annotations" in (obj.get("metadata") or {})
    wanted = admitted["metadata"].get("annotations")
    if wanted is None:
        return [{"op": "remove", "path": path}] if had else []
    return [{"op": "replace" if had else "add", "path": path, "value": wanted}]


def _write(request: Object) -> Write:
    obj, old = request.get("object"), request.get("oldObject")
    kind, resource = (_mapping(request.get(part)) for part in ("kind", "resource"))
    if not isinstance(obj, dict) or not isinstance(old, dict | None):
        raise BadRequest("request.object: an object is expected, and in request.oldObject an object or null")
    return Write(
        GroupKind(str(kind.get("group") or ""), str(kind.get("kind") or "")),
        GroupResource(str(resource.get("group") or ""), str(resource.get("resource") or "")),
        str(request.get("namespace") or ""),
        str(request.get("name") or ""),
        obj,
        old,
        _user(_mapping(request.get("userInfo"))),
        request.get("dryRun") is True,
    )


def _user(info: Object) -> User:
    extra = {str(name): tuple(values) for name, values in _mapping(info.get("extra")).items()}
    return User(str(info.get("username") or ""), str(info.get("uid") or ""), tuple(info.get("groups") or ()), extra)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
