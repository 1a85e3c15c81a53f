"""Controllers for kinds that come and go while we run: one for each definition that a family knows.

A kind that only exists once somebody has defined it cannot be named when the manager starts. A family is told of every
definition (metadata alone), and answers with the kind that it has a controller for, or with None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.handlers import Watches

UNKNOWN = Kind("", "", "", "")
"""Stands for the kind that is not known yet: what a family reads besides is the same for all its kinds."""


@dataclass(frozen=True, slots=True)
class DynamicController:
    name: str
    definitions: Kind  # what defines kinds: CustomResourceDefinitions, as metadata
    kind_of: Callable[[Object], Kind | None]  # from a definition to the kind it is about; None: not one of ours
    controller: Callable[[Kind], Controller]  # named after the kind, so that each has metrics of its own

    def watches(self) -> tuple[Watches, ...]:
        """What is read from the start, whether or not there is a kind to work for."""
        return (Watches(self.definitions), *self.controller(UNKNOWN).watches)
