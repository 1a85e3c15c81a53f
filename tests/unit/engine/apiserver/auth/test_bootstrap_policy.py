from __future__ import annotations

import asyncio
from typing import Any

from msgspec import json

from herder.engine.apiserver.auth.access import AccessAttributes
from herder.engine.apiserver.auth.aggregation import RoleAggregator
from herder.engine.apiserver.auth.bootstrap_policy import AUTOUPDATE, default_policy, reconcile
from herder.engine.apiserver.auth.users import ANONYMOUS
from herder.engine.store import Key
from herder.engine.wire import User
from tests.unit.engine.apiserver.auth.fake_cluster import RBAC, FakeCluster, rule, user


def stored(cluster: FakeCluster, resource: str, name: str, namespace: str = "") -> Any:
    record = cluster.store.get(Key(f"{resource}.{RBAC}", namespace, name))
    return json.decode(record.value) if record else None


async def bootstrap(cluster: FakeCluster) -> int:
    return await reconcile(cluster.store, now=cluster.now, entropy=cluster.random.randbytes)


async def test_a_new_server_gets_the_whole_policy_in_one_transaction(cluster: FakeCluster) -> None:
    written = await bootstrap(cluster)
    assert written == len(default_policy()) == 133
    assert cluster.store.revision == written
    admin = stored(cluster, "clusterroles", "cluster-admin")
    assert admin["metadata"]["annotations"] == {AUTOUPDATE: "true"}
    assert admin["metadata"]["labels"] == {"kubernetes.io/bootstrapping": "rbac-defaults"}
    assert admin["metadata"]["resourceVersion"]
    assert admin["metadata"]["uid"]
    assert stored(cluster, "rolebindings", "system::leader-locking-kube-scheduler", "kube-system")


async def test_a_second_start_writes_nothing(cluster: FakeCluster) -> None:
    await bootstrap(cluster)
    assert await bootstrap(cluster) == 0


async def test_default_permissions_are_limited_to_discovery(cluster: FakeCluster) -> None:
    await bootstrap(cluster)
    authenticated_user = User("x", groups=("system:authenticated",))
    assert cluster.authorizer.authorize(authenticated_user, AccessAttributes("get", path="/apis/apps")).allowed
    assert cluster.authorizer.authorize(ANONYMOUS, AccessAttributes("get", path="/version")).allowed
    assert not cluster.authorizer.authorize(ANONYMOUS, AccessAttributes("get", path="/apis")).allowed
    assert not cluster.authorizer.authorize(authenticated_user, AccessAttributes("list", "", "v1", "secrets")).allowed


async def test_view_edit_and_admin_have_their_aggregated_rules_from_the_start(cluster: FakeCluster) -> None:
    await bootstrap(cluster)
    for role, verb, resource, allowed in (
        ("view", "list", "pods", True),
        ("view", "list", "secrets", False),
        ("edit", "create", "pods", True),
        ("edit", "get", "secrets", True),
        ("admin", "list", "pods", True),
    ):
        await cluster.bind(role, user(role))
        decision = cluster.authorizer.authorize(User(role), AccessAttributes(verb, "", "v1", resource, namespace="x"))
        assert decision.allowed is allowed, (role, verb, resource)
    admin = AccessAttributes("create", RBAC, "v1", "roles", namespace="x")
    assert cluster.authorizer.authorize(User("admin"), admin).allowed
    assert not cluster.authorizer.authorize(User("edit"), admin).allowed


async def test_removed_rules_are_restored_and_added_rules_are_kept(cluster: FakeCluster) -> None:
    await bootstrap(cluster)
    role = stored(cluster, "clusterroles", "system:discovery")
    await cluster.cluster_role("system:discovery", rule("get", "mine"))
    await cluster.bind("system:discovery", user("extra"))
    assert await bootstrap(cluster) == 2
    rules = stored(cluster, "clusterroles", "system:discovery")["rules"]
    assert rule("get", "mine") in rules
    assert {url for item in rules for url in item.get("nonResourceURLs", ())} == set(
        role["rules"][0]["nonResourceURLs"]
    )
    subjects = stored(cluster, "clusterrolebindings", "system:discovery")["subjects"]
    assert [item["name"] for item in subjects] == ["extra", "system:authenticated"]
    assert await bootstrap(cluster) == 0


async def test_objects_with_autoupdate_false_are_not_changed(cluster: FakeCluster) -> None:
    await bootstrap(cluster)
    await cluster.cluster_role("system:discovery", metadata={"annotations": {AUTOUPDATE: "false"}})
    assert await bootstrap(cluster) == 0
    assert stored(cluster, "clusterroles", "system:discovery")["rules"] == []


async def test_a_binding_to_another_role_is_replaced(cluster: FakeCluster) -> None:
    await bootstrap(cluster)
    before = stored(cluster, "clusterrolebindings", "system:discovery")
    await cluster.put("clusterrolebindings", "system:discovery", group=RBAC,
                    roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": "view"})  # fmt: skip
    await bootstrap(cluster)
    after = stored(cluster, "clusterrolebindings", "system:discovery")
    assert after["roleRef"] == before["roleRef"]
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


async def test_aggregated_roles_are_updated_with_their_source_roles(cluster: FakeCluster) -> None:
    gathers = {"clusterRoleSelectors": [{"matchLabels": {"for": "all"}}]}
    await cluster.cluster_role("all", aggregationRule=gathers)
    await cluster.cluster_role("b", rule("get", "b"), metadata={"labels": {"for": "all"}})
    await cluster.cluster_role("a", rule("get", "a"), rule("get", "b"), metadata={"labels": {"for": "all"}})
    await cluster.cluster_role("other", rule("get", "other"))
    aggregator = RoleAggregator(cluster.store)
    await aggregator.aggregate_all()
    assert stored(cluster, "clusterroles", "all")["rules"] == [rule("get", "a"), rule("get", "b")]
    revision = cluster.store.revision
    await aggregator.aggregate_all()
    assert cluster.store.revision == revision


async def test_aggregation_runs_while_the_server_runs(cluster: FakeCluster) -> None:
    task = asyncio.create_task(RoleAggregator(cluster.store).run())
    await asyncio.sleep(0)
    await cluster.cluster_role("all", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"for": "all"}}]})
    await cluster.cluster_role("some", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"for": "some"}}]},
                             metadata={"labels": {"for": "all"}})  # fmt: skip
    await cluster.cluster_role("a", rule("get", "a"), metadata={"labels": {"for": "some"}})
    async with asyncio.timeout(5):
        while stored(cluster, "clusterroles", "all")["rules"] != [rule("get", "a")]:
            await asyncio.sleep(0)
    await cluster.delete("clusterroles", "a", group=RBAC)
    async with asyncio.timeout(5):
        while stored(cluster, "clusterroles", "all")["rules"]:
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_roles_that_aggregate_each_other_converge(cluster: FakeCluster) -> None:
    for name, gathers in (("a", "b"), ("b", "a")):
        selector = {"clusterRoleSelectors": [{"matchLabels": {"for": name}}]}
        await cluster.cluster_role(name, aggregationRule=selector, metadata={"labels": {"for": gathers}})
        await cluster.cluster_role(f"z-{name}", rule("get", name), metadata={"labels": {"for": name}})
    async with asyncio.timeout(5):
        await RoleAggregator(cluster.store).aggregate_all()
    for name in ("a", "b"):
        rules = stored(cluster, "clusterroles", name)["rules"]
        assert sorted(item["resources"][0] for item in rules) == ["a", "b"]
