"""The cache of encoded watch events."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from herder.engine.apiserver.response.watch_events import EventCache

MIB = 1 << 20


class Resource:
    """Stands in for a resource; the cache only holds it."""


def test_the_cache_is_limited_by_bytes() -> None:
    lines, resource = EventCache(), Resource()
    for number in range(40):
        lines.put((number,), resource, bytes(MIB))  # type: ignore[arg-type]
    known = [number for number in range(40) if lines.get((number,)) is not None]
    assert known == list(range(40 - len(known), 40))
    assert 0 < len(known) <= 16


def test_a_line_that_is_put_again_counts_once() -> None:
    lines, resource = EventCache(), Resource()
    for _ in range(40):
        lines.put(("same",), resource, bytes(MIB))  # type: ignore[arg-type]
    lines.put(("other",), resource, b"x")  # type: ignore[arg-type]
    assert lines.get(("same",)) is not None


def test_the_id_of_a_resource_is_no_others_while_a_line_names_it() -> None:
    lines = EventCache()
    resource: Any = Resource()
    kept = weakref.ref(resource)
    lines.put((id(resource),), resource, b"line")
    del resource
    gc.collect()
    assert kept() is not None
