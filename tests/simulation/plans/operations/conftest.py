"""`make test` runs a sample of the cases of each simulated operation, and `make soak` all of them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from zlib import crc32

import pytest

SAMPLED = 1  # of the distributions, phases and actors of a test


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            cases[item.nodeid.partition("[")[0]].append(item)
    for found in cases.values():
        # The same cases in every run: those of another draw must not fail a change that has nothing to do with them.
        drawn = sorted(found, key=lambda item: crc32(item.nodeid.encode()))
        for item in drawn[SAMPLED:]:
            item.add_marker(pytest.mark.soak)
