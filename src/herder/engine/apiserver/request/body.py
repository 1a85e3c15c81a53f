"""Decode request bodies: JSON, YAML or Kubernetes protobuf, including a list of duplicate keys.

Duplicate keys in JSON are detected without a second parse: a decoder that keeps only the last of two equal keys drops
string quotes, so equal numbers of quotes before and after prove that there were no duplicates.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from herder.engine.apiserver.request.negotiation import JSON, PROTOBUF, body_type
from herder.engine.apiserver.request.yaml_body import LARGE_YAML_BYTES, ConvertedYaml, is_flow, load_document
from herder.engine.meta.errors import BadRequest, RequestEntityTooLarge
from herder.engine.meta.kinds import GroupVersionKind, Object
from herder.engine.wire import Request

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_EXCERPT_BYTES = 1024


@dataclass(slots=True)
class Body:
    """A decoded body and the strict-decoding errors found in it."""

    value: Any
    duplicates: list[str] = field(default_factory=list)  # `duplicate field "spec.replicas"`


def read_body(request: Request, kind: str, default: GroupVersionKind | None = None) -> Body:
    """Decode the body according to its content type. `kind` is the expected kind, for error messages."""
    media_type = body_type(request)
    if media_type == JSON:
        try:
            return read_json(request.body)
        except ValueError as error:
            why = f"couldn't get version/kind; json parse error: {error}"
            raise BadRequest(
                f"the object provided is unrecognized (must be of type {kind}): {why} ({excerpt(request.body)})"
            ) from None
    if media_type == PROTOBUF:
        from herder.engine.apiserver.builtin import protobuf

        return Body(protobuf.decode(request.body, default))
    try:
        return read_yaml(request.body)
    except ValueError as error:
        raise BadRequest(
            f"the object provided is unrecognized (must be of type {kind}): {error} ({excerpt(request.body)})"
        ) from None


def excerpt(body: bytes) -> str:
    """Return the beginning of a body, for error messages."""
    if not body:
        return "<empty>"
    cut = body[:_EXCERPT_BYTES]
    text = cut.decode("utf-8", "replace") if body[:1] == b"{" else cut.hex()
    return f"{text} ..." if len(body) > _EXCERPT_BYTES else text


# --- JSON ---------------------------------------------------------------------------------------------------------


def read_json(body: bytes) -> Body:
    """Decode JSON. Raises ValueError with the messages of Go's decoder."""
    check_containers(body)
    try:
        value = _decode(body)
    except RecursionError:
        raise ValueError("exceeded max depth") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        repaired = _replace_invalid_text(body)
        if repaired == body:
            raise ValueError(_go_error(body, str(error))) from None
        return read_json(repaired)
    if body.count(b'"') == _encode(value).count(b'"') and b"\\u0022" not in body:
        return Body(value)
    return Body(value, json_duplicates(body))


MAX_CONTAINERS = 250_000
_UNCHECKED_BYTES = 128 << 10
_MAX_DUPLICATES = 100
"""Maximum number of duplicates that kube-apiserver reports."""


def check_containers(body: bytes) -> None:
    """Reject a body with too many lists and maps before it is decoded.

    Decoding cannot be interrupted, and every container takes about sixty bytes of memory for two bytes of text.
    """
    if len(body) > _UNCHECKED_BYTES and body.count(b"[") + body.count(b"{") > MAX_CONTAINERS:
        raise RequestEntityTooLarge(f"Request entity too large: limit is {MAX_CONTAINERS} lists and maps")


# Alternatives match escapes from left to right, so that `\\ud800` is an escaped backslash followed by letters.
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\."
)


def _replace_invalid_text(body: bytes) -> bytes:
    """Replace invalid UTF-8 and unpaired surrogates with the replacement character, as Go does."""
    try:
        body.decode()
    except UnicodeDecodeError:
        body = body.decode("utf-8", "replace").encode()
    return _ESCAPES.sub(lambda found: rb"\ufffd" if len(found[0]) == 6 else found[0], body)


def _go_error(body: bytes, error: str) -> str:
    if "truncated" in error or not body.strip():
        return "unexpected end of JSON input"
    found = _AT_BYTE.search(error)
    position = int(found.group(1)) if found else 0
    if "trailing" in error:
        return f"invalid character {_quoted(body, _end_of_value(body))} after top-level value"
    return f"invalid character {_quoted(body, position)} looking for beginning of value"


def _end_of_value(body: bytes) -> int:
    """Return the position after the first value, where the trailing data begins."""
    text = body.decode("utf-8", "replace")
    start = len(text) - len(text.lstrip())
    end = json.JSONDecoder().raw_decode(text, start)[1]
    rest = text[end:]
    return len(text[: end + len(rest) - len(rest.lstrip())].encode())


def _quoted(body: bytes, position: int) -> str:
    character = body[position : position + 1].decode("latin-1") or " "
    return f"'{character}'"


def json_duplicates(body: bytes) -> list[str]:
    """Return a message for every duplicate key, by path, in the order of the second occurrences."""

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
    messages: list[str] = []
    _collect_duplicates(tree, "", messages)
    return list(dict.fromkeys(messages))[:_MAX_DUPLICATES]


class _Repeated:
    """The values of a key that occurs more than once."""

    __slots__ = ("values",)

    def __init__(self, values: list[Any]) -> None:
        self.values = values


def _collect_duplicates(value: Any, path: str, messages: list[str]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            at = f"{path}.{key}" if path else key
            for position, inner in enumerate(item.values if isinstance(item, _Repeated) else [item]):
                if position:
                    messages.append(f'duplicate field "{at}"')
                _collect_duplicates(inner, at, messages)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _collect_duplicates(item, f"{path}[{index}]", messages)


# --- YAML ---------------------------------------------------------------------------------------------------------


def read_yaml(body: bytes) -> Body:
    """Decode one YAML document to its JSON value. Raises ValueError with messages like go-yaml's."""
    if isinstance(body, ConvertedYaml):
        if body.error:
            raise ValueError(body.error)
        return Body(_decode(body), body.duplicates)
    if is_flow(body):  # JSON is valid YAML, and much faster to decode
        try:
            return read_json(body)
        except ValueError:
            if len(body) > LARGE_YAML_BYTES:
                raise  # large flow-style YAML is never converted on the event loop; clients send such documents as JSON
    value, duplicates = load_document(body)
    return Body(value, duplicates)


def expect_object(value: Any, request: Request, kind: str) -> Object:
    """Return the decoded body if it is an object; null counts as empty. Raises BadRequest with Go's message."""
    if isinstance(value, dict):
        return value
    what = {list: "array", str: "string", bool: "bool", type(None): "null"}.get(type(value), "number")
    if value is None:
        return {}
    struct = 'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
    raise BadRequest(
        f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: "
        f"json: cannot unmarshal {what} into Go value of type {struct} ({excerpt(request.body)})"
    )
