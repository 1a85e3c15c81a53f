"""The list verb: a collection at one revision, complete or in pages."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence

import msgspec

from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry.selection import (
    Selection,
    is_before_namespace,
    is_granted_by_name,
    is_of_earlier_object,
)
from herder.engine.apiserver.registry.storage_codec import key_of
from herder.engine.apiserver.request.body import read_json
from herder.engine.apiserver.request.options import ListOptions, list_options, parse_revision
from herder.engine.apiserver.response.list_stream import list_response
from herder.engine.apiserver.verbs.get import resource_version_too_large
from herder.engine.meta.errors import BadRequest, Expired
from herder.engine.meta.kinds import Object
from herder.engine.store import Compacted, FutureRevision, Record
from herder.engine.wire import Response

_MATCH_BATCH = 500

_CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
_REVISION_EXPIRED = "The resourceVersion for the provided list is too old."


class _ContinueExpired(Expired):
    """The revision of a continue token was compacted. The Status contains a token that continues with an
    inconsistent list."""

    def __init__(self, token: str) -> None:
        super().__init__(_CONTINUE_EXPIRED)
        self.token = token

    def to_status(self) -> Object:
        return super().to_status() | {"metadata": {"continue": self.token}}


async def list_objects(call: RequestContext) -> Response:
    """Return the selected objects, or a page of them."""
    options = list_options(call.request.query)
    selection = Selection(call, options)
    after, revision, exact = _list_position(call, options)
    records = await _records(call, selection, after=after, revision=revision, exact=exact)
    metadata: Object = {"resourceVersion": str(revision)}
    selected = records if selection.everything else await filter_records(selection, records)
    if exact and is_granted_by_name(call):
        selected = [record for record in selected if not is_of_earlier_object(call, record)]
    limit = options.limit
    if limit and len(selected) > limit:
        remaining = len(selected) - limit
        selected = selected[:limit]
        metadata["continue"] = continue_token(call, selected[-1], revision)
        if selection.everything:
            metadata["remainingItemCount"] = remaining
    past = revision if exact and call.deps.store.is_past(revision) else 0
    return await list_response(call, selected, metadata, past=past)


def _list_position(call: RequestContext, options: ListOptions) -> tuple[str, int, bool]:
    """Return the key after which the list starts, its revision, and whether exactly that revision is read."""
    store = call.deps.store
    current = store.revision
    if options.continue_token:
        if options.resource_version and options.resource_version != "0":
            raise BadRequest("specifying resource version is not allowed when using continue")
        start, revision = read_token(options.continue_token)
        after = start if not call.namespace else f"{call.namespace}/{start}"
        if not call.resource.namespaced:
            after = f"/{start}"
        return after, current if revision < 0 else revision, revision >= 0
    try:
        wanted = parse_revision(options.resource_version)
    except ValueError as error:
        raise BadRequest(f"invalid resource version: {error}") from None
    if wanted:
        if wanted > current:
            raise resource_version_too_large(wanted, current)
        if options.match == "Exact" or (not options.match and options.limit):
            return "", wanted, True
    return "", current, False


async def _records(
    call: RequestContext, selection: Selection, *, after: str, revision: int, exact: bool
) -> Sequence[Record]:
    store, resource = call.deps.store, str(call.resource.storage)
    if selection.name and not exact and not after and (call.namespace or not call.resource.namespaced):
        found = store.get(key_of(call.resource, call.namespace, selection.name))
        return [found] if found is not None else []
    if not exact:
        return store.list(resource, call.namespace, after=after)
    if is_before_namespace(call, revision):
        raise Expired(_REVISION_EXPIRED)
    try:
        return await store.list_at(resource, call.namespace, revision, after=after)
    except Compacted:
        if not after:
            raise Expired(_REVISION_EXPIRED) from None
        raise _ContinueExpired(_token(after.rpartition("/")[2] if call.namespace else after, -1)) from None
    except FutureRevision:
        raise resource_version_too_large(revision, store.revision) from None


async def filter_records(selection: Selection, records: Sequence[Record]) -> list[Record]:
    """Return the matching records, yielding to the event loop between batches."""
    selected: list[Record] = []
    for start in range(0, len(records), _MATCH_BATCH):
        selected += [record for record in records[start : start + _MATCH_BATCH] if selection.matches(record)]
        if len(records) > _MATCH_BATCH:
            await asyncio.sleep(0)
    return selected


# --- continue tokens ----------------------------------------------------------------------------------------------


def continue_token(call: RequestContext, last: Record, revision: int) -> str:
    """Return the token that continues the list after `last`, at the same revision."""
    spans_namespaces = call.resource.namespaced and not call.namespace
    return _token(last.key.path if spans_namespaces else last.key.name, revision)


def _token(start: str, revision: int) -> str:
    content = {
        "v": "meta.k8s.io/v1",
        "rv": revision,
        "start": f"/{start}\0" if not start.startswith("/") else start + "\0",
    }
    return base64.urlsafe_b64encode(msgspec.json.encode(content)).rstrip(b"=").decode()


def read_token(token: str) -> tuple[str, int]:
    """Return the path after which the list continues, and the revision it is read at."""
    try:
        padded = token.encode("ascii") + b"=" * (-len(token) % 4)
        raw = base64.b64decode(padded, altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise _invalid_token("illegal base64 data at input byte 0") from None
    try:
        content = read_json(raw).value
        version, revision, start = content["v"], content["rv"], content["start"]
    except ValueError as error:
        raise _invalid_token(str(error)) from None
    except (KeyError, TypeError):
        raise _invalid_token('server does not recognize this encoded version ""') from None
    if version != "meta.k8s.io/v1":
        raise _invalid_token(f'server does not recognize this encoded version "{version}"')
    if not isinstance(revision, int) or revision == 0:
        raise _invalid_token("incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
    if not isinstance(start, str) or not start:
        raise _invalid_token("encoded start key empty (version meta.k8s.io/v1)")
    key = start.removeprefix("/").removesuffix("\0")
    if any(part in (".", "..") for part in key.split("/")):
        raise _invalid_token(f"{start}")
    return key, revision


def _invalid_token(why: str) -> BadRequest:
    return BadRequest(f"invalid continue token: continue key is not valid: {why}")
