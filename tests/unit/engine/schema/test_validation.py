"""Validation agrees with an independent JSON Schema validator, and the quick check with the exact one."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
from hypothesis import given, settings
from hypothesis import strategies as st

from herder.engine.schema import fastcheck, nodes, validation

_INTS = st.integers(-6, 6)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), _INTS, st.sampled_from([0.5, 2.0, -1.25]), st.text("ab1é", max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=6,
)
_SIZES = st.integers(0, 3)
_VALIDATIONS: dict[str, st.SearchStrategy[Any]] = {
    "minimum": _INTS, "maximum": _INTS, "multipleOf": st.integers(1, 4), "minLength": _SIZES, "maxLength": _SIZES,
    "pattern": st.sampled_from(["^a", "b$", "^[ab]*$", "1"]), "minItems": _SIZES, "maxItems": _SIZES,
    "minProperties": _SIZES, "maxProperties": _SIZES,
    "required": st.lists(st.sampled_from("abc"), min_size=1, max_size=2, unique=True),
    "enum": st.lists(st.one_of(_INTS, st.sampled_from(["a", "b"])), min_size=1, max_size=3, unique=True),
}  # fmt: skip
_KEYWORDS = st.lists(st.sampled_from(list(_VALIDATIONS)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: _VALIDATIONS[name] for name in names})
)


def _nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"not": inner}),
    )


def _typed(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    scalar = st.sampled_from(["string", "integer", "number", "boolean"]).map(lambda name: {"type": name})
    shapes = st.one_of(
        scalar,
        inner.map(lambda items: {"type": "array", "items": items}),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=2).map(lambda p: {"type": "object", "properties": p}),
        inner.map(lambda values: {"type": "object", "additionalProperties": values}),
    )
    narrowing = st.one_of(st.just({}), _nested(_KEYWORDS))
    return st.tuples(shapes, _KEYWORDS, narrowing).map(lambda parts: {**parts[1], **parts[2], **parts[0]})


_SCHEMAS = st.recursive(
    st.sampled_from(["string", "integer", "number", "boolean"]).map(lambda name: {"type": name}), _typed, max_leaves=3
)


def _truncates(schema: Any) -> bool:
    """The real server compares enums after conversion, where a fraction may become one of the integers."""
    return "enum" in repr(schema)


@settings(max_examples=300)
@given(_SCHEMAS, _VALUES)
def test_agrees_with_an_independent_validator(schema: dict[str, Any], value: Any) -> None:
    if value is None or (_truncates(schema) and "." in repr(value)) or _has_null(value):
        return  # JSON Schema has no nullable, and junctors without a type treat null differently
    expected = jsonschema_rs.Draft4Validator(schema).is_valid(value)
    if not expected and "2.0" in repr(value):
        expected = jsonschema_rs.Draft6Validator(schema).is_valid(value)  # since draft 6, 2.0 is an integer
    elif expected and "2.0" in repr(value):
        return
    assert validation.is_valid(nodes.read(schema), value) == expected


@settings(max_examples=300)
@given(_SCHEMAS, _VALUES, st.booleans())
def test_the_quick_check_accepts_no_invalid_value(schema: dict[str, Any], value: Any, nullable: bool) -> None:
    node = nodes.read({**schema, "nullable": nullable})
    quick = fastcheck.compile_check(node)
    assert quick is not None
    if quick(value):
        assert validation.is_valid(node, value)


@settings(max_examples=300)
@given(_SCHEMAS, _VALUES)
def test_the_quick_check_accepts_plain_valid_values(schema: dict[str, Any], value: Any) -> None:
    """It may be stricter for integral floats, nulls, enums and factors."""
    node = nodes.read(schema)
    quick = fastcheck.compile_check(node)
    assert quick is not None
    plain = "." not in repr(value) and not _has_null(value) and "enum" not in repr(schema)
    if plain and validation.is_valid(node, value):
        assert quick(value)


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_null, value.values()))
    return any(map(_has_null, value)) if isinstance(value, list) else value is None
