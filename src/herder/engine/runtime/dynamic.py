"""Controllers for kinds that are defined at run time: one per CustomResourceDefinition that matches.

The manager cannot declare such kinds when it starts. A dynamic controller sees every definition (metadata only) and
returns the kind that it has a controller for, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.handlers import Watches

UNKNOWN = Kind("", "", "", "")
"""Placeholder for a kind that is not known yet. The other kinds that a dynamic controller reads do not depend on it."""


@dataclass(frozen=True, slots=True)
class DynamicController:
    """Factory of controllers, one per matching definition."""

    name: str
    definitions: Kind  # CustomResourceDefinition, metadata only
    kind_of: Callable[[Object], Kind | None]  # returns the kind that a definition defines, or None to ignore it
    controller: Callable[
        [Kind], Controller
    ]  # the controller's name includes the kind, so that each has its own metrics

    def watches(self) -> tuple[Watches, ...]:
        """Return the kinds that are watched from the start, even if no definition matches."""
        return (Watches(self.definitions), *self.controller(UNKNOWN).watches)
