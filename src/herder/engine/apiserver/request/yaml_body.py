"""Decode YAML request bodies.

PyYAML is about a thousand times slower than the JSON decoder and needs a multiple of the body's size in memory. A body
larger than `LARGE_YAML_BYTES` is therefore converted to JSON in a subprocess with CPU and memory limits.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import sys
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from herder.engine.meta.errors import BadRequest

if TYPE_CHECKING:
    from yaml import Node

LARGE_YAML_BYTES = 16 << 10
_SECONDS = 20
_MEMORY_BYTES = 1 << 30
_MAX_DUPLICATES = 100
_MAX_JSON_BYTES = 6 << 20
"""Maximum size of the converted JSON; aliases and block style make it larger than the YAML."""


class ConvertedYaml(bytes):
    """JSON converted from YAML, with the duplicate keys of the document."""

    duplicates: list[str]
    error: str


class _Output(msgspec.Struct):
    """Output of the conversion subprocess."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    duplicates: list[str] = []
    error: str = ""


async def convert(body: bytes) -> bytes:
    """Convert the body to JSON in a subprocess."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"from {__name__} import main; main()",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        async with asyncio.timeout(_SECONDS):
            output, _ = await process.communicate(body)
    except TimeoutError:
        raise BadRequest("error converting YAML to JSON: yaml: the document takes too long to convert") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        raise BadRequest("error converting YAML to JSON: yaml: the document needs too much time or memory to convert")
    return parse_output(output)


def parse_output(output: bytes) -> bytes:
    """Parse the output of the conversion subprocess."""
    conversion = msgspec.json.decode(output, type=_Output)
    found = ConvertedYaml(conversion.value)
    found.duplicates, found.error = conversion.duplicates, conversion.error
    return found


def convert_document(body: bytes) -> bytes:
    """Return the output of the conversion subprocess for a body."""
    try:
        value, duplicates = load_document(body)
        encoded = msgspec.json.encode(value)
        if len(encoded) > _MAX_JSON_BYTES:
            raise ValueError(f"error converting YAML to JSON: yaml: the document has more than {_MAX_JSON_BYTES} bytes")
        return msgspec.json.encode(_Output(msgspec.Raw(encoded), duplicates))
    except ValueError as error:
        return msgspec.json.encode(_Output(error=str(error)))


def main() -> None:
    """Entry point of the conversion subprocess: YAML on standard input, `_Output` on standard output."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    sys.stdout.buffer.write(convert_document(sys.stdin.buffer.read()))


def is_flow(body: bytes) -> bool:
    """Whether the document could be JSON."""
    return body[:1024].lstrip()[:1] == b"{"


def load_document(body: bytes) -> tuple[Any, list[str]]:
    """Return the JSON value of a YAML document and its duplicate keys. Raises ValueError with messages like
    go-yaml's."""
    import yaml

    try:
        _check_depth(body)
        loader = _yaml_loader()(body)
        try:
            # Only the first document is read.
            node = loader.get_node() if loader.check_node() else None
            duplicates: list[str] = []
            if node is not None:
                limit = _MAX_NODES if len(body) > LARGE_YAML_BYTES else _MAX_NODES_OF_SMALL
                _yaml_duplicates(node, duplicates, limit)
            value = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
        return _as_json(value), duplicates[:_MAX_DUPLICATES]
    except yaml.MarkedYAMLError as error:
        raise ValueError(f"yaml: {_yaml_line(error)}{error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"error converting YAML to JSON: yaml: {error}") from None


_MAX_YAML_DEPTH = 1_000


def _check_depth(body: bytes) -> None:
    """Reject deeply nested documents: the scanner's time grows with the square of the nesting depth of brackets."""
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
    """Return the line number that go-yaml would report: its count starts late, and the first line is omitted."""
    from yaml.scanner import ScannerError

    if error.problem_mark is not None and error.problem_mark.line:
        line = error.problem_mark.line + isinstance(error, ScannerError)
    else:
        line = error.context_mark.line if error.context_mark is not None else 0
    return f"line {line}: " if line else ""


@lru_cache(maxsize=1)
def _yaml_loader() -> Any:
    """Return PyYAML's fast loader, without timestamps (JSON has none) and with go-yaml's short booleans."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc, valid-type]
        """A subclass, because implicit resolvers belong to the class."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in base.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"[yYnN]\Z"), list("yYnN"))
    Loader.bool_values = {**base.bool_values, "y": True, "n": False}
    return Loader


_MAX_NODES_OF_SMALL, _MAX_NODES = 20_000, 1_000_000
_MAX_CHARACTERS = 6 << 20


def _yaml_duplicates(root: Node, named: list[str], limit: int) -> None:
    """Collect duplicate keys, and reject documents whose aliases expand to too many nodes or too much text."""
    import yaml

    visited = characters = 0
    pending: list[Node] = [root]
    while pending:
        node = pending.pop()
        visited += 1
        if isinstance(node, yaml.ScalarNode):
            characters += len(node.value)
        if visited > limit or characters > _MAX_CHARACTERS:
            raise ValueError("document contains excessive aliasing")
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        named.append(f'line {key.start_mark.line + 1}: key "{key.value}" already set in map')
                    seen.add(key.value)
                pending.append(value)
        elif isinstance(node, yaml.SequenceNode):
            pending.extend(node.value)


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
