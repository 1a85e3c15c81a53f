"""MutatingAdmissionPolicies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conformance.objects import Obj, config_map
from tests.support.api import Api, ApiResponse
from tests.support.engines import unique

POLICIES = "admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
BINDINGS = "admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
MARK = '[JSONPatch{op: "add", path: "/metadata/annotations", value: {"policy": "%s"}}]'


def configured(expression: str) -> Obj:
    return {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}


def patched(expression: str) -> Obj:
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}


class Policies:
    """Creates policies for ConfigMaps of the test's namespace, and deletes them after the test."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.names: list[str] = []

    def spec(self, *mutations: Obj, **spec: Any) -> Obj:
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}
        own = {"matchLabels": {"kubernetes.io/metadata.name": self.api.namespace}}
        return {
            "matchConstraints": {"resourceRules": [rule], "namespaceSelector": own},
            "reinvocationPolicy": "Never",
            "mutations": list(mutations),
        } | spec

    async def add(self, *mutations: Obj, **spec: Any) -> str:
        """Add a policy. A successful one must set an annotation, which shows that it is in force."""
        name = unique("mutating")
        self.names.append(name)
        complete = self.spec(*mutations, **spec)
        await self.api.create_cluster(POLICIES, {"metadata": {"name": name}, "spec": complete})
        await self.api.create_cluster(BINDINGS, {"metadata": {"name": name}, "spec": {"policyName": name}})
        return name

    async def create(self, name: str, **data: str) -> ApiResponse:
        """Create an object once the policy is in force: it is annotated or rejected."""
        while True:
            created = await self.api.post(f"{self.api.at('configmaps')}?dryRun=All", config_map(name, **data))
            if created.status != 201 or "annotations" in created.body["metadata"]:
                return await self.api.post(self.api.at("configmaps"), config_map(name, **data))


@pytest.fixture
async def policies(api: Api) -> AsyncIterator[Policies]:
    created = Policies(api)
    yield created
    for name in created.names:
        await api.delete(api.cluster(BINDINGS, name))
        await api.delete(api.cluster(POLICIES, name))


async def test_a_configuration_is_merged_into_the_object(policies: Policies) -> None:
    expression = 'Object{metadata: Object.metadata{annotations: {"a": "b"}}, data: {"name": object.metadata.name}}'
    await policies.add(configured(expression))
    created = (await policies.create("c", kept="yes")).expect(201)
    assert created["data"] == {"kept": "yes", "name": "c"}
    assert created["metadata"]["annotations"] == {"a": "b"}
    (entry,) = created["metadata"]["managedFields"]
    assert entry["fieldsV1"] == {"f:data": {".": {}, "f:kept": {}}}  # fields set by a policy have no owner


async def test_mutations_see_earlier_mutations(policies: Policies) -> None:
    operations = '[JSONPatch{op: "add", path: "/data/" + jsonpatch.escapeKey("x.y"), value: object.data.one + "2"}]'
    await policies.add(configured('Object{data: {"one": "1"}}'), patched(operations), patched(MARK % "x"))
    assert (await policies.create("c")).expect(201)["data"] == {"one": "1", "x.y": "12"}


async def test_match_conditions_and_variables_apply(policies: Policies) -> None:
    await policies.add(
        configured('Object{metadata: Object.metadata{annotations: {"made": variables.greeting}}}'),
        variables=[{"name": "greeting", "expression": "'hello ' + object.metadata.name"}],
        matchConditions=[{"name": "not-skipped", "expression": "object.metadata.name != 'skipped'"}],
    )
    created = (await policies.create("c")).expect(201)
    assert created["metadata"]["annotations"] == {"made": "hello c"}
    other = await policies.api.create("configmaps", config_map("skipped"))
    assert "annotations" not in other["metadata"]


async def test_a_patch_with_a_failing_test_is_skipped(policies: Policies) -> None:
    operations = '[JSONPatch{op: "test", path: "/data/a", value: "1"}, JSONPatch{op: "remove", path: "/data/a"}]'
    await policies.add(patched(operations), patched(MARK % "x"))
    assert (await policies.create("c", a="2")).expect(201)["data"] == {"a": "2"}
    assert "data" not in (await policies.create("d", a="1")).expect(201)


@pytest.mark.parametrize(
    ("mutation", "expected"),
    [
        (
            configured('Object{data: {"v": object.data.missing}}'),
            "expression 'Object{data: {\"v\": object.data.missing}}' resulted in error: no such key: missing",
        ),
        (
            configured("Object{metadata: Object.spec{}}"),
            'type mismatch: unexpected type name "Object.spec", expected "Object.metadata", which matches field name '
            "path from root Object type",
        ),
        (
            configured('Object{nothing: "x"}'),
            "error applying patch: failed to convert patch object to typed object: .nothing: field not declared in "
            "schema",
        ),
    ],
)
async def test_a_failing_policy_rejects_the_write(policies: Policies, mutation: Obj, expected: str) -> None:
    name = await policies.add(mutation)
    rejected = await policies.create("c", a="b")
    complete = f"policy '{name}' with binding '{name}' denied request: {expected}"
    assert rejected.failure == (403, "Invalid", complete)
    assert rejected.causes == [("", "", complete)]


async def test_a_policy_may_ignore_its_failures(policies: Policies) -> None:
    await policies.add(patched('[JSONPatch{op: "remove", path: "/data/none"}]'), failurePolicy="Ignore")
    await policies.add(patched(MARK % "x"))
    assert (await policies.create("c", a="b")).expect(201)["data"] == {"a": "b"}


@pytest.mark.parametrize(
    ("mutation", "expected"),
    [
        (configured('{"a": "b"}'), "must evaluate to Object but got map(string, string)"),
        (patched("Object{}"), "must evaluate to list(JSONPatch) but got Object"),
        (patched("[JSONPatch{op: 1}]"), "expected type of field 'op' is 'string' but provided type is 'int'"),
        (patched("[Other{op: 1}]"), "undeclared reference to 'Other' (in container '')"),
    ],
)
async def test_policies_that_do_not_compile_are_rejected(
    api: Api, policies: Policies, mutation: Obj, expected: str
) -> None:
    rejected = await api.post(
        api.cluster(POLICIES), {"metadata": {"name": unique("x")}, "spec": policies.spec(mutation)}
    )
    assert (rejected.status, rejected.reason) == (422, "Invalid")
    assert expected in rejected.message
