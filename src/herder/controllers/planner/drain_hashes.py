"""By which plans tell whether a node must be drained between them."""

from __future__ import annotations

from herder.api.rke.plan import Plan


def hash_in_environment(plan: Plan) -> str:
    """What the `install` instruction was told, on whichever system: `DRAIN_HASH=…` or `$env:WINS_DRAIN_HASH="…"`."""
    for instruction in plan.instructions:
        for variable in instruction.env if instruction.name == "install" else ():
            name, _, value = variable.partition("=")
            if name.removeprefix("$env:") in ("DRAIN_HASH", "WINS_DRAIN_HASH"):
                return value.strip('"')
    return ""
