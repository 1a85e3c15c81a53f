"""Compilation errors have kube-apiserver's messages, which were recorded from one."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herder.engine.schema.cel import CheckError, CompileError, Env, ParseError, compile, rule_env
from herder.engine.schema.cel.parse.escaping import escape
from herder.engine.schema.cel.types import DYN

SCHEMA = {
    "type": "object",
    "properties": {
        "i": {"type": "integer"},
        "n": {"type": "number"},
        "s": {"type": "string", "maxLength": 20},
        "li": {"type": "array", "maxItems": 10, "items": {"type": "integer"}},
        "m": {"type": "object", "additionalProperties": {"type": "string"}},
        "o": {"type": "object", "properties": {"x": {"type": "integer"}, "foo-bar": {"type": "string"}}},
        "t": {"type": "string", "format": "date-time"},
        "namespace": {"type": "string"},
        "ios": {"x-kubernetes-int-or-string": True},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}


def rule_environment() -> Env:
    env = rule_env(SCHEMA)
    assert env is not None
    return env


ENV = rule_environment()


@pytest.mark.parametrize(
    ("text", "first_line"),
    [
        ("self.foo == 1", "1:5: undefined field 'foo'"),
        ("self.i == 'a'", "1:8: found no matching overload for '_==_' applied to '(int, string)'"),
        ("self.i == 1.0", "1:8: found no matching overload for '_==_' applied to '(int, double)'"),
        ("slf.i == 1", "1:1: undeclared reference to 'slf' (in container '')"),
        ("self.s.foo()", "1:11: undeclared reference to 'foo' (in container '')"),
        ("self.s.startsWith(1)", "1:18: found no matching overload for 'startsWith' applied to 'string.(int)'"),
        ("self.s.size", "1:7: type 'string' does not support field selection"),
        ("has(self.zz)", "1:4: undefined field 'zz'"),
        ("has(self)", "1:5: invalid argument to has() macro"),
        ("self.li.all(x, x)", "1:16: expected type 'bool' but found 'int'"),
        (
            "self.li.filter(x, x).size() > 0",
            "1:15: found no matching overload for '_?_:_' applied to '(int, list(int), list(int))'",
        ),
        ("self.t == 'a'", "1:8: found no matching overload for '_==_' applied to '(timestamp, string)'"),
        ("self.i == null", "1:8: found no matching overload for '_==_' applied to '(int, null)'"),
        ("namespace == 'a'", "1:1: reserved identifier: namespace"),
        ("[1, 'a'].size() > 0", "1:5: expected type 'int' but found 'string'"),
        ("self.s.matches('[')", "1:16: invalid matches argument"),
        ("duration('abc') > duration('1h')", "1:10: invalid duration argument"),
        ("timestamp(999999999999999) == self.t", "1:11: invalid timestamp argument"),
        (
            "'%d'.format(['a']) == ''",
            "1:14: error during formatting: decimal clause can only be used on integers, was given string",
        ),
        ("'%d %d'.format([1]) == ''", "1:15: index 1 out of range"),
        ("cel.bind(x, 1, x == 1)", "1:1: undeclared reference to 'cel' (in container '')"),
        ("self.free.x == 1", "1:10: undefined field 'x'"),
    ],
)
def test_wrong_names_and_types(text: str, first_line: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile(text, ENV)
    assert str(caught.value).split("\n")[0] == f"ERROR: <input>:{first_line}"


_EXPECTING = (
    "expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, "
    "IDENTIFIER}"
)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("self.i ==", [f"1:10: Syntax error: mismatched input '<EOF>' {_EXPECTING}"]),
        ("self.i == 1 || || true", [f"1:16: Syntax error: extraneous input '||' {_EXPECTING}"]),
        ("self.li.all(x, x > 1", ["1:21: Syntax error: missing ')' at '<EOF>'"]),
        (
            "self.i = 1",
            [
                "1:8: Syntax error: token recognition error at: '= '",
                "1:10: Syntax error: extraneous input '1' expecting <EOF>",
            ],
        ),
        ("'a' == \"a\" and true", ["1:12: Syntax error: mismatched input 'and' expecting <EOF>"]),
        ("99999999999999999999 == 1", ["1:1: invalid int literal"]),
        ("'\\z' == ''", ["1:1: Syntax error: token recognition error at: ''\\z'", None]),
    ],
)
def test_wrong_syntax(text: str, lines: list[str | None]) -> None:
    with pytest.raises(ParseError) as caught:
        compile(text, ENV)
    reported = [line for line in str(caught.value).split("\n") if line.startswith("ERROR")]
    for expected, line in zip(lines, reported, strict=True):
        assert expected is None or line == f"ERROR: <input>:{expected}"


def test_an_error_marks_its_column_below_the_line() -> None:
    with pytest.raises(CheckError) as caught:
        compile("self.i == 1 &&\n  'é' == self.foo", ENV)
    assert str(caught.value) == ("ERROR: <input>:2:14: undefined field 'foo'\n |   'é' == self.foo\n | ...．.........^")


def test_deep_nesting_is_rejected_without_a_crash() -> None:
    for text in ("(" * 5000 + "1" + ")" * 5000, "+".join(["1"] * 5000), "!" * 90_000 + "true" + "[0]" * 3000):
        with pytest.raises(CompileError):
            compile(text, Env({}))
    with pytest.raises(ParseError, match="code point size exceeds limit"):
        compile(" " * 100_001, Env({}))


def test_result_type_and_references_are_known() -> None:
    program = compile("self.i == oldSelf.i && self.li.all(self, self > 0)", ENV)
    assert program.result_type.kind == "bool"
    assert program.references == {"self", "oldSelf"}
    assert compile("self.li.map(oldSelf, oldSelf + 1)", ENV).references == {"self"}


def test_int_or_string_is_dynamic_and_reserved_words_are_fields() -> None:
    compile("self.ios == 1 || self.ios == 'a'", ENV)
    compile("self.namespace == self.__namespace__", ENV)
    compile("self.o.foo__dash__bar == 'a'", ENV)


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("foo", "foo"),
        ("foo-bar", "foo__dash__bar"),
        ("a.b/c", "a__dot__b__slash__c"),
        ("a__b", "a__underscores__b"),
        ("in", "__in__"),
        ("1a", None),
        ("ü", None),
    ],
)
def test_property_names_are_escaped(name: str, escaped: str | None) -> None:
    assert escape(name) == escaped


def test_dynamic_variables_are_checked_at_run_time_only() -> None:
    compile("object.foo.bar[0] == 'a' + object.x", Env({"object": DYN}))


PIECES = [
    "self",
    ".",
    "i",
    "?",
    ":",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    "'a'",
    "1",
    "1u",
    "0x",
    "&&",
    "||",
    "!",
    "-",
    "in",
    "all",
    "x",
    "has",
    "'",
    '"""',
    "\\",
    "é",
    "b",
    "r",
    "/",
    "optional.of",
    "map",
    "=",
    "%",
    "`",
]


@given(st.lists(st.sampled_from([*PIECES, " ", "\n"]), max_size=25).map("".join))
def test_any_text_compiles_or_is_rejected(text: str) -> None:
    with contextlib.suppress(CompileError):
        compile(text, ENV)
