"""list: a collection at one revision, whole or page by page."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence

import msgspec

from herder.engine.apiserver.bodies import read_json
from herder.engine.apiserver.lists import list_response
from herder.engine.apiserver.options import ListOptions, list_options, revision_of
from herder.engine.apiserver.scope import RequestContext
from herder.engine.apiserver.selection import (
    Selection,
    is_before_namespace,
    is_granted_by_name,
    is_of_earlier_object,
)
from herder.engine.apiserver.stored import key_of
from herder.engine.apiserver.verbs.get import too_large
from herder.engine.client.wire import Response
from herder.engine.meta.errors import BadRequest, Expired
from herder.engine.meta.kinds import Object
from herder.engine.store import Compacted, FutureRevision, Record

_MATCHED_AT_ONCE = 500

_PAGE_GONE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
_REVISION_GONE = "The resourceVersion for the provided list is too old."


class _PageGone(Expired):
    """Carries the token with which the client may go on, at the price of a consistent list."""

    def __init__(self, token: str) -> None:
        super().__init__(_PAGE_GONE)
        self.token = token

    def to_status(self) -> Object:
        return super().to_status() | {"metadata": {"continue": self.token}}


async def list_objects(call: RequestContext) -> Response:
    options = list_options(call.request.query)
    selection = Selection(call, options)
    after, revision, exact = _place(call, options)
    records = await _records(call, selection, after=after, revision=revision, exact=exact)
    metadata: Object = {"resourceVersion": str(revision)}
    chosen = records if selection.everything else await matching(selection, records)
    if exact and is_granted_by_name(call):
        chosen = [record for record in chosen if not is_of_earlier_object(call, record)]
    limit = options.limit
    if limit and len(chosen) > limit:
        remaining = len(chosen) - limit
        chosen = chosen[:limit]
        metadata["continue"] = continue_token(call, chosen[-1], revision)
        if selection.everything:
            metadata["remainingItemCount"] = remaining
    return await list_response(call, chosen, metadata)


def _place(call: RequestContext, options: ListOptions) -> tuple[str, int, bool]:
    """Where the list starts, its revision, and whether it must be read as of exactly that one."""
    store = call.parts.store
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
        wanted = revision_of(options.resource_version)
    except ValueError as error:
        raise BadRequest(f"invalid resource version: {error}") from None
    if wanted:
        if wanted > current:
            raise too_large(wanted, current)
        if options.match == "Exact" or (not options.match and options.limit):
            return "", wanted, True
    return "", current, False


async def _records(
    call: RequestContext, selection: Selection, *, after: str, revision: int, exact: bool
) -> Sequence[Record]:
    store, resource = call.parts.store, str(call.resource.storage)
    if selection.name and not exact and not after and (call.namespace or not call.resource.namespaced):
        found = store.get(key_of(call.resource, call.namespace, selection.name))
        return [found] if found is not None else []
    if not exact:
        return store.list(resource, call.namespace, after=after)
    if is_before_namespace(call, revision):
        raise Expired(_REVISION_GONE)
    try:
        return await store.list_at(resource, call.namespace, revision, after=after)
    except Compacted:
        if not after:
            raise Expired(_REVISION_GONE) from None
        raise _PageGone(_token(after.rpartition("/")[2] if call.namespace else after, -1)) from None
    except FutureRevision:
        raise too_large(revision, store.revision) from None


async def matching(selection: Selection, records: Sequence[Record]) -> list[Record]:
    chosen: list[Record] = []
    for start in range(0, len(records), _MATCHED_AT_ONCE):
        chosen += [record for record in records[start : start + _MATCHED_AT_ONCE] if selection.matches(record)]
        if len(records) > _MATCHED_AT_ONCE:
            await asyncio.sleep(0)
    return chosen


# --- continue tokens ----------------------------------------------------------------------------------------------


def continue_token(call: RequestContext, last: Record, revision: int) -> str:
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
    """The path after which the list goes on, and the revision that it shows."""
    try:
        padded = token.encode("ascii") + b"=" * (-len(token) % 4)
        raw = base64.b64decode(padded, altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise _bad_token("illegal base64 data at input byte 0") from None
    try:
        content = read_json(raw).value
        version, revision, start = content["v"], content["rv"], content["start"]
    except ValueError as error:
        raise _bad_token(str(error)) from None
    except (KeyError, TypeError):
        raise _bad_token('server does not recognize this encoded version ""') from None
    if version != "meta.k8s.io/v1":
        raise _bad_token(f'server does not recognize this encoded version "{version}"')
    if not isinstance(revision, int) or revision == 0:
        raise _bad_token("incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
    if not isinstance(start, str) or not start:
        raise _bad_token("encoded start key empty (version meta.k8s.io/v1)")
    key = start.removeprefix("/").removesuffix("\0")
    if any(part in (".", "..") for part in key.split("/")):
        raise _bad_token(f"{start}")
    return key, revision


def _bad_token(why: str) -> BadRequest:
    return BadRequest(f"invalid continue token: continue key is not valid: {why}")
