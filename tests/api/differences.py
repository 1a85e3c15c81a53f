"""Where the two engines are known to differ, and why that is right. `docs/compatibility.md` shows this table.

A test that meets one of these asks `by_engine` for what to expect, naming the entry; so nothing differs silently, and
an entry that no test needs any more is found (tests/api/test_differences.py).
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
        real="A watch whose resourceVersion is not a number is answered with code 500.",
        embedded="The same message, with code 400 and reason BadRequest.",
        why="Bad input is the caller's fault, and no caller may be told to blame the server for it.",
    ),
    "create-with-version": Difference(
        real="Creating an object that has a resourceVersion is answered with code 500.",
        embedded="The same message, with code 400 and reason BadRequest.",
        why="Bad input is the caller's fault, and no caller may be told to blame the server for it.",
    ),
    "patches-that-do-not-fit": Difference(
        real="An apply or a strategic patch that does not fit its type is answered with code 500 and no reason.",
        embedded="The same message, with code 400 and reason BadRequest.",
        why="Bad input is the caller's fault, and no caller may be told to blame the server for it.",
    ),
    "service-addresses": Difference(
        real="An address or node port of a Service that another has is refused.",
        embedded="Services get random addresses and ports from the same ranges, and may ask for any.",
        why="Nothing on a single machine routes to them: they are data for clients that look, not a network.",
    ),
    "new-nodes": Difference(
        real="A new node is tainted as not ready, until the node controller finds it ready.",
        embedded="It is stored as it was sent.",
        why="There is no node controller that would take the taint away: nodes here are what their owner says.",
    ),
    "history-is-kept": Difference(
        real="A watch from a version older than the watch cache's few minutes is gone (410).",
        embedded="It is served for as long as the history is kept, by age: a day unless set otherwise.",
        why="The store is a log of revisions, so a watch can resume from any of them.",
    ),
}


def by_engine(engine: Engine, entry: str, *, real: T, embedded: T) -> T:
    """What to expect of this engine, where the table says that they differ."""
    assert entry in DIFFERENCES, f"{entry} is not in the table of differences"
    return real if engine.is_real else embedded
