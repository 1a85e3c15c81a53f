"""Request bodies: JSON, YAML or Kubernetes protobuf in, one decoded value out, with the keys that were given twice.

Whether a JSON body has duplicate keys is told without a second parse: a decoder that keeps the last of two equal keys
loses string quotes on the way, so equal counts of quotes before and after prove that there were none.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from herder.engine.apiserver.negotiation import JSON, PROTOBUF, body_type
from herder.engine.client.wire import Request
from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import GroupVersionKind, Object

if TYPE_CHECKING:
    from yaml import Node

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
    told = cut.decode("utf-8", "replace") if body[:1] == b"{" else cut.hex()
    return f"{told} ..." if len(body) > _SHOWN else told


# --- JSON ---------------------------------------------------------------------------------------------------------


def read_json(body: bytes) -> Body:
    """Raises ValueError in the words of Go's decoder."""
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
    return list(dict.fromkeys(named))


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
    if body.lstrip()[:1] == b"{":  # JSON is YAML, and much faster to read
        try:
            return read_json(body)
        except ValueError:
            pass
    import yaml

    try:
        _refuse_deep_yaml(body)
        loader = _yaml_loader()(body)
        try:
            # What follows the first document is ignored.
            node = loader.get_node() if loader.check_node() else None
            duplicates: list[str] = []
            if node is not None:
                _yaml_duplicates(node, duplicates)
            value = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
        return Body(_as_json(value), duplicates)
    except yaml.MarkedYAMLError as error:
        raise ValueError(f"yaml: {_yaml_line(error)}{error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"error converting YAML to JSON: yaml: {error}") from None


_MAX_YAML_DEPTH = 1_000


def _refuse_deep_yaml(body: bytes) -> None:
    """The scanner takes time by the square of how deep brackets are nested: what could be deep is counted first."""
    if body.count(b"[") + body.count(b"{") <= _MAX_YAML_DEPTH:
        return
    import yaml

    loader, depth = _yaml_loader()(body), 0
    try:
        while loader.check_event() and depth <= _MAX_YAML_DEPTH:
            event = loader.get_event()
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
    finally:
        loader.dispose()
    if depth > _MAX_YAML_DEPTH:
        raise ValueError("exceeded max depth of 10000")


def _yaml_line(error: Any) -> str:
    """Which line go-yaml would name: its count starts late, and it is silent about the first."""
    from yaml.scanner import ScannerError

    if error.problem_mark is not None and error.problem_mark.line:
        line = error.problem_mark.line + isinstance(error, ScannerError)
    else:
        line = error.context_mark.line if error.context_mark is not None else 0
    return f"line {line}: " if line else ""


@lru_cache(maxsize=1)
def _yaml_loader() -> Any:
    """PyYAML's fast loader, without timestamps, which JSON has no type for, and with the short booleans of go-yaml."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc, valid-type]
        """A class of its own: resolvers belong to the class."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in base.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"[yYnN]\Z"), list("yYnN"))
    Loader.bool_values = {**base.bool_values, "y": True, "n": False}
    return Loader


_MAX_ALIASED_NODES = 1_000_000


def _yaml_duplicates(root: Node, named: list[str]) -> None:
    """Finds equal keys, and refuses documents whose aliases would unfold into millions of nodes."""
    import yaml

    visited = 0
    waiting: list[Node] = [root]
    while waiting:
        node = waiting.pop()
        visited += 1
        if visited > _MAX_ALIASED_NODES:
            raise ValueError("document contains excessive aliasing")
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        named.append(f'line {key.start_mark.line + 1}: key "{key.value}" already set in map')
                    seen.add(key.value)
                waiting.append(value)
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_as_json(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"json: unsupported value: {'NaN' if math.isnan(value) else '+Inf' if value > 0 else '-Inf'}")
    return value


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, (str, int, float)):
        return str(key)
    raise ValueError(f"unsupported map key: {key!r}")


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
