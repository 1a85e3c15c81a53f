"""Concurrent requests and connections: limits per user and in total, and fairness between users."""

from __future__ import annotations

import asyncio

from tests.support.attacks.attacker import RawConnection, Target, request

PATH = "/api/v1/namespaces/alice/configmaps"


async def test_long_running_requests_of_one_user_have_a_limit(target: Target) -> None:
    limit = (await target.report())["usage"]["limits"]["long_running_per_user"]

    async def watch() -> tuple[RawConnection, int, dict[str, str]]:
        raw = await target.connect()
        raw.send(request("GET", f"{PATH}?watch=true&resourceVersion=0", "alice"))
        status, headers = await raw.head()
        return raw, status, headers

    watches = []
    while len(watches) < limit:
        watches += await asyncio.gather(*(watch() for _ in range(min(50, limit - len(watches)))))
    assert {status for _, status, _ in watches} == {200}
    _, status, headers = await watch()
    assert (status, headers["retry-after"]) == (429, "1")
    assert (await target.ask("GET", PATH, "alice"))[0] == 200  # short requests are counted separately
    assert (await target.ask("GET", PATH.replace("alice", "bob") + "?watch=false", "bob"))[0] == 200
    target.hang_up()
    await target.until(lambda report: report["usage"]["long_running"]["total"] == 0)
    assert (await watch())[1] == 200


async def test_connections_without_credentials_have_a_limit_per_source(target: Target) -> None:
    limit = (await target.report())["usage"]["limits"]["anonymous_connections_per_source"]
    rejected = 0
    for _ in range(0, limit + 40, 20):
        opened = await asyncio.gather(*(target.connect() for _ in range(20)), return_exceptions=True)
        rejected += sum(isinstance(raw, BaseException) for raw in opened)
    assert rejected
    assert (await target.report())["usage"]["connections"] <= limit
    target.hang_up()
    await target.until(lambda report: report["usage"]["connections"] == 0)
    assert (await target.ask("GET", PATH, "alice"))[0] == 200


async def test_connections_of_users_are_not_counted_as_anonymous(target: Target) -> None:
    raw = await target.connect()
    raw.send(request("GET", PATH + "?limit=1", "alice"))
    assert (await raw.answer())[0] == 200
    report = await target.report()
    assert report["usage"]["connections"] == 1
    assert report["usage"]["anonymous_connections"] == 0
