from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from herder.engine.apiserver.admission.chain import CREATE, DELETE, UPDATE, Attributes
from herder.engine.apiserver.admission.default import Admission
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.meta.errors import BadRequest, InternalError, StatusError
from herder.engine.meta.kinds import GroupResource, GroupVersionKind, Object
from herder.engine.wire import User
from tests.unit.engine.apiserver.admission.hook_server import HookServer, allow, deny, patch
from tests.unit.engine.apiserver.auth.world import ADMIN, ALICE, World
from tests.unit.engine.apiserver.resources import resource

GROUP = "admissionregistration.k8s.io"
EVERYTHING = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
CONFIG_MAPS = {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"],
               "resources": ["configmaps"]}  # fmt: skip


class Site(World):
    """A store with the default admission chain, and a webhook server."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks = HookServer()
        self.admission = Admission(
            self.store, self.authorizer, Registry(), clock=lambda: self.now, entropy=self.random.randbytes
        )

    async def configure(
        self, kind: str, *webhooks: Object, name: str = "config", path: str = "/", default: Object | None = None
    ) -> None:
        complete = [
            {
                "name": "hook.example.com",
                "clientConfig": self.hooks.client_config(path),
                "rules": [CONFIG_MAPS],
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "timeoutSeconds": 5,
            }
            | (default or {})
            | webhook
            for webhook in webhooks or ({},)
        ]
        await self.put(f"{kind}webhookconfigurations", name, group=GROUP, webhooks=complete)

    async def write(self, obj: Object | None = None, **more: Any) -> Attributes:
        facts: dict[str, Any] = {
            "operation": CREATE, "resource": resource("configmaps", kind="ConfigMap"), "version": "v1", "user": ALICE,
            "name": "x", "namespace": "ci",
        }  # fmt: skip
        attributes = Attributes(**(facts | more), obj=config_map() if obj is None else obj)
        await self.admission.chain.admit(attributes)
        await self.admission.chain.validate(attributes)
        return attributes


def config_map(**body: Any) -> Object:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "x", "namespace": "ci"}} | body


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    created = Site()
    await created.hooks.start()
    await created.put("namespaces", "ci", status={"phase": "Active"}, metadata={"labels": {"team": "ci"}})
    yield created
    await created.admission.close()
    await created.hooks.stop()
    await created.close()


async def test_a_validating_webhook_is_shown_the_whole_request(site: Site) -> None:
    site.hooks.answers["/"] = allow
    await site.configure("validating")
    await site.write()
    [seen] = site.hooks.requests
    assert seen.pop("uid")
    assert seen == {
        "path": "/",
        "query": "timeout=5s",
        "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "resource": {"group": "", "version": "v1", "resource": "configmaps"},
        "requestKind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "requestResource": {"group": "", "version": "v1", "resource": "configmaps"},
        "name": "x",
        "namespace": "ci",
        "operation": "CREATE",
        "userInfo": {"username": "alice", "uid": "alice-uid", "groups": ["dev", "system:authenticated"]},
        "object": config_map(),
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }


@pytest.mark.parametrize(
    ("status", "code", "reason", "expected"),
    [
        ({"message": "no way", "code": 403, "reason": "Forbidden"}, 403, "Forbidden", ": no way"),
        ({"message": "no way"}, 400, "", ": no way"),
        ({"reason": "Invalid", "code": 422}, 422, "Invalid", ": Invalid"),
        ({}, 400, "", " without explanation"),
        ({"message": "fine", "code": 200}, 400, "", ": fine"),
    ],
)
async def test_a_denial_carries_the_webhook_s_own_words(
    site: Site, status: Object, code: int, reason: str, expected: str
) -> None:
    site.hooks.answers["/"] = lambda request: deny(request, **status)
    await site.configure("validating", {"failurePolicy": "Ignore"})
    with pytest.raises(StatusError) as refusal:
        await site.write()
    assert refusal.value.message == f'admission webhook "hook.example.com" denied the request{expected}'
    assert (refusal.value.code, refusal.value.reason) == (code, reason)


async def test_warnings_reach_the_caller(site: Site) -> None:
    site.hooks.answers["/"] = lambda request: allow(request, warnings=["careful"])
    await site.configure("validating")
    assert (await site.write()).warnings == ["careful"]


async def test_a_mutating_webhook_changes_the_object_before_validation(site: Site) -> None:
    site.hooks.answers["/change"] = lambda request: patch(request, {"op": "add", "path": "/data", "value": {"a": "1"}})
    site.hooks.answers["/judge"] = allow
    await site.configure("mutating", path="/change")
    await site.configure("validating", path="/judge")
    attributes = await site.write()
    assert attributes.obj == config_map(data={"a": "1"})
    assert site.hooks.requests[-1]["object"]["data"] == {"a": "1"}


async def test_mutating_webhooks_see_what_those_before_them_changed(site: Site) -> None:
    site.hooks.answers["/a"] = lambda request: patch(request, {"op": "add", "path": "/data", "value": {"a": "1"}})
    site.hooks.answers["/b"] = lambda request: patch(request, {"op": "add", "path": "/data/b", "value": "2"})
    await site.configure("mutating", name="b", path="/b")
    await site.configure("mutating", name="a", path="/a")
    attributes = await site.write()
    assert attributes.obj == config_map(data={"a": "1", "b": "2"})
    assert [request["path"] for request in site.hooks.requests] == ["/a", "/b"]


async def test_webhooks_are_reinvoked_after_later_changes(site: Site) -> None:
    site.hooks.answers["/a"] = allow
    site.hooks.answers["/b"] = lambda request: patch(request, {"op": "add", "path": "/data", "value": {"b": "1"}})
    await site.configure(
        "mutating",
        {"name": "again", "clientConfig": site.hooks.client_config("/a"), "reinvocationPolicy": "IfNeeded"},
        {"name": "once", "clientConfig": site.hooks.client_config("/b")},
    )
    await site.write()
    assert [request["path"] for request in site.hooks.requests] == ["/a", "/b", "/a"]


async def test_webhooks_are_not_reinvoked_without_changes(site: Site) -> None:
    site.hooks.answers["/"] = allow
    await site.configure("mutating", {"name": "a", "reinvocationPolicy": "IfNeeded"}, {"name": "b"})
    await site.write()
    assert len(site.hooks.requests) == 2


def answering(body: bytes, status: int = 200) -> Any:
    return lambda request: web.Response(body=body, status=status)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda r: allow(r) | {"uid": "other"}, 'received invalid webhook response: expected response.uid="'),
        (lambda r: None, "received invalid webhook response: webhook response was absent"),
        (answering(b"{"), "received invalid webhook response: "),
        (answering(b"[]"), "received invalid webhook response: "),
        (
            answering(b'{"kind":"X","apiVersion":"y/v1"}'),
            "received invalid webhook response: expected webhook response of admission.k8s.io/v1, "
            "Kind=AdmissionReview, got y/v1, Kind=X",
        ),
        (answering(b"oops", 500), 'failed to call webhook: an error on the server ("oops") has prevented the request'),
        (answering(b"", 302), "failed to call webhook: the server rejected our request for an unknown reason"),
        (answering(b"", 404), "failed to call webhook: the server could not find the requested resource"),
        (
            lambda r: allow(r, patch="bm8="),
            "received invalid webhook response: webhook returned response.patch but not response.patchType",
        ),
        (lambda r: allow(r, patch="bm8=", patchType="JSONPatch"), "received invalid webhook response: "),
    ],
)
async def test_an_invalid_response_fails_closed_unless_ignored(site: Site, answer: Any, expected: str) -> None:
    site.hooks.answers["/"] = answer
    await site.configure("mutating")
    with pytest.raises(InternalError) as refusal:
        await site.write()
    assert refusal.value.message.startswith(
        f'Internal error occurred: failed calling webhook "hook.example.com": {expected}'
    )
    await site.configure("mutating", {"failurePolicy": "Ignore"})
    assert (await site.write()).obj == config_map()


async def test_a_webhook_that_cannot_be_reached_fails_closed(site: Site) -> None:
    await site.configure("validating")
    await site.hooks.stop()
    with pytest.raises(InternalError, match="failed to call webhook: Post"):
        await site.write()


async def test_a_webhook_with_an_untrusted_certificate_is_rejected(site: Site) -> None:
    site.hooks.answers["/"] = allow
    config = site.hooks.client_config() | {"caBundle": HookServer().ca_bundle}
    await site.configure("validating", {"clientConfig": config})
    with pytest.raises(InternalError, match="tls: failed to verify certificate"):
        await site.write()
    assert site.hooks.requests == []


async def test_a_webhook_is_never_called_without_encryption(site: Site) -> None:
    url = f"http://127.0.0.1:{site.hooks.port}/"
    await site.configure("validating", {"clientConfig": {"url": url}})
    with pytest.raises(InternalError, match="must begin with https"):
        await site.write()


async def test_a_webhook_that_takes_too_long_fails_closed(site: Site) -> None:
    site.hooks.answers["/"] = allow
    site.hooks.delay = 5
    await site.configure("validating", {"timeoutSeconds": 0.05})
    with pytest.raises(InternalError, match="context deadline exceeded"):
        await site.write()


async def test_a_dry_run_is_not_shown_to_webhooks_with_side_effects(site: Site) -> None:
    site.hooks.answers["/"] = allow
    await site.configure("validating", {"sideEffects": "NoneOnDryRun"})
    await site.write(dry_run=True)
    assert site.hooks.requests[0]["dryRun"] is True
    await site.configure("validating", {"sideEffects": "Some", "failurePolicy": "Ignore"})
    with pytest.raises(BadRequest, match="does not support dry run"):
        await site.write(dry_run=True)


@pytest.mark.parametrize(
    ("rule", "asked"),
    [
        (CONFIG_MAPS, True),
        (CONFIG_MAPS | {"operations": ["UPDATE"]}, False),
        (CONFIG_MAPS | {"operations": ["*"]}, True),
        (CONFIG_MAPS | {"apiGroups": ["apps"]}, False),
        (CONFIG_MAPS | {"apiGroups": ["*"]}, True),
        (CONFIG_MAPS | {"apiVersions": ["v2"]}, False),
        (CONFIG_MAPS | {"resources": ["secrets"]}, False),
        (CONFIG_MAPS | {"resources": ["*"]}, True),
        (CONFIG_MAPS | {"resources": ["configmaps/status"]}, False),
        (CONFIG_MAPS | {"resources": ["*/*"]}, True),
        (CONFIG_MAPS | {"resources": ["*/status"]}, False),
        (CONFIG_MAPS | {"scope": "Namespaced"}, True),
        (CONFIG_MAPS | {"scope": "Cluster"}, False),
    ],
)
async def test_rules_say_which_writes_a_webhook_sees(site: Site, rule: Object, asked: bool) -> None:
    site.hooks.answers["/"] = allow
    await site.configure("validating", {"rules": [rule]})
    await site.write()
    assert bool(site.hooks.requests) is asked


@pytest.mark.parametrize(
    ("selectors", "asked"),
    [
        ({"namespaceSelector": {"matchLabels": {"team": "ci"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "other"}}}, False),
        ({"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}}, False),
        ({"objectSelector": {"matchLabels": {"app": "web"}}}, True),
        ({"objectSelector": {"matchLabels": {"app": "db"}}}, False),
        ({"namespaceSelector": {}, "objectSelector": {}}, True),
    ],
)
async def test_selectors_narrow_it_down(site: Site, selectors: Object, asked: bool) -> None:
    site.hooks.answers["/"] = allow
    await site.configure("validating", selectors)
    await site.write(config_map(metadata={"name": "x", "labels": {"app": "web"}}))
    assert bool(site.hooks.requests) is asked


async def test_the_object_selector_also_looks_at_the_object_as_it_was(site: Site) -> None:
    site.hooks.answers["/"] = allow
    await site.configure("validating", {"objectSelector": {"matchLabels": {"app": "web"}}})
    await site.write(operation=UPDATE, old=config_map(metadata={"name": "x", "labels": {"app": "web"}}))
    assert len(site.hooks.requests) == 1


async def test_a_deletion_shows_only_what_is_going_away(site: Site) -> None:
    site.hooks.answers["/"] = allow
    await site.configure("validating", {"rules": [EVERYTHING]})
    attributes = Attributes(DELETE, resource("configmaps", kind="ConfigMap"), "v1", ALICE, name="x", namespace="ci",
                            old=config_map(data={"a": "1"}))  # fmt: skip
    await site.admission.chain.validate(attributes)
    [seen] = site.hooks.requests
    assert (seen["object"], seen["oldObject"]) == (None, config_map(data={"a": "1"}))
    assert seen["options"]["kind"] == "DeleteOptions"


async def test_a_namespace_is_selected_by_its_own_labels_and_lives_in_itself(site: Site) -> None:
    site.hooks.answers["/"] = allow
    await site.configure("validating", {"rules": [EVERYTHING], "namespaceSelector": {"matchLabels": {"team": "new"}}})
    namespaces = resource("namespaces", namespaced=False)
    new = {"metadata": {"name": "x", "labels": {"team": "new"}}}
    await site.write(new, resource=namespaces, namespace="")
    await site.write({"metadata": {"name": "x"}}, resource=namespaces, namespace="")
    [seen] = site.hooks.requests
    assert seen["namespace"] == "x"


async def test_other_versions_of_an_object_are_equivalent_unless_told_exact(site: Site) -> None:
    site.hooks.answers["/"] = lambda request: patch(request, {"op": "add", "path": "/spec", "value": {"a": 1}})
    widgets = resource("widgets", group="example.com", versions=("v1", "v1beta1"))
    rule = {"operations": ["*"], "apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["widgets"]}
    await site.configure("mutating", {"rules": [rule]})
    beta = {"kind": "Widget", "apiVersion": "example.com/v1beta1", "metadata": {"name": "x"}}
    attributes = await site.write(dict(beta), resource=widgets, version="v1beta1")
    [seen] = site.hooks.requests
    assert seen["object"]["apiVersion"] == "example.com/v1"
    assert seen["kind"]["version"] == seen["resource"]["version"] == "v1"
    assert seen["requestKind"]["version"] == seen["requestResource"]["version"] == "v1beta1"
    assert attributes.obj == beta | {"spec": {"a": 1}}

    await site.configure("mutating", {"rules": [rule], "matchPolicy": "Exact"})
    await site.write(dict(beta), resource=widgets, version="v1beta1")
    assert len(site.hooks.requests) == 1


@pytest.mark.parametrize("kind", ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"])
async def test_the_configuration_of_webhooks_is_never_shown_to_webhooks(site: Site, kind: str) -> None:
    site.hooks.answers["/"] = deny
    await site.configure("validating", {"rules": [EVERYTHING]})
    await site.configure("mutating", {"rules": [EVERYTHING]})
    configurations = resource(f"{kind.lower()}s", group=GROUP, kind=kind, namespaced=False)
    await site.write({"metadata": {"name": "x"}}, resource=configurations, namespace="")
    assert site.hooks.requests == []


@pytest.mark.parametrize(
    ("expression", "asked"),
    [
        ("object.metadata.name == 'x'", True),
        ("object.metadata.name == 'y'", False),
        ("request.userInfo.username == 'alice' && request.operation == 'CREATE'", True),
        ("!('system:masters' in request.userInfo.groups)", True),
        ("oldObject == null", True),
        ("authorizer.group('').resource('pods').check('get').allowed()", False),
    ],
)
async def test_match_conditions_are_asked_before_the_webhook_is(site: Site, expression: str, asked: bool) -> None:
    site.hooks.answers["/"] = allow
    await site.configure("validating", {"matchConditions": [{"name": "c", "expression": expression}]})
    await site.write()
    assert bool(site.hooks.requests) is asked


async def test_a_match_condition_may_ask_what_the_caller_may_do(site: Site) -> None:
    site.hooks.answers["/"] = allow
    text = "authorizer.requestResource.check('delete').allowed()"
    await site.configure("validating", {"matchConditions": [{"name": "c", "expression": text}]})
    await site.write(user=ADMIN)
    await site.write(user=User("nobody"))
    assert len(site.hooks.requests) == 1


async def test_a_match_condition_that_cannot_be_evaluated_fails_closed(site: Site) -> None:
    site.hooks.answers["/"] = allow
    broken = {"name": "c", "expression": "object.spec.missing == 1"}
    await site.configure("validating", {"matchConditions": [broken]})
    with pytest.raises(InternalError):
        await site.write()
    await site.configure("validating", {"matchConditions": [broken], "failurePolicy": "Ignore"})
    await site.write()
    refuses = {"name": "d", "expression": "false"}
    await site.configure("validating", {"matchConditions": [broken, refuses]})
    await site.write()
    assert site.hooks.requests == []


async def test_a_service_is_reached_by_its_endpoints_under_its_own_name(site: Site) -> None:
    site.hooks.answers["/check"] = allow
    service = {"namespace": "ci", "name": "hook", "path": "/check", "port": 8443}
    config = {"service": service, "caBundle": site.hooks.ca_bundle}
    await site.configure("validating", {"clientConfig": config})
    post = 'Post "https://hook.ci.svc:8443/check?timeout=5s": '
    with pytest.raises(InternalError) as refusal:
        await site.write()
    assert refusal.value.message.endswith(f'{post}service "hook" not found')

    await site.put("services", "hook", "ci", spec={"ports": [{"name": "https", "port": 443}]})
    with pytest.raises(InternalError) as refusal:
        await site.write()
    assert refusal.value.message.endswith(f'{post}no service port 8443 found for service "hook"')

    await site.put("services", "hook", "ci", spec={"ports": [{"name": "https", "port": 8443}]})
    with pytest.raises(InternalError) as refusal:
        await site.write()
    assert refusal.value.message.endswith(f'{post}no endpoints available for service "hook"')

    await site.put(
        "endpointslices", "hook-1", "ci", group="discovery.k8s.io",
        metadata={"labels": {"kubernetes.io/service-name": "hook"}},
        endpoints=[{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
        ports=[{"name": "https", "port": site.hooks.port}],
    )  # fmt: skip
    await site.write()
    assert site.hooks.requests[0]["path"] == "/check"


async def test_a_service_may_be_a_name_outside_or_have_plain_endpoints(site: Site) -> None:
    site.hooks.answers["/"] = allow
    port = site.hooks.port
    config = {"service": {"namespace": "ci", "name": "hook", "port": port}, "caBundle": site.hooks.ca_bundle}
    await site.configure("validating", {"clientConfig": config})
    await site.put("services", "hook", "ci", spec={"type": "ExternalName", "externalName": "localhost"})
    await site.write()
    await site.put("services", "hook", "ci", spec={"ports": [{"port": port}]})
    subset = {"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": port}]}
    await site.put("endpoints", "hook", "ci", subsets=[subset])
    await site.write()
    assert len(site.hooks.requests) == 2


async def test_a_subresource_is_shown_with_its_own_kind(site: Site) -> None:
    site.hooks.answers["/"] = allow
    await site.configure("validating", {"rules": [EVERYTHING]})
    await site.write(
        {"kind": "Scale"}, subresource="scale", operation=UPDATE,
        kind=GroupVersionKind("autoscaling", "v1", "Scale"), resource=resource("deployments", group="apps"),
    )  # fmt: skip
    [seen] = site.hooks.requests
    assert seen["subResource"] == seen["requestSubResource"] == "scale"
    assert seen["kind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert seen["resource"]["resource"] == "deployments"


async def test_product_plugins_act_before_webhooks(site: Site) -> None:
    site.hooks.answers["/"] = allow
    await site.configure("mutating")

    async def label(attributes: Attributes) -> None:
        attributes.object["metadata"]["labels"] = {"ours": "yes"}

    site.admission.chain.add_mutating("label", [GroupResource("", "configmaps")], label)
    await site.write()
    assert site.hooks.requests[0]["object"]["metadata"]["labels"] == {"ours": "yes"}
