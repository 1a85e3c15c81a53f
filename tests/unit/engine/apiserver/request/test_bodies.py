import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from herder.engine.apiserver.request.body import json_duplicates, read_json, read_yaml
from herder.engine.meta.errors import RequestEntityTooLarge

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_duplicate_keys_are_reported_with_their_path() -> None:
    body = b'{"a":{"b":1,"b":2},"c":[{"d":1,"d":1}],"a":3}'
    assert read_json(body).duplicates == ['duplicate field "a.b"', 'duplicate field "a"', 'duplicate field "c[0].d"']


@pytest.mark.parametrize("body", [b'{"a":"\\u0022","a":"x"}', b'{"a":"\\"","a":1}', b'{"a\\u0022":1,"a\\"":2}'])
def test_escaped_quotes_do_not_hide_duplicate_keys(body: bytes) -> None:
    assert len(read_json(body).duplicates) == 1


@given(VALUES)
def test_a_value_without_duplicate_keys_reports_none(value: object) -> None:
    body = json.encode(value)
    assert read_json(body).value == value
    assert read_json(body).duplicates == [] == json_duplicates(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "unexpected end of JSON input"),
        (b'{"a":', "unexpected end of JSON input"),
        (b"hello", "invalid character 'h' looking for beginning of value"),
        (b'{"a":1}x', "invalid character 'x' after top-level value"),
        (b"[" * 100_000, "exceeded max depth"),
    ],
)
def test_invalid_json_has_gos_messages(body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_json(body)


def test_yaml_is_converted_to_json_as_in_go() -> None:
    body = b"a: yes\nb: y\nc: 2026-01-02\nd: 010\n2: x\ntrue: z\ne: [1, ~]\n"
    value = read_yaml(body).value
    assert value == {"a": True, "b": True, "c": "2026-01-02", "d": 8, "2": "x", "true": "z", "e": [1, None]}


def test_duplicate_yaml_keys_are_reported_with_their_line() -> None:
    assert read_yaml(b"a: 1\nb: 2\na: 3\n").duplicates == ['line 3: key "a" already set in map']


@pytest.mark.parametrize("body", [b"a: [b", b"a: b: c", b"\x00", b"? [a]\n: b", b"!!python/object:os.system {}"])
def test_invalid_yaml_is_rejected(body: bytes) -> None:
    with pytest.raises(ValueError, match="yaml"):
        read_yaml(body)


def test_yaml_with_exponential_aliases_is_rejected() -> None:
    lines = [b"a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [b"a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 9)]
    with pytest.raises(ValueError, match="aliasing"):
        read_yaml(b"\n".join(lines))


def test_deeply_nested_yaml_is_rejected_early() -> None:
    with pytest.raises(ValueError, match="exceeded max depth"):
        read_yaml(b"a: " + b"[" * 2_000_000)
    with pytest.raises(RequestEntityTooLarge):
        read_yaml(b"{a: " * 500_000)
