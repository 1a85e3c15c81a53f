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
from tests.unit.engine.apiserver.auth.fake_cluster import ADMIN, ALICE, FakeCluster
from tests.unit.engine.apiserver.resources import resource

GROUP = "admissionregistration.k8s.io"
EVERYTHING = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
CONFIG_MAPS = {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"],
               "resources": ["configmaps"]}  # fmt: skip


class WebhookCluster(FakeCluster):
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
async def cluster() -> AsyncIterator[WebhookCluster]:
    created = WebhookCluster()
    await created.hooks.start()
    await created.put("namespaces", "ci", status={"phase": "Active"}, metadata={"labels": {"team": "ci"}})
    yield created
    await created.admission.close()
    await created.hooks.stop()
    await created.close()


async def test_a_validating_webhook_receives_the_whole_request(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = allow
    await cluster.configure("validating")
    await cluster.write()
    [seen] = cluster.hooks.requests
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
async def test_a_denial_contains_the_webhooks_message(
    cluster: WebhookCluster, status: Object, code: int, reason: str, expected: str
) -> None:
    cluster.hooks.answers["/"] = lambda request: deny(request, **status)
    await cluster.configure("validating", {"failurePolicy": "Ignore"})
    with pytest.raises(StatusError) as refusal:
        await cluster.write()
    assert refusal.value.message == f'admission webhook "hook.example.com" denied the request{expected}'
    assert (refusal.value.code, refusal.value.reason) == (code, reason)


async def test_warnings_reach_the_caller(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = lambda request: allow(request, warnings=["careful"])
    await cluster.configure("validating")
    assert (await cluster.write()).warnings == ["careful"]


async def test_a_mutating_webhook_changes_the_object_before_validation(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/change"] = lambda request: patch(
        request, {"op": "add", "path": "/data", "value": {"a": "1"}}
    )
    cluster.hooks.answers["/judge"] = allow
    await cluster.configure("mutating", path="/change")
    await cluster.configure("validating", path="/judge")
    attributes = await cluster.write()
    assert attributes.obj == config_map(data={"a": "1"})
    assert cluster.hooks.requests[-1]["object"]["data"] == {"a": "1"}


async def test_mutating_webhooks_see_the_changes_of_earlier_ones(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/a"] = lambda request: patch(request, {"op": "add", "path": "/data", "value": {"a": "1"}})
    cluster.hooks.answers["/b"] = lambda request: patch(request, {"op": "add", "path": "/data/b", "value": "2"})
    await cluster.configure("mutating", name="b", path="/b")
    await cluster.configure("mutating", name="a", path="/a")
    attributes = await cluster.write()
    assert attributes.obj == config_map(data={"a": "1", "b": "2"})
    assert [request["path"] for request in cluster.hooks.requests] == ["/a", "/b"]


async def test_webhooks_are_reinvoked_after_later_changes(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/a"] = allow
    cluster.hooks.answers["/b"] = lambda request: patch(request, {"op": "add", "path": "/data", "value": {"b": "1"}})
    await cluster.configure(
        "mutating",
        {"name": "again", "clientConfig": cluster.hooks.client_config("/a"), "reinvocationPolicy": "IfNeeded"},
        {"name": "once", "clientConfig": cluster.hooks.client_config("/b")},
    )
    await cluster.write()
    assert [request["path"] for request in cluster.hooks.requests] == ["/a", "/b", "/a"]


async def test_webhooks_are_not_reinvoked_without_changes(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = allow
    await cluster.configure("mutating", {"name": "a", "reinvocationPolicy": "IfNeeded"}, {"name": "b"})
    await cluster.write()
    assert len(cluster.hooks.requests) == 2


def respond_with(body: bytes, status: int = 200) -> Any:
    return lambda request: web.Response(body=body, status=status)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda r: allow(r) | {"uid": "other"}, 'received invalid webhook response: expected response.uid="'),
        (lambda r: None, "received invalid webhook response: webhook response was absent"),
        (respond_with(b"{"), "received invalid webhook response: "),
        (respond_with(b"[]"), "received invalid webhook response: "),
        (
            respond_with(b'{"kind":"X","apiVersion":"y/v1"}'),
            "received invalid webhook response: expected webhook response of admission.k8s.io/v1, "
            "Kind=AdmissionReview, got y/v1, Kind=X",
        ),
        (
            respond_with(b"oops", 500),
            'failed to call webhook: an error on the server ("oops") has prevented the request',
        ),
        (respond_with(b"", 302), "failed to call webhook: the server rejected our request for an unknown reason"),
        (respond_with(b"", 404), "failed to call webhook: the server could not find the requested resource"),
        (
            lambda r: allow(r, patch="bm8="),
            "received invalid webhook response: webhook returned response.patch but not response.patchType",
        ),
        (lambda r: allow(r, patch="bm8=", patchType="JSONPatch"), "received invalid webhook response: "),
    ],
)
async def test_an_invalid_response_fails_closed_unless_ignored(
    cluster: WebhookCluster, answer: Any, expected: str
) -> None:
    cluster.hooks.answers["/"] = answer
    await cluster.configure("mutating")
    with pytest.raises(InternalError) as refusal:
        await cluster.write()
    assert refusal.value.message.startswith(
        f'Internal error occurred: failed calling webhook "hook.example.com": {expected}'
    )
    await cluster.configure("mutating", {"failurePolicy": "Ignore"})
    assert (await cluster.write()).obj == config_map()


async def test_an_unreachable_webhook_fails_closed(cluster: WebhookCluster) -> None:
    await cluster.configure("validating")
    await cluster.hooks.stop()
    with pytest.raises(InternalError, match="failed to call webhook: Post"):
        await cluster.write()


async def test_a_webhook_with_an_untrusted_certificate_is_rejected(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = allow
    config = cluster.hooks.client_config() | {"caBundle": HookServer().ca_bundle}
    await cluster.configure("validating", {"clientConfig": config})
    with pytest.raises(InternalError, match="tls: failed to verify certificate"):
        await cluster.write()
    assert cluster.hooks.requests == []


async def test_a_webhook_is_never_called_without_encryption(cluster: WebhookCluster) -> None:
    url = f"http://127.0.0.1:{cluster.hooks.port}/"
    await cluster.configure("validating", {"clientConfig": {"url": url}})
    with pytest.raises(InternalError, match="must begin with https"):
        await cluster.write()


async def test_a_webhook_that_times_out_fails_closed(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = allow
    cluster.hooks.delay = 5
    await cluster.configure("validating", {"timeoutSeconds": 0.05})
    with pytest.raises(InternalError, match="context deadline exceeded"):
        await cluster.write()


async def test_webhooks_with_side_effects_are_not_called_for_dry_runs(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = allow
    await cluster.configure("validating", {"sideEffects": "NoneOnDryRun"})
    await cluster.write(dry_run=True)
    assert cluster.hooks.requests[0]["dryRun"] is True
    await cluster.configure("validating", {"sideEffects": "Some", "failurePolicy": "Ignore"})
    with pytest.raises(BadRequest, match="does not support dry run"):
        await cluster.write(dry_run=True)


@pytest.mark.parametrize(
    ("rule", "is_called"),
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
async def test_rules_select_the_writes_that_a_webhook_receives(
    cluster: WebhookCluster, rule: Object, is_called: bool
) -> None:
    cluster.hooks.answers["/"] = allow
    await cluster.configure("validating", {"rules": [rule]})
    await cluster.write()
    assert bool(cluster.hooks.requests) is is_called


@pytest.mark.parametrize(
    ("selectors", "is_called"),
    [
        ({"namespaceSelector": {"matchLabels": {"team": "ci"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "other"}}}, False),
        ({"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}}, False),
        ({"objectSelector": {"matchLabels": {"app": "web"}}}, True),
        ({"objectSelector": {"matchLabels": {"app": "db"}}}, False),
        ({"namespaceSelector": {}, "objectSelector": {}}, True),
    ],
)
async def test_selectors_narrow_the_objects_that_a_webhook_receives(
    cluster: WebhookCluster, selectors: Object, is_called: bool
) -> None:
    cluster.hooks.answers["/"] = allow
    await cluster.configure("validating", selectors)
    await cluster.write(config_map(metadata={"name": "x", "labels": {"app": "web"}}))
    assert bool(cluster.hooks.requests) is is_called


async def test_the_object_selector_also_matches_the_old_object(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = allow
    await cluster.configure("validating", {"objectSelector": {"matchLabels": {"app": "web"}}})
    await cluster.write(operation=UPDATE, old=config_map(metadata={"name": "x", "labels": {"app": "web"}}))
    assert len(cluster.hooks.requests) == 1


async def test_a_delete_review_contains_only_the_old_object(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = allow
    await cluster.configure("validating", {"rules": [EVERYTHING]})
    attributes = Attributes(DELETE, resource("configmaps", kind="ConfigMap"), "v1", ALICE, name="x", namespace="ci",
                            old=config_map(data={"a": "1"}))  # fmt: skip
    await cluster.admission.chain.validate(attributes)
    [seen] = cluster.hooks.requests
    assert (seen["object"], seen["oldObject"]) == (None, config_map(data={"a": "1"}))
    assert seen["options"]["kind"] == "DeleteOptions"


async def test_a_namespace_is_selected_by_its_own_labels_and_is_its_own_namespace(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = allow
    await cluster.configure(
        "validating", {"rules": [EVERYTHING], "namespaceSelector": {"matchLabels": {"team": "new"}}}
    )
    namespaces = resource("namespaces", namespaced=False)
    new = {"metadata": {"name": "x", "labels": {"team": "new"}}}
    await cluster.write(new, resource=namespaces, namespace="")
    await cluster.write({"metadata": {"name": "x"}}, resource=namespaces, namespace="")
    [seen] = cluster.hooks.requests
    assert seen["namespace"] == "x"


async def test_other_versions_of_an_object_match_unless_the_match_policy_is_exact(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = lambda request: patch(request, {"op": "add", "path": "/spec", "value": {"a": 1}})
    widgets = resource("widgets", group="example.com", versions=("v1", "v1beta1"))
    rule = {"operations": ["*"], "apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["widgets"]}
    await cluster.configure("mutating", {"rules": [rule]})
    beta = {"kind": "Widget", "apiVersion": "example.com/v1beta1", "metadata": {"name": "x"}}
    attributes = await cluster.write(dict(beta), resource=widgets, version="v1beta1")
    [seen] = cluster.hooks.requests
    assert seen["object"]["apiVersion"] == "example.com/v1"
    assert seen["kind"]["version"] == seen["resource"]["version"] == "v1"
    assert seen["requestKind"]["version"] == seen["requestResource"]["version"] == "v1beta1"
    assert attributes.obj == beta | {"spec": {"a": 1}}

    await cluster.configure("mutating", {"rules": [rule], "matchPolicy": "Exact"})
    await cluster.write(dict(beta), resource=widgets, version="v1beta1")
    assert len(cluster.hooks.requests) == 1


@pytest.mark.parametrize("kind", ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"])
async def test_webhook_configurations_are_never_sent_to_webhooks(cluster: WebhookCluster, kind: str) -> None:
    cluster.hooks.answers["/"] = deny
    await cluster.configure("validating", {"rules": [EVERYTHING]})
    await cluster.configure("mutating", {"rules": [EVERYTHING]})
    configurations = resource(f"{kind.lower()}s", group=GROUP, kind=kind, namespaced=False)
    await cluster.write({"metadata": {"name": "x"}}, resource=configurations, namespace="")
    assert cluster.hooks.requests == []


@pytest.mark.parametrize(
    ("expression", "is_called"),
    [
        ("object.metadata.name == 'x'", True),
        ("object.metadata.name == 'y'", False),
        ("request.userInfo.username == 'alice' && request.operation == 'CREATE'", True),
        ("!('system:masters' in request.userInfo.groups)", True),
        ("oldObject == null", True),
        ("authorizer.group('').resource('pods').check('get').allowed()", False),
    ],
)
async def test_match_conditions_are_evaluated_before_the_webhook_is_called(
    cluster: WebhookCluster, expression: str, is_called: bool
) -> None:
    cluster.hooks.answers["/"] = allow
    await cluster.configure("validating", {"matchConditions": [{"name": "c", "expression": expression}]})
    await cluster.write()
    assert bool(cluster.hooks.requests) is is_called


async def test_a_match_condition_may_use_the_authorizer(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = allow
    text = "authorizer.requestResource.check('delete').allowed()"
    await cluster.configure("validating", {"matchConditions": [{"name": "c", "expression": text}]})
    await cluster.write(user=ADMIN)
    await cluster.write(user=User("nobody"))
    assert len(cluster.hooks.requests) == 1


async def test_a_failing_match_condition_fails_closed(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = allow
    broken = {"name": "c", "expression": "object.spec.missing == 1"}
    await cluster.configure("validating", {"matchConditions": [broken]})
    with pytest.raises(InternalError):
        await cluster.write()
    await cluster.configure("validating", {"matchConditions": [broken], "failurePolicy": "Ignore"})
    await cluster.write()
    refuses = {"name": "d", "expression": "false"}
    await cluster.configure("validating", {"matchConditions": [broken, refuses]})
    await cluster.write()
    assert cluster.hooks.requests == []


async def test_a_service_is_called_at_its_endpoints_with_its_dns_name(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/check"] = allow
    service = {"namespace": "ci", "name": "hook", "path": "/check", "port": 8443}
    config = {"service": service, "caBundle": cluster.hooks.ca_bundle}
    await cluster.configure("validating", {"clientConfig": config})
    post = 'Post "https://hook.ci.svc:8443/check?timeout=5s": '
    with pytest.raises(InternalError) as refusal:
        await cluster.write()
    assert refusal.value.message.endswith(f'{post}service "hook" not found')

    await cluster.put("services", "hook", "ci", spec={"ports": [{"name": "https", "port": 443}]})
    with pytest.raises(InternalError) as refusal:
        await cluster.write()
    assert refusal.value.message.endswith(f'{post}no service port 8443 found for service "hook"')

    await cluster.put("services", "hook", "ci", spec={"ports": [{"name": "https", "port": 8443}]})
    with pytest.raises(InternalError) as refusal:
        await cluster.write()
    assert refusal.value.message.endswith(f'{post}no endpoints available for service "hook"')

    await cluster.put(
        "endpointslices", "hook-1", "ci", group="discovery.k8s.io",
        metadata={"labels": {"kubernetes.io/service-name": "hook"}},
        endpoints=[{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
        ports=[{"name": "https", "port": cluster.hooks.port}],
    )  # fmt: skip
    await cluster.write()
    assert cluster.hooks.requests[0]["path"] == "/check"


async def test_a_service_may_have_an_external_name_or_legacy_endpoints(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = allow
    port = cluster.hooks.port
    config = {"service": {"namespace": "ci", "name": "hook", "port": port}, "caBundle": cluster.hooks.ca_bundle}
    await cluster.configure("validating", {"clientConfig": config})
    await cluster.put("services", "hook", "ci", spec={"type": "ExternalName", "externalName": "localhost"})
    await cluster.write()
    await cluster.put("services", "hook", "ci", spec={"ports": [{"port": port}]})
    subset = {"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": port}]}
    await cluster.put("endpoints", "hook", "ci", subsets=[subset])
    await cluster.write()
    assert len(cluster.hooks.requests) == 2


async def test_a_subresource_review_contains_the_kind_of_the_subresource(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = allow
    await cluster.configure("validating", {"rules": [EVERYTHING]})
    await cluster.write(
        {"kind": "Scale"}, subresource="scale", operation=UPDATE,
        kind=GroupVersionKind("autoscaling", "v1", "Scale"), resource=resource("deployments", group="apps"),
    )  # fmt: skip
    [seen] = cluster.hooks.requests
    assert seen["subResource"] == seen["requestSubResource"] == "scale"
    assert seen["kind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert seen["resource"]["resource"] == "deployments"


async def test_product_plugins_run_before_webhooks(cluster: WebhookCluster) -> None:
    cluster.hooks.answers["/"] = allow
    await cluster.configure("mutating")

    async def label(attributes: Attributes) -> None:
        attributes.object["metadata"]["labels"] = {"ours": "yes"}

    cluster.admission.chain.add_mutating("label", [GroupResource("", "configmaps")], label)
    await cluster.write()
    assert cluster.hooks.requests[0]["object"]["metadata"]["labels"] == {"ours": "yes"}
