"""Objects meet a schema: pruned, defaulted and judged as a real kube-apiserver does, word for word."""

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


def thing(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(
        {"apiVersion": "schema.example/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec},
    )


def told(errors: list[FieldError]) -> list[list[str]]:
    return sorted([error.kind, error.field, error.body] for error in errors)


def judged(cases: dict[str, Case], name: str) -> list[list[str]]:
    schema, case = COMPILED[id(cases)], cases[name]
    new = thing("Case", {name: case.value})
    schema.prune(new)
    schema.default(new)
    old = thing("Case", {name: case.old}) if case.old is not None else None
    return told(schema.validate(new, old))


@pytest.mark.parametrize("name", CREATE)
def test_a_new_object_is_judged_as_by_a_real_server(name: str) -> None:
    assert judged(CREATE, name) == ANSWERS["create"][name]


@pytest.mark.parametrize("name", UPDATE)
def test_what_was_wrong_and_did_not_change_is_tolerated_where_a_real_server_does(name: str) -> None:
    assert judged(UPDATE, name) == ANSWERS["update"][name]


@pytest.mark.parametrize("name", RULES)
def test_rules_report_as_on_a_real_server(name: str) -> None:
    assert judged(RULES, name) == ANSWERS["rules"][name]


@pytest.mark.parametrize("name", NORMALIZE)
def test_objects_are_pruned_and_defaulted_as_by_a_real_server(name: str) -> None:
    schema, answer = COMPILED[id(NORMALIZE)], ANSWERS["normalize"][name]
    value = thing("Normal", {name: NORMALIZE[name].value})
    if "refused" in answer:
        with pytest.raises(BadRequest) as refused:
            schema.prune(value)
        assert str(refused.value) == answer["refused"]
        return
    unknown = schema.prune(value)
    schema.default(value)
    assert value["spec"] == answer["spec"]
    assert ", ".join(unknown) == answer["unknown"]


def test_own_metadata_is_left_alone() -> None:
    schema = compile_schema(obj({"spec": obj({})}))
    value = thing("X", {})
    value["metadata"]["labels"] = {"a": "b"}
    assert schema.prune(value) == []
    assert value["metadata"] == {"name": "x", "labels": {"a": "b"}}


def test_defaults_of_one_object_do_not_leak_into_another() -> None:
    schema = compile_schema(obj({"spec": obj({"tags": {"type": "array", "items": {"type": "string"}, "default": []}})}))
    first, second = thing("X", {}), thing("X", {})
    schema.default(first)
    first["spec"]["tags"].append("mine")
    schema.default(second)
    assert second["spec"]["tags"] == []


def test_a_status_write_is_judged_by_its_status_alone() -> None:
    number = {"type": "integer", "minimum": 5}
    schema = compile_schema(obj({"spec": obj({"n": number}), "status": obj({"n": number})}))
    value = {**thing("X", {"n": 1}), "status": {"n": 2}}
    old = {**thing("X", {"n": 1}), "status": {"n": 3}}
    body = "Invalid value: 2: n in body should be greater than or equal to 5"
    assert told(schema.validate_status(value, old)) == [["FieldValueInvalid", "status.n", body]]


def test_rules_run_through_the_compiler_that_was_given() -> None:
    seen: list[tuple[str, bool]] = []

    def compiler(schema: Any, *, resource_root: bool) -> None:
        seen.append((schema["x-kubernetes-validations"][0]["rule"], resource_root))

    schema = compile_schema(obj({"spec": obj({}, **rule("inner"))}, **rule("outer")), rules=compiler)
    assert schema.validate(thing("X", {})) == []
    assert seen == [("outer", True), ("inner", False)]


def test_a_rule_that_takes_too_many_steps_ends_the_validation() -> None:
    words = {"type": "array", "maxItems": 2000, "items": {"type": "string", "maxLength": 10}}
    nested = rule("self.all(a, self.all(b, a + b != 'zz'))", message="no zz")
    schema = compile_schema(obj({"spec": obj({"words": {**words, **nested}})}))
    errors = schema.validate(thing("X", {"words": ["word"] * 2000}))
    spent = "'operation cancelled: actual cost limit exceeded'"
    why = "no further validation rules will be run due to call cost exceeds limit for rule: no zz"
    assert told(errors) == [["FieldValueInvalid", "spec.words", f'Invalid value: "array": {spent}: {why}']]


def test_a_rule_that_is_tolerated_becomes_a_warning() -> None:
    schema, case = COMPILED[id(RULES)], RULES["ratcheted"]
    warnings: list[str] = []
    new, old = thing("Rule", {"ratcheted": case.value}), thing("Rule", {"ratcheted": case.old})
    assert schema.validate(new, old, warnings=warnings) == []
    assert warnings == ["spec.ratcheted: Invalid value: 3: failed rule: self > 5"]


def test_everything_is_kept_where_the_root_preserves_unknown_fields() -> None:
    schema = compile_schema(
        {**obj({"spec": obj({"a": {"type": "string"}})}), "x-kubernetes-preserve-unknown-fields": True}
    )
    value = {**thing("X", {"a": "x", "b": 1}), "other": {"c": None}}
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
    new = thing("X", {name: data.draw(_JSON) for name in data.draw(names)})
    old = thing("X", {name: data.draw(_JSON) for name in data.draw(names)})
    try:
        schema.prune(new)
        schema.prune(old)
    except BadRequest:
        return
    schema.default(new)
    for errors in (schema.validate(new), schema.validate(new, old), schema.validate(new, new)):
        assert all(error.field and error.body for error in errors)


def test_values_nested_without_end_are_refused_or_kept_but_never_crash() -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    schema = compile_schema(
        obj({"spec": obj({"x": {"type": "string"}, "y": {"x-kubernetes-preserve-unknown-fields": True}})})
    )
    kept = thing("X", {})
    kept["spec"]["y"] = deep
    assert schema.prune(kept) == []
    assert schema.validate(kept, kept) == []
    kept["spec"] = {"x": deep}
    with contextlib.suppress(BadRequest):
        schema.prune(kept)
    assert [error.field for error in schema.validate(kept)] == ["spec.x"]
