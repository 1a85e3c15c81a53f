"""Hooks return an error or an object for any input, and never crash."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from herder.engine.meta.errors import StatusError
from tests.unit.engine.apiserver.builtin.driving import create, update
from tests.unit.engine.apiserver.builtin.record import key
from tests.unit.engine.apiserver.builtin.samples import SAMPLES

_VALUES: tuple[Any, ...] = (
    None, "", "x", "A_b", "a" * 300, "None", "*", "10%", "-1", 0, -1, 1, 1 << 31, 1 << 70, 1.5, True, False, {}, [],
    [""], [{}], [None], {"": ""}, {"a": None}, {"a": {}}, "2020-01-01T00:00:00Z", "::1", "10.0.0.1", "\u0000", "é",
)  # fmt: skip


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Yield every (container, key) of a document, except kind and name."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for at, inner in items:
        if at not in ("apiVersion", "kind", "metadata") or not isinstance(value, dict):
            found.append((value, at))
            _places(inner, found)
    return found


def _corrupted(sample: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    obj = copy.deepcopy(sample)
    for _ in range(chance.randint(1, 3)):
        places = _places(obj, [])
        if not places:
            return obj
        holder, at = chance.choice(places)
        if isinstance(holder, dict) and chance.random() < 0.3:
            del holder[at]
        else:
            holder[at] = copy.deepcopy(chance.choice(_VALUES))
    return obj


def _code(attempt: Callable[[], object]) -> int:
    try:
        attempt()
    except StatusError as rejected:
        return rejected.code
    return 200


@pytest.mark.parametrize("sample", SAMPLES, ids=key)
def test_corrupted_objects_are_rejected_or_accepted(sample: dict[str, Any]) -> None:
    chance = random.Random(key(sample))
    complete = create(sample)
    for _ in range(150):
        for attempt in (
            lambda: create(_corrupted(sample, chance)),
            lambda: update(complete, _corrupted(complete, chance)),
        ):
            assert _code(attempt) < 500
