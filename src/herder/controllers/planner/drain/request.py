"""Request drains: before a disruptive plan, and the uncordon after it has succeeded.

Requests are annotations of the plan Secret, with the encoded options as their value. The drain controller
(`controller.py`) answers with the same value when it is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from herder.api.rke import names
from herder.controllers.planner.plan.render import Desired
from herder.controllers.planner.plan.writes import locked_patch
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.engine.runtime.decision import Patch
from herder.engine.schema.gotext import to_json

Options = Mapping[str, Any]

_TRANSIENT_ERROR = "error trying to reach service"  # while the node restarts or the cluster agent moves


class Stage(Enum):
    DONE = "done"  # or not needed
    REQUESTED = "asked"
    IN_PROGRESS = "under way"


def drain(desired: Desired, options: Options, machines: int) -> tuple[Stage, Patch | None]:
    """Whether the node is drained, so that the plan may be written; and the write that requests the drain."""
    entry = desired.entry
    if not entry.has_node or not _is_drain_needed(options, machines) or not desired.drains:
        return Stage.DONE, None
    wanted = encode_options(options, is_only_machine=machines == 1)
    if entry.annotations.get(names.DRAIN_OPTIONS) != wanted:
        patch = {"metadata": {"annotations": {names.DRAIN_OPTIONS: wanted}}}
        return Stage.REQUESTED, locked_patch(entry, patch, f"{entry.name} is drained before its plan changes")
    done = entry.annotations.get(names.DRAIN_DONE) == wanted and not problem(entry, "draining")
    return (Stage.DONE if done else Stage.IN_PROGRESS), None


def uncordon(entry: PlanEntry) -> tuple[Stage, Patch | None]:
    """Request the uncordon once the plan has succeeded. The drain controller removes all annotations when done."""
    options = entry.annotations.get(names.DRAIN_OPTIONS, "")
    if options and entry.annotations.get(names.UNCORDON) != options:
        patch = {"metadata": {"annotations": {names.UNCORDON: options}}}
        return Stage.REQUESTED, locked_patch(entry, patch, f"{entry.name} has its plan and takes pods again")
    return (Stage.IN_PROGRESS if entry.annotations.get(names.UNCORDON) else Stage.DONE), None


def problem(entry: PlanEntry, doing: str) -> str:
    """The error of the drain controller; empty for transient ones."""
    message = entry.annotations.get(names.DRAIN_ERROR, "")
    return f"error {doing} machine {entry.name}: {message}" if message and _TRANSIENT_ERROR not in message else ""


def encode_options(options: Options, *, is_only_machine: bool) -> str:
    """Encode options as compact, sorted JSON, so that equal options are equal text.

    The only machine of a cluster is not drained, but its hooks are honored.
    """
    status = {"enabled": False, **{name: value for name, value in options.items() if value is not None}}
    return to_json(status | {"enabled": False} if is_only_machine else status)


def _is_drain_needed(options: Options, machines: int) -> bool:
    hooks = options.get("preDrainHooks") or options.get("postDrainHooks")
    return bool(hooks) or (bool(options.get("enabled")) and machines > 1)
