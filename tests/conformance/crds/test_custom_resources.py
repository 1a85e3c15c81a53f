"""Custom resources: pruning, defaulting and validation by schema."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.conftest import Widgets
from tests.conformance.objects import CRDS, custom, define, definition, spec_schema
from tests.support.api import TIMEOUT, Api
from tests.support.engines import unique


class Kind:
    """A custom resource whose schema uses every feature once."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.resource = f"{group}/v1/things"

    def named(self, name: str, spec: Any) -> dict[str, Any]:
        return custom(self.group, "Thing", name, spec)


@pytest.fixture(scope="module")
async def things(admin: Api) -> Kind:
    group = f"{unique('things')}.example.com"
    text = {"type": "string"}
    pair = {"type": "object", "properties": {"a": text, "b": text}}
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = spec_schema(
        text=text | {"minLength": 2, "maxLength": 5, "pattern": "^[a-z]+$"},
        number={"type": "number", "minimum": 1, "maximum": 10, "multipleOf": 0.5},
        above={"type": "integer", "minimum": 1, "exclusiveMinimum": True},
        below={"type": "integer", "maximum": 10, "exclusiveMaximum": True},
        small={"type": "integer", "format": "int32"},
        flag={"type": "boolean"},
        choice=text | {"enum": ["a", "b"]},
        items={"type": "array", "items": text, "minItems": 1, "maxItems": 2},
        distinct={"type": "array", "items": text, "x-kubernetes-list-type": "set"},
        keyed={
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name", "port"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": text, "port": {"type": "integer", "default": 80}, "note": text},
            },
        },
        labels={"type": "object", "additionalProperties": text, "minProperties": 1, "maxProperties": 2},
        inner={
            "type": "object",
            "required": ["must"],
            "properties": {"must": text, "may": text | {"default": "so"}},
        },
        defaulted={"type": "object", "default": {}, "properties": {"a": {"type": "integer", "default": 5}}},
        nothing=text | {"nullable": True, "default": "something"},
        port={"x-kubernetes-int-or-string": True},
        either=pair | {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        anyof=pair | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        nots={"type": "object", "properties": {"a": text}, "not": {"required": ["a"]}},
        raw=anything,
        template=anything | {"x-kubernetes-embedded-resource": True},
        time=text | {"format": "date-time"},
        date=text | {"format": "date"},
        address=text | {"format": "ipv4"},
        url=text | {"format": "uri"},
        uuid=text | {"format": "uuid"},
        bytes=text | {"format": "byte"},
        duration=text | {"format": "duration"},
        mail=text | {"format": "email"},
        cidr=text | {"format": "cidr"},
        hostname=text | {"format": "hostname"},
        freeform=text | {"format": "no-such-format"},
    )  # fmt: skip
    await define(admin, definition(group, "things", "Thing", schema))
    return Kind(group)


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({"text": "a"}, 'spec.text: Invalid value: "a": spec.text in body should be at least 2 chars long'),
        ({"text": "abcdef"}, "spec.text: Too long: may not be more than 5 bytes"),
        ({"text": "ABC"}, "spec.text: Invalid value: \"ABC\": spec.text in body should match '^[a-z]+$'"),
        ({"text": 5}, 'spec.text: Invalid value: "integer": spec.text in body must be of type string: "integer"'),
        ({"number": 0}, "spec.number: Invalid value: 0: spec.number in body should be greater than or equal to 1"),
        ({"number": 11}, "spec.number: Invalid value: 11: spec.number in body should be less than or equal to 10"),
        ({"number": 1.2}, "spec.number: Invalid value: 1.2: spec.number in body should be a multiple of 0.5"),
        ({"number": "1"}, 'spec.number: Invalid value: "string": spec.number in body must be of type number: "string"'),
        ({"above": 1}, "spec.above: Invalid value: 1: spec.above in body should be greater than 1"),
        ({"below": 10}, "spec.below: Invalid value: 10: spec.below in body should be less than 10"),
        ({"above": 1.5}, 'spec.above: Invalid value: "number": spec.above in body must be of type integer: "number"'),
        ({"small": 1 << 40}, "Checked value must be of type integer with format int32 in spec.small"),
        ({"flag": "yes"}, 'spec.flag: Invalid value: "string": spec.flag in body must be of type boolean: "string"'),
        ({"choice": "c"}, 'spec.choice: Unsupported value: "c": supported values: "a", "b"'),
        ({"items": []}, "spec.items: Invalid value: 0: spec.items in body should have at least 1 items"),
        ({"items": ["a", "b", "c"]}, "spec.items: Too many: 3: must have at most 2 items"),
        ({"items": [1]}, 'spec.items[0]: Invalid value: "integer": spec.items[0] in body must be of type string'),
        ({"items": {}}, 'spec.items: Invalid value: "object": spec.items in body must be of type array: "object"'),
        ({"distinct": ["a", "b", "a"]}, 'spec.distinct[2]: Duplicate value: "a"'),
        (
            {"keyed": [{"name": "a", "port": 1}, {"name": "a", "port": 1}]},
            'spec.keyed[1]: Duplicate value: {"name":"a","port":1}',
        ),
        ({"keyed": [{"port": 1}]}, "spec.keyed[0].name: Required value"),
        ({"labels": {}}, "spec.labels: Invalid value: 0: spec.labels in body should have at least 1 properties"),
        ({"labels": {"a": "1", "b": "2", "c": "3"}}, "spec.labels: Too many: 3: must have at most 2 items"),
        ({"labels": {"a": 1}}, 'spec.labels.a: Invalid value: "integer": spec.labels.a in body must be of type string'),
        ({"inner": {}}, "spec.inner.must: Required value"),
        ({"port": 1.5}, "spec.port: Invalid value: "),
        ({"port": True}, "spec.port: Invalid value: "),
        ({"either": {"a": "1", "b": "2"}}, '"spec.either" must validate one and only one schema (oneOf). Found 2'),
        ({"either": {}}, '"spec.either" must validate one and only one schema (oneOf). Found none valid'),
        ({"anyof": {}}, '"spec.anyof" must validate at least one schema (anyOf)'),
        ({"nots": {"a": "1"}}, '"spec.nots" must not validate the schema (not)'),
        ({"template": {"spec": 1}}, "spec.template.apiVersion: Required value, spec.template.kind: Required value"),
        (
            {"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a b": "c"}}}},
            "spec.template.metadata.labels: Invalid value",
        ),
        ({"time": "noon"}, 'spec.time: Invalid value: "noon": spec.time in body must be of type date-time: "noon"'),
        ({"date": "2024-13-01"}, 'spec.date: Invalid value: "2024-13-01": spec.date in body must be of type date'),
        ({"address": "1.2.3"}, 'spec.address: Invalid value: "1.2.3": spec.address in body must be of type ipv4'),
        ({"url": "://x"}, "spec.url in body must be of type uri"),
        ({"uuid": "x"}, "spec.uuid in body must be of type uuid"),
        ({"bytes": "!"}, "spec.bytes in body must be of type byte"),
        ({"duration": "long"}, "spec.duration in body must be of type duration"),
        ({"mail": "nobody"}, "spec.mail in body must be of type email"),
        ({"cidr": "10.0.0.0"}, "spec.cidr in body must be of type cidr"),
        ({"hostname": "-a-"}, "spec.hostname in body must be of type hostname"),
    ],
)  # fmt: skip
async def test_values_that_violate_the_schema_are_rejected(api: Api, things: Kind, spec: Any, cause: str) -> None:
    answer = await api.post(api.at(things.resource), things.named("a", spec))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.message.startswith(f'Thing.{things.group} "a" is invalid: ')
    assert cause in answer.message


@pytest.mark.parametrize(
    "spec",
    [
        {"text": "abc"},
        {"number": 1.5},
        {"distinct": ["a", "b"]},
        {"keyed": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]},
        {"labels": {"a": "1"}},
        {"port": 80},
        {"port": "http"},
        {"either": {"a": "1"}},
        {"time": "2024-02-29T12:00:00Z"},
        {"date": "2024-02-29"},
        {"address": "10.0.0.1"},
        {"duration": "1h30m"},
        {"cidr": "10.0.0.0/8"},
        {"freeform": "anything"},
        {"bytes": "aGVsbG8="},
        {"raw": {"a": [1, {"b": None}]}},
    ],
)
async def test_values_that_match_the_schema_are_accepted(api: Api, things: Kind, spec: Any) -> None:
    created = await api.create(things.resource, things.named("a", spec))
    assert {key: created["spec"][key] for key in spec} == spec


async def test_all_errors_are_reported_together(api: Api, things: Kind) -> None:
    answer = await api.post(api.at(things.resource), things.named("a", {"text": "A", "choice": "c", "above": 0}))
    assert answer.status == 422
    fields = {field for _, field, _ in answer.causes}
    assert fields == {"spec.text", "spec.choice", "spec.above"}
    assert answer.body["details"]["group"] == things.group
    assert answer.body["details"]["kind"] == "Thing"


async def test_defaults_apply_inside_existing_objects(api: Api, things: Kind) -> None:
    created = await api.create(things.resource, things.named("a", {"inner": {"must": "x"}, "keyed": [{"name": "n"}]}))
    assert created["spec"]["inner"] == {"must": "x", "may": "so"}
    assert created["spec"]["keyed"] == [{"name": "n", "port": 80}]
    assert created["spec"]["defaulted"] == {"a": 5}


async def test_a_default_replaces_a_null_of_a_non_nullable_field(api: Api, things: Kind) -> None:
    created = await api.create(things.resource, things.named("a", {"inner": {"must": "x", "may": None}}))
    assert created["spec"]["inner"]["may"] == "so"


async def test_a_null_of_a_non_nullable_field_is_dropped(api: Api, things: Kind) -> None:
    created = await api.create(things.resource, things.named("a", {"text": None}))
    assert "text" not in created["spec"]


async def test_a_null_of_a_nullable_field_is_kept(api: Api, things: Kind) -> None:
    created = await api.create(things.resource, things.named("a", {"nothing": None}))
    assert created["spec"]["nothing"] is None
    assert (await api.create(things.resource, things.named("b", {})))["spec"]["nothing"] == "something"


async def test_unknown_fields_are_pruned_unless_preserved(api: Api, things: Kind) -> None:
    spec = {"typo": 1, "raw": {"any": {"thing": [1]}}, "inner": {"must": "x", "typo": 1}}
    created = await api.create(things.resource, things.named("a", spec))
    assert "typo" not in created["spec"]
    assert "typo" not in created["spec"]["inner"]
    assert created["spec"]["raw"] == {"any": {"thing": [1]}}


async def test_embedded_objects_keep_fields_but_unknown_metadata_is_pruned(api: Api, things: Kind) -> None:
    template = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x", "labels": {"a": "b"}, "unknown": 1},
        "spec": {"anything": True},
    }
    created = await api.create(things.resource, things.named("a", {"template": template}))
    assert created["spec"]["template"]["spec"] == {"anything": True}
    assert created["spec"]["template"]["metadata"] == {"name": "x", "labels": {"a": "b"}}


async def test_unchanged_invalid_values_are_tolerated(api: Api) -> None:
    group = f"{unique('ratchet')}.example.com"
    crd = definition(group, "bolts", "Bolt", spec_schema(size={"type": "integer"}, note={"type": "string"}))
    await define(api, crd)
    resource = f"{group}/v1/bolts"
    await api.create(resource, custom(group, "Bolt", "a", {"size": 50}))
    schema = spec_schema(size={"type": "integer", "maximum": 10}, note={"type": "string"})
    patch = [{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema", "value": schema}]
    (await api.patch(api.cluster(CRDS, f"bolts.{group}"), patch, "application/json-patch+json")).expect(200)
    url = api.at(resource)

    async def rejected() -> bool:
        answer = await api.post(url + "?dryRun=All", custom(group, "Bolt", "b", {"size": 50}))
        return answer.status == 422

    async with asyncio.timeout(TIMEOUT):
        while not await rejected():
            pass
    changed = (await api.patch(api.at(resource, "a"), {"spec": {"note": "still here"}})).expect(200)
    assert changed["spec"] == {"size": 50, "note": "still here"}
    assert (await api.patch(api.at(resource, "a"), {"spec": {"size": 60}})).status == 422
    (await api.patch(api.at(resource, "a"), {"spec": {"size": 6}})).expect(200)


async def test_custom_resources_keep_metadata(api: Api, widgets: Widgets) -> None:
    obj = widgets.named("a")
    obj["metadata"] |= {"labels": {"x": "1"}, "annotations": {"y": "2"}, "finalizers": ["example.com/hold"]}
    created = await api.create(widgets.resource, obj)
    assert created["metadata"]["labels"] == {"x": "1"}
    assert created["metadata"]["annotations"] == {"y": "2"}
    assert created["metadata"]["finalizers"] == ["example.com/hold"]
    await api.patch(api.at(widgets.resource, "a"), {"metadata": {"finalizers": None}})


async def test_names_of_custom_resources_are_validated(api: Api, widgets: Widgets) -> None:
    answer = await api.post(api.at(widgets.resource), widgets.named("Upper"))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert 'metadata.name: Invalid value: "Upper": a lowercase RFC 1123 subdomain must consist of' in answer.message


async def test_custom_resources_must_have_kind_and_api_version(api: Api, widgets: Widgets) -> None:
    answer = await api.post(api.at(widgets.resource), {"metadata": {"name": "a"}})
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert "Object 'Kind' is missing in" in answer.message


async def test_custom_resources_of_another_kind_are_rejected(api: Api, widgets: Widgets) -> None:
    answer = await api.post(api.at(widgets.resource), widgets.named("a") | {"kind": "Gadget"})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.causes == [("FieldValueInvalid", "kind", 'Invalid value: "Gadget": must be Widget')]
