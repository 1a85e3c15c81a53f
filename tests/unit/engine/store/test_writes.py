"""Writes, and reads of the current state."""

from __future__ import annotations

import asyncio

import pytest

from herder.engine.store import Delete, Put, RevisionConflict, Store, StoreFailed

from .conftest import Opener, delete, fill, key, put, values


async def test_each_write_gets_the_next_revision_and_encodes_it(store: Store) -> None:
    [a] = await store.write(put("a"))
    [b] = await store.write(put("b"))
    assert (a.revision, b.revision, store.revision) == (1, 2, 2)
    assert (a.value, b.value) == (b"a:@1", b"b:@2")


async def test_a_write_can_be_read_once_it_is_acknowledged(store: Store) -> None:
    [written] = await store.write(put("a"))
    assert store.get(key("a")) is written
    assert store.get(key("b")) is None


async def test_an_update_keeps_the_create_revision(store: Store) -> None:
    await store.write(put("a"))
    [updated] = await store.write(put("a", "new"))
    assert (updated.created, updated.revision) == (1, 2)


async def test_a_recreated_object_has_its_own_create_revision(store: Store) -> None:
    await store.write(put("a"))
    [final] = await store.write(delete("a"))
    [reborn] = await store.write(put("a"))
    assert final.value == b"a:gone@2"
    assert (reborn.created, reborn.revision) == (3, 3)


@pytest.mark.parametrize(
    "change",
    [put("a", expected=0), put("a", expected=7), put("absent", expected=1), delete("a", expected=7), delete("absent")],
    ids=["create existing", "update stale", "update absent", "delete stale", "delete absent"],
)
async def test_an_unexpected_revision_raises_a_conflict_with_the_current_state(
    store: Store, change: Put | Delete
) -> None:
    await store.write(put("a"))
    with pytest.raises(RevisionConflict) as conflict:
        store.write(change)
    assert conflict.value.key == change.key
    assert conflict.value.current is store.latest(change.key)
    assert store.revision == 1


async def test_a_write_with_the_expected_revision_succeeds(store: Store) -> None:
    [first] = await store.write(put("a", expected=0))
    [second] = await store.write(put("a", expected=first.revision))
    await store.write(delete("a", expected=second.revision))
    assert store.get(key("a")) is None


async def test_writes_in_flight_cause_conflicts_but_cannot_be_read_yet(opener: Opener) -> None:
    store = opener()
    first = store.write(put("a", expected=0))
    assert store.get(key("a")) is None
    latest = store.latest(key("a"))
    assert latest is not None
    assert latest.revision == 1
    with pytest.raises(RevisionConflict):
        store.write(put("a", expected=0))
    second = store.write(delete("a", expected=1))
    assert store.latest(key("a")) is None
    third = store.write(put("a", expected=0))
    assert [[record.revision for record in written] for written in await asyncio.gather(first, second, third)] == [
        [1],
        [2],
        [3],
    ]
    assert values(store.list("pods")) == ["a:@3"]


async def test_changes_of_one_write_are_atomic(store: Store) -> None:
    await store.write(put("a"))
    with pytest.raises(RevisionConflict):
        store.write(put("b"), delete("absent"), put("c"))
    assert values(store.list("pods")) == ["a:@1"]
    written = await store.write(put("b"), delete("a"), put("c"))
    assert [record.revision for record in written] == [2, 3, 4]
    assert values(store.list("pods")) == ["b:@2", "c:@4"]


async def test_a_write_that_cannot_be_encoded_changes_nothing(store: Store) -> None:
    def broken(revision: int) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.write(put("a"), Put(key("b"), broken))
    assert store.latest(key("a")) is None
    [record] = await store.write(put("a"))
    assert record.revision == 1


async def test_a_write_may_not_be_empty_or_change_an_object_twice(store: Store) -> None:
    for changes in ([put("a"), put("a")], []):
        with pytest.raises(ValueError, match="at least one change, and at most one change per object"):
            store.write(*changes)


async def test_a_cancelled_caller_does_not_affect_the_others(store: Store) -> None:
    gone, stays = store.write(put("a")), store.write(put("b"))
    gone.cancel()
    await stays
    assert values(store.list("pods")) == ["a:@1", "b:@2"]


async def test_lists_are_in_the_order_of_etcd_keys(store: Store) -> None:
    for namespace, name in [("a", "x"), ("a-b", "x"), ("a", "a.b"), ("a", "a-b"), ("b", "a"), ("", "z")]:
        await store.write(put(key(name, namespace)))
    paths = [record.key.path for record in store.list("pods")]
    assert paths == ["/z", "a-b/x", "a/a-b", "a/a.b", "a/x", "b/a"]
    assert [record.key.path for record in store.list("pods", "a")] == ["a/a-b", "a/a.b", "a/x"]
    assert store.list("pods", "c") == []
    assert store.list("secrets") == []
    assert (store.count("pods"), store.count("secrets")) == (6, 0)


async def test_a_list_is_a_snapshot(store: Store) -> None:
    await fill(store, "abc")
    before = store.list("pods")
    await store.write(delete("b"), put("a", "new"), put("d"))
    assert values(before) == ["a:@1", "b:@2", "c:@3"]


async def test_a_list_can_be_paged(store: Store) -> None:
    await fill(store, "abcde")
    assert values(store.list("pods", limit=2)) == ["a:@1", "b:@2"]
    assert values(store.list("pods", after="default/b", limit=2)) == ["c:@3", "d:@4"]
    assert values(store.list("pods", "default", after="default/bb")) == ["c:@3", "d:@4", "e:@5"]


async def test_many_callers_share_commits_and_all_are_acknowledged_in_order(opener: Opener) -> None:
    store = opener()
    watch = store.watch("pods", since=0)
    written = await asyncio.gather(*(store.write(put(f"p{n}")) for n in range(3_000)))
    assert [record.revision for [record] in written] == list(range(1, 3_001))
    seen = [event.revision for event in watch.take()]
    assert seen == list(range(1, 3_001))


async def test_all_objects_are_available_after_a_restart(opener: Opener) -> None:
    store = opener()
    await fill(store, "abc")
    await store.write(delete("b"))
    await store.close()
    again = opener()
    assert values(again.list("pods")) == ["a:@1", "c:@3"]
    assert again.revision == 4
    [record] = await again.write(put("a"))
    assert (record.revision, record.created) == (5, 1)


async def test_closing_waits_for_submitted_writes(opener: Opener) -> None:
    store = opener()
    write = store.write(put("a"))
    await store.close()
    assert write.done()
    with pytest.raises(StoreFailed, match="closed"):
        store.write(put("b"))
    assert values(opener().list("pods")) == ["a:@1"]


async def test_neither_records_nor_events_show_values_in_logs(store: Store) -> None:
    watch = store.watch("pods", since=0)
    [record] = await store.write(put("a", "hunter2"))
    assert "hunter2" not in f"{record} {await anext(watch)} {RevisionConflict(record.key, record)}"


async def test_large_values_are_all_committed_in_several_transactions(opener: Opener) -> None:
    store = opener()
    large = "x" * (1 << 20)
    await asyncio.gather(*(store.write(put(f"p{n:02}", large)) for n in range(40)))
    assert [len(record.value) > 1 << 20 for record in store.list("pods")] == [True] * 40
    await store.close()
    assert opener().count("pods") == 40
