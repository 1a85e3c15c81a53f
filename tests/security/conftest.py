"""One server for all attacks: leftovers of one attack would fail the next one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.attacks.attacker import Target


@pytest.fixture(scope="session")
async def server_under_attack() -> AsyncIterator[Target]:
    target = await Target.start()
    yield target
    await target.stop()


@pytest.fixture
async def target(server_under_attack: Target) -> AsyncIterator[Target]:
    yield server_under_attack
    server_under_attack.hang_up()
    await server_under_attack.until(lambda report: not report["usage"]["connections"])
