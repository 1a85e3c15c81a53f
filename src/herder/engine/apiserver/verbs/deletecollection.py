"""The deletecollection verb: delete every object that matches the selectors, one by one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from herder.engine.apiserver.compute import LARGE_BYTES
from herder.engine.apiserver.context import RequestContext, for_object
from herder.engine.apiserver.registry.selection import Selection
from herder.engine.apiserver.registry.storage_codec import decode
from herder.engine.apiserver.request.options import delete_options, list_options, parse_revision
from herder.engine.apiserver.response.list_stream import list_response
from herder.engine.apiserver.verbs.delete import delete_object
from herder.engine.apiserver.verbs.list import filter_records, read_token
from herder.engine.meta.errors import BadRequest, NotFound
from herder.engine.store import Record
from herder.engine.wire import Response

_CONCURRENCY = 64  # concurrent deletions; the store commits them together


async def delete_collection(call: RequestContext) -> Response:
    """Delete the selected objects, and return them as a list."""
    selectors = list_options(call.request.query)
    options = delete_options(call.request)
    if selectors.continue_token:
        read_token(selectors.continue_token)
    try:
        parse_revision(selectors.resource_version)
    except ValueError as error:
        raise BadRequest(f"invalid resource version: {error}") from None
    selection = Selection(call, selectors)
    records = call.deps.store.list(str(call.resource.storage), call.namespace)
    selected = records if selection.everything else await filter_records(selection, records)
    if selectors.limit:
        selected = selected[: selectors.limit]
    revision = str(call.deps.store.revision)

    async def delete_one(record: Record) -> None:
        with suppress(NotFound):  # another client has deleted it
            await delete_object(for_object(call, decode(record)), replace(options))

    large = [record for record in selected if len(record.value) > LARGE_BYTES]
    small = [record for record in selected if len(record.value) <= LARGE_BYTES]
    for start in range(0, len(small), _CONCURRENCY):
        await asyncio.gather(*(delete_one(record) for record in small[start : start + _CONCURRENCY]))
    for record in large:  # one at a time: together they would exceed the user's share of the executor
        await delete_one(record)
    return await list_response(call, selected, {"resourceVersion": revision})
