"""stub"""

from __future__ import annotations

from herder.engine.schema.cel.syntax import Node


def estimate_cost(tree: Node) -> int:
    return 0
