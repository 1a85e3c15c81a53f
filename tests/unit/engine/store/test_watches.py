"""Watches start at any kept revision and deliver events in order, without gaps or duplicates."""

from __future__ import annotations

import asyncio

import pytest

from herder.engine.store import Compacted, Overflow, Store, Watch, hub

from .conftest import Opener, delete, fill, key, put, summarize


async def everything(watch: Watch, up_to: int) -> list[tuple[int, str, str, bool]]:
    seen = []
    while watch.progress() < up_to:
        seen += [summarize(event) for event in await anext(watch)]
    return seen


async def test_a_watch_delivers_each_change_with_the_previous_value(store: Store) -> None:
    watch = store.watch("pods", since=0)
    await store.write(put("a"))
    await store.write(put("a", "new"))
    await store.write(delete("a"))
    assert await everything(watch, 3) == [
        (1, "a:@1", "", False),
        (2, "a:new@2", "a:@1", False),
        (3, "a:gone@3", "a:new@2", True),
    ]


async def test_a_watch_starts_after_its_since_revision(store: Store) -> None:
    await fill(store, "abc")
    watch = store.watch("pods", since=1)
    await fill(store, "d")
    assert [event[0] for event in await everything(watch, 4)] == [2, 3, 4]


async def test_a_watch_from_a_future_revision_waits_for_it(store: Store) -> None:
    watch = store.watch("pods", since=2)
    await fill(store, "abc")
    assert [event[0] for event in await everything(watch, 3)] == [3]


@pytest.mark.parametrize(
    ("namespace", "name", "wanted"),
    [("", "", "abcd"), ("one", "", "ab"), ("one", "x", "a"), ("", "x", "acd"), ("two", "y", "")],
)
async def test_a_watch_delivers_only_its_resource_namespace_and_name(
    store: Store, namespace: str, name: str, wanted: str
) -> None:
    live = store.watch("pods", namespace, name, since=0)
    for text, where in {
        "a": key("x", "one"),
        "b": key("y", "one"),
        "c": key("x", "two"),
        "d": key("x", ""),
        "e": key("x", "one", "secrets"),
    }.items():
        await store.write(put(where, text))
    late = store.watch("pods", namespace, name, since=0)
    for watch in (live, late):
        assert "".join(event.record.value.decode()[2] for event in watch.take()) == wanted


async def test_a_waiting_reader_is_woken(store: Store) -> None:
    watch = store.watch("pods", since=0)
    reader = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    await store.write(put("a"))
    [event] = await reader
    assert event.revision == 1


async def test_a_closed_watch_ends_its_reader(store: Store) -> None:
    watch = store.watch("pods", since=0)
    reader = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)
    watch.close()
    assert await reader is None
    await store.write(put("a"))
    assert watch.take() == []


async def test_closing_the_store_ends_its_watches(opener: Opener) -> None:
    store = opener()
    watch = store.watch("pods", since=0)
    await store.close()
    assert [batch async for batch in watch] == []


async def test_a_cancelled_read_loses_no_event(store: Store) -> None:
    watch = store.watch("pods", since=0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(watch), 0.01)
    await fill(store, "ab")
    assert [event[0] for event in await everything(watch, 2)] == [1, 2]


async def test_a_watch_that_falls_behind_is_closed_and_others_continue(store: Store) -> None:
    slow, quick = store.watch("pods", since=0, backlog=2), store.watch("pods", since=0)
    await fill(store, "abc")
    with pytest.raises(Overflow):
        await anext(slow)
    assert [event[0] for event in await everything(quick, 3)] == [1, 2, 3]


async def test_progress_is_the_revision_up_to_which_all_events_were_delivered(store: Store) -> None:
    watch = store.watch("pods", since=0)
    await store.write(put("a"))
    assert watch.progress() == 0
    await anext(watch)
    await store.write(put(key("x", resource="secrets")))
    assert watch.progress() == store.revision == 2


async def test_a_watch_from_a_compacted_revision_is_rejected(store: Store) -> None:
    await fill(store, "abc")
    await store.compact(2)
    with pytest.raises(Compacted) as refusal:
        store.watch("pods", since=1)
    assert (refusal.value.revision, refusal.value.compacted) == (1, 2)
    assert [event[0] for event in await everything(store.watch("pods", since=2), 3)] == [3]


async def test_events_from_disk_and_live_events_join_without_a_gap(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "RECENT_EVENTS", 10)
    for _ in range(300):
        await store.write(put("a"), put("b"))
    await store.write(delete("a"))
    watch = store.watch("pods", "default", "a", since=100)
    await store.write(put("a"))
    seen = await everything(watch, store.revision)
    assert [event[0] for event in seen] == [*range(101, 601, 2), 601, 602]
    assert seen[0] == (101, "a:@101", "a:@99", False)
    assert seen[-2] == (601, "a:gone@601", "a:@599", True)
    assert seen[-1] == (602, "a:@602", "", False)


async def test_history_is_available_after_a_restart(opener: Opener) -> None:
    store = opener()
    await fill(store, "abc")
    await store.write(delete("b"))
    before = await everything(store.watch("pods", since=0), 4)
    await store.close()
    again = opener()
    assert await everything(again.watch("pods", since=0), 4) == before


async def test_compaction_during_a_replay_ends_the_watch_instead_of_leaving_a_gap(opener: Opener) -> None:
    store = opener()
    await asyncio.gather(*(store.write(put("a")) for _ in range(1_000)))
    await store.close()
    store = opener()
    watch = store.watch("pods", since=10)
    assert (await anext(watch))[0].revision == 11
    await store.compact(900)
    with pytest.raises(Compacted):
        await anext(watch)


async def test_the_recent_history_in_memory_is_limited_by_bytes(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "RECENT_BYTES", 100)
    store = Store.open(None, clock=opener.clock)
    for _ in range(50):
        await store.write(put("a", "x" * 20))
    assert len(store._hub.recent) < 6
    assert len(await everything(store.watch("pods", since=0), 50)) == 50


async def test_catching_up_ends_after_the_history_and_does_not_wait(opener: Opener) -> None:
    store = opener()
    await fill(store, "ab")
    await store.close()
    store = opener()
    watch = store.watch("pods", since=0)
    assert [event.revision for event in await watch.catch_up()] == [1, 2]
    assert await watch.catch_up() == []
    assert watch.progress() == 2


@pytest.mark.parametrize("recent", [0, 100])
async def test_a_watch_of_everything_sees_every_resource(
    store: Store, monkeypatch: pytest.MonkeyPatch, recent: int
) -> None:
    monkeypatch.setattr(hub, "RECENT_EVENTS", recent)
    live = store.watch("", since=0)
    await store.write(put("a"), put(key("n", "", "nodes")), put(key("s", "one", "secrets")))
    await store.write(delete("a"))
    for watch in (live, store.watch("", since=0)):
        events = await watch.catch_up()
        assert [(event.record.key.resource, event.deleted) for event in events] == [
            ("pods", False),
            ("nodes", False),
            ("secrets", False),
            ("pods", True),
        ]
    with pytest.raises(ValueError, match="cannot select a namespace"):
        store.watch("", "default", since=0)
