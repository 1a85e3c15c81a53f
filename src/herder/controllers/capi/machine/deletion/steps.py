"""The order of a deletion."""

from __future__ import annotations

from collections.abc import Mapping

from herder.controllers.capi.externals import External
from herder.controllers.capi.machine.deletion.telling import DeletionStep
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.cache import Indexer
from herder.engine.runtime.triggers import Watches
from herder.engine.runtime.view import View

WATCHES: tuple[Watches, ...] = ()
"""What the Machine controller watches for the sake of deletions."""

INDEXES: Mapping[Kind, Mapping[str, Indexer]] = {}
"""What the Machine controller indexes for the sake of deletions."""


def step(
    view: View, machine: Object, cluster: Object, *, infrastructure: External, bootstrap: External
) -> DeletionStep:
    """The Node is found here: by the name in `status.nodeRef`, else by the provider ID."""
    raise NotImplementedError
