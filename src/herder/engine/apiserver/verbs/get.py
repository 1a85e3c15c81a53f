"""get: one object, now or no older than a revision."""

from __future__ import annotations

from herder.engine.apiserver.options import revision_of, unreadable_revision
from herder.engine.apiserver.rendering import object_response
from herder.engine.apiserver.scope import RequestContext
from herder.engine.client.wire import Response
from herder.engine.meta.errors import BadRequest, Timeout, not_found


async def get(call: RequestContext) -> Response:
    query = call.request.query
    if query.items:
        if "export" in query and query.get("export") not in ("", "false", "0"):
            raise BadRequest("the export parameter, deprecated since v1.14, is no longer supported")
        refuse_future_revision(call, query.get("resourceVersion"))
    record = call.parts.store.get(call.key)
    if record is None:
        raise not_found(call.group_resource, call.info.name)
    return await object_response(call, record)


def refuse_future_revision(call: RequestContext, text: str) -> int | None:
    """The revision that must have been reached, as a number. One that has not been is refused, to be tried again."""
    try:
        wanted = revision_of(text)
    except ValueError as error:
        raise unreadable_revision(error) from None
    current = call.parts.store.revision
    if wanted is not None and wanted > current:
        raise too_large(wanted, current)
    return wanted


def too_large(wanted: int, current: int) -> Timeout:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Timeout(
        f"Timeout: Too large resource version: {wanted}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        headers={"retry-after": "1"},
    )
