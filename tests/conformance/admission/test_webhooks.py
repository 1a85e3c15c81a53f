"""Admission webhooks: requests, mutation, denial and failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from tests.conformance.hooks import ADMISSION, HookServer, allow, deny, hooked, patch, received_requests
from tests.conformance.objects import config_map
from tests.support.api import Api
from tests.support.engines import unique

MUTATING, VALIDATING = "mutatingwebhookconfigurations", "validatingwebhookconfigurations"


@pytest.fixture
async def server() -> AsyncIterator[HookServer]:
    server = HookServer()
    await server.start()
    yield server
    await server.stop()


def refuse(request: Any, **status: Any) -> Any:
    """Deny everything but the probe that shows that the webhook is in force."""
    obj = request.get("object") or request.get("oldObject") or {}
    if (obj.get("metadata") or {}).get("name") == "probe":
        return allow(request)
    return deny(request, **status)


async def test_a_validating_webhook_receives_the_request(api: Api, server: HookServer) -> None:
    async with hooked(api, server, VALIDATING, allow):
        created = await api.create("configmaps", config_map("a", x="1"))
        (request,) = received_requests(server)
    assert request["operation"] == "CREATE"
    assert request["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert (request["namespace"], request["name"]) == (api.namespace, "a")
    assert "system:masters" in request["userInfo"]["groups"]
    assert request["object"]["data"] == {"x": "1"}
    assert request["object"]["metadata"]["uid"] == created["metadata"]["uid"]
    assert request["oldObject"] is None
    assert request["dryRun"] is False
    assert request["options"]["kind"] == "CreateOptions"


async def test_updates_and_deletions_carry_the_old_object(api: Api, server: HookServer) -> None:
    await api.create("configmaps", config_map("a", x="1"))
    async with hooked(api, server, VALIDATING, allow):
        await api.patch(api.at("configmaps", "a"), {"data": {"x": "2"}})
        await api.delete(api.at("configmaps", "a"))
        update, delete = received_requests(server)
    assert update["operation"] == "UPDATE"
    assert (update["oldObject"]["data"], update["object"]["data"]) == ({"x": "1"}, {"x": "2"})
    assert delete["operation"] == "DELETE"
    assert delete["object"] is None
    assert delete["oldObject"]["data"] == {"x": "2"}


async def test_a_denial_has_the_webhooks_message(api: Api, server: HookServer) -> None:
    async with hooked(api, server, VALIDATING, lambda request: refuse(request, message="not today")) as path:
        answer = await api.post(api.at("configmaps"), config_map("a"))
    expected = f'admission webhook "{path[1:]}.example.com" denied the request: not today'
    assert answer.failure == (400, "", expected)
    assert (await api.get(api.at("configmaps", "a"))).status == 404


async def test_a_denial_without_message(api: Api, server: HookServer) -> None:
    async with hooked(api, server, VALIDATING, refuse) as path:
        answer = await api.post(api.at("configmaps"), config_map("a"))
    assert answer.message == f'admission webhook "{path[1:]}.example.com" denied the request without explanation'
    assert answer.status == 400


async def test_a_denial_has_the_webhooks_code_and_reason(api: Api, server: HookServer) -> None:
    async with hooked(api, server, VALIDATING, lambda r: refuse(r, message="taken", code=409, reason="Conflict")):
        answer = await api.post(api.at("configmaps"), config_map("a"))
    assert (answer.status, answer.reason) == (409, "Conflict")


async def test_warnings_of_a_webhook_reach_the_client(api: Api, server: HookServer) -> None:
    async with hooked(api, server, VALIDATING, lambda request: allow(request, warnings=["mind the gap"])):
        answer = await api.post(api.at("configmaps"), config_map("a"))
    answer.expect(201)
    assert answer.warnings == ['299 - "mind the gap"']


async def test_a_mutating_webhook_changes_the_object(api: Api, server: HookServer) -> None:
    change = {"op": "add", "path": "/data", "value": {"added": "yes"}}
    async with hooked(api, server, MUTATING, lambda request: patch(request, change)):
        created = await api.create("configmaps", config_map("a"))
    assert created["data"] == {"added": "yes"}
    assert (await api.read(api.at("configmaps", "a")))["data"] == {"added": "yes"}


async def test_mutated_objects_are_validated(api: Api, server: HookServer) -> None:
    change = {"op": "add", "path": "/metadata/labels", "value": {"a b": "c"}}

    def spoil(request: Any) -> Any:
        return allow(request) if request["name"] == "probe" else patch(request, change)

    async with hooked(api, server, MUTATING, spoil):
        answer = await api.post(api.at("configmaps"), config_map("a"))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert 'metadata.labels: Invalid value: "a b"' in answer.message


async def test_an_inapplicable_patch_is_an_error(api: Api, server: HookServer) -> None:
    change = {"op": "remove", "path": "/nothing/here"}

    def spoil(request: Any) -> Any:
        return allow(request) if request["name"] == "probe" else patch(request, change)

    async with hooked(api, server, MUTATING, spoil):
        answer = await api.post(api.at("configmaps"), config_map("a"))
    assert (answer.status, answer.reason) == (500, "InternalError")


async def test_mutating_webhooks_run_before_validating_ones(api: Api, server: HookServer) -> None:
    change = {"op": "add", "path": "/data", "value": {"added": "yes"}}
    async with (
        hooked(api, server, MUTATING, lambda request: patch(request, change)) as first,
        hooked(api, server, VALIDATING, allow) as second,
    ):
        await api.create("configmaps", config_map("a"))
        seen = [(request["path"], request["object"].get("data")) for request in received_requests(server)]
    assert seen == [(first, None), (second, {"added": "yes"})]


async def test_a_mutating_webhook_is_reinvoked_if_needed(api: Api, server: HookServer) -> None:
    def add(key: str) -> Any:
        def respond(request: Any) -> Any:
            data = dict(request["object"].get("data") or {})
            if key in data:
                return allow(request)
            return patch(request, {"op": "add", "path": "/data", "value": data | {key: "1"}})

        return respond

    async with (
        hooked(api, server, MUTATING, add("one"), reinvocationPolicy="IfNeeded") as first,
        hooked(api, server, MUTATING, add("two")) as second,
    ):
        created = await api.create("configmaps", config_map("a"))
        seen = [request["path"] for request in received_requests(server)]
    assert created["data"] == {"one": "1", "two": "1"}
    if sorted([first, second]) == [first, second]:  # called in the order of their names
        assert seen == [first, second, first]
    else:
        assert seen == [second, first]


async def test_a_failing_webhook_rejects_unless_its_policy_is_ignore(api: Api, server: HookServer) -> None:
    def fail(request: Any) -> Any:
        return allow(request) if request["name"] == "probe" else web.Response(status=503, text="out of order")

    async with hooked(api, server, VALIDATING, fail) as path:
        answer = await api.post(api.at("configmaps"), config_map("a"))
        assert (answer.status, answer.reason) == (500, "InternalError")
        assert f'failed calling webhook "{path[1:]}.example.com"' in answer.message
    async with hooked(api, server, VALIDATING, fail, failurePolicy="Ignore"):
        await api.create("configmaps", config_map("a"))


async def test_an_unreachable_webhook_rejects(api: Api, server: HookServer) -> None:
    config = {"url": "https://127.0.0.1:9/nowhere", "caBundle": server.ca_bundle}
    name = unique("hook")
    hook = {
        "name": f"{name}.example.com",
        "clientConfig": config,
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": api.namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    await api.create_cluster(f"{ADMISSION}/{VALIDATING}", {"metadata": {"name": name}, "webhooks": [hook]})
    try:
        async with asyncio.timeout(30):
            while (answer := await api.post(api.at("configmaps") + "?dryRun=All", config_map("a"))).status == 201:
                pass
        assert (answer.status, answer.reason) == (500, "InternalError")
        assert answer.message.startswith(
            f'Internal error occurred: failed calling webhook "{name}.example.com": failed to call webhook: '
        )
    finally:
        await api.delete(api.cluster(f"{ADMISSION}/{VALIDATING}", name))


async def test_a_webhook_timeout_is_a_failure(api: Api, server: HookServer) -> None:
    async with hooked(api, server, VALIDATING, allow, timeoutSeconds=1):
        server.delay = 5
        answer = await api.post(api.at("configmaps"), config_map("a"))
    assert (answer.status, answer.reason) == (500, "InternalError")
    assert "failed calling webhook" in answer.message


async def test_webhooks_receive_dry_run(api: Api, server: HookServer) -> None:
    async with hooked(api, server, VALIDATING, allow):
        await api.post(api.at("configmaps") + "?dryRun=All", config_map("a"))
        (request,) = received_requests(server)
    assert request["dryRun"] is True


async def test_webhooks_with_side_effects_reject_dry_runs(api: Api, server: HookServer) -> None:
    name = unique("hook")
    hook = {
        "name": f"{name}.example.com",
        "clientConfig": server.client_config("/x"),
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "sideEffects": "Some",
        "admissionReviewVersions": ["v1"],
    }
    answer = await api.post(api.cluster(f"{ADMISSION}/{VALIDATING}"), {"metadata": {"name": name}, "webhooks": [hook]})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert 'webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"' in (
        answer.message
    )


async def test_match_conditions_select_requests(api: Api, server: HookServer) -> None:
    conditions = [{"name": "named", "expression": "object.metadata.name in ['wanted', 'probe']"}]
    async with hooked(api, server, VALIDATING, refuse, matchConditions=conditions):
        await api.create("configmaps", config_map("other"))
        assert (await api.post(api.at("configmaps"), config_map("wanted"))).status == 400


async def test_object_selectors_select_objects(api: Api, server: HookServer) -> None:
    selector = {"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]}
    async with hooked(api, server, VALIDATING, refuse, objectSelector=selector):
        skipped = config_map("a")
        skipped["metadata"]["labels"] = {"skip": "yes"}
        await api.create("configmaps", skipped)
        assert (await api.post(api.at("configmaps"), config_map("b"))).status == 400


async def test_namespace_selectors_select_objects(api: Api, server: HookServer) -> None:
    other = await api.in_new_namespace()
    async with hooked(api, server, VALIDATING, refuse):
        await other.create("configmaps", config_map("a"))
        assert (await api.post(api.at("configmaps"), config_map("a"))).status == 400


async def test_an_invalid_webhook_response_is_a_failure(api: Api, server: HookServer) -> None:
    def nonsense(request: Any) -> Any:
        return allow(request) if request["name"] == "probe" else web.Response(text="hello")

    async with hooked(api, server, VALIDATING, nonsense):
        answer = await api.post(api.at("configmaps"), config_map("a"))
    assert (answer.status, answer.reason) == (500, "InternalError")
    assert "failed calling webhook" in answer.message


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"name": "plain"}, 'webhooks[0].name: Invalid value: "plain": should be a domain with at least three'),
        ({"clientConfig": {}}, "webhooks[0].clientConfig: Required value: exactly one of url or service is required"),
        (
            {"clientConfig": {"url": "http://x"}},
            "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme",
        ),
        ({"sideEffects": None}, "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun"),
        ({"admissionReviewVersions": []}, "webhooks[0].admissionReviewVersions: Required value: must specify one of"),
        ({"failurePolicy": "Maybe"}, 'webhooks[0].failurePolicy: Unsupported value: "Maybe"'),
        ({"timeoutSeconds": 31}, "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between"),
        (
            {"rules": [{"operations": [], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
            "webhooks[0].rules[0].operations: Required value",
        ),
        (
            {"matchConditions": [{"name": "x", "expression": "nonsense(1)"}]},
            'webhooks[0].matchConditions[0].expression: Invalid value: "nonsense(1)": compilation failed: ERROR: '
            "<input>:1:9: undeclared reference to 'nonsense' (in container '')",
        ),
        (
            {"matchConditions": [{"name": "x", "expression": "object"}]},
            'webhooks[0].matchConditions[0].expression: Invalid value: "object": must evaluate to bool but got dyn',
        ),
    ],
)  # fmt: skip
async def test_webhook_configurations_are_validated(api: Api, change: Any, cause: str) -> None:
    hook = {
        "name": "a.example.com",
        "clientConfig": {"url": "https://127.0.0.1/x"},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["nothings"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    } | change
    body = {"metadata": {"name": unique("hook")}, "webhooks": [hook]}
    answer = await api.post(api.cluster(f"{ADMISSION}/{VALIDATING}") + "?dryRun=All", body)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert cause in answer.message


async def test_defaults_of_webhook_configurations(api: Api) -> None:
    hook = {
        "name": "a.example.com",
        "clientConfig": {"service": {"namespace": "x", "name": "y"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    body = {"metadata": {"name": unique("hook")}, "webhooks": [hook]}
    created = (await api.post(api.cluster(f"{ADMISSION}/{MUTATING}") + "?dryRun=All", body)).expect(201)["webhooks"][0]
    assert created["failurePolicy"] == "Fail"
    assert created["matchPolicy"] == "Equivalent"
    assert created["timeoutSeconds"] == 10
    assert created["reinvocationPolicy"] == "Never"
    assert created["clientConfig"]["service"]["port"] == 443


async def test_a_policy_rejects_by_expression(api: Api) -> None:
    name = unique("policy")
    selector = {"matchLabels": {"kubernetes.io/metadata.name": api.namespace}}
    rules = [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]
    policy = {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": rules},
            "validations": [{"expression": "object.metadata.name != 'bad'", "message": "no bad names"}],
        },
    }
    bound = {
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": selector},
        },
    }
    await api.create_cluster(f"{ADMISSION}/validatingadmissionpolicies", policy)
    await api.create_cluster(f"{ADMISSION}/validatingadmissionpolicybindings", bound)
    try:
        async with asyncio.timeout(30):
            while (answer := await api.post(api.at("configmaps") + "?dryRun=All", config_map("bad"))).status == 201:
                pass
        assert answer.failure == (
            422,
            "Invalid",
            f"configmaps \"bad\" is forbidden: ValidatingAdmissionPolicy '{name}' with binding '{name}' denied "
            "request: no bad names",
        )
        await api.create("configmaps", config_map("good"))
    finally:
        await api.delete(api.cluster(f"{ADMISSION}/validatingadmissionpolicybindings", name))
        await api.delete(api.cluster(f"{ADMISSION}/validatingadmissionpolicies", name))


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({"validations": [{"expression": ""}]}, "spec.validations[0].expression: Required value"),
        (
            {"validations": [{"expression": "nonsense"}]},
            "undeclared reference to 'nonsense'",
        ),
        ({"validations": [{"expression": "1"}]}, "spec.validations[0].expression: Invalid value"),
        ({"variables": [{"name": "x", "expression": "y"}]}, "spec.variables[0].expression: Invalid value"),
        ({"matchConditions": [{"name": "x", "expression": "("}]}, "spec.matchConditions[0].expression: Invalid value"),
    ],
)
async def test_policies_are_validated(api: Api, spec: Any, cause: str) -> None:
    rules = [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["nothings"]}]
    good = {"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": "true"}]}
    body = {"metadata": {"name": unique("policy")}, "spec": good | spec}
    answer = await api.post(api.cluster(f"{ADMISSION}/validatingadmissionpolicies") + "?dryRun=All", body)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert cause in answer.message
