"""CEL rules of custom resources: variables, messages and evaluation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.objects import CRDS, custom, define, definition, spec_schema
from tests.support.api import TIMEOUT, Api
from tests.support.engines import unique


class Ruled:
    def __init__(self, group: str) -> None:
        self.group = group
        self.resource = f"{group}/v1/ruled"

    def named(self, name: str, **spec: Any) -> dict[str, Any]:
        return custom(self.group, "Ruled", name, spec)


def rules(*each: dict[str, Any]) -> dict[str, Any]:
    return {"x-kubernetes-validations": list(each)}


@pytest.fixture(scope="module")
async def ruled(admin: Api) -> Ruled:
    group = f"{unique('rules')}.example.com"
    integer, text = {"type": "integer"}, {"type": "string", "maxLength": 100}
    schema = spec_schema(
        low=integer,
        high=integer,
        immutable=text | rules({"rule": "self == oldSelf", "message": "may not change"}),
        growing=integer | rules({"rule": "self >= oldSelf", "messageExpression": "oldSelf > 4 ? 'large' : 'small'"}),
        field=text | rules({"rule": "self != 'bad'", "reason": "FieldValueForbidden", "message": "no bad ones"}),
        names={"type": "array", "maxItems": 10, "items": text}
        | rules({"rule": "self.all(n, n.startsWith('x-'))", "message": "all must start with x-"}),
        keys={"type": "object", "maxProperties": 10, "additionalProperties": text}
        | rules({"rule": "!('forbidden' in self)"}),
        once={"type": "string", "maxLength": 10}
        | rules({"rule": "oldSelf.hasValue() || self == 'first'", "optionalOldSelf": True, "message": "first first"}),
        pointed={"type": "object", "properties": {"a": integer, "b": integer}}
        | rules({"rule": "self.a < self.b", "fieldPath": ".a", "message": "a before b"}),
        amount={"x-kubernetes-int-or-string": True}
        | rules({"rule": "type(self) == int ? self > 0 : quantity(self).isGreaterThan(quantity('0'))"}),
        url=text | rules({"rule": "url(self).getScheme() == 'https'", "message": "https alone"}),
        address=text | rules({"rule": "isIP(self)", "message": "no address"}),
        since={"type": "string", "format": "date-time"}
        | rules({"rule": "self > timestamp('2020-01-01T00:00:00Z')", "message": "too long ago"}),
        span={"type": "string", "format": "duration"} | rules({"rule": "self < duration('1h')", "message": "too long"}),
    )  # fmt: skip
    schema["properties"]["spec"] |= rules(
        {"rule": "!has(self.low) || !has(self.high) || self.low <= self.high", "message": "low must not exceed high"}
    )
    schema |= rules({"rule": "self.metadata.name != 'evil'", "message": "an evil name"})
    await define(admin, definition(group, "ruled", "Ruled", schema))
    return Ruled(group)


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({"low": 5, "high": 1}, "spec: Invalid value: low must not exceed high"),
        ({"names": ["x-1", "y-1"]}, "spec.names: Invalid value: all must start with x-"),
        ({"keys": {"forbidden": "1"}}, "spec.keys: Invalid value: failed rule: !('forbidden' in self)"),
        ({"field": "bad"}, "spec.field: Forbidden: no bad ones"),
        ({"once": "second"}, "spec.once: Invalid value: first first"),
        ({"pointed": {"a": 2, "b": 1}}, "spec.pointed.a: Invalid value: a before b"),
        ({"amount": 0}, "spec.amount: Invalid value: "),
        ({"amount": "-1Gi"}, "spec.amount: Invalid value: "),
        ({"url": "http://example.com"}, "spec.url: Invalid value: https alone"),
        ({"address": "1.2.3"}, "spec.address: Invalid value: no address"),
        ({"since": "2019-01-01T00:00:00Z"}, "spec.since: Invalid value: too long ago"),
        ({"span": "2h"}, "spec.span: Invalid value: too long"),
    ],
)
async def test_failing_rules_are_reported(api: Api, ruled: Ruled, spec: Any, cause: str) -> None:
    answer = await api.post(api.at(ruled.resource), ruled.named("a", **spec))
    assert (answer.status, answer.reason) == (422, "Invalid")
    messages = [f"{field}: {message}" for _, field, message in answer.causes]
    expected_field, _, expected_message = cause.partition(": ")
    field, message = next(item.split(": ", 1) for item in messages)
    assert field == expected_field
    kind, _, expected_suffix = expected_message.partition(": ")
    assert message.startswith(kind)
    assert message.endswith(expected_suffix)


@pytest.mark.parametrize(
    "spec",
    [
        {"low": 1, "high": 5},
        {"names": ["x-1"]},
        {"keys": {"allowed": "1"}},
        {"field": "good"},
        {"once": "first"},
        {"amount": "1Gi"},
        {"amount": 1},
        {"url": "https://example.com"},
        {"address": "::1"},
        {"since": "2021-01-01T00:00:00Z"},
        {"span": "30m"},
    ],
)
async def test_values_that_satisfy_the_rules_are_accepted(api: Api, ruled: Ruled, spec: Any) -> None:
    await api.create(ruled.resource, ruled.named("a", **spec))


async def test_a_rule_on_the_whole_object_sees_its_name(api: Api, ruled: Ruled) -> None:
    answer = await api.post(api.at(ruled.resource), ruled.named("evil"))
    assert answer.status == 422
    assert "an evil name" in answer.message


async def test_transition_rules_apply_to_updates_only(api: Api, ruled: Ruled) -> None:
    await api.create(ruled.resource, ruled.named("a", immutable="one", growing=5))
    url = api.at(ruled.resource, "a")
    answer = await api.patch(url, {"spec": {"immutable": "two"}})
    assert answer.status == 422
    assert "spec.immutable: Invalid value: " in answer.message
    assert answer.message.endswith("may not change")
    answer = await api.patch(url, {"spec": {"growing": 4}})
    assert answer.message.endswith("large")
    (await api.patch(url, {"spec": {"growing": 6}})).expect(200)


async def test_transition_rules_need_an_old_value(api: Api, ruled: Ruled) -> None:
    await api.create(ruled.resource, ruled.named("a"))
    (await api.patch(api.at(ruled.resource, "a"), {"spec": {"immutable": "one"}})).expect(200)
    (await api.patch(api.at(ruled.resource, "a"), {"spec": {"immutable": None}})).expect(200)


async def test_optional_old_self_distinguishes_create_and_update(api: Api, ruled: Ruled) -> None:
    await api.create(ruled.resource, ruled.named("a", once="first"))
    (await api.patch(api.at(ruled.resource, "a"), {"spec": {"once": "second"}})).expect(200)


async def test_rules_are_not_evaluated_for_schema_violations(api: Api, ruled: Ruled) -> None:
    answer = await api.post(api.at(ruled.resource), ruled.named("a", names=[1]))
    assert answer.status == 422
    assert "must be of type string" in answer.message
    assert "some validation rules were not checked because the object was invalid" in answer.message


async def test_rules_tolerate_unchanged_invalid_values(api: Api) -> None:
    group = f"{unique('oldrule')}.example.com"
    text = {"type": "string", "maxLength": 20}
    await define(api, definition(group, "ruled", "Ruled", spec_schema(field=text, other=text)))
    resource = f"{group}/v1/ruled"
    await api.create(resource, custom(group, "Ruled", "a", {"field": "bad"}))
    schema = spec_schema(field=text | rules({"rule": "self != 'bad'"}), other=text)
    patch = [{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema", "value": schema}]
    (await api.patch(api.cluster(CRDS, f"ruled.{group}"), patch, "application/json-patch+json")).expect(200)
    bad = custom(group, "Ruled", "b", {"field": "bad"})
    async with asyncio.timeout(TIMEOUT):
        while (await api.post(api.at(resource) + "?dryRun=All", bad)).status == 201:
            pass
    (await api.patch(api.at(resource, "a"), {"spec": {"other": "new"}})).expect(200)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("self ==", "Syntax error: mismatched input"),
        ("self + 'x'", "must evaluate to a bool"),
        ("self + 1", "found no matching overload for '_+_' applied to '(string, int)'"),
        ("self.nothing", "type 'string' does not support field selection"),
        ("nonsense(self)", "undeclared reference to 'nonsense'"),
        ("self == 5", "found no matching overload for '_==_' applied to '(string, int)'"),
        ("self.matches('[')", "invalid matches argument"),
        ("", "rule is not specified"),
    ],
)
async def test_invalid_rules_are_rejected_with_the_crd(api: Api, rule: str, message: str) -> None:
    group = f"{unique('bad')}.example.com"
    schema = spec_schema(field={"type": "string", "maxLength": 10} | rules({"rule": rule}))
    answer = await api.post(api.cluster(CRDS), definition(group, "bads", "Bad", schema))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "spec.validation.openAPIV3Schema.properties[spec].properties[field].x-kubernetes-validations[0].rule" in (
        answer.message.replace("spec.versions[0].schema.openAPIV3Schema", "spec.validation.openAPIV3Schema")
    )
    assert message in answer.message


async def test_expensive_rules_are_rejected_with_the_crd(api: Api) -> None:
    group = f"{unique('costly')}.example.com"
    schema = spec_schema(
        items={"type": "array", "items": {"type": "array", "items": {"type": "string"}}}
        | rules({"rule": "self.all(a, a.all(b, self.all(c, c.all(d, d != b))))"})
    )
    answer = await api.post(api.cluster(CRDS), definition(group, "bads", "Bad", schema))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "estimated rule cost exceeds budget by factor of" in answer.message
