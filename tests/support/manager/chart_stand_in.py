"""A stand-in for `helm template`: the part of Go templates that our chart uses, with the results that Helm documents.

`tests/interop/deployment/test_deploy_manifests.py` compares it with helm itself.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

Values = dict[str, Any]
_ACTION = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()|]|[^\s()|]+')
_ASSIGNMENT = re.compile(r"(\$\w+) := (.*)", re.DOTALL)


class ChartError(Exception):
    """The template called `fail`."""


class _Node(NamedTuple):
    kind: str  # text, action, if or define
    text: str = ""
    branches: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # condition, and nodes


def merged(defaults: Values, values: Values) -> Values:
    both = {
        key: merged(defaults[key], value) if isinstance(value, dict) and isinstance(defaults.get(key), dict) else value
        for key, value in values.items()
    }
    return defaults | both


class Chart:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.defaults: Values = yaml.safe_load((directory / "values.yaml").read_text())
        self.metadata: Values = yaml.safe_load((directory / "Chart.yaml").read_text())
        self._defined: dict[str, tuple[_Node, ...]] = {}
        list(self._expanded(_parsed((directory / "templates" / "_helpers.tpl").read_text()), {}))

    def objects(self, values: Values, **more: Any) -> list[Any]:
        """The objects of all templates, without tests of the chart."""
        rendered = (self.text(path, values, **more) for path in sorted((self.directory / "templates").glob("*.yaml")))
        return [obj for text in rendered for obj in yaml.safe_load_all(text) if obj]

    def text(self, template: Path, values: Values, *, namespace: str = "herder-system") -> str:
        scope = {
            "Values": merged(self.defaults, values),
            "Release": {"Namespace": namespace, "Name": "herder"},
            "Chart": {"AppVersion": self.metadata["appVersion"]},
        }
        return "".join(self._expanded(_parsed(template.read_text()), scope))

    def _expanded(self, nodes: tuple[_Node, ...], scope: Values) -> Iterator[str]:
        for node in nodes:
            if node.kind == "text":
                yield node.text
            elif node.kind == "define":
                self._defined[node.text] = node.branches[0][1]
            elif node.kind == "if":
                chosen = next((body for test, body in node.branches if not test or self._value(test, scope)), ())
                yield from self._expanded(chosen, scope)
            elif assigned := _ASSIGNMENT.fullmatch(node.text):
                scope[assigned[1]] = self._value(assigned[2], scope)
            elif not node.text.startswith("/*"):
                yield str(self._value(node.text, scope))

    def _value(self, text: str, scope: Values) -> Any:
        tokens = _TOKEN.findall(text)
        value = self._pipeline(tokens, scope)
        assert not tokens, f"{text}: {tokens}"
        return value

    def _pipeline(self, tokens: list[str], scope: Values) -> Any:
        value = self._call(tokens, scope)
        while tokens and tokens[0] == "|":
            tokens.pop(0)
            value = self._call(tokens, scope, value)
        return value

    def _call(self, tokens: list[str], scope: Values, *piped: Any) -> Any:
        head = tokens.pop(0)
        function = self._functions(scope).get(head)
        if function is None:
            return self._operand(head, tokens, scope)
        arguments: list[Any] = []
        while tokens and tokens[0] not in ("|", ")"):
            arguments.append(self._operand(tokens.pop(0), tokens, scope))
        return function(*arguments, *piped)

    def _operand(self, token: str, tokens: list[str], scope: Values) -> Any:
        if token == "(":
            value = self._pipeline(tokens, scope)
            assert tokens.pop(0) == ")"
            return value
        if token.startswith('"'):
            return json.loads(token)
        if token.isdecimal():
            return int(token)
        if token.startswith("$"):
            return scope[token]
        assert token.startswith("."), token
        found: Any = scope
        for name in filter(None, token.split(".")):
            found = found[name]
        return found

    def _functions(self, scope: Values) -> dict[str, Callable[..., Any]]:
        return {
            "include": lambda name, _scope: "".join(self._expanded(self._defined[name], scope)),
            "nindent": lambda width, text: "\n" + "\n".join(" " * width + line for line in text.splitlines()),
            "toYaml": lambda value: yaml.safe_dump(value, sort_keys=True).rstrip("\n"),
            "quote": lambda value: json.dumps(str(value)),
            "printf": lambda text, *values: text % values,
            "b64enc": lambda text: base64.b64encode(text.encode()).decode(),
            "eq": lambda one, other: one == other,
            "ne": lambda one, other: one != other,
            "not": lambda value: not value,
            "and": lambda *values: next((each for each in values if not each), values[-1]),
            "or": lambda *values: next((each for each in values if each), values[-1]),
            "default": lambda fallback, value: value or fallback,
            "dig": _dig,
            "lookup": lambda *_: {},
            "fail": _fail,
        }


def _fail(message: str) -> None:
    raise ChartError(message)


def _dig(*arguments: Any) -> Any:
    """The value at a path of keys, which the default and the object follow."""
    *path, fallback, found = arguments
    for key in path:
        if key not in found:
            return fallback
        found = found[key]
    return found


def _parsed(text: str) -> tuple[_Node, ...]:
    pieces: list[tuple[bool, str]] = []  # whether it is an action, and its text
    end, trims = 0, False
    for found in _ACTION.finditer(text):
        before = text[end : found.start()]
        before = before.lstrip() if trims else before
        pieces += [(False, before.rstrip() if found[1] else before), (True, found[2])]
        end, trims = found.end(), bool(found[3])
    rest = text[end:]
    pieces.append((False, rest.lstrip() if trims else rest))
    nodes, _ = _block(pieces)
    return nodes


def _block(pieces: list[tuple[bool, str]]) -> tuple[tuple[_Node, ...], str]:
    """The nodes up to an `else` or `end`, and that action."""
    nodes: list[_Node] = []
    while pieces:
        is_action, text = pieces.pop(0)
        word, _, rest = text.partition(" ")
        if not is_action:
            nodes.append(_Node("text", text))
        elif word in ("else", "end"):
            return tuple(nodes), text
        elif word in ("if", "define"):
            branches = list(_branches(pieces, rest))
            nodes.append(_Node(word, rest.strip('"'), tuple(branches)))
        else:
            nodes.append(_Node("action", text))
    return tuple(nodes), ""


def _branches(pieces: list[tuple[bool, str]], condition: str) -> Iterator[tuple[str, tuple[_Node, ...]]]:
    while True:
        body, closing = _block(pieces)
        yield condition, body
        if closing == "end":
            return
        condition = closing.removeprefix("else").strip().removeprefix("if").strip()
