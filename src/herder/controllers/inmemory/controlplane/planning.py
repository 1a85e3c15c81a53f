"""What a control plane does next to its machines: one step at a time, never more than one above the wanted number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Member(NamedTuple):
    name: str
    created: str = ""
    ready: bool = True
    up_to_date: bool = True
    deleting: bool = False
    to_remediate: bool = False  # judged unhealthy, and handed to its owner
    unwanted: bool = False  # annotated to go before others


class Step(NamedTuple):
    create: bool = False
    remove: str = ""
    waits_for: str = ""


def next_step(wanted: int, members: Sequence[Member]) -> Step:
    going = [member for member in members if member.deleting]
    if going:
        return Step(waits_for=f"Machine {going[0].name} is being deleted")
    sick = [member for member in members if member.to_remediate]
    if sick:
        return _remediate(sick, members)
    outdated = [member for member in members if not member.up_to_date]
    if len(members) > wanted and not outdated:
        return Step(remove=_first_to_go(members))
    starting = [member for member in members if member.up_to_date and not member.ready]
    if starting:
        return Step(waits_for=f"Machine {starting[0].name} is not ready yet")
    if len(members) < wanted or (outdated and len(members) == wanted):
        return Step(create=True)
    return Step(remove=_first_to_go(outdated)) if outdated else Step()


def _remediate(sick: Sequence[Member], members: Sequence[Member]) -> Step:
    """A control plane must not be lost with its last good machine."""
    others = [member for member in members if member not in sick]
    if others and all(member.ready for member in others):
        return Step(remove=_first_to_go(sick))
    return Step(waits_for=f"Machine {sick[0].name} is unhealthy, and can be replaced when the others are ready")


def _first_to_go(members: Iterable[Member]) -> str:
    return min(members, key=lambda member: (not member.unwanted, member.ready, member.created, member.name)).name
