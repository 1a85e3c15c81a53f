"""Request bodies: JSON, YAML or Kubernetes protobuf in, one decoded value out, with the keys that were given twice.

Whether a JSON body has duplicate keys is told without a second parse: a decoder that keeps the last of two equal keys
loses string quotes on the way, so equal counts of quotes before and after prove that there were none.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from herder.engine.apiserver.negotiation import JSON, PROTOBUF, body_type
from herder.engine.apiserver.yaml_bodies import LARGE_YAML_BYTES, ConvertedYaml, is_flow, load_document
from herder.engine.client.wire import Request
from herder.engine.meta.errors import BadRequest, RequestEntityTooLarge
from herder.engine.meta.kinds import GroupVersionKind, Object

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_SHOWN = 1024


@dataclass(slots=True)
class Body:
    value: Any
    duplicates: list[str] = field(default_factory=list)  # `duplicate field "spec.replicas"`


def read_body(request: Request, kind: str, default: GroupVersionKind | None = None) -> Body:
    """The body by its content type. `kind` is what was expected, for the error."""
    media_type = body_type(request)
    if media_type == JSON:
        try:
            return read_json(request.body)
        except ValueError as error:
            why = f"couldn't get version/kind; json parse error: {error}"
            raise BadRequest(
                f"the object provided is unrecognized (must be of type {kind}): {why} ({shown(request.body)})"
            ) from None
    if media_type == PROTOBUF:
        from herder.engine.apiserver.builtin import protobuf

        return Body(protobuf.decode(request.body, default))
    try:
        return read_yaml(request.body)
    except ValueError as error:
        raise BadRequest(
            f"the object provided is unrecognized (must be of type {kind}): {error} ({shown(request.body)})"
        ) from None


def shown(body: bytes) -> str:
    """The beginning of a body, for an error."""
    if not body:
        return "<empty>"
    cut = body[:_SHOWN]
    reported = cut.decode("utf-8", "replace") if body[:1] == b"{" else cut.hex()
    return f"{reported} ..." if len(body) > _SHOWN else reported


# --- JSON ---------------------------------------------------------------------------------------------------------


def read_json(body: bytes) -> Body:
    """Raises ValueError in the words of Go's decoder."""
    check_containers(body)
    try:
        value = _decode(body)
    except RecursionError:
        raise ValueError("exceeded max depth") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        mended = _with_readable_text(body)
        if mended == body:
            raise ValueError(_go_words(body, str(error))) from None
        return read_json(mended)
    if body.count(b'"') == _encode(value).count(b'"') and b"\\u0022" not in body:
        return Body(value)
    return Body(value, json_duplicates(body))


MOST_CONTAINERS = 250_000
_FEW_BYTES = 128 << 10
_MOST_DUPLICATES = 100
"""As many as the real server names."""


def check_containers(body: bytes) -> None:
    """Refuse a body of very many lists and maps before it is decoded: decoding cannot be interrupted, and each of them
    takes some sixty bytes of memory for two bytes of text."""
    if len(body) > _FEW_BYTES and body.count(b"[") + body.count(b"{") > MOST_CONTAINERS:
        raise RequestEntityTooLarge(f"Request entity too large: limit is {MOST_CONTAINERS} lists and maps")


# Escapes in the order in which they are met, so that `\\ud800` is a backslash and four letters.
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\."
)


def _with_readable_text(body: bytes) -> bytes:
    """Bytes that are no UTF-8, and halves of surrogate pairs, become the replacement character, as in Go."""
    try:
        body.decode()
    except UnicodeDecodeError:
        body = body.decode("utf-8", "replace").encode()
    return _ESCAPES.sub(lambda found: rb"\ufffd" if len(found[0]) == 6 else found[0], body)


def _go_words(body: bytes, error: str) -> str:
    if "truncated" in error or not body.strip():
        return "unexpected end of JSON input"
    found = _AT_BYTE.search(error)
    position = int(found.group(1)) if found else 0
    if "trailing" in error:
        return f"invalid character {_quoted(body, _end_of_value(body))} after top-level value"
    return f"invalid character {_quoted(body, position)} looking for beginning of value"


def _end_of_value(body: bytes) -> int:
    """Where the first value ends and something else begins."""
    text = body.decode("utf-8", "replace")
    start = len(text) - len(text.lstrip())
    end = json.JSONDecoder().raw_decode(text, start)[1]
    rest = text[end:]
    return len(text[: end + len(rest) - len(rest.lstrip())].encode())


def _quoted(body: bytes, position: int) -> str:
    character = body[position : position + 1].decode("latin-1") or " "
    return f"'{character}'"


def json_duplicates(body: bytes) -> list[str]:
    """Every key that an object has twice, by its path, in the order in which the second one is met."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in items:
            if key not in seen:
                seen[key] = value
            elif isinstance(seen[key], _Repeated):
                seen[key].values.append(value)
            else:
                seen[key] = _Repeated([seen[key], value])
        return seen

    try:
        tree = json.loads(body, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return []
    named: list[str] = []
    _name_duplicates(tree, "", named)
    return list(dict.fromkeys(named))[:_MOST_DUPLICATES]


class _Repeated:
    """The values of a key that was given more than once."""

    __slots__ = ("values",)

    def __init__(self, values: list[Any]) -> None:
        self.values = values


def _name_duplicates(value: Any, path: str, named: list[str]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            at = f"{path}.{key}" if path else key
            for position, inner in enumerate(item.values if isinstance(item, _Repeated) else [item]):
                if position:
                    named.append(f'duplicate field "{at}"')
                _name_duplicates(inner, at, named)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _name_duplicates(item, f"{path}[{index}]", named)


# --- YAML ---------------------------------------------------------------------------------------------------------


def read_yaml(body: bytes) -> Body:
    """One YAML document as the JSON value it stands for. Raises ValueError in go-yaml's manner."""
    if isinstance(body, ConvertedYaml):
        if body.error:
            raise ValueError(body.error)
        return Body(_decode(body), body.duplicates)
    if is_flow(body):  # JSON is YAML, and much faster to read
        try:
            return read_json(body)
        except ValueError:
            if len(body) > LARGE_YAML_BYTES:
                raise  # flow style is not converted beside the event loop: whoever sends so much sends JSON
    value, duplicates = load_document(body)
    return Body(value, duplicates)


def expect_object(value: Any, request: Request, kind: str) -> Object:
    if isinstance(value, dict):
        return value
    what = {list: "array", str: "string", bool: "bool", type(None): "null"}.get(type(value), "number")
    if value is None:
        return {}
    struct = 'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
    raise BadRequest(
        f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: "
        f"json: cannot unmarshal {what} into Go value of type {struct} ({shown(request.body)})"
    )
