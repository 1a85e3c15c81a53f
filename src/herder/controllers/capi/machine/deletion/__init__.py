"""How a Machine goes, in order: hooks, drain, volumes, hooks again, infrastructure, bootstrap, Node, finalizer.

`step` is called in each pass over a Machine that is being deleted. It finds out from the objects how far the deletion
is, and answers with the next acts and what to tell about them.
"""

from __future__ import annotations

from herder.controllers.capi.machine.deletion.reports import DeletionStep
from herder.controllers.capi.machine.deletion.steps import INDEXES, WATCHES, step

__all__ = ["INDEXES", "WATCHES", "DeletionStep", "step"]
