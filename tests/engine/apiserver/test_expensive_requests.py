"""Requests that cost far more to answer than to send: none of them keeps the event loop busy."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator

import pytest

from herder.engine.apiserver.server import assemble
from tests.engine.apiserver.api import Api, Clock
from tests.support import attacks
from tests.support.attacks import Attack
from tests.support.turns import in_turns_of_its_own, measured_turns

TURN_SECONDS = 0.05
STALLING = (
    "pattern",
    "CEL matches",
    "CEL nested loops",
    "CEL quantities",
    "large list map",
    "large set",
    "200,000 keys",
    "repeated keys",
    "empty lists",
    "YAML, 3 MB",
    "YAML aliases",
    "apply, 1.2 MB",
)


@pytest.fixture(scope="module")
async def api() -> AsyncIterator[Api]:
    clock = Clock()
    server = await assemble(None, clock=clock, entropy=os.urandom)
    found = Api(server, clock)
    defined = await found.post(attacks.DEFINITION_PATH, attacks.definition())
    assert defined.status == 201, defined.message
    async with asyncio.timeout(10):
        while (await found.ask("GET", attacks.TARGETS.format(namespace="default"))).status != 200:
            await asyncio.sleep(0.01)
    yield found
    await server.stop()


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(
            attack,
            id=attack.name,
            marks=pytest.mark.xfail(strict=True, reason="computed on the event loop")
            if attack.name in STALLING
            else (),
        )
        for attack in attacks.COMPUTATIONS
    ],
)
async def test_no_request_keeps_the_event_loop_busy(api: Api, attack: Attack) -> None:
    path = attack.path.format(namespace="default")
    if attack.creates:
        made = await api.post(attack.creates.format(namespace="default"), attacks.configmap("patched", {"a": "b"}))
        assert made.status in (201, 409), made.message
    body = attack.body()
    gc.collect()
    with measured_turns() as turns:
        answer = await in_turns_of_its_own(api.ask(attack.method, path, body, content_type=attack.content_type))
    assert answer.status < 300 or 400 <= answer.status < 500, answer.message[:500]
    assert not attack.accepted or answer.status in (200, 201), answer.message[:500]
    assert turns.longest < TURN_SECONDS, f"{turns.longest:.3f} s of CPU in {turns.what}"
