"""Request bodies in YAML.

PyYAML needs about a thousand times as long as a JSON decoder, and a multiple of the body's size in memory. So a body
above `LARGE_YAML_BYTES` is converted to JSON by a process of its own, with limits on its time and memory.
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
_MOST_DUPLICATES = 100
_MOST_CONVERTED = 6 << 20
"""What the JSON may have of bytes: aliases and block style make it larger than the YAML."""


class ConvertedYaml(bytes):
    """JSON that was converted from YAML, and the keys that the document had twice."""

    duplicates: list[str]
    error: str


class _Answer(msgspec.Struct):
    """What the converting process writes."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    duplicates: list[str] = []
    error: str = ""


async def convert(body: bytes) -> bytes:
    """The body as JSON, converted in another process."""
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
    return converted(output)


def converted(output: bytes) -> bytes:
    answer = msgspec.json.decode(output, type=_Answer)
    found = ConvertedYaml(answer.value)
    found.duplicates, found.error = answer.duplicates, answer.error
    return found


def answer(body: bytes) -> bytes:
    """What the converting process writes for a body."""
    try:
        value, duplicates = load_document(body)
        encoded = msgspec.json.encode(value)
        if len(encoded) > _MOST_CONVERTED:
            raise ValueError(f"error converting YAML to JSON: yaml: the document has more than {_MOST_CONVERTED} bytes")
        return msgspec.json.encode(_Answer(msgspec.Raw(encoded), duplicates))
    except ValueError as error:
        return msgspec.json.encode(_Answer(error=str(error)))


def main() -> None:
    """The converting process: YAML on standard input, `_Answer` on standard output."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    sys.stdout.buffer.write(answer(sys.stdin.buffer.read()))


def is_flow(body: bytes) -> bool:
    """Whether the document may be JSON."""
    return body[:1024].lstrip()[:1] == b"{"


def load_document(body: bytes) -> tuple[Any, list[str]]:
    """The JSON value that a YAML document stands for, and its duplicate keys. Raises ValueError in go-yaml's manner."""
    import yaml

    try:
        _refuse_deep_yaml(body)
        loader = _yaml_loader()(body)
        try:
            # What follows the first document is ignored.
            node = loader.get_node() if loader.check_node() else None
            duplicates: list[str] = []
            if node is not None:
                most = _MOST_NODES if len(body) > LARGE_YAML_BYTES else _FEW_NODES
                _yaml_duplicates(node, duplicates, most)
            value = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
        return _as_json(value), duplicates[:_MOST_DUPLICATES]
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


_FEW_NODES, _MOST_NODES = 20_000, 1_000_000
_MOST_CHARACTERS = 6 << 20


def _yaml_duplicates(root: Node, named: list[str], most: int) -> None:
    """Finds equal keys, and refuses documents whose aliases would unfold into very many nodes or very long text."""
    import yaml

    visited = characters = 0
    waiting: list[Node] = [root]
    while waiting:
        node = waiting.pop()
        visited += 1
        if isinstance(node, yaml.ScalarNode):
            characters += len(node.value)
        if visited > most or characters > _MOST_CHARACTERS:
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
