"""Request targets: percent-decoded path and query."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from herder.engine.meta.errors import BadRequest
from herder.engine.wire import Query

_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def read_target(target: bytes) -> tuple[str, Query]:
    """Return the decoded path and the query of a target in origin form; raises BadRequest."""
    raw_path, mark, raw_query = target.partition(b"?")
    return _decode_path(raw_path), Query.parse(raw_query.decode("ascii")) if mark else Query()


def _decode_path(raw: bytes) -> str:
    if b"%" in raw:
        if (invalid := _ESCAPE.search(raw)) is not None:
            escape = raw[invalid.start() : invalid.start() + 3].decode("ascii")
            raise BadRequest(f'invalid URL: invalid URL escape "{escape}"')
        raw = unquote_to_bytes(raw)
    try:
        path = raw.decode()
    except UnicodeDecodeError:
        raise BadRequest("invalid URL: the path is not UTF-8") from None
    if "\x00" in path:
        raise BadRequest("invalid URL: the path contains a NUL character")
    return path


def origin_form(target: bytes) -> bytes:
    """Return path and query of a request target, also of one in absolute form, as sent to a proxy. `*` is returned
    as is."""
    target = target.partition(b"#")[0]
    if target.startswith(b"/") or target == b"*":
        return target
    scheme, separator, rest = target.partition(b"://")
    host = rest.partition(b"?")[0].partition(b"/")[0]
    if not separator or scheme.lower() not in (b"http", b"https") or not host:
        raise BadRequest("invalid URL: the request target is neither a path nor a URL")
    tail = rest[len(host) :]
    return tail if tail.startswith(b"/") else b"/" + tail
