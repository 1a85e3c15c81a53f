"""The cache of encoded watch events."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from herder.engine.apiserver.response.watch_events import EventCache

MIB = 1 << 20


class Resource:
    """A placeholder for a resource; the cache only holds a reference to it."""


def test_the_cache_is_limited_by_bytes() -> None:
    lines, resource = EventCache(), Resource()
    for number in range(40):
        lines.put((number,), resource, bytes(MIB))  # type: ignore[arg-type]
    known = [number for number in range(40) if lines.get((number,)) is not None]
    assert known == list(range(40 - len(known), 40))
    assert 0 < len(known) <= 16


def test_a_line_that_is_stored_again_counts_once() -> None:
    lines, resource = EventCache(), Resource()
    for _ in range(40):
        lines.put(("same",), resource, bytes(MIB))  # type: ignore[arg-type]
    lines.put(("other",), resource, b"x")  # type: ignore[arg-type]
    assert lines.get(("same",)) is not None


def test_a_cached_line_keeps_its_resource_alive() -> None:
    lines = EventCache()
    resource: Any = Resource()
    kept = weakref.ref(resource)
    lines.put((id(resource),), resource, b"line")
    del resource
    gc.collect()
    assert kept() is not None
