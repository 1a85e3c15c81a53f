"""Ordered deletion of a Machine: hooks, drain, volumes, hooks, infrastructure, bootstrap, Node, finalizer.

`step` is called in each pass over a Machine that is being deleted. It derives the current stage from the objects alone
and returns the next actions and conditions.
"""

from __future__ import annotations

from herder.controllers.capi.machine.deletion.stage import DeletionStep
from herder.controllers.capi.machine.deletion.steps import INDEXES, WATCHES, step

__all__ = ["INDEXES", "WATCHES", "DeletionStep", "step"]
