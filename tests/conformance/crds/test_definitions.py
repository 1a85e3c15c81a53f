"""CustomResourceDefinitions: names, conditions, updates, versions and deletion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conformance.hooks import HookServer, converted
from tests.conformance.objects import CRDS, Obj, condition, custom, define, definition, spec_schema
from tests.support.api import JSON_PATCH, Api
from tests.support.engines import unique

ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def new_group() -> str:
    return f"{unique('defs')}.example.com"


async def test_a_definition_becomes_established(api: Api) -> None:
    group = new_group()
    created = await define(api, definition(group, "rings", "Ring", ANY))
    assert condition(created, "NamesAccepted") == "True"
    reasons = {c["type"]: (c["reason"], c["message"]) for c in created["status"]["conditions"]}
    assert reasons["NamesAccepted"] == ("NoConflicts", "no conflicts found")
    assert reasons["Established"] == ("InitialNamesAccepted", "the initial names have been accepted")
    assert created["status"]["acceptedNames"] == {
        "plural": "rings",
        "singular": "ring",
        "kind": "Ring",
        "listKind": "RingList",
    }
    assert created["status"]["storedVersions"] == ["v1"]
    assert created["spec"]["conversion"] == {"strategy": "None"}
    assert await api.names(api.at(f"{group}/v1/rings")) == []


async def test_names_are_defaulted(api: Api) -> None:
    group = new_group()
    crd = definition(group, "rings", "Ring", ANY)
    crd["spec"]["names"] = {"plural": "rings", "kind": "Ring"}
    created = await define(api, crd)
    assert created["spec"]["names"] == {"plural": "rings", "singular": "ring", "kind": "Ring", "listKind": "RingList"}


async def test_the_name_of_a_crd_must_be_plural_and_group(api: Api) -> None:
    group = new_group()
    crd = definition(group, "rings", "Ring", ANY)
    crd["metadata"]["name"] = f"others.{group}"
    answer = await api.post(api.cluster(CRDS), crd)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert f'metadata.name: Invalid value: "others.{group}": must be spec.names.plural+"."+spec.group' in answer.message


def without(path: str) -> Any:
    def change(crd: Obj) -> None:
        *steps, last = path.split(".")
        part: Any = crd
        for step in steps:
            part = part[int(step)] if step.isdigit() else part[step]
        part.pop(last)

    return change


def schema_with(**schema: Any) -> Any:
    def change(crd: Obj) -> None:
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = {"type": "object", "properties": {"spec": schema}}

    return change


def set_at(path: str, value: Any) -> Any:
    def change(crd: Obj) -> None:
        *steps, last = path.split(".")
        part: Any = crd["spec"]
        for step in steps:
            part = part[int(step)] if step.isdigit() else part[step]
        part[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (without("spec.names.kind"), "spec.names.kind: Required value"),
        (
            set_at("scope", "Galaxy"),
            'spec.scope: Unsupported value: "Galaxy": supported values: "Cluster", "Namespaced',
        ),
        (set_at("group", "nodots"), 'spec.group: Invalid value: "nodots": should be a domain with at least one dot'),
        (set_at("versions.0.storage", False), "spec.versions: Invalid value: "),
        (set_at("names.plural", "Rings"), 'spec.names.plural: Invalid value: "Rings": '),
        (set_at("names.shortNames", ["UP"]), 'spec.names.shortNames[0]: Invalid value: "UP": '),
        (set_at("versions.0.name", "V1"), 'spec.versions[0].name: Invalid value: "V1": '),
        (without("spec.versions.0.schema"), "spec.versions[0].schema.openAPIV3Schema: Required value"),
        (
            set_at("preserveUnknownFields", True),
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set "
            "x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ),
        (schema_with(), "[spec].type: Required value: must not be empty for specified object fields"),
        (schema_with(type="object", properties={"a": {}}), "[spec].properties[a].type: Required value"),
        (schema_with(type="array"), "[spec].items: Required value: must be specified"),
        (schema_with(type="thing"), '[spec].type: Unsupported value: "thing"'),
        (
            schema_with(type="object", properties={"a": ANY}, additionalProperties={"type": "string"}),
            "[spec].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (schema_with(type="integer", default="x"), '[spec].default: Invalid value: "string": '),
        (
            schema_with(type="string", pattern="["),
            '[spec].pattern: Invalid value: "[": must be a valid regular expression',
        ),
        (
            schema_with(type="array", items={"type": "object"}, **{"x-kubernetes-list-type": "map"}),
            "[spec].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
        ),
        (
            schema_with(type="array", items={"type": "string"}, **{"x-kubernetes-list-type": "bag"}),
            '[spec].x-kubernetes-list-type: Unsupported value: "bag"',
        ),
        (
            schema_with(type="string", uniqueItems=True),
            "[spec].uniqueItems: Forbidden: uniqueItems cannot be set to true",
        ),
        (schema_with(type="object", **{"$ref": "#/x"}), "[spec].$ref: Forbidden: $ref is not supported"),
        (
            set_at("versions.0.additionalPrinterColumns", [{"name": "A", "type": "thing", "jsonPath": ".a"}]),
            'additionalPrinterColumns[0].type: Invalid value: "thing"',
        ),
        (
            set_at("versions.0.additionalPrinterColumns", [{"name": "A", "type": "string", "jsonPath": "a["}]),
            'additionalPrinterColumns[0].JSONPath: Invalid value: "a[": must be a simple json path starting with .',
        ),
        (
            set_at(
                "versions.0.subresources",
                {"scale": {"specReplicasPath": ".metadata.x", "statusReplicasPath": ".status.y"}},
            ),
            'scale.specReplicasPath: Invalid value: ".metadata.x": should be a json path under .spec',
        ),
        (
            set_at("versions.0.selectableFields", [{"jsonPath": ".spec.nothing"}]),
            'selectableFields[0].jsonPath: Invalid value: ".spec.nothing": is an invalid path',
        ),
        (set_at("conversion", {"strategy": "Magic"}), 'spec.conversion.strategy: Unsupported value: "Magic"'),
        (
            set_at("conversion", {"strategy": "Webhook"}),
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
        ),
    ],
)
async def test_invalid_crds_are_rejected(api: Api, change: Any, cause: str) -> None:
    crd = definition(new_group(), "rings", "Ring", spec_schema(a={"type": "string"}))
    change(crd)
    answer = await api.post(api.cluster(CRDS) + "?dryRun=All", crd)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert cause in answer.message


async def test_a_crd_with_conflicting_names_is_not_accepted(api: Api) -> None:
    group = new_group()
    await define(api, definition(group, "rings", "Ring", ANY))
    second = definition(group, "bands", "Ring", ANY)
    second["spec"]["names"] |= {"singular": "band", "listKind": "BandList"}
    await api.create_cluster(CRDS, second)
    url = api.cluster(CRDS, f"bands.{group}")
    found = await api.until_object(url, lambda crd: condition(crd, "NamesAccepted") == "False")
    reasons = {c["type"]: (c["status"], c["reason"], c["message"]) for c in found["status"]["conditions"]}
    assert reasons["NamesAccepted"] == ("False", "KindConflict", '"Ring" is already in use')
    assert reasons["Established"] == ("False", "NotAccepted", "not all names are accepted")
    assert (await api.get(api.at(f"{group}/v1/bands"))).status == 404
    await api.delete(api.cluster(CRDS, f"rings.{group}"))
    await api.until_object(url, lambda crd: condition(crd, "Established") == "True")


async def test_protected_groups_need_an_approval(api: Api) -> None:
    group = f"{unique('x')}.k8s.io"
    answer = await api.post(api.cluster(CRDS), definition(group, "rings", "Ring", ANY))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval" in (
        answer.message
    )


async def test_group_scope_and_kind_cannot_be_changed(api: Api) -> None:
    group = new_group()
    created = await define(api, definition(group, "rings", "Ring", ANY))
    created["spec"]["scope"] = "Cluster"
    answer = await api.put(api.cluster(CRDS, f"rings.{group}"), created)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert 'spec.scope: Invalid value: "Cluster": field is immutable' in answer.message


async def test_a_schema_changes_while_running(api: Api) -> None:
    group = new_group()
    await define(api, definition(group, "rings", "Ring", spec_schema(size={"type": "integer"})))
    resource = f"{group}/v1/rings"
    await api.create(resource, custom(group, "Ring", "a", {"size": 1, "color": "red"}))
    assert (await api.read(api.at(resource, "a")))["spec"] == {"size": 1}
    schema = spec_schema(size={"type": "integer"}, color={"type": "string", "default": "blue"})
    patch = [{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema", "value": schema}]
    (await api.patch(api.cluster(CRDS, f"rings.{group}"), patch, JSON_PATCH)).expect(200)
    found = await api.until(api.at(resource, "a"), lambda answer: "color" in answer.body["spec"])
    assert found.body["spec"] == {"size": 1, "color": "blue"}  # defaults apply to reads, too


async def test_a_version_is_added_while_running(api: Api) -> None:
    group = new_group()
    crd = definition(group, "rings", "Ring", ANY)
    await define(api, crd)
    await api.create(f"{group}/v1/rings", custom(group, "Ring", "a", {"x": 1}))
    version = crd["spec"]["versions"][0] | {"name": "v2", "storage": False}
    patch = [{"op": "add", "path": "/spec/versions/-", "value": version}]
    (await api.patch(api.cluster(CRDS, f"rings.{group}"), patch, JSON_PATCH)).expect(200)
    await api.until(api.at(f"{group}/v2/rings", "a"), lambda answer: answer.status == 200)
    found = await api.read(api.at(f"{group}/v2/rings", "a"))
    assert (found["apiVersion"], found["spec"]) == (f"{group}/v2", {"x": 1})
    document = await api.until(f"/apis/{group}", lambda answer: "v2" in answer.text)
    assert [version["version"] for version in document.body["versions"]] == ["v2", "v1"]


async def test_an_unserved_version_is_not_found(api: Api) -> None:
    group = new_group()
    crd = definition(group, "rings", "Ring", ANY)
    crd["spec"]["versions"].append(crd["spec"]["versions"][0] | {"name": "v2", "storage": False, "served": False})
    await define(api, crd)
    assert (await api.get(api.at(f"{group}/v2/rings"))).status == 404


async def test_a_deprecated_version_warns(api: Api) -> None:
    group = new_group()
    await define(api, definition(group, "rings", "Ring", ANY, deprecated=True))
    await define(api, definition(group, "bands", "Band", ANY, deprecated=True, deprecationWarning="use rings"))
    answer = await api.get(api.at(f"{group}/v1/rings"))
    assert answer.warnings == [f'299 - "{group}/v1 Ring is deprecated"']
    assert (await api.get(api.at(f"{group}/v1/bands"))).warnings == ['299 - "use rings"']


async def test_stored_versions_are_remembered(api: Api) -> None:
    group = new_group()
    crd = definition(group, "rings", "Ring", ANY)
    crd["spec"]["versions"].append(crd["spec"]["versions"][0] | {"name": "v2", "storage": False})
    await define(api, crd)
    url = api.cluster(CRDS, f"rings.{group}")
    patch = [
        {"op": "replace", "path": "/spec/versions/0/storage", "value": False},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": True},
    ]
    changed = (await api.patch(url, patch, JSON_PATCH)).expect(200)
    assert changed["status"]["storedVersions"] == ["v1", "v2"]
    removed = await api.patch(url, [{"op": "remove", "path": "/spec/versions/0"}], JSON_PATCH)
    assert (removed.status, removed.reason) == (422, "Invalid")
    assert 'status.storedVersions[0]: Invalid value: "v1": missing from spec.versions' in removed.message
    status = [{"op": "replace", "path": "/status/storedVersions", "value": ["v2"]}]
    (await api.patch(url + "/status", status, JSON_PATCH)).expect(200)
    (await api.patch(url, [{"op": "remove", "path": "/spec/versions/0"}], JSON_PATCH)).expect(200)


async def test_deleting_a_crd_deletes_its_objects(api: Api) -> None:
    group = new_group()
    await define(api, definition(group, "rings", "Ring", ANY))
    resource = f"{group}/v1/rings"
    held = custom(group, "Ring", "held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create(resource, held)
    await api.create(resource, custom(group, "Ring", "free"))
    url = api.cluster(CRDS, f"rings.{group}")
    (await api.delete(url)).expect(200)
    await api.until(api.at(resource, "free"), lambda answer: answer.status == 404)
    deleting = await api.read(url)
    assert condition(deleting, "Terminating") == "True"
    assert deleting["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    late = await api.post(api.at(resource), custom(group, "Ring", "late"))
    assert (late.status, late.reason) == (403, "Forbidden")
    assert "create not allowed while custom resource definition is terminating" in late.message
    await api.patch(api.at(resource, "held"), {"metadata": {"finalizers": None}})
    await api.until_gone(url)
    await api.until(api.at(resource), lambda answer: answer.status == 404)


async def test_a_cluster_scoped_kind(api: Api) -> None:
    group = new_group()
    await define(api, definition(group, "rings", "Ring", ANY, scope="Cluster"))
    created = await api.create_cluster(f"{group}/v1/rings", custom(group, "Ring", "a"))
    assert "namespace" not in created["metadata"]
    assert (await api.get(api.at(f"{group}/v1/rings"))).status == 404
    await api.delete(api.cluster(CRDS, f"rings.{group}"))


async def test_a_kind_without_status_subresource_has_status_like_any_field(api: Api) -> None:
    group = new_group()
    await define(api, definition(group, "rings", "Ring", ANY))
    created = await api.create(f"{group}/v1/rings", custom(group, "Ring", "a", status={"x": 1}))
    assert created["status"] == {"x": 1}
    assert (await api.get(api.at(f"{group}/v1/rings", "a", "status"))).status == 404


async def test_columns_of_definitions_in_a_table(api: Api) -> None:
    group = new_group()
    await define(api, definition(group, "rings", "Ring", ANY))
    table = await api.get(api.cluster(CRDS, f"rings.{group}"), accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert [column["name"] for column in table.expect(200)["columnDefinitions"]] == ["Name", "Created At"]


# --- versions -------------------------------------------------------------------------------------------------------


def two_versions(group: str, **conversion: Any) -> Obj:
    crd = definition(group, "rings", "Ring", spec_schema(size={"type": "integer"}))
    crd["spec"]["versions"].append(
        {
            "name": "v2",
            "served": True,
            "storage": False,
            "schema": {"openAPIV3Schema": spec_schema(width={"type": "integer"})},
        }
    )
    if conversion:
        crd["spec"]["conversion"] = conversion
    return crd


def swap(obj: Obj, wanted: str) -> Obj:
    """Convert: `size` in v1 is `width` in v2."""
    old, new = ("size", "width") if wanted.endswith("/v2") else ("width", "size")
    spec = dict(obj.get("spec") or {})
    if old in spec:
        spec[new] = spec.pop(old)
    return obj | {"apiVersion": wanted, "spec": spec}


@pytest.fixture
async def server() -> AsyncIterator[HookServer]:
    server = HookServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def group(api: Api, server: HookServer) -> AsyncIterator[str]:
    """The API group of rings that the server converts."""
    group = new_group()
    server.answers["/convert"] = converted(swap)
    webhook = {"clientConfig": server.client_config("/convert"), "conversionReviewVersions": ["v1"]}
    await define(api, two_versions(group, strategy="Webhook", webhook=webhook))
    yield group
    # A kind that can no longer be read keeps the namespace controller from deleting any namespace.
    without = {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
    (await api.patch(api.cluster(CRDS, f"rings.{group}"), without)).expect(200)


async def test_webhook_conversion_in_every_verb(api: Api, group: str) -> None:
    one, two = f"{group}/v1/rings", f"{group}/v2/rings"
    created = await api.create(two, custom(group, "Ring", "a", {"width": 5}, version="v2"))
    assert created["spec"] == {"width": 5}
    assert (await api.read(api.at(one, "a")))["spec"] == {"size": 5}
    assert [item["spec"] for item in (await api.read(api.at(two)))["items"]] == [{"width": 5}]
    changed = (await api.patch(api.at(two, "a"), {"spec": {"width": 6}})).expect(200)
    assert (changed["apiVersion"], changed["spec"]) == (f"{group}/v2", {"width": 6})
    async with api.watch(api.at(two)) as events:
        event = await events.next()
        assert event["object"]["spec"] == {"width": 6}
        await api.patch(api.at(one, "a"), {"spec": {"size": 7}})
        assert (await events.next())["object"]["spec"] == {"width": 7}
    applied = await api.apply(api.at(two, "a"), custom(group, "Ring", "a", {"width": 7}, version="v2"))
    assert applied.expect(200)["spec"] == {"width": 7}


async def test_a_failed_conversion_is_reported(api: Api, server: HookServer, group: str) -> None:
    await api.create(f"{group}/v1/rings", custom(group, "Ring", "a", {"size": 5}))

    def fail(request: Obj) -> Any:
        from aiohttp import web

        return web.Response(status=500, text="broken")

    server.answers["/convert"] = fail
    answer = await api.get(api.at(f"{group}/v2/rings", "a"))
    assert answer.status == 500
    assert f"conversion webhook for {group}/v1, Kind=Ring failed" in answer.message


async def test_a_conversion_may_not_change_metadata(api: Api, server: HookServer, group: str) -> None:
    await api.create(f"{group}/v1/rings", custom(group, "Ring", "a", {"size": 5}))

    def rename(obj: Obj, wanted: str) -> Obj:
        return swap(obj, wanted) | {"metadata": obj["metadata"] | {"name": "other"}}

    server.answers["/convert"] = converted(rename)
    answer = await api.get(api.at(f"{group}/v2/rings", "a"))
    assert answer.status == 500
    assert "must have the same name: a != other" in answer.message


async def test_without_conversion_only_the_version_changes(api: Api) -> None:
    group = new_group()
    await define(api, two_versions(group))
    await api.create(f"{group}/v1/rings", custom(group, "Ring", "a", {"size": 5}))
    found = await api.read(api.at(f"{group}/v2/rings", "a"))
    assert found["apiVersion"] == f"{group}/v2"
    assert found.get("spec") == {}  # size is not in the schema of v2


async def test_many_definitions_at_once(api: Api) -> None:
    group = new_group()
    await asyncio.gather(*(define(api, definition(group, f"r{n}s", f"R{n}", ANY)) for n in range(4)))
    await asyncio.gather(*(api.create(f"{group}/v1/r{n}s", custom(group, f"R{n}", "a")) for n in range(4)))
