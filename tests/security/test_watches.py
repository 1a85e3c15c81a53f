"""Memory of many watches, and its return when they are closed. The server counts objects and bytes itself."""

from __future__ import annotations

import asyncio

from tests.support.attacks.attacker import TURN_MS, Target, request

PATH = "/api/v1/namespaces/default/configmaps"  # no other test writes there
WATCHES = 1000
BATCH = 50  # connections that are not identified yet
BYTES_OF_WATCH = 4 << 10


async def test_a_thousand_closed_watches_leave_nothing(target: Target) -> None:
    before = await target.reset()

    async def watch() -> int:
        raw = await target.connect()
        raw.send(request("GET", f"{PATH}?watch=true&resourceVersion=0", "admin"))
        return (await raw.head())[0]

    for _ in range(0, WATCHES, BATCH):
        assert set(await asyncio.gather(*(watch() for _ in range(BATCH)))) == {200}
    report = await target.report()
    usage, live = report["usage"], report["live"]
    assert usage["connections"] == live["Connection"] == WATCHES
    assert live["EventStream"] - before["live"]["EventStream"] == WATCHES
    assert live["Watch"] - before["live"]["Watch"] == WATCHES
    assert usage["held_bytes"] <= WATCHES * BYTES_OF_WATCH
    assert usage["retained_bytes"]["total"] == 0  # the initial state was sent
    target.hang_up()
    await target.until(
        lambda report: not report["usage"]["connections"] and report["live"]["tasks"] <= before["live"]["tasks"]
    )
    after = await target.report()  # the callbacks of these tasks, which refer to the watches, have run by now
    assert after["turn_ms"] <= TURN_MS, after["turn"]
    for kind, count in after["live"].items():
        assert count <= before["live"][kind], f"{kind}: {before['live'][kind]} -> {count}"
    for held in ("held_bytes", "largest_connection_bytes", "largest_user_bytes"):
        assert after["usage"][held] == 0
    assert after["usage"]["retained_bytes"] == {"total": 0, "largest_user": 0}
    assert after["usage"]["long_running"]["total"] == 0
