# ruff: noqa: E501 — lists of values read better in few lines
"""Random CustomResourceDefinitions: schemas that are nearly structural, rules that nearly compile."""

from __future__ import annotations

import random
from typing import Any

from tests.fuzz.cases.definitions import GOOD, with_spec
from tests.fuzz.inputs.mutation import junk, mutated_repeatedly

Obj = dict[str, Any]

_ATOMS = [
    "self", "self.s", "self.i", "self.b", "self.n", "self.l", "self.m", "self.o", "self.o.x", "self.nope", "oldSelf", "oldSelf.i", "1", "0", "-1", "2.5", "1u", "'a'", '"b"', "true", "false",
    "null", "[]", "[1, 2]", "['a']", "{}", "{'k': 1}", "b'x'", "duration('1h')", "timestamp('2024-01-01T00:00:00Z')", "9223372036854775807", "r'\\d'", "x",
]  # fmt: skip
_BINARY = ["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "in"]
_METHODS = [
    "size()", "startsWith('a')", "endsWith(1)", "contains('b')", "matches('[a-z]+')", "matches('(')", "all(x, x > 0)", "exists(x, x == 'a')", "exists_one(x, true)", "map(x, x)", "filter(x, x)",
    "isSorted()", "sum()", "min()", "indexOf('a')", "lowerAscii()", "split(',')", "replace('a', 'b')", "substring(1)", "trim()", "find('a')", "findAll('b', 1)", "getSeconds()", "getFullYear()", "nope()",
    "orValue(1)", "hasValue()", "join(',')", "charAt(0)", "reverse()", "format([1])", "transformList(i, v, v)", "distinct()", "sort()", "slice(0, 1)", "flatten()",
]  # fmt: skip
_CALLS = ["size", "has", "int", "uint", "double", "string", "bool", "type", "dyn", "duration", "timestamp", "bytes", "quantity", "isQuantity", "ip", "cidr", "url", "isURL", "format.dns1123Label", "math.greatest", "sets.contains", "nope"]  # fmt: skip


def expression(dice: random.Random, depth: int = 3) -> str:
    if depth == 0 or dice.random() < 0.2:
        return dice.choice(_ATOMS)
    inner = expression(dice, depth - 1)
    match dice.randrange(9):
        case 0 | 1 | 2:
            return f"{inner} {dice.choice(_BINARY)} {expression(dice, depth - 1)}"
        case 3:
            return f"{inner}.{dice.choice(_METHODS)}"
        case 4:
            return f"{dice.choice(_CALLS)}({inner})"
        case 5:
            return f"({inner})"
        case 6:
            return f"{dice.choice(['!', '-', ''])}{inner}"
        case 7:
            return f"{inner} ? {expression(dice, depth - 1)} : {expression(dice, depth - 1)}"
        case _:
            return f"{inner}[{expression(dice, depth - 1)}]"


def rule(dice: random.Random) -> Obj:
    """Most rules are comparisons, so that some are valid."""
    text = expression(dice)
    if dice.random() < 0.5:
        text = f"{text} {dice.choice(['==', '!=', '<', '>'])} {expression(dice, 2)}"
    rule_: Obj = {"rule": text}
    if dice.random() < 0.2:
        rule_["messageExpression"] = expression(dice, 2)
    if dice.random() < 0.1:
        rule_["message"] = dice.choice(["", "told", "a\nb"])
    if dice.random() < 0.1:
        rule_["fieldPath"] = dice.choice([".s", ".nope", "s", ".o.x", ".l[0]", ".m['k']"])
    if dice.random() < 0.1:
        rule_["reason"] = dice.choice(["FieldValueInvalid", "Nope", "FieldValueForbidden"])
    if dice.random() < 0.1:
        rule_["optionalOldSelf"] = dice.random() < 0.5
    return rule_


def schema_with_rule(dice: random.Random) -> Obj:
    bounded = dice.random() < 0.7  # otherwise the cost of loops has no limit, which is rejected, too
    text: Obj = {"type": "string"} | ({"maxLength": 10} if bounded else {})
    items: Obj = {"type": "array", "items": text} | ({"maxItems": 5} if bounded else {})
    entries: Obj = {"type": "object", "additionalProperties": text} | ({"maxProperties": 5} if bounded else {})
    inner = {"type": "object", "properties": {"x": {"type": "integer"}}}
    properties = {"s": text, "i": {"type": "integer"}, "b": {"type": "boolean"}, "n": {"type": "number"}, "l": items, "m": entries, "o": inner}  # fmt: skip
    return {"type": "object", "properties": properties, "x-kubernetes-validations": [rule(dice)]}


_TYPES = ["object", "array", "string", "integer", "number", "boolean", "nope", ""]
_KEYWORDS: list[tuple[str, list[Any]]] = [
    ("minimum", [0, -1, 1.5, "x"]), ("maximum", [10, 0]), ("exclusiveMinimum", [True, 1]), ("multipleOf", [2, 0, -1, 0.1]), ("minLength", [0, 3, -1, "x"]), ("maxLength", [5, 0]), ("pattern", ["^a$", "(", "[a-z]{2,}", "(?=x)", "\\p{L}"]),
    ("format", ["date-time", "int32", "nope", "uuid", "byte", "ipv4"]), ("enum", [["a"], [1, 2], [], ["a", "a"], [None], "x"]), ("default", ["a", 1, {}, [], None, True, {"x": 1}]), ("nullable", [True, False, "x"]), ("minItems", [0, 2, -1]), ("maxItems", [3]), ("uniqueItems", [True, False]),
    ("maxProperties", [1, -1]), ("required", [["a"], [], ["a", "a"], "a"]), ("x-kubernetes-preserve-unknown-fields", [True, False, "x"]), ("x-kubernetes-int-or-string", [True, False]), ("x-kubernetes-embedded-resource", [True]), ("x-kubernetes-list-type", ["map", "set", "atomic", "nope"]),
    ("x-kubernetes-list-map-keys", [["a"], ["nope"], []]), ("x-kubernetes-map-type", ["atomic", "granular", "nope"]), ("title", ["t", 1]), ("description", ["d"]), ("not", [{"required": ["a"]}, {"type": "string"}]), ("anyOf", [[{"required": ["a"]}, {"required": ["b"]}], [], [{"type": "object"}]]),
    ("allOf", [[{"minLength": 1}], [{"properties": {"a": {"minimum": 1}}}]]), ("oneOf", [[{"type": "string"}, {"type": "integer"}]]), ("additionalProperties", [True, False, {"type": "string"}]), ("$ref", ["#/a"]), ("id", ["x"]), ("example", [1, {"a": 1}]), ("nope", [1]),
]  # fmt: skip


def schema(dice: random.Random, depth: int = 3) -> Any:
    if dice.random() < 0.02:
        return junk(dice)
    schema_: Obj = {"type": dice.choices(_TYPES, [8, 4, 6, 5, 2, 2, 1, 1])[0]}
    if schema_["type"] == "object" and depth:
        schema_["properties"] = {
            name: schema(dice, depth - 1) for name in dice.sample(["a", "b", "c"], dice.randrange(3))
        }
    if schema_["type"] == "array" and depth:
        schema_["items"] = schema(dice, depth - 1)
    for _ in range(dice.choice([0, 0, 1, 1, 2])):
        name, values = dice.choice(_KEYWORDS)
        schema_[name] = dice.choice(values)
    if dice.random() < 0.05:
        schema_.pop("type", None)
    return schema_


def definition(dice: random.Random) -> Any:
    match dice.randrange(4):
        case 0:
            return with_spec(schema(dice))
        case 1 | 2:
            return with_spec(schema_with_rule(dice))
        case _:
            return mutated_repeatedly(GOOD, dice)
