"""Request targets: a path, percent-decoded once, and a query."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from herder.engine.client.wire import Query
from herder.engine.meta.errors import BadRequest

_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def read_target(target: bytes) -> tuple[str, Query]:
    """The decoded path and the query of a request line; raises BadRequest."""
    raw_path, mark, raw_query = target.partition(b"?")
    if not raw_path.startswith(b"/"):
        raw_path = _origin_form(raw_path)
    query = Query.parse(raw_query.partition(b"#")[0].decode("ascii")) if mark else Query()
    return _decoded(raw_path.partition(b"#")[0]), query


def _decoded(raw: bytes) -> str:
    if b"%" in raw:
        if (wrong := _ESCAPE.search(raw)) is not None:
            shown = raw[wrong.start() : wrong.start() + 3].decode("ascii")
            raise BadRequest(f'invalid URL: invalid URL escape "{shown}"')
        raw = unquote_to_bytes(raw)
    try:
        path = raw.decode()
    except UnicodeDecodeError:
        raise BadRequest("invalid URL: the path is not UTF-8") from None
    if "\x00" in path:
        raise BadRequest("invalid URL: the path contains a NUL character")
    return path


def _origin_form(raw: bytes) -> bytes:
    """The path of an absolute target, as a proxy sends it; `*` stays as it is."""
    if raw == b"*":
        return raw
    scheme, separator, rest = raw.partition(b"://")
    host, slash, path = rest.partition(b"/")
    if not separator or scheme.lower() not in (b"http", b"https") or not host:
        raise BadRequest("invalid URL: the request target is neither a path nor a URL")
    return slash + path or b"/"
