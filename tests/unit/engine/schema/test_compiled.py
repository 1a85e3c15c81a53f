"""Compiled schemas prune, default and validate objects with the same results and messages as kube-apiserver."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from herder.engine.meta.errors import BadRequest, FieldError
from herder.engine.schema import CompiledSchema, compile_schema
from tests.unit.engine.schema.cases import CREATE, NORMALIZE, RULES, UPDATE, Case, obj, rule
from tests.unit.engine.schema.real_server import RECORDED

ANSWERS = json.loads(RECORDED.read_text())


def compiled(cases: dict[str, Case]) -> CompiledSchema:
    return compile_schema(obj({"spec": obj({name: case.schema for name, case in cases.items()})}))


COMPILED = {id(cases): compiled(cases) for cases in (CREATE, UPDATE, RULES, NORMALIZE)}


def new_object(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(
        {"apiVersion": "schema.example/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec},
    )


def summarize(errors: list[FieldError]) -> list[list[str]]:
    return sorted([error.kind, error.field, error.body] for error in errors)


def validate_case(cases: dict[str, Case], name: str) -> list[list[str]]:
    schema, case = COMPILED[id(cases)], cases[name]
    new = new_object("Case", {name: case.value})
    schema.prune(new)
    schema.default(new)
    old = new_object("Case", {name: case.old}) if case.old is not None else None
    return summarize(schema.validate(new, old))


@pytest.mark.parametrize("name", CREATE)
def test_a_new_object_is_validated_as_by_kube_apiserver(name: str) -> None:
    assert validate_case(CREATE, name) == ANSWERS["create"][name]


@pytest.mark.parametrize("name", UPDATE)
def test_unchanged_invalid_values_are_tolerated_as_by_kube_apiserver(name: str) -> None:
    assert validate_case(UPDATE, name) == ANSWERS["update"][name]


@pytest.mark.parametrize("name", RULES)
def test_rules_report_the_same_errors_as_kube_apiserver(name: str) -> None:
    assert validate_case(RULES, name) == ANSWERS["rules"][name]


@pytest.mark.parametrize("name", NORMALIZE)
def test_objects_are_pruned_and_defaulted_as_by_kube_apiserver(name: str) -> None:
    schema, answer = COMPILED[id(NORMALIZE)], ANSWERS["normalize"][name]
    value = new_object("Normal", {name: NORMALIZE[name].value})
    if "refused" in answer:
        with pytest.raises(BadRequest) as refused:
            schema.prune(value)
        assert str(refused.value) == answer["refused"]
        return
    unknown = schema.prune(value)
    schema.default(value)
    assert value["spec"] == answer["spec"]
    assert ", ".join(unknown) == answer["unknown"]


def test_object_metadata_is_not_pruned() -> None:
    schema = compile_schema(obj({"spec": obj({})}))
    value = new_object("X", {})
    value["metadata"]["labels"] = {"a": "b"}
    assert schema.prune(value) == []
    assert value["metadata"] == {"name": "x", "labels": {"a": "b"}}


def test_defaults_of_one_object_do_not_leak_into_another() -> None:
    schema = compile_schema(obj({"spec": obj({"tags": {"type": "array", "items": {"type": "string"}, "default": []}})}))
    first, second = new_object("X", {}), new_object("X", {})
    schema.default(first)
    first["spec"]["tags"].append("mine")
    schema.default(second)
    assert second["spec"]["tags"] == []


def test_a_status_write_validates_only_the_status() -> None:
    number = {"type": "integer", "minimum": 5}
    schema = compile_schema(obj({"spec": obj({"n": number}), "status": obj({"n": number})}))
    value = {**new_object("X", {"n": 1}), "status": {"n": 2}}
    old = {**new_object("X", {"n": 1}), "status": {"n": 3}}
    body = "Invalid value: 2: n in body should be greater than or equal to 5"
    assert summarize(schema.validate_status(value, old)) == [["FieldValueInvalid", "status.n", body]]


def test_rules_are_compiled_by_the_given_compiler() -> None:
    seen: list[tuple[str, bool]] = []

    def compiler(schema: Any, *, resource_root: bool) -> None:
        seen.append((schema["x-kubernetes-validations"][0]["rule"], resource_root))

    schema = compile_schema(obj({"spec": obj({}, **rule("inner"))}, **rule("outer")), rules=compiler)
    assert schema.validate(new_object("X", {})) == []
    assert seen == [("outer", True), ("inner", False)]


def test_a_rule_over_the_cost_limit_ends_the_validation() -> None:
    words = {"type": "array", "maxItems": 2000, "items": {"type": "string", "maxLength": 10}}
    nested = rule("self.all(a, self.all(b, a + b != 'zz'))", message="no zz")
    schema = compile_schema(obj({"spec": obj({"words": {**words, **nested}})}))
    errors = schema.validate(new_object("X", {"words": ["word"] * 2000}))
    spent = "'operation cancelled: actual cost limit exceeded'"
    why = "no further validation rules will be run due to call cost exceeds limit for rule: no zz"
    assert summarize(errors) == [["FieldValueInvalid", "spec.words", f'Invalid value: "array": {spent}: {why}']]


def test_a_tolerated_rule_failure_becomes_a_warning() -> None:
    schema, case = COMPILED[id(RULES)], RULES["ratcheted"]
    warnings: list[str] = []
    new, old = new_object("Rule", {"ratcheted": case.value}), new_object("Rule", {"ratcheted": case.old})
    assert schema.validate(new, old, warnings=warnings) == []
    assert warnings == ["spec.ratcheted: Invalid value: 3: failed rule: self > 5"]


def test_unknown_root_fields_are_kept_if_the_root_preserves_them() -> None:
    schema = compile_schema(
        {**obj({"spec": obj({"a": {"type": "string"}})}), "x-kubernetes-preserve-unknown-fields": True}
    )
    value = {**new_object("X", {"a": "x", "b": 1}), "other": {"c": None}}
    assert schema.prune(value) == ['unknown field "spec.b"']
    assert value["other"] == {"c": None}


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(st.sampled_from(["a", "name", "metadata", "kind"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([CREATE, UPDATE, NORMALIZE, RULES]), st.data())
def test_no_value_makes_a_schema_crash(cases: dict[str, Case], data: st.DataObject) -> None:
    schema = COMPILED[id(cases)]
    names = st.lists(st.sampled_from(list(cases)), max_size=5)
    new = new_object("X", {name: data.draw(_JSON) for name in data.draw(names)})
    old = new_object("X", {name: data.draw(_JSON) for name in data.draw(names)})
    try:
        schema.prune(new)
        schema.prune(old)
    except BadRequest:
        return
    schema.default(new)
    for errors in (schema.validate(new), schema.validate(new, old), schema.validate(new, new)):
        assert all(error.field and error.body for error in errors)


def test_deeply_nested_values_never_crash() -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    schema = compile_schema(
        obj({"spec": obj({"x": {"type": "string"}, "y": {"x-kubernetes-preserve-unknown-fields": True}})})
    )
    kept = new_object("X", {})
    kept["spec"]["y"] = deep
    assert schema.prune(kept) == []
    assert schema.validate(kept, kept) == []
    kept["spec"] = {"x": deep}
    with contextlib.suppress(BadRequest):
        schema.prune(kept)
    assert [error.field for error in schema.validate(kept)] == ["spec.x"]
