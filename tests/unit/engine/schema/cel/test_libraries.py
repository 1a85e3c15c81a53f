"""Extension libraries; the expected values were recorded from a real server."""

from __future__ import annotations

from typing import Any

import pytest

from herder.engine.schema.cel import CelError, Env, EvaluationError, compile


def value(text: str) -> Any:
    return compile(text, Env({})).evaluate({})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'%s'.format([[1.5, 2.0]])", "[1.500000, 2.000000]"),
        ("'%s'.format([['a', 'b']])", '["a", "b"]'),
        ("'%s'.format([{'a': 'x', 'b': 'y'}])", '{"a":"x", "b":"y"}'),
        ("'%s'.format([1000000.0])", "1e+06"),
        ("'%f'.format([1234.5])", "1,234.500000"),
        ("'%.2f'.format([3.14159])", "3.14"),
        ("'%e'.format([12345.678])", "1.234568×10⁰⁴"),
        ("'%s'.format([[duration('1s')]])", '[duration("1s")]'),
        ("'%x %X %b %o %d%%'.format(['abc', 255, 5, 8, 42])", "616263 FF 101 10 42%"),
        ("string(123456789.0)", "1.23456789e+08"),
        ("string(0.00001)", "1e-05"),
        ("string(duration('1h0.5s'))", "3600.5s"),
        ("string(timestamp('2020-01-01T01:00:00+01:00'))", "2020-01-01T01:00:00+01:00"),
        ("strings.quote('a\"b\\n')", '"a\\"b\\n"'),
        ("'abc'.split('').join('-')", "a-b-c"),
        ("'a,b,c'.split(',', 2).join('|')", "a|b,c"),
        ("'abcabc'.replace('b', 'X', 1)", "aXcabc"),
        ("'héllo'.upperAscii()", "HéLLO"),
        ("'abcabc'.lastIndexOf('bc')", 4),
        ("'abc'.indexOf('', 2)", 2),
        ("'abc'.charAt(3)", ""),
        ("'foo123bar45'.findAll('[0-9]+')", ["123", "45"]),
        ("'foo123bar45'.findAll('[0-9]+?', 2)", ["1", "2"]),
        ("'aXbX'.find('(a|b)X$')", "bX"),
        ("url('https://u@h.io:80/a b/%41?x=1&x=3#f').getEscapedPath()", "/a%20b/A"),
        ("url('https://u@[::1]:80/a').getHostname()", "::1"),
        ("url('https://a/b?x=1&x=2').getQuery()", {"x": ["1", "2"]}),
        ("['http://a b', '../x', 'mailto:x', 'http://[::1', 'http://a:b', '/%zz', '', 'http://%41/'].map(u, isURL(u))",
         [False, False, True, False, False, False, False, False]),
        ("string(ip('2001:DB8::1'))", "2001:db8::1"),
        ("string(cidr('10.1.2.3/8').masked())", "10.0.0.0/8"),
        ("cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && cidr('10.0.0.0/8').containsIP(ip('10.1.2.3'))", True),
        ("['01.2.3.4', '::ffff:1.2.3.4', 'fe80::1%eth0', '1.2.3.4'].map(a, isIP(a))", [False, False, False, True]),
        ("ip('224.0.0.1').isGlobalUnicast() || !ip('10.0.0.1').isGlobalUnicast()", False),
        ("ip.isCanonical('::0')", False),
        ("semver('v1.2', true).minor()", 2),
        ("semver('1.2.3-a.1').isLessThan(semver('1.2.3-a.b'))", True),
        ("['1.2', '1.2.3-01', '01.2.3', '1.2.3+b'].map(v, isSemver(v))", [False, False, False, True]),
        ("quantity('50k').asInteger()", 50_000),
        ("quantity('1Gi').sub(quantity('1Mi')).compareTo(quantity('1023Mi'))", 0),
        ("quantity('1').add(2) == quantity('3') && sign(quantity('-1')) == -1", True),
        ("format.uuid().validate('x').value()", ["does not match the UUID format"]),
        ("format.dns1123LabelPrefix().validate('a-').hasValue()", False),
        ("format.named('nope').hasValue()", False),
        ("[1, 2, 2, 3].distinct().reverse().slice(0, 2)", [3, 2]),
        ("[[[1]], [[2, 3]]].flatten(2)", [1, 2, 3]),
        ("[['a'], ['b']].flatten().first().value()", "a"),
        ("lists.range(3).last().orValue(9)", 2),
        ("['c', 'a'].sort().isSorted()", True),
        ("[duration('1m'), duration('1s')].sum() == duration('61s')", True),
        ("[1, 2, 1].lastIndexOf(1)", 2),
        ("sets.equivalent([1, 2], [2, 1, 1]) && sets.intersects([1], [1, 2]) && !sets.contains([1], [2])", True),
        ("timestamp('2020-01-01T00:00:00Z').getDayOfWeek('America/New_York')", 2),
    ],
)  # fmt: skip
def test_value(text: str, expected: Any) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("'abc'.substring(5)", "index out of range: 5"),
        ("'abc'.substring(2, 1)", "invalid substring range. start: 2, end: 1"),
        ("[1, 2].slice(2, 1)", "cannot slice(2, 1), start index must be less than or equal to end index"),
        ("int('x')", "type conversion error from 'string' to 'int'"),
        ("ip('x')", 'IP Address "x" parse error during conversion from string: ParseAddr("x"): unable to parse IP'),
        ("url('x')", 'URL parse error during conversion from string: parse "x": invalid URI for request'),
        ("quantity('1x')", "quantities must match the regular expression "
         "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
        ("semver('1')", "No Major.Minor.Patch elements found"),
        ("'a'.matches('[' + 'x')", "error parsing regexp: missing closing ]: `[x`"),
        ("'a'.find('[' + 'x')", "Illegal regex: error parsing regexp: missing closing ]: `[x`"),
    ],
)  # fmt: skip
def test_failure(text: str, message: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        value(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["math.abs(1)", "base64.encode(b'a')", "'a'.reverse()", "jsonpatch.escapeKey('a')"])
def test_functions_that_kubernetes_lacks_are_undeclared(text: str) -> None:
    with pytest.raises(CelError):
        value(text)


def test_mutating_policies_may_escape_json_pointers() -> None:
    env = Env({}, json_patch=True)
    assert compile("jsonpatch.escapeKey('k8s.io/my~label')", env).evaluate({}) == "k8s.io~1my~0label"
