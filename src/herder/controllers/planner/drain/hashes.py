"""Drain hashes: a node must be drained before a plan with another hash is applied."""

from __future__ import annotations

from herder.api.rke.node.plan import Plan


def drain_hash_of(plan: Plan) -> str:
    """The drain hash in the environment of `install`: `DRAIN_HASH=…`, or `$env:WINS_DRAIN_HASH="…"` on Windows."""
    for instruction in plan.instructions:
        for variable in instruction.env if instruction.name == "install" else ():
            name, _, value = variable.partition("=")
            if name.removeprefix("$env:") in ("DRAIN_HASH", "WINS_DRAIN_HASH"):
                return value.strip('"')
    return ""
