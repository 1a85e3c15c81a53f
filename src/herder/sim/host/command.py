"""Commands that instructions run on simulated machines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from herder.agent.core.events import Finished

if TYPE_CHECKING:
    from herder.sim.nodes import SimulatedNode


@dataclass(frozen=True, slots=True)
class Command:
    """One command on a machine. `arguments` excludes the program's name."""

    node: SimulatedNode
    program: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    image: str = ""

    def not_found(self, name: str = "") -> Finished:
        return Finished(127, stderr=f"sh: 1: {name or self.program}: not found\n".encode())


Script = Callable[[Command], Awaitable[Finished]]
"""Simulates a shell script, whose arguments are `$1` and later ones."""
