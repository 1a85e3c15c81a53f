"""deletecollection: every object that the selectors choose, each deleted as a delete of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from herder.engine.apiserver.compute import LARGE_BYTES
from herder.engine.apiserver.lists import list_response
from herder.engine.apiserver.options import delete_options, list_options, revision_of
from herder.engine.apiserver.scope import RequestContext, rebound
from herder.engine.apiserver.selection import Selection
from herder.engine.apiserver.stored import decode
from herder.engine.apiserver.verbs.delete import delete_object
from herder.engine.apiserver.verbs.listing import matching, read_token
from herder.engine.client.wire import Response
from herder.engine.meta.errors import BadRequest, NotFound
from herder.engine.store import Record

_AT_ONCE = 64  # deletions on their way together share commits


async def delete_collection(call: RequestContext) -> Response:
    listing = list_options(call.request.query)
    options = delete_options(call.request)
    if listing.continue_token:
        read_token(listing.continue_token)
    try:
        revision_of(listing.resource_version)
    except ValueError as error:
        raise BadRequest(f"invalid resource version: {error}") from None
    selection = Selection(call, listing)
    records = call.parts.store.list(str(call.resource.storage), call.namespace)
    chosen = records if selection.everything else await matching(selection, records)
    if listing.limit:
        chosen = chosen[: listing.limit]
    revision = str(call.parts.store.revision)

    async def delete_one(record: Record) -> None:
        with suppress(NotFound):  # someone else was faster
            await delete_object(rebound(call, decode(record)), replace(options))

    large = [record for record in chosen if len(record.value) > LARGE_BYTES]
    small = [record for record in chosen if len(record.value) <= LARGE_BYTES]
    for start in range(0, len(small), _AT_ONCE):
        await asyncio.gather(*(delete_one(record) for record in small[start : start + _AT_ONCE]))
    for record in large:  # together they would exceed what one user may compute at a time
        await delete_one(record)
    return await list_response(call, chosen, {"resourceVersion": revision})
