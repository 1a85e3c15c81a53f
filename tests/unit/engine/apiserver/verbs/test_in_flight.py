"""No response, success or error, is based on a change that is not committed yet.

Every test holds one change in flight, sends a second request that depends on it, and checks that it is not answered
before the first is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine.apiserver.api import APPLY, JSON_PATCH, Answer, Api, config_map, start
from tests.unit.engine.apiserver.commit_gate import CommitGate, settled_turns, sqlite_error


@pytest.fixture(scope="module")
async def disk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Api, CommitGate]]:
    """A server whose store commits on its own thread; only there are changes in flight."""
    directory: Path = tmp_path_factory.mktemp("disk")
    server, clock = await start(directory)
    api = Api(server, clock)
    gate = CommitGate(server.deps.store)
    yield api, gate
    await server.stop()


@pytest.fixture
async def maps(disk: tuple[Api, CommitGate], request: pytest.FixtureRequest) -> str:
    api, _ = disk
    name = f"ns-{abs(hash(request.node.name))}"
    created_object = await api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    assert created_object.status == 201
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    ca = f"/api/v1/namespaces/{name}/configmaps/kube-root-ca.crt"
    while {(await api.get(account)).status, (await api.get(ca)).status} != {200}:
        await asyncio.sleep(0.001)
    return f"/api/v1/namespaces/{name}/configmaps"


async def _second(disk: tuple[Api, CommitGate], first: Awaitable[Answer], second: Awaitable[Answer]) -> Answer:
    """Return the response to the second request, which must not arrive before the first is committed."""
    _, gate = disk
    with gate.closed():
        before = await gate.in_flight(first)  # type: ignore[arg-type]
        waiting = await settled_turns(second)
        answered_early = waiting.done() and waiting.result()
        assert not answered_early, answered_early
    assert (await before).status in (200, 201)
    return await waiting


async def test_already_exists_waits_until_the_winner_is_committed(disk: tuple[Api, CommitGate], maps: str) -> None:
    api, _ = disk
    loser = await _second(disk, api.post(maps, config_map("a")), api.post(maps, config_map("a")))
    assert loser.reason == "AlreadyExists"
    assert (await api.get(f"{maps}/a")).status == 200


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ({"data": {"k": "new"}}, "application/merge-patch+json"),
        ({"data": {"k": "new"}}, "application/strategic-merge-patch+json"),
        ([{"op": "replace", "path": "/data/k", "value": "new"}], JSON_PATCH),
    ],
)
async def test_a_noop_patch_waits_for_the_change_in_flight(
    disk: tuple[Api, CommitGate], maps: str, body: Any, content_type: str
) -> None:
    api, _ = disk
    await api.post(maps, config_map("a", k="old"))
    change = api.patch(f"{maps}/a", {"data": {"k": "new"}})
    answer = await _second(disk, change, api.patch(f"{maps}/a", body, content_type))
    assert answer.status == 200
    assert int(answer.body["metadata"]["resourceVersion"]) <= api.server.deps.store.revision


async def test_a_noop_apply_waits_for_the_change_in_flight(disk: tuple[Api, CommitGate], maps: str) -> None:
    api, _ = disk
    applied = f"{maps}/a?fieldManager=one"
    await api.patch(applied, config_map("a", k="old"), APPLY)
    new = config_map("a", k="new")
    answer = await _second(disk, api.patch(applied, new, APPLY), api.patch(applied, new, APPLY))
    assert answer.status == 200


async def test_a_noop_update_waits_for_the_change_in_flight(disk: tuple[Api, CommitGate], maps: str) -> None:
    api, _ = disk
    await api.post(maps, config_map("a", k="old"))
    new = config_map("a", k="new")
    answer = await _second(disk, api.put(f"{maps}/a", new), api.put(f"{maps}/a", new))
    assert answer.status == 200


@pytest.mark.parametrize(
    "refused",
    [
        lambda api, path: api.delete(path),
        lambda api, path: api.delete(f"{path}?dryRun=All"),
        lambda api, path: api.patch(path, {"data": {"k": "new"}}),
        lambda api, path: api.put(path, config_map("a", k="new")),
    ],
    ids=["delete", "delete dry run", "patch", "update"],
)
async def test_not_found_waits_until_the_deletion_is_committed(
    disk: tuple[Api, CommitGate], maps: str, refused: Callable[[Api, str], Awaitable[Answer]]
) -> None:
    api, _ = disk
    await api.post(maps, config_map("a"))
    answer = await _second(disk, api.delete(f"{maps}/a"), refused(api, f"{maps}/a"))
    assert answer.reason == "NotFound"
    assert (await api.get(f"{maps}/a")).status == 404


@pytest.mark.parametrize("second", ["update", "patch", "delete", "invalid"])
async def test_rejections_wait_for_the_change_that_they_are_based_on(
    disk: tuple[Api, CommitGate], maps: str, second: str
) -> None:
    api, _ = disk
    created_object = await api.post(maps, config_map("a", k="old") | {"immutable": second == "invalid" or None})
    old = created_object.body["metadata"]
    stale = config_map("a", k="x")
    stale["metadata"]["resourceVersion"] = old["resourceVersion"]
    requests = {
        "update": lambda: api.put(f"{maps}/a", stale),
        "patch": lambda: api.patch(f"{maps}/a", stale),
        "delete": lambda: api.delete(f"{maps}/a", {"preconditions": {"resourceVersion": old["resourceVersion"]}}),
        "invalid": lambda: api.patch(f"{maps}/a", {"data": {"k": "refused"}}),
    }
    change = api.patch(f"{maps}/a", {"metadata": {"labels": {"changed": "yes"}}})
    answer = await _second(disk, change, requests[second]())
    assert answer.reason == ("Invalid" if second == "invalid" else "Conflict")


async def test_a_second_delete_waits_for_the_deletion_timestamp_of_the_first(
    disk: tuple[Api, CommitGate], maps: str
) -> None:
    api, _ = disk
    held = config_map("a")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await api.post(maps, held)
    answer = await _second(disk, api.delete(f"{maps}/a"), api.delete(f"{maps}/a"))
    assert answer.status == 200
    assert int(answer.body["metadata"]["resourceVersion"]) <= api.server.deps.store.revision


async def test_a_dry_run_waits_for_the_change_in_flight(disk: tuple[Api, CommitGate], maps: str) -> None:
    api, _ = disk
    answer = await _second(disk, api.post(maps, config_map("a")), api.post(f"{maps}?dryRun=All", config_map("a")))
    assert answer.reason == "AlreadyExists"
    created = await _second(disk, api.delete(f"{maps}/a"), api.post(f"{maps}?dryRun=All", config_map("a")))
    assert created.status == 201


async def test_a_dry_run_patch_waits_for_the_change_it_is_based_on(disk: tuple[Api, CommitGate], maps: str) -> None:
    api, _ = disk
    await api.post(maps, config_map("a"))
    change = api.patch(f"{maps}/a", {"data": {"k": "new"}})
    answer = await _second(disk, change, api.patch(f"{maps}/a?dryRun=All", {"data": {"l": "more"}}))
    assert answer.body["data"] == {"k": "new", "l": "more"}


async def test_a_token_waits_for_its_account(disk: tuple[Api, CommitGate], maps: str) -> None:
    """A token must not contain the uid of an account that a crash could roll back."""
    api, _ = disk
    accounts = maps.replace("configmaps", "serviceaccounts")
    created_object = api.post(accounts, {"metadata": {"name": "robot"}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await _second(disk, created_object, api.post(f"{accounts}/robot/token", request))
    assert answer.status == 201


async def test_deleting_a_collection_waits_for_deletions_in_flight(disk: tuple[Api, CommitGate], maps: str) -> None:
    api, _ = disk
    labelled = config_map("a")
    labelled["metadata"]["labels"] = {"of": "test"}
    await api.post(maps, labelled)
    answer = await _second(disk, api.delete(f"{maps}/a"), api.delete(f"{maps}?labelSelector=of=test"))
    assert answer.status == 200


async def test_a_response_waits_even_if_the_writer_of_the_change_disconnected(
    disk: tuple[Api, CommitGate], maps: str
) -> None:
    """The client that sent the change may disconnect; the change is committed anyway."""
    api, gate = disk
    with gate.closed():
        winner = await gate.in_flight(api.post(maps, config_map("a")))
        winner.cancel()
        loser = await settled_turns(api.post(maps, config_map("a")))
        assert not loser.done()
        assert (await api.get(f"{maps}/a")).status == 404
    assert (await loser).reason == "AlreadyExists"
    assert (await api.get(f"{maps}/a")).status == 200


async def test_a_quota_rejection_waits_for_the_writes_that_use_the_quota(
    disk: tuple[Api, CommitGate], maps: str
) -> None:
    api, _ = disk
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"count/secrets": "1"}}}
    await api.post(maps.replace("configmaps", "resourcequotas"), quota)
    secrets = maps.replace("configmaps", "secrets")
    answer = await _second(
        disk, api.post(secrets, {"metadata": {"name": "a"}}), api.post(secrets, {"metadata": {"name": "b"}})
    )
    assert answer.reason == "Forbidden"
    assert (await api.get(f"{secrets}/a")).status == 200


async def test_no_request_is_rejected_because_of_a_failed_change(tmp_path: Path) -> None:
    server, clock = await start(tmp_path)
    api, gate = Api(server, clock), CommitGate(server.deps.store)
    maps = "/api/v1/namespaces/default/configmaps"
    gate.error = sqlite_error("SQLITE_FULL")
    with gate.closed():
        winner = await gate.in_flight(api.post(maps, config_map("a")))
        loser = await settled_turns(api.post(maps, config_map("a")))
    assert ((await winner).status, (await loser).status) == (503, 503)
    assert (await api.get(f"{maps}/a")).status == 404
    await server.stop()


async def test_an_aggregated_role_in_flight_does_not_stop_the_server(disk: tuple[Api, CommitGate], maps: str) -> None:
    """The aggregator writes on top of the committed state, and must yield to the pending commit that it conflicts
    with."""
    api, gate = disk
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    selector = {"clusterRoleSelectors": [{"matchLabels": {"of": "all"}}]}
    await api.post(roles, {"metadata": {"name": "all"}, "aggregationRule": selector})
    await api.post(roles, {"metadata": {"name": "part", "labels": {"of": "none"}}, "rules": [rule]})
    with gate.closed():
        other = await gate.in_flight(api.patch(f"{roles}/part", {"metadata": {"labels": {"of": "all"}}}))
        change = await settled_turns(api.patch(f"{roles}/all", {"metadata": {"annotations": {"a": "b"}}}))
        await gate.let_one_pass()
        assert (await other).status == 200
        await settled_turns(asyncio.sleep(0))
    assert [(await task).status for task in (change, other)] == [200, 200]
    async with asyncio.timeout(20):
        while (await api.get(f"{roles}/all")).body.get("rules") != [rule]:
            await asyncio.sleep(0.001)
