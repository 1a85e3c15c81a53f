"""Known differences between the two engines, and why they are right. `docs/compatibility.md` shows this table.

A test that depends on one calls `by_engine` with the entry's name. So nothing differs silently, and an entry that no
test uses is detected (tests/conformance/test_differences.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tests.support.engines import Engine

T = TypeVar("T")


@dataclass(frozen=True)
class Difference:
    real: str  # what a real kube-apiserver does
    embedded: str  # what the embedded server does
    why: str


DIFFERENCES: dict[str, Difference] = {
    "watch-from-no-version": Difference(
        real="Rejects a watch whose resourceVersion is not a number with code 500.",
        embedded="Returns the same message with code 400 and reason BadRequest.",
        why="Invalid input is a client error, not a server error.",
    ),
    "create-with-version": Difference(
        real="Rejects the creation of an object that has a resourceVersion with code 500.",
        embedded="Returns the same message with code 400 and reason BadRequest.",
        why="Invalid input is a client error, not a server error.",
    ),
    "patches-that-do-not-fit": Difference(
        real="Rejects an apply or strategic merge patch that does not match the type with code 500 and no reason.",
        embedded="Returns the same message with code 400 and reason BadRequest.",
        why="Invalid input is a client error, not a server error.",
    ),
    "service-addresses": Difference(
        real="Rejects a Service with an address or node port that another Service uses.",
        embedded="Assigns random addresses and ports from the same ranges, and accepts any requested one.",
        why="Nothing routes to these addresses: the embedded server has no Service network.",
    ),
    "new-nodes": Difference(
        real="Taints a new Node as not ready until the node controller finds it ready.",
        embedded="Stores the Node unchanged.",
        why="No node controller would remove the taint.",
    ),
    "history-is-kept": Difference(
        real="Returns 410 Gone for a watch from a version older than the watch cache, which covers a few minutes.",
        embedded="Serves the watch as long as the history is kept (by default one day). Rights on one name or in one "
        "namespace show its history only since that object or namespace was created.",
        why="The store is a log of revisions, so a watch can resume from any of them.",
    ),
}


def by_engine(engine: Engine, entry: str, *, real: T, embedded: T) -> T:
    """Return the expectation for this engine, for an entry of the table."""
    assert entry in DIFFERENCES, f"{entry} is not in the table of differences"
    return real if engine.is_real else embedded
