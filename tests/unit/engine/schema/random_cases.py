"""Random structural schemas, values and patterns, to find cases that are not written down."""

from __future__ import annotations

from random import Random
from typing import Any

Json = Any

_FORMATS = [
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "cidr", "uri", "uuid", "byte", "mac",
    "k8s-short-name", "hexcolor", "nonsense",
]  # fmt: skip
_WORDS = [
    "", "a", "b", "ab", "abc", "é", "1", "2020-01-01", "2020-01-01T00:00:00Z", "1h", "a@b.c", "1.2.3.4", "::1",
    "10.0.0.0/8", "http://a/b", "x y", "A", "a.b", "00:11:22:33:44:55", "#fff", "aGVs",
]  # fmt: skip
_PATTERNS = ["^a", "b$", "^[a-z]*$", "(a|b)+", "^(a+)+$", "\\d", "^[^a]"]
_ENUMS = {"string": ["a", "b", "ab"], "integer": [1, 2], "number": [1, 0.5], "boolean": [True]}
_SYNTAX = [
    "a", "b", "Z", "é", "0", "1", "k", "s", "(", "(", ")", ")", "()", "(?:", "(?i)", "(?i:", "(?s)", "(?m)", "(?U)",
    "(?-i:", "(?P<x>", "(?<y>", "(?=", "(?!", "(?#x)", "(?i", "[", "]", "[^", "-", "a-z", "z-a", "[:alpha:]",
    "[[:digit:]]", "[:^space:]", "[[:foo:]]", "[a-\\d]", "[\\w-z]", "\\d", "\\D", "\\w", "\\W", "\\s", "\\S", "\\b",
    "\\B", "\\A", "\\z", "\\Z", "^", "$", ".", "*", "+", "?", "*?", "{2}", "{1,3}", "{2,}", "{,2}", "{1001}", "{3,1}",
    "{", "}", "|", "|", "\\", "\\.", "\\x41", "\\x{e9}", "\\x{110000}", "\\xZ", "\\1", "\\07", "\\8", "\\pL",
    "\\p{Greek}", "\\P{Latin}", "\\p{^Lu}", "\\p{Foo}", "\\pX", "\\pN", "\\Q", "\\E", "\\C", "\\n", "\\t", "\\-", "\\_",
    "\\é",
]  # fmt: skip


class RandomCases:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def pattern(self) -> str:
        return "".join(self._random.choice(_SYNTAX) for _ in range(self._random.randint(1, 7)))

    def text(self) -> str:
        return "".join(self._random.choice("abZ01 \né-ks{]") for _ in range(self._random.randint(0, 6)))

    def schema(self, depth: int = 3) -> dict[str, Json]:
        if self._chance(0.05):
            schema = {"x-kubernetes-int-or-string": True, **self._keywords("string")}
        elif self._chance(0.05):
            schema = {"x-kubernetes-preserve-unknown-fields": True}
        else:
            schema = self._typed(depth)
        is_set = schema.get("x-kubernetes-list-type") == "set"
        if self._chance(0.15) and not is_set:
            schema["nullable"] = True
        if self._chance(0.35):
            schema[self._junctor()] = [self._narrowing(schema, 2) for _ in range(self._random.randint(1, 3))]
        if self._chance(0.1):
            schema["not"] = self._narrowing(schema, 1)
        return schema

    def _typed(self, depth: int) -> dict[str, Json]:
        compound = ["object", "object", "array"] * 2 if depth else []
        kind = self._random.choice(["string", "integer", "number", "boolean", *compound])
        schema = {"type": kind, **self._keywords(kind)}
        if kind == "object" and self._chance(0.3):
            schema["additionalProperties"] = self.schema(depth - 1)
        elif kind == "object":
            schema["properties"] = {name: self.schema(depth - 1) for name in self._names(1)}
            if self._chance(0.1):
                schema["x-kubernetes-preserve-unknown-fields"] = True
        elif kind == "array":
            items = schema["items"] = self.schema(depth - 1)
            if items.get("type") in ("string", "integer") and self._chance(0.4):
                schema["x-kubernetes-list-type"] = "set"
                items.pop("nullable", None)
        elif kind == "integer" and self._chance(0.3):
            schema["format"] = self._random.choice(["int32", "int64", "int8"])
        return schema

    def _narrowing(self, schema: dict[str, Json], depth: int) -> dict[str, Json]:
        """Return a schema for allOf, anyOf, oneOf or not, which may only mention fields that the schema has."""
        narrowing = self._keywords(schema.get("type") if self._chance(0.7) else None)
        if schema.get("properties") and depth and self._chance(0.6):
            name = self._random.choice(list(schema["properties"]))
            narrowing["properties"] = {name: self._narrowing(schema["properties"][name], depth - 1)}
        if "items" in schema and depth and self._chance(0.6):
            narrowing["items"] = self._narrowing(schema["items"], depth - 1)
        if depth and self._chance(0.15):
            narrowing[self._junctor()] = [self._narrowing(schema, depth - 1)]
        return narrowing

    def _keywords(self, kind: str | None) -> dict[str, Json]:
        pick, number = self._random.choice, self._random.randint
        choices: list[tuple[tuple[str | None, ...], str, Json]] = [
            (("integer", None), "minimum", number(-3, 3)),
            (("number",), "minimum", pick([0, 1, -2, 2.5])),
            (("integer", "number", None), "maximum", number(0, 6)),
            (("integer", None), "multipleOf", pick([2, 3])),
            (("number",), "multipleOf", pick([2, 0.5])),
            (("string", None), "minLength", number(0, 3)),
            (("string", None), "maxLength", number(0, 4)),
            (("string", None), "pattern", pick(_PATTERNS)),
            (("string", None), "format", pick(_FORMATS)),
            (("array", None), "minItems", number(0, 2)),
            (("array", None), "maxItems", number(0, 3)),
            (("object", None), "minProperties", number(0, 2)),
            (("object", None), "maxProperties", number(0, 3)),
            (("object", None), "required", self._names(1)),
            (("string", "integer", "number", "boolean"), "enum", _ENUMS.get(kind or "")),
        ]
        chosen = {
            keyword: value
            for kinds, keyword, value in choices
            if kind in kinds and self._chance(0.1 if keyword == "enum" else 0.3)
        }
        for bound, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if bound in chosen and self._chance(0.3):
                chosen[strict] = True
        return chosen

    def value_like(self, schema: dict[str, Json]) -> Json:
        """Return a value that the schema probably accepts."""
        kind = schema.get("type")
        if self._chance(0.2):
            return self.value()
        if kind == "object" and "properties" in schema:
            return {name: self.value_like(sub) for name, sub in schema["properties"].items() if self._chance(0.8)}
        if kind == "object":
            return {name: self.value_like(schema["additionalProperties"]) for name in self._names(0)}
        if kind == "array":
            return [self.value_like(schema["items"]) for _ in range(self._random.randint(0, 3))]
        return self.value(0)

    def value(self, depth: int = 2) -> Json:
        kinds = ["null", "word", "word", "word", "integer", "integer", "number", "boolean"]
        kind = self._random.choice(kinds + ["object", "array"] * depth)
        if kind == "object":
            return {name: self.value(depth - 1) for name in self._names(0)}
        if kind == "array":
            return [self.value(depth - 1) for _ in range(self._random.randint(0, 3))]
        if kind == "number":
            return self._random.choice([0.5, 2.5, 1.0, 2.0, -0.25, 3e9, 5000000000])
        if kind == "integer":
            return self._random.randint(-4, 7)
        return {"null": None, "word": self._random.choice(_WORDS), "boolean": self._chance(0.5)}[kind]

    def _names(self, fewest: int) -> list[str]:
        return self._random.sample(["a", "b", "c"], self._random.randint(fewest, 3))

    def _junctor(self) -> str:
        return self._random.choice(["allOf", "anyOf", "oneOf"])

    def _chance(self, chance: float) -> bool:
        return self._random.random() < chance
