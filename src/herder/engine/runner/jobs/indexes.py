"""Completion indexes of Indexed Jobs: `0,2-4` in the status, an annotation on each pod."""

from __future__ import annotations

import re
from collections.abc import Iterable

from herder.engine.meta.kinds import Object

_INDEX = re.compile("[0-9]{1,10}")  # users may edit the annotation
ANNOTATION = "batch.kubernetes.io/job-completion-index"


def index_of(pod: Object) -> int | None:
    text = (pod["metadata"].get("annotations") or {}).get(ANNOTATION, "")
    return int(text) if _INDEX.fullmatch(text) else None


def parse(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def render(indexes: Iterable[int]) -> str:
    """Render indexes as Kubernetes does: runs of three or more as a range."""
    parts: list[str] = []
    ordered = sorted(indexes)
    start = 0
    for position, index in enumerate(ordered):
        if position + 1 < len(ordered) and ordered[position + 1] == index + 1:
            continue
        first = ordered[start]
        if index == first:
            parts.append(str(index))
        elif index == first + 1:
            parts += [str(first), str(index)]
        else:
            parts.append(f"{first}-{index}")
        start = position + 1
    return ",".join(parts)


def first_free(taken: set[int], wanted: int, completions: int) -> list[int]:
    free: list[int] = []
    for index in range(completions):
        if len(free) == wanted:
            break
        if index not in taken:
            free.append(index)
    return free
