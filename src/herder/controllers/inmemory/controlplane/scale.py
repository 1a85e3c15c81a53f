"""Next scaling step of a control plane: one Machine at a time, and at most one above the desired number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Member(NamedTuple):
    """A control plane Machine."""

    name: str
    created: str = ""
    ready: bool = True
    up_to_date: bool = True
    deleting: bool = False
    to_remediate: bool = False  # unhealthy, and waiting for remediation by its owner
    delete_first: bool = False  # annotated to be deleted before others


class Step(NamedTuple):
    """The next action, or what it waits for."""

    create: bool = False
    remove: str = ""
    waits_for: str = ""


def next_step(wanted: int, members: Sequence[Member]) -> Step:
    deleting = [member for member in members if member.deleting]
    if deleting:
        return Step(waits_for=f"Machine {deleting[0].name} is being deleted")
    unhealthy = [member for member in members if member.to_remediate]
    if unhealthy:
        return _remediate(unhealthy, members)
    outdated = [member for member in members if not member.up_to_date]
    if len(members) > wanted and not outdated:
        return Step(remove=_first_to_delete(members))
    starting = [member for member in members if member.up_to_date and not member.ready]
    if starting:
        return Step(waits_for=f"Machine {starting[0].name} is not ready yet")
    if len(members) < wanted or (outdated and len(members) == wanted):
        return Step(create=True)
    return Step(remove=_first_to_delete(outdated)) if outdated else Step()


def _remediate(unhealthy: Sequence[Member], members: Sequence[Member]) -> Step:
    """Never delete the last healthy machine of a control plane."""
    others = [member for member in members if member not in unhealthy]
    if others and all(member.ready for member in others):
        return Step(remove=_first_to_delete(unhealthy))
    return Step(waits_for=f"Machine {unhealthy[0].name} is unhealthy; it is replaced when the others are ready")


def _first_to_delete(members: Iterable[Member]) -> str:
    return min(members, key=lambda member: (not member.delete_first, member.ready, member.created, member.name)).name
