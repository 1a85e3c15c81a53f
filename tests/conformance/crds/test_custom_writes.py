"""Validation of custom resources by endpoint, ratcheting and warnings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.objects import CRDS, Obj, custom, define, definition, spec_schema
from tests.support.api import Api
from tests.support.engines import unique

STATUS: Obj = {
    "type": "object",
    "properties": {
        "phase": {"type": "string", "maxLength": 5},
        "count": {"type": "integer", "maximum": 5},
        "replicas": {"type": "integer"},
    },
    "x-kubernetes-validations": [{"rule": "!has(self.count) || self.count != 4", "message": "not four"}],
}
SPEC: Obj = {
    "type": "object",
    "properties": {
        "size": {"type": "integer"},
        "replicas": {"type": "integer"},
        "maybe": {"type": "string", "nullable": True, "default": "d"},
        "name": {"type": "string", "default": "x"},
        "plain": {"type": "string"},
    },
}
SKIPPED = (
    "Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation"
)


class Gadgets:
    def __init__(self, group: str) -> None:
        self.group = group
        self.resource = f"{group}/v1/gadgets"

    def named(self, name: str, spec: Any = None, **more: Any) -> Obj:
        return custom(self.group, "Gadget", name, spec, **more)


@pytest.fixture(scope="module")
async def gadgets(admin: Api) -> Gadgets:
    group = f"{unique('writes')}.example.com"
    schema = {"type": "object", "properties": {"spec": SPEC, "status": STATUS}}
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    await define(admin, definition(group, "gadgets", "Gadget", schema, subresources={"status": {}, "scale": scale}))
    return Gadgets(group)


@pytest.fixture
async def status(api: Api, gadgets: Gadgets) -> str:
    """Path of the status of the test's gadget."""
    await api.create(gadgets.resource, gadgets.named("g", {"size": 1}))
    return api.at(gadgets.resource, "g", "status")


# --- status -----------------------------------------------------------------------------------------------------------


async def test_status_errors_name_the_full_path(api: Api, status: str) -> None:
    rejected = await api.patch(status, {"status": {"count": 9}})
    expected = "Invalid value: 9: count in body should be less than or equal to 5"
    assert rejected.causes == [("FieldValueInvalid", "status.count", expected)]


async def test_a_status_of_another_type_is_rejected_by_every_check(api: Api, status: str) -> None:
    rejected = await api.patch(status, {"status": "abc"})
    replicas = (
        "Invalid value: 0: .status.replicas accessor error: abc is of the type string, expected map[string]interface{}"
    )
    assert rejected.causes == [
        ("FieldValueTypeInvalid", "status", 'Invalid value: "string":  in body must be of type object: "string"'),
        ("FieldValueInvalid", ".status.replicas", replicas),
        ("FieldValueInvalid", "<nil>", SKIPPED),
    ]


async def test_rules_validate_a_status(api: Api, status: str) -> None:
    rejected = await api.patch(status, {"status": {"count": 4}})
    assert rejected.causes == [("FieldValueInvalid", "status", "Invalid value: not four")]


async def test_a_status_update_validates_only_the_status(api: Api, status: str) -> None:
    change = {"spec": {"size": "x"}, "metadata": {"labels": {"not valid": "x"}}, "status": {"count": 3}}
    changed = (await api.patch(status, change)).expect(200)
    assert (changed["spec"]["size"], changed["status"]["count"]) == (1, 3)
    assert "labels" not in changed["metadata"]


# --- ratcheting -------------------------------------------------------------------------------------------------------


async def test_ratcheting_tolerates_old_errors_with_a_warning(api: Api) -> None:
    group = f"{unique('later')}.example.com"
    crd = definition(group, "gadgets", "Gadget", {"type": "object", "properties": {"spec": SPEC, "status": STATUS}})
    crd["spec"]["versions"][0]["subresources"] = {"status": {}}
    created = await define(api, crd)
    resource = f"{group}/v1/gadgets"
    await api.create(resource, custom(group, "Gadget", "g", {"name": "bad"}))
    late = [{"rule": "self != 'bad'", "message": "bad name"}]
    schema = created["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["name"]["x-kubernetes-validations"] = late
    (await api.patch(api.cluster(CRDS, f"gadgets.{group}"), {"spec": created["spec"]})).expect(200)
    probe = custom(group, "Gadget", "probe", {"name": "bad"})
    while (await api.post(f"{api.at(resource)}?dryRun=All", probe)).status != 422:
        pass  # until the server has loaded the rule
    expected = ['299 - "spec.name: Invalid value: \\"bad\\": bad name"']
    main, status = api.at(resource, "g"), api.at(resource, "g", "status")
    changed = await api.patch(main, {"spec": {"size": 2}})
    assert (changed.status, changed.warnings) == (200, expected)
    changed = await api.patch(status, {"status": {"count": 2}})
    assert (changed.status, changed.warnings) == (200, expected)
    rejected = await api.patch(status, {"status": {"count": 4}})
    assert (rejected.status, rejected.warnings) == (422, expected)


# --- metadata -----------------------------------------------------------------------------------------------------


async def test_a_bare_finalizer_is_warned_about_once(api: Api, gadgets: Gadgets) -> None:
    sent = gadgets.named("g")
    sent["metadata"]["finalizers"] = ["bare", "half.example.com", "example.com/whole"]
    created = await api.post(api.at(gadgets.resource), sent)
    expected = "to avoid accidental conflicts with other finalizer writers"
    assert (created.status, created.warnings) == (
        201,
        [
            f'299 - "metadata.finalizers: \\"bare\\": prefer a domain-qualified finalizer name {expected}"',
            '299 - "metadata.finalizers: \\"half.example.com\\": prefer a domain-qualified finalizer name including a '
            f'path (/) {expected}"',
        ],
    )
    assert (await api.patch(api.at(gadgets.resource, "g"), {"spec": {"size": 2}})).warnings == []
    await api.patch(api.at(gadgets.resource, "g"), {"metadata": {"finalizers": None}})


@pytest.mark.parametrize(
    ("resource", "code", "causes"),
    [("configmaps", 422, 2), ("services", 422, 1), ("coordination.k8s.io/v1/leases", 200, 0)],
)
async def test_built_in_kinds_require_qualified_finalizers(api: Api, resource: str, code: int, causes: int) -> None:
    spec: Obj = {"spec": {"ports": [{"port": 1}]}} if resource == "services" else {}
    await api.create(resource, {"metadata": {"name": "a"}} | spec)
    answer = await api.patch(api.at(resource, "a"), {"metadata": {"finalizers": ["bare"]}})
    assert (answer.status, len(answer.causes)) == (code, causes)
    await api.patch(api.at(resource, "a"), {"metadata": {"finalizers": None}})


async def test_an_invalid_label_is_reported_by_every_check(api: Api, gadgets: Gadgets) -> None:
    await api.create(gadgets.resource, gadgets.named("g"))
    rejected = await api.patch(api.at(gadgets.resource, "g"), {"metadata": {"labels": {"not valid": "x"}}})
    assert [field for _, field, _ in rejected.causes] == ["metadata.labels"] * 3


@pytest.mark.parametrize("verb", ["create", "apply"])
async def test_a_null_label_is_empty(api: Api, gadgets: Gadgets, verb: str) -> None:
    sent = gadgets.named("g")
    sent["metadata"] |= {"labels": {"a": None}, "annotations": {}, "finalizers": []}
    where = api.at(gadgets.resource)
    created = await (api.post(where, sent) if verb == "create" else api.apply(f"{where}/g", sent))
    metadata = created.expect(201)["metadata"]
    assert (metadata["labels"], "annotations" in metadata, "finalizers" in metadata) == ({"a": ""}, False, False)
    assert await api.names(f"{where}?labelSelector=a%3D") == ["g"]


# --- nulls and generation ---------------------------------------------------------------------------------------------


async def test_nulls_in_a_create_are_defaulted_or_dropped(api: Api, gadgets: Gadgets) -> None:
    created = await api.create(gadgets.resource, gadgets.named("g", {"maybe": None, "name": None, "plain": None}))
    assert created["spec"] == {"maybe": None, "name": "x"}


async def test_nulls_in_an_apply_are_validated(api: Api, gadgets: Gadgets) -> None:
    url = api.at(gadgets.resource, "g")
    rejected = await api.apply(url, gadgets.named("g", {"plain": None}))
    expected = 'Invalid value: "null": spec.plain in body must be of type string: "null"'
    assert rejected.causes[0] == ("FieldValueTypeInvalid", "spec.plain", expected)
    applied = await api.apply(url, gadgets.named("g", {"maybe": None, "name": None}))
    assert applied.expect(201)["spec"] == {"maybe": None, "name": "x"}


@pytest.mark.parametrize(("subresources", "generation"), [({}, 2), ({"status": {}}, 1)])
async def test_status_without_a_subresource_increments_the_generation(
    api: Api, subresources: Obj, generation: int
) -> None:
    group = f"{unique('moving')}.example.com"
    schema = spec_schema(size={"type": "integer"})
    schema["properties"]["status"] = {"type": "object", "properties": {"phase": {"type": "string"}}}
    await define(api, definition(group, "gadgets", "Gadget", schema, subresources=subresources))
    await api.create(f"{group}/v1/gadgets", custom(group, "Gadget", "g"))
    changed = await api.patch(api.at(f"{group}/v1/gadgets", "g"), {"status": {"phase": "new"}})
    assert changed.expect(200)["metadata"]["generation"] == generation
