"""Reads at old revisions."""

from __future__ import annotations

import pytest

from herder.engine.store import Compacted, FutureRevision, Store, hub

from .conftest import Opener, delete, fill, key, put, values


@pytest.fixture(params=["recent", "disk"])
def remembered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose history is in memory or only on disk: reads return the same."""
    if request.param == "disk":
        monkeypatch.setattr(hub, "RECENT_EVENTS", 0)


async def past(store: Store) -> None:
    await fill(store, "ab")  # 1, 2
    await store.write(put("a", "new"))  # 3
    await store.write(delete("b"))  # 4
    await store.write(put("b", "reborn"))  # 5
    await store.write(put(key("c", "other")))  # 6


@pytest.mark.usefixtures("remembered")
async def test_a_list_can_be_read_as_of_every_revision(store: Store) -> None:
    await past(store)
    assert [values(await store.list_at("pods", "", revision)) for revision in range(7)] == [
        [],
        ["a:@1"],
        ["a:@1", "b:@2"],
        ["a:new@3", "b:@2"],
        ["a:new@3"],
        ["a:new@3", "b:reborn@5"],
        ["a:new@3", "b:reborn@5", "c:@6"],
    ]
    assert values(await store.list_at("pods", "other", 6)) == ["c:@6"]
    assert values(await store.list_at("pods", "other", 5)) == []
    assert await store.list_at("secrets", "", 3) == []


@pytest.mark.usefixtures("remembered")
async def test_an_object_can_be_read_as_of_every_revision(store: Store) -> None:
    await past(store)
    seen = [await store.get_at(key("b"), revision) for revision in range(7)]
    assert [record and record.value for record in seen] == [
        None,
        None,
        b"b:@2",
        b"b:@2",
        None,
        b"b:reborn@5",
        b"b:reborn@5",
    ]
    assert seen[5] is not None
    assert seen[5].created == 5


@pytest.mark.usefixtures("remembered")
async def test_pages_at_one_revision_are_consistent_while_writes_continue(store: Store) -> None:
    await fill(store, "abcdef")
    names: list[str] = []
    after = ""
    for change in (delete("a"), put("aa"), delete("f"), put("g")):
        page = await store.list_at("pods", "", 6, after=after, limit=2)
        names += [record.key.name for record in page]
        after = page[-1].key.path if page else after
        await store.write(change)
    assert names == list("abcdef")


async def test_future_and_compacted_revisions_are_rejected(store: Store) -> None:
    await past(store)
    await store.compact(3)
    for revision, refusal in ((2, Compacted), (7, FutureRevision)):
        with pytest.raises(refusal):
            await store.list_at("pods", "", revision)
        with pytest.raises(refusal):
            await store.get_at(key("a"), revision)
    assert values(await store.list_at("pods", "", 3)) == ["a:new@3", "b:@2"]


async def test_a_time_is_mapped_to_the_revision_that_was_current(opener: Opener) -> None:
    store = opener()
    for name in "abcdefgh":
        opener.clock.now += 10
        await store.write(put(name), put(name + name))
    start = opener.clock.now - 80
    assert [await store.revision_at(start + seconds) for seconds in (0, 10, 19, 20, 75, 1_000)] == [0, 2, 2, 4, 14, 16]
    await store.compact(7)
    assert [await store.revision_at(start + seconds) for seconds in (0, 20, 75)] == [7, 7, 14]
