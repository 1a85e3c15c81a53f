"""Patterns match what Go's regexp matches, in linear time for every pattern."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herder.engine.schema import re2
from herder.engine.schema.re2.automaton import Automaton
from herder.engine.schema.re2.syntax import parse

MATCHING = [
    ("", ""), ("", "abc"), (r"\B", ""), ("^$", ""), ("a|b", "xb"), ("^(?:ab)+$", "abab"), ("a{2,3}$", "baaa"),
    ("^a{0}$", ""),
    (r"\bfoo\b", "a foo b"), (r"\Bo", "foo"), (r"(?m)^b$", "a\nb\nc"), (r"(?s)a.b", "a\nb"), (r"(?i)straße", "STRAßE"),
    (r"(?i)k", "\u212a"), (r"(?i:a)B", "AB"), (r"\pL\pN", "é٣"), (r"\p{Greek}", "λ"), (r"\P{Latin}", "λ"),
    (r"\p{^Greek}", "a"), (r"[[:alpha:]][[:^digit:]]", "aB"), (r"[\w.-]+", "a.b"), (r"[^\d\s]", "x"), (r"[]a]", "]"),
    (r"[a-]", "-"), (r"\x41\x{1F600}\101", "A\U0001f600A"), (r"\Qa.b\E+", "a.bb"), (r"a{,2}", "a{,2}"), ("x*", "aaa"),
    (r"\Aab\z", "ab"), ("(|a)*b", "aab"), ("(a*)*$", "aaaab"), (r"(?U)a+?", "a"), (r"\pZ", "\u2003"), ("[a-z&&]", "&"),
    (r"(?P<name>a)(?<other>b)", "ab"), ("a|", "zzz"), (r"\a\f\t\n\r\v", "\a\f\t\n\r\v"), (r"^\p{Any}$", "\U0010ffff"),
]  # fmt: skip

NOT_MATCHING = [
    ("^a$", "a\n"), ("^a", "\na"), (".", "\n"), (r"\s", "\v"), (r"\d", "٣"), (r"\w", "é"), (r"\bé\b", "é"),
    ("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "-a"), ("(?i)[^k]", "\u212a"), ("a{2,3}", "a"), (r"(?-i)A", "a"),
    ("[^\\n]", "\n"),
    ("^(a|b)*c$", "abab"), (r"\p{Greek}", "a"), ("(?i:a)b", "aB"), (r"[[:word:]]", "é"), ("$^x", "x"),
]  # fmt: skip

REFUSED = [
    ("[a", "missing closing ]: `[a`"),
    ("(a", "missing closing ): `(a`"),
    ("a)", "unexpected ): `a)`"),
    ("a**", "invalid nested repetition operator: `**`"),
    ("a{2}{3}", "invalid nested repetition operator: `{2}{3}`"),
    ("*a", "missing argument to repetition operator: `*`"),
    ("a|+", "missing argument to repetition operator: `+`"),
    ("a{2,1}", "invalid repeat count: `{2,1}`"),
    ("a{1001}", "invalid repeat count: `{1001}`"),
    ("(a{100}){100}", "invalid repeat count: `{100}`"),
    (r"(a)\1", r"invalid escape sequence: `\1`"),
    (r"\8", r"invalid escape sequence: `\8`"),
    (r"\C", r"invalid escape sequence: `\C`"),
    (r"\x{110000}", r"invalid escape sequence: `\x{110000`"),
    ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
    ("a(?!b)", "invalid or unsupported Perl syntax: `(?!`"),
    ("(?P=n)", "invalid or unsupported Perl syntax: `(?P`"),
    ("(?P<1-a>x)", "invalid named capture: `(?P<1-a>`"),
    ("(?<n", "invalid named capture: `(?<n`"),
    ("[z-a]", "invalid character class range: `z-a`"),
    ("[[:foo:]]", "invalid character class range: `[:foo:]`"),
    (r"\p{Nowhere}", r"invalid character class range: `\p{Nowhere}`"),
    ("x\\", "trailing backslash at end of expression: ``"),
    ("(x" * 600 + ")" * 600, "expression nests too deeply"),
]


@pytest.mark.parametrize(("pattern", "text"), MATCHING)
def test_matches(pattern: str, text: str) -> None:
    assert re2.compile(pattern).search(text)


@pytest.mark.parametrize(("pattern", "text"), NOT_MATCHING)
def test_does_not_match(pattern: str, text: str) -> None:
    assert not re2.compile(pattern).search(text)


@pytest.mark.parametrize(("pattern", "problem"), REFUSED)
def test_patterns_that_go_rejects_are_rejected_with_its_message(pattern: str, problem: str) -> None:
    with pytest.raises(re2.PatternError) as refused:
        re2.compile(pattern)
    assert str(refused.value).startswith(f"error parsing regexp: {problem}")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "^(a|a)*$", "(.*)(.*)(.*)(.*)(.*)x$", "^(a?){50}a{50}$"])
def test_no_pattern_takes_more_than_linear_time(pattern: str) -> None:
    """A backtracking engine would take exponential time for these."""
    assert not re2.compile(pattern).search("a" * 20_000 + "b")


def test_a_pattern_with_exponentially_many_states_still_terminates() -> None:
    pattern = re2.compile("(a|b)*a(a|b){15}c")
    text = "".join("ab"[(index * index // 7) % 2] for index in range(3000))
    assert not pattern.search(text)
    assert pattern.search(text + "a" + "b" * 15 + "c")


_CHARS = st.sampled_from("abcA1 -_.\né")
_ATOMS = st.one_of(
    st.sampled_from([*"abcA1é", ".", r"\d", r"\w", r"\s", "[a-c]", "[^a]", "[-a1]", r"\.", r"\W", "(?:)"]),
    st.sampled_from(["^", "$", r"\b"]),
)
_PATTERNS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: f"(?:{'|'.join(options)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}"])).map(lambda p: f"(?:{p[0]}){p[1]}"),
    ),
    max_leaves=6,
)


@given(_PATTERNS, st.text(_CHARS, max_size=8))
def test_matching_agrees_with_python_for_the_common_syntax(pattern: str, text: str) -> None:
    ours = pattern
    theirs = pattern.replace("$", r"\Z").replace(r"\s", "[ \\t\\n\\r\\f]")
    expected = re.search(theirs, text, re.ASCII) is not None
    assert re2.compile(ours).search(text) == expected
    assert Automaton(parse(ours)).search(text) == expected


@given(st.text(string.printable, max_size=12), st.text(string.printable, max_size=12))
def test_any_text_is_a_pattern_or_a_pattern_error(pattern: str, text: str) -> None:
    try:
        compiled = re2.compile(pattern)
    except re2.PatternError:
        return
    assert compiled.search(text) in (True, False)
