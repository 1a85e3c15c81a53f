"""What can be done in downstream clusters besides writes, by the names under which decisions ask for it."""

from __future__ import annotations

from collections.abc import Mapping

from herder.engine.runtime.performers.evict import evict
from herder.engine.runtime.performers.find import find
from herder.engine.runtime.remote import RemotePerformer

REMOTE_PERFORMERS: Mapping[str, RemotePerformer] = {"evict": evict, "find": find}
