"""The get verb: read one object, optionally not older than a resourceVersion."""

from __future__ import annotations

from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.request.options import invalid_revision, parse_revision
from herder.engine.apiserver.response.render import object_response
from herder.engine.meta.errors import BadRequest, Timeout, not_found
from herder.engine.wire import Response


async def get(call: RequestContext) -> Response:
    """Return one object."""
    query = call.request.query
    if query.items:
        if "export" in query and query.get("export") not in ("", "false", "0"):
            raise BadRequest("the export parameter, deprecated since v1.14, is no longer supported")
        check_minimum_revision(call, query.get("resourceVersion"))
    record = call.deps.store.get(call.key)
    if record is None:
        raise not_found(call.group_resource, call.info.name)
    return await object_response(call, record)


def check_minimum_revision(call: RequestContext, text: str) -> int | None:
    """Parse a minimum resourceVersion. Raises Timeout if the store has not reached it yet, so that the client
    retries."""
    try:
        wanted = parse_revision(text)
    except ValueError as error:
        raise invalid_revision(error) from None
    current = call.deps.store.revision
    if wanted is not None and wanted > current:
        raise resource_version_too_large(wanted, current)
    return wanted


def resource_version_too_large(wanted: int, current: int) -> Timeout:
    """Return the retryable error for a resourceVersion that the store has not reached."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Timeout(
        f"Timeout: Too large resource version: {wanted}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        headers={"retry-after": "1"},
    )
