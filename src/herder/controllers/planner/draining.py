"""The planner's half of a drain: asking for it before a plan that disturbs, and for its end when the plan has worked.

The other half answers on the same Secret (`machine_drains`): both see the same value, the options as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from herder.api.rke import names
from herder.controllers.planner.entries import Entry
from herder.controllers.planner.plan_writes import locked
from herder.controllers.planner.rendering import Desired
from herder.engine.runtime.decision import Patch
from herder.engine.schema.gotext import to_json

Options = Mapping[str, Any]

_NOT_WORTH_TELLING = "error trying to reach service"  # the node restarts, or the cluster's agent moves


class Stage(Enum):
    DONE = "done"  # or never needed
    ASKED = "asked"
    UNDER_WAY = "under way"


def drain(desired: Desired, options: Options, machines: int) -> tuple[Stage, Patch | None]:
    """Whether the new plan may be written; the write that asks for the drain where nobody has yet."""
    entry = desired.entry
    if not entry.has_node or not _worth_it(options, machines) or not desired.drains:
        return Stage.DONE, None
    wanted = as_text(options, alone=machines == 1)
    if entry.annotations.get(names.DRAIN_OPTIONS) != wanted:
        asked = {"metadata": {"annotations": {names.DRAIN_OPTIONS: wanted}}}
        return Stage.ASKED, locked(entry, asked, f"{entry.name} is drained before its plan changes")
    done = entry.annotations.get(names.DRAIN_DONE) == wanted and not problem(entry, "draining")
    return (Stage.DONE if done else Stage.UNDER_WAY), None


def undrain(entry: Entry) -> tuple[Stage, Patch | None]:
    """Once the plan has worked: the other half clears all the marks when it has finished."""
    options = entry.annotations.get(names.DRAIN_OPTIONS, "")
    if options and entry.annotations.get(names.UNCORDON) != options:
        asked = {"metadata": {"annotations": {names.UNCORDON: options}}}
        return Stage.ASKED, locked(entry, asked, f"{entry.name} has its plan and takes pods again")
    return (Stage.UNDER_WAY if entry.annotations.get(names.UNCORDON) else Stage.DONE), None


def problem(entry: Entry, doing: str) -> str:
    message = entry.annotations.get(names.DRAIN_ERROR, "")
    return f"error {doing} machine {entry.name}: {message}" if message and _NOT_WORTH_TELLING not in message else ""


def as_text(options: Options, *, alone: bool) -> str:
    """Compact and sorted, so that equal options are equal text. A cluster's only machine is not drained, though its
    hooks are waited for."""
    status = {"enabled": False, **{name: value for name, value in options.items() if value is not None}}
    return to_json(status | {"enabled": False} if alone else status)


def _worth_it(options: Options, machines: int) -> bool:
    hooks = options.get("preDrainHooks") or options.get("postDrainHooks")
    return bool(hooks) or (bool(options.get("enabled")) and machines > 1)
