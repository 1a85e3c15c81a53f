"""Streams end with the rights of their user."""

from __future__ import annotations

import asyncio

from herder.engine.wire import User
from herder.gateway.proxy.stream_rights import StreamRights

CHECK_SECONDS = 0.05


async def is_lost() -> bool:
    return False


async def check_slowly() -> bool:
    await asyncio.sleep(0.05)
    return True


async def test_many_streams_of_one_user_do_not_delay_the_checks_of_another() -> None:
    rights, ended = StreamRights(CHECK_SECONDS), asyncio.Event()
    for number in range(100):
        rights.bind(User("u-many"), number, check_slowly, ended.set)
    await asyncio.sleep(2 * CHECK_SECONDS)
    rights.bind(User("u-removed"), "c-m-one", is_lost, ended.set)
    try:
        async with asyncio.timeout(2):
            await ended.wait()
    finally:
        rights.close()


async def test_a_user_is_forgotten_when_all_streams_have_ended() -> None:
    rights, ended = StreamRights(CHECK_SECONDS), asyncio.Event()
    release = rights.bind(User("u-leaves"), "c-m-one", check_slowly, ended.set)
    rights.bind(User("u-removed"), "c-m-one", is_lost, ended.set)
    release()
    await ended.wait()
    await asyncio.sleep(3 * CHECK_SECONDS)
    assert not rights.users
    again = asyncio.Event()
    rights.bind(User("u-leaves"), "c-m-one", is_lost, again.set)
    async with asyncio.timeout(2):
        await again.wait()
    rights.close()
