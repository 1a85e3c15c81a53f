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
from tests.unit.engine.apiserver.auth.world import RBAC, World, rule, user


def stored(world: World, resource: str, name: str, namespace: str = "") -> Any:
    record = world.store.get(Key(f"{resource}.{RBAC}", namespace, name))
    return json.decode(record.value) if record else None


async def bootstrap(world: World) -> int:
    return await reconcile(world.store, now=world.now, entropy=world.random.randbytes)


async def test_a_new_server_gets_the_whole_policy_in_one_transaction(world: World) -> None:
    written = await bootstrap(world)
    assert written == len(default_policy()) == 133
    assert world.store.revision == written
    admin = stored(world, "clusterroles", "cluster-admin")
    assert admin["metadata"]["annotations"] == {AUTOUPDATE: "true"}
    assert admin["metadata"]["labels"] == {"kubernetes.io/bootstrapping": "rbac-defaults"}
    assert admin["metadata"]["resourceVersion"]
    assert admin["metadata"]["uid"]
    assert stored(world, "rolebindings", "system::leader-locking-kube-scheduler", "kube-system")


async def test_a_second_start_writes_nothing(world: World) -> None:
    await bootstrap(world)
    assert await bootstrap(world) == 0


async def test_default_permissions_are_limited_to_discovery(world: World) -> None:
    await bootstrap(world)
    somebody = User("x", groups=("system:authenticated",))
    assert world.authorizer.authorize(somebody, AccessAttributes("get", path="/apis/apps")).allowed
    assert world.authorizer.authorize(ANONYMOUS, AccessAttributes("get", path="/version")).allowed
    assert not world.authorizer.authorize(ANONYMOUS, AccessAttributes("get", path="/apis")).allowed
    assert not world.authorizer.authorize(somebody, AccessAttributes("list", "", "v1", "secrets")).allowed


async def test_view_edit_and_admin_have_the_rights_they_gather_from_the_start(world: World) -> None:
    await bootstrap(world)
    for role, verb, resource, allowed in (
        ("view", "list", "pods", True),
        ("view", "list", "secrets", False),
        ("edit", "create", "pods", True),
        ("edit", "get", "secrets", True),
        ("admin", "list", "pods", True),
    ):
        await world.bind(role, user(role))
        decision = world.authorizer.authorize(User(role), AccessAttributes(verb, "", "v1", resource, namespace="x"))
        assert decision.allowed is allowed, (role, verb, resource)
    admin = AccessAttributes("create", RBAC, "v1", "roles", namespace="x")
    assert world.authorizer.authorize(User("admin"), admin).allowed
    assert not world.authorizer.authorize(User("edit"), admin).allowed


async def test_what_somebody_removed_comes_back_and_what_they_added_stays(world: World) -> None:
    await bootstrap(world)
    role = stored(world, "clusterroles", "system:discovery")
    await world.cluster_role("system:discovery", rule("get", "mine"))
    await world.bind("system:discovery", user("extra"))
    assert await bootstrap(world) == 2
    rules = stored(world, "clusterroles", "system:discovery")["rules"]
    assert rule("get", "mine") in rules
    assert {url for item in rules for url in item.get("nonResourceURLs", ())} == set(
        role["rules"][0]["nonResourceURLs"]
    )
    subjects = stored(world, "clusterrolebindings", "system:discovery")["subjects"]
    assert [item["name"] for item in subjects] == ["extra", "system:authenticated"]
    assert await bootstrap(world) == 0


async def test_objects_with_autoupdate_false_are_not_changed(world: World) -> None:
    await bootstrap(world)
    await world.cluster_role("system:discovery", metadata={"annotations": {AUTOUPDATE: "false"}})
    assert await bootstrap(world) == 0
    assert stored(world, "clusterroles", "system:discovery")["rules"] == []


async def test_a_binding_to_another_role_is_replaced(world: World) -> None:
    await bootstrap(world)
    before = stored(world, "clusterrolebindings", "system:discovery")
    await world.put("clusterrolebindings", "system:discovery", group=RBAC,
                    roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": "view"})  # fmt: skip
    await bootstrap(world)
    after = stored(world, "clusterrolebindings", "system:discovery")
    assert after["roleRef"] == before["roleRef"]
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


async def test_aggregated_roles_follow_what_they_gather(world: World) -> None:
    gathers = {"clusterRoleSelectors": [{"matchLabels": {"for": "all"}}]}
    await world.cluster_role("all", aggregationRule=gathers)
    await world.cluster_role("b", rule("get", "b"), metadata={"labels": {"for": "all"}})
    await world.cluster_role("a", rule("get", "a"), rule("get", "b"), metadata={"labels": {"for": "all"}})
    await world.cluster_role("other", rule("get", "other"))
    aggregator = RoleAggregator(world.store)
    await aggregator.aggregate_all()
    assert stored(world, "clusterroles", "all")["rules"] == [rule("get", "a"), rule("get", "b")]
    revision = world.store.revision
    await aggregator.aggregate_all()
    assert world.store.revision == revision


async def test_aggregation_runs_for_as_long_as_the_server(world: World) -> None:
    task = asyncio.create_task(RoleAggregator(world.store).run())
    await asyncio.sleep(0)
    await world.cluster_role("all", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"for": "all"}}]})
    await world.cluster_role("some", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"for": "some"}}]},
                             metadata={"labels": {"for": "all"}})  # fmt: skip
    await world.cluster_role("a", rule("get", "a"), metadata={"labels": {"for": "some"}})
    async with asyncio.timeout(5):
        while stored(world, "clusterroles", "all")["rules"] != [rule("get", "a")]:
            await asyncio.sleep(0)
    await world.delete("clusterroles", "a", group=RBAC)
    async with asyncio.timeout(5):
        while stored(world, "clusterroles", "all")["rules"]:
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_roles_that_aggregate_each_other_converge(world: World) -> None:
    for name, gathers in (("a", "b"), ("b", "a")):
        selector = {"clusterRoleSelectors": [{"matchLabels": {"for": name}}]}
        await world.cluster_role(name, aggregationRule=selector, metadata={"labels": {"for": gathers}})
        await world.cluster_role(f"z-{name}", rule("get", name), metadata={"labels": {"for": name}})
    async with asyncio.timeout(5):
        await RoleAggregator(world.store).aggregate_all()
    for name in ("a", "b"):
        rules = stored(world, "clusterroles", name)["rules"]
        assert sorted(item["resources"][0] for item in rules) == ["a", "b"]
