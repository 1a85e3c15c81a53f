"""Evaluation of expressions: operators, macros, optionals, and values that are typed by a schema."""

from __future__ import annotations

from typing import Any

import pytest

from herder.engine.schema.cel import BudgetExceeded, CelError, Env, EvaluationError, admission_env, compile, rule_env
from herder.engine.schema.cel.library.authorizer import Authorizer, Decision, Question
from herder.engine.schema.cel.types import DYN
from herder.engine.schema.cel.values import NONE, Optional

DATA: dict[str, Any] = {
    "i": 7,
    "n": 2,
    "s": "hey",
    "li": [3, 1, 2],
    "m": {"a": "b", "none": None},
    "o": {"x": 4, "foo-bar": "y"},
    "t": "2020-02-29T12:34:56.789Z",
    "day": "2020-02-29",
    "d": "90s",
    "by": "YWJj",
    "set": ["a", "b"],
    "keyed": [{"k": "a", "v": 1}, {"k": "b", "v": 2}],
    "nul": None,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "i": {"type": "integer"},
        "n": {"type": "number"},
        "s": {"type": "string"},
        "li": {"type": "array", "items": {"type": "integer"}},
        "m": {"type": "object", "additionalProperties": {"type": "string", "nullable": True}},
        "o": {"type": "object", "properties": {"x": {"type": "integer"}, "foo-bar": {"type": "string"}}},
        "t": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "d": {"type": "string", "format": "duration"},
        "by": {"type": "string", "format": "byte"},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "keyed": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}},
        },
        "nul": {"type": "string", "nullable": True},
        "absent": {"type": "string"},
        "embedded": {"type": "object", "x-kubernetes-embedded-resource": True},
    },
}


def evaluate(text: str, **variables: Any) -> Any:
    env = rule_env(SCHEMA)
    assert env is not None
    env = env.with_variables(dict.fromkeys(variables, DYN))
    return compile(text, env).evaluate({"self": DATA, **variables})


@pytest.mark.parametrize(
    "text",
    [
        "self.i > 6 && self.n == 2.0 && type(self.n) == double",
        "self.o.foo__dash__bar == 'y'",
        "self.t.getFullYear() == 2020 && self.t.getHours('-05:30') == 7 && self.t > timestamp('2020-01-01T00:00:00Z')",
        "self.day == timestamp('2020-02-29T00:00:00Z')",
        "self.d == duration('1m30s') && self.d.getSeconds() == 90",
        "self.by == b'abc' && size(self.by) == 3",
        "self.set == ['b', 'a'] && self.set + ['c', 'a'] == ['c', 'b', 'a']",
        "!has(self.nul) && !has(self.absent) && has(self.i)",
        "has(self.m.none) && !has(self.m.zz)",
        "self.?absent.orValue('z') == 'z' && self.?s.value() == 'hey' && self.m[?'a'].hasValue()",
        "self.?o.?x.optMap(v, v + 1).orValue(0) == 5",
        "self.li.exists_one(x, x == 3) && self.li.map(x, x > 1, x * 2) == [6, 4]",
        "{'a': 1, 'b': 2}.transformMap(k, v, k == 'a', v * 2) == {'a': 2}",
        "{'a': 'x'}.transformMapEntry(k, v, {v: k}) == {'x': 'a'}",
        "[5, 6].transformList(i, v, i + v) == [5, 7] && [5].all(i, v, i == 0 && v == 5)",
        "[3, 1, 2].sortBy(e, -e) == [3, 2, 1]",
        "1 / 0 == 1 || true",
        "!(false && 1 / 0 == 1)",
        "[1, 0].exists(x, 1 / x == 1)",
        "-7 / 2 == -3 && -7 % 3 == -1",
        "1 < 1.5 && 1u < 2 && dyn(1) == dyn(1.0) && dyn(1) != dyn('1') && dyn(true) != dyn(1)",
        "[?optional.none(), ?optional.of(1)] == [1] && {?'a': optional.none()} == {}",
        "'\\u00e9\\x41\\101' == 'éAA' && r'\\d' == '\\\\d' && b'\\xff' == b'\\377' && '''a\n'b''' == 'a\\n\\'b'",
        "0x1F == 31 && -0x1F == -31 && 1e3 == 1000.0 && .5 == 0.5",
        "type(self.li) == list && type(type(1)) == type && type(self.t) == google.protobuf.Timestamp",
        "true ? self.i == 7 : 1 / 0 == 1",
        "self.embedded.metadata.name == 'x' || true",
    ],
)
def test_holds(text: str) -> None:
    assert evaluate(text) is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("self.absent == ''", "no such key: absent"),
        ("self.nul == ''", "no such key: nul"),
        ("self.li[9] == 1", "index out of bounds: 9"),
        ("self.i / 0 == 1", "division by zero"),
        ("self.i % 0 == 1", "modulus by zero"),
        ("self.i + 9223372036854775807 == 1", "integer overflow"),
        ("uint(self.i - 100) == 1u", "unsigned integer overflow"),
        ("dyn(1) + dyn('a') == dyn(2)", "no such overload"),
        ("dyn(self.i) && true", "no such overload"),
        ("self.m.none.startsWith('a')", "no such overload"),
        ("optional.none().value() == 1", "optional.none() dereference"),
        ("[1].filter(x, x > 1).max() == 1", "max called on empty list"),
        ("self.li.all(x, x / 0 > 1)", "division by zero"),
        ("{'a': 1, self.s: 2, 'hey': 3}.size() == 1", "Failed with repeated key: hey"),
        ("[1, 1].transformMapEntry(i, v, {v: i}).size() == 1", "insert failed: key 1 already exists"),
    ],
)
def test_fails(text: str, message: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        evaluate(text)
    assert str(caught.value) == message


def test_keyed_lists_are_compared_and_added_by_key() -> None:
    swapped = list(reversed(DATA["keyed"]))
    assert evaluate("self.keyed == other", other=swapped) is True
    assert evaluate("self.keyed + other == self.keyed", other=[{"k": "b", "v": 2}]) is True
    assert evaluate("self.keyed == other", other=[{"k": "a", "v": 1}, {"k": "b", "v": 3}]) is False


def test_old_self_may_be_optional() -> None:
    env = rule_env({"type": "integer"}, optional_old_self=True)
    assert env is not None
    program = compile("oldSelf.optMap(old, self > old).orValue(true)", env)
    assert program.evaluate({"self": 1, "oldSelf": NONE}) is True
    assert program.evaluate({"self": 1, "oldSelf": Optional(2)}) is False


def test_loops_end_when_the_cost_budget_is_exhausted() -> None:
    program = compile("l.all(a, l.all(b, l.all(c, a + b + c > 0)))", Env({"l": DYN}))
    with pytest.raises(BudgetExceeded):
        program.evaluate({"l": list(range(1, 1000))})
    value, cost = program.evaluate_with_cost({"l": [1, 2]})
    assert value is True
    assert 0 < cost < 200


@pytest.mark.parametrize(
    "text",
    [
        "lists.range(100000000).size() == 1",
        "big.replace('', big).size() == 1",
        "lists.range(900).map(x, big).join(big).size() == 1",
        "sets.contains(lists.range(9000), lists.range(9000))",
        "big.matches(big) || true",
        "lists.range(900).map(x, lists.range(900)).map(x, lists.range(900).map(y, x)).flatten().size() == 1",
        "'%s'.format([lists.range(900).map(x, big)]) == ''",
        "[[1]]" + ".map(x, [x, x])" * 60 + " == [[1]]" + ".map(x, [x, x])" * 60,
        "[[1]]" + ".map(x, [x, x])" * 60 + " in [[[1]]" + ".map(x, [x, x])" * 60 + "]",
    ],
)
def test_no_call_takes_unbounded_time_or_memory(text: str) -> None:
    with pytest.raises(BudgetExceeded):
        compile(text, Env({"big": DYN})).evaluate({"big": "x" * 1_000_000})


def test_logical_operators_do_not_hide_an_exhausted_budget() -> None:
    program = compile("true || l.all(x, true)", Env({"l": DYN}))
    assert program.evaluate({"l": [1]}) is True
    with pytest.raises(BudgetExceeded):
        compile("l.all(x, true) || true", Env({"l": DYN})).evaluate({"l": [1] * 100}, budget=50)


def test_worst_case_costs_are_estimated_from_the_schema() -> None:
    def cost(rule: str, **bounds: int) -> int:
        env = rule_env({"type": "array", "items": {"type": "number"}, **bounds})
        assert env is not None
        return compile(rule, env).max_cost

    assert cost("self.all(x, true)") == 4_718_591
    assert cost("self.all(x, true)", maxItems=10) == 32
    assert cost("self.all(x, self.all(y, true))") > 10_000_000
    assert cost("self.all(x, self.all(y, self.all(z, true)))", maxItems=10) == 3552


def test_admission_expressions_see_request_objects_and_an_authorizer() -> None:
    questions: list[Question] = []

    def decide(question: Question) -> Decision:
        questions.append(question)
        return Decision(allowed=question.verb == "get")

    env = admission_env(params=True)
    program = compile(
        "request.userInfo.username == 'eve' && object.metadata.name.startsWith('a') && oldObject == null && "
        "authorizer.group('apps').resource('deployments').namespace('ns').check('get').allowed()",
        env,
    )
    bindings = {
        "request": {"userInfo": {"username": "eve"}},
        "object": {"metadata": {"name": "abc"}},
        "oldObject": None,
        "authorizer": Authorizer(decide),
    }
    assert program.evaluate(bindings) is True
    assert questions == [Question(verb="get", group="apps", resource="deployments", namespace="ns")]
    with pytest.raises(CelError, match="undefined field 'uid'"):
        compile("request.uid == ''", env)


def test_policy_variables_are_fields_of_variables() -> None:
    env = admission_env(variables={"big": compile("1 > 2", Env({})).result_type})
    assert compile("!variables.big", env).evaluate({"variables": {"big": False}}) is True


@pytest.mark.parametrize(
    "text",
    [
        "int('9' + big) == 1",
        "uint(big) == 1u",
        "duration(big + 'h') > duration('1h')",
        "quantity(big) == quantity('1')",
        "semver('1.2.' + big) == semver('1.2.3')",
        "('%.' + big + 'f').format([1.0]) == ''",
        "timestamp('0001-01-01T00:00:00Z').getHours('-05:00') == 1",
        "timestamp('9999-12-31T23:59:59Z').getHours('05:00') == 1",
        "timestamp('2020-01-01T00:00:00Z').getHours('99:99') == 1",
        "timestamp('2020-01-01T00:00:00Z').getHours('../etc') == 1",
        "cidr(big) == cidr('10.0.0.0/8')",
    ],
)
def test_out_of_range_arguments_are_errors_of_the_expression(text: str) -> None:
    with pytest.raises(EvaluationError):
        compile(text, Env({"big": DYN})).evaluate({"big": "9" * 10_000})


def test_out_of_range_numbers_do_not_compile() -> None:
    with pytest.raises(CelError, match="invalid int literal"):
        compile("9" * 10_000, Env({}))
