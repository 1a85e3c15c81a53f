"""Controllers and other background tasks of the server survive failures and retry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from herder.engine.apiserver.admission.chain import DELETE, Attributes
from herder.engine.apiserver.auth.aggregation import RoleAggregator
from herder.engine.apiserver.collectors.accounts import ServiceAccountController
from herder.engine.apiserver.collectors.controller_client import ControllerClient
from herder.engine.apiserver.collectors.expiry import EventExpiry
from herder.engine.apiserver.collectors.garbage import GarbageCollector
from herder.engine.apiserver.crds.instances import Instances
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.meta.kinds import GroupResource
from herder.engine.store import Record, Store
from tests.unit.engine.apiserver.api import Api, config_map, serve_widgets, start, widget

NAMESPACES = "/api/v1/namespaces"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    server, clock = await start()
    yield Api(server, clock)
    await server.stop()


async def _until(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not await check():
            await asyncio.sleep(0.005)


async def _gone(api: Api, path: str) -> bool:
    return (await api.get(path)).status == 404


class Refusals:
    """Admission that rejects the first deletions of ConfigMaps."""

    def __init__(self, api: Api, count: int) -> None:
        self.left = count
        self.conditions: list[dict[str, Any]] = []
        self._api = api
        resources = [GroupResource("", "configmaps")]
        api.server.deps.admission.add_validating("Refuse", resources, self._refuse, operations=[DELETE])

    async def _refuse(self, attributes: Attributes) -> None:
        if attributes.name == "held" and self.left:
            self.left -= 1
            namespace = (await self._api.get(f"{NAMESPACES}/{attributes.namespace}")).body
            self.conditions += namespace["status"].get("conditions") or []
            raise ServiceUnavailable("a webhook does not answer")


async def test_namespace_deletion_is_retried(api: Api) -> None:
    refusals = Refusals(api, 3)
    await api.post(NAMESPACES, {"metadata": {"name": "doomed"}})
    await api.post(f"{NAMESPACES}/doomed/configmaps", config_map("held"))
    assert (await api.delete(f"{NAMESPACES}/doomed")).status == 200
    await _until(lambda: _gone(api, f"{NAMESPACES}/doomed"))
    reported = [each for each in refusals.conditions if each["type"] == "NamespaceDeletionContentFailure"]
    failure = reported[-1]
    assert (failure["status"], failure["reason"]) == ("True", "ContentDeletionFailed")
    assert failure["message"] == "Failed to delete all resource types, 1 remaining: a webhook does not answer"


async def test_namespace_defaults_are_retried_after_a_denial(api: Api) -> None:
    left = [2]

    async def refuse(attributes: Attributes) -> None:
        if attributes.namespace == "new" and left[0]:
            left[0] -= 1
            raise ServiceUnavailable("not now")

    api.server.deps.admission.add_validating("Refuse", [GroupResource("", "serviceaccounts")], refuse)
    await api.post(NAMESPACES, {"metadata": {"name": "new"}})

    async def has_defaults() -> bool:
        return (await api.get(f"{NAMESPACES}/new/serviceaccounts/default")).status == 200

    await _until(has_defaults)


async def test_an_exception_in_a_controller_does_not_stop_any(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    populate = ServiceAccountController._ensure_defaults
    settle = GarbageCollector._process
    failures: list[str] = []

    async def failing_ensure_defaults(self: ServiceAccountController, namespace: str) -> None:
        if namespace == "bad":
            failures.append(namespace)
            raise KeyError("metadata")
        await populate(self, namespace)

    async def failing_reconcile(self: GarbageCollector, node: Any) -> None:
        if node.key.name == "bad":
            failures.append(node.key.name)
            raise TypeError("unhashable")
        await settle(self, node)

    monkeypatch.setattr(ServiceAccountController, "_ensure_defaults", failing_ensure_defaults)
    monkeypatch.setattr(GarbageCollector, "_process", failing_reconcile)
    maps = f"{NAMESPACES}/default/configmaps"
    owner = (await api.post(maps, config_map("owner"))).body
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    for name in ("bad", "good"):
        dependent = config_map(name)
        dependent["metadata"]["ownerReferences"] = [reference]
        await api.post(maps, dependent)
        await api.post(NAMESPACES, {"metadata": {"name": name}})
    await api.delete(f"{maps}/owner")
    await _until(lambda: _gone(api, f"{maps}/good"))

    async def has_defaults() -> bool:
        return (await api.get(f"{NAMESPACES}/good/serviceaccounts/default")).status == 200

    await _until(has_defaults)
    assert failures


async def test_a_failed_aggregation_is_retried(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = RoleAggregator.aggregate_all
    left = [2]

    async def faulty(self: RoleAggregator) -> None:
        if left[0]:
            left[0] -= 1
            raise ServiceUnavailable("the disk is full")
        await settle(self)

    monkeypatch.setattr(RoleAggregator, "aggregate_all", faulty)
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    selector = {"clusterRoleSelectors": [{"matchLabels": {"of": "all"}}]}
    await api.post(roles, {"metadata": {"name": "all"}, "aggregationRule": selector})
    await api.post(roles, {"metadata": {"name": "part", "labels": {"of": "all"}}, "rules": [rule]})

    async def aggregated() -> bool:
        return bool((await api.get(f"{roles}/all")).body.get("rules") == [rule])

    await _until(aggregated)


async def test_a_failed_crd_cleanup_is_retried(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await serve_widgets(api)
    await api.post("/apis/example.com/v1/namespaces/default/widgets", widget("a"))
    delete_all = Instances.delete_all
    left = [2]

    async def faulty(self: Instances, now: Callable[[], str]) -> bool:
        if left[0]:
            left[0] -= 1
            raise ServiceUnavailable("the disk is full")
        return await delete_all(self, now)

    monkeypatch.setattr(Instances, "delete_all", faulty)
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com"
    await api.delete(crd)
    await _until(lambda: _gone(api, crd))


async def test_an_object_of_another_namespace_does_not_block_a_deletion(api: Api) -> None:
    """Any user could create one with a foreign uid as owner, and a finalizer."""
    for name in ("victim", "team"):
        await api.post(NAMESPACES, {"metadata": {"name": name}})
    path = f"{NAMESPACES}/victim/configmaps"
    owner = (await api.post(path, config_map("owner"))).body["metadata"]
    claim = config_map("claim")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    claim["metadata"] |= {
        "finalizers": ["example.io/stay"],
        "ownerReferences": [{**reference, "blockOwnerDeletion": True}],
    }
    assert (await api.post(f"{NAMESPACES}/team/configmaps", claim)).status == 201
    await api.delete(f"{path}/owner?propagationPolicy=Foreground")
    await _until(lambda: _gone(api, f"{path}/owner"))


async def test_a_change_of_an_account_reads_only_its_own_secrets(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors of a namespace can create many Secrets; reading all of them would block the event loop."""
    listed: list[str] = []
    list_objects = Store.list

    def recorded(store: Store, resource: str, *args: Any, **options: Any) -> Sequence[Record]:
        listed.append(resource)
        return list_objects(store, resource, *args, **options)

    monkeypatch.setattr(Store, "list", recorded)
    place = f"{NAMESPACES}/default"
    meta = {"name": "token", "annotations": {"kubernetes.io/service-account.name": "robot"}}
    await api.post(f"{place}/serviceaccounts", {"metadata": {"name": "robot"}})
    await api.post(f"{place}/secrets", {"metadata": meta, "type": "kubernetes.io/service-account-token"})

    async def is_filled() -> bool:
        return "token" in ((await api.get(f"{place}/secrets/token")).body.get("data") or {})

    await _until(is_filled)
    await api.patch(f"{place}/serviceaccounts/robot", {"metadata": {"labels": {"a": "b"}}})
    await api.delete(f"{place}/serviceaccounts/robot")
    await _until(lambda: _gone(api, f"{place}/secrets/token"))
    assert "secrets" not in listed


async def test_events_expire_an_hour_after_they_were_last_counted(api: Api) -> None:
    """As in kube-apiserver, where each write of an Event renews its lease."""
    deps = api.server.deps
    expiry = EventExpiry(ControllerClient(deps.store, deps.registry, api.transport, name="ttl"), api.clock)
    events, now = f"{NAMESPACES}/default/events", api.clock()
    counted = {"stale": timedelta(0), "counted": timedelta(minutes=50), "in-the-future": timedelta(days=300)}
    for name, later in counted.items():
        about = {"kind": "Pod", "namespace": "default", "name": "p"}
        last = f"{now + later:%Y-%m-%dT%H:%M:%SZ}"
        await api.post(events, {"metadata": {"name": name}, "involvedObject": about, "lastTimestamp": last})
    api.clock.advance(3660.0)
    await expiry.expire()
    assert [each["metadata"]["name"] for each in (await api.get(events)).body["items"]] == ["counted"]
