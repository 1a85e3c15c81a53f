"""URL library: components of absolute URLs and absolute paths."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, unquote_plus

from herder.engine.schema.cel.declarations import Library
from herder.engine.schema.cel.errors import EvaluationError
from herder.engine.schema.cel.types import BOOL, STRING, URL, list_of, map_of

library = Library()
_CONTROL = re.compile(r"[\x00-\x20\x7f]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})[^%]{0,2}")
_PORT = re.compile(r"(?::[0-9]*)?\Z", re.ASCII)
_NEEDLESS_ESCAPE = re.compile(r"%(?!25)[0-7][0-9A-Fa-f]")
_NOT_IN_HOST = re.compile(r"[^A-Za-z0-9\-._~!$&'()*+,;=:\[\]<>\"%\x80-\U0010ffff]")
_SAFE_UNESCAPED = "-_.~$&+,/:;=@"
_SAFE_PATH = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~$&+,/:;=@!'()*[]"


class URLValue:
    """A parsed URL (kubernetes.URL)."""

    __slots__ = ("host", "path", "query", "scheme", "text")
    cel_type = "kubernetes.URL"

    def __init__(self, text: str, scheme: str, host: str, path: str, query: str) -> None:
        self.text = text
        self.scheme = scheme
        self.host = host
        self.path = path
        self.query = query

    def __eq__(self, other: object) -> bool:
        return isinstance(other, URLValue) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text


def parse(text: str) -> URLValue:
    """Parse an absolute URL or path; raises ValueError with Go's message."""
    rest = text.partition("#")[0]
    if not text:
        raise _invalid(text, "empty url")
    if _CONTROL.search(text.replace(" ", "")):
        raise _invalid(text, "net/url: invalid control character in URL")
    scheme, rest = _split_scheme(text, rest)
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            return URLValue(text, scheme, "", "", query)
        raise _invalid(text, "invalid URI for request")
    host = ""
    if scheme and rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        host = _host(text, authority.rpartition("@")[2])
        rest = slash + path
    if bad := _BAD_ESCAPE.search(rest):
        raise _invalid(text, f'invalid URL escape "{bad[0]}"')
    return URLValue(text, scheme, host, rest, query)


def _invalid(text: str, reason: str) -> ValueError:
    return ValueError(f'parse "{text}": {reason}')


def _split_scheme(text: str, rest: str) -> tuple[str, str]:
    match = _SCHEME.match(rest)
    if match is not None:
        return match[1].lower(), rest[match.end() :]
    if rest.startswith(":"):
        raise _invalid(text, "missing protocol scheme")
    head = rest.partition("/")[0].partition("?")[0]
    if ":" in head and not rest.startswith("/"):
        raise _invalid(text, "first path segment in URL cannot contain colon")
    return "", rest


def _host(text: str, host: str) -> str:
    if host.startswith("["):
        _, bracket, port = host.partition("]")
        if not bracket:
            raise _invalid(text, "missing ']' in host")
        if not _PORT.match(port):
            raise _invalid(text, f'invalid port "{port}" after host')
    elif ":" in host and not _PORT.match(host[host.rindex(":") :]):
        raise _invalid(text, f'invalid port "{host[host.rindex(":") :]}" after host')
    if bad := _BAD_ESCAPE.search(host) or _NEEDLESS_ESCAPE.search(host):
        raise _invalid(text, f'invalid URL escape "{bad[0]}"')
    if bad := _NOT_IN_HOST.search(host):
        raise _invalid(text, f'invalid character "{bad[0]}" in host name')
    return host


@library.function("url", STRING, returns=URL)
def url(text: str) -> URLValue:
    try:
        return parse(text)
    except ValueError as error:
        raise EvaluationError(f"URL parse error during conversion from string: {error}") from None


@library.function("isURL", STRING, returns=BOOL)
def is_url(text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


library.method("getScheme", URL, returns=STRING)(lambda value: value.scheme)
library.method("getHost", URL, returns=STRING)(lambda value: value.host)


@library.method("getHostname", URL, returns=STRING)
def hostname(value: URLValue) -> str:
    if value.host.startswith("["):
        return value.host[1 : value.host.index("]")]
    return value.host.partition(":")[0]


@library.method("getPort", URL, returns=STRING)
def port(value: URLValue) -> str:
    after = value.host.rpartition("]")[2] if value.host.startswith("[") else value.host
    return after.rpartition(":")[2] if ":" in after else ""


@library.method("getEscapedPath", URL, returns=STRING)
def escaped_path(value: URLValue) -> str:
    """Return the path as written if it is validly escaped, else escape it."""
    if all(char in _SAFE_PATH or char == "%" for char in value.path):
        return value.path
    return quote(unquote(value.path), safe=_SAFE_UNESCAPED)


@library.method("getQuery", URL, returns=map_of(STRING, list_of(STRING)))
def query(value: URLValue) -> dict[str, list[str]]:
    """Return values by name; malformed pairs are dropped."""
    result: dict[str, list[str]] = {}
    for pair in value.query.split("&"):
        if not pair or ";" in pair or _BAD_ESCAPE.search(pair):
            continue
        name, _, text = pair.partition("=")
        result.setdefault(unquote_plus(name), []).append(unquote_plus(text))
    return result
