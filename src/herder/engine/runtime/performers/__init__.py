"""Performers of effects in downstream clusters, by the names that decisions use."""

from __future__ import annotations

from collections.abc import Mapping

from herder.engine.runtime.performers.evict import evict
from herder.engine.runtime.performers.find import find
from herder.engine.runtime.remote import RemotePerformer

REMOTE_PERFORMERS: Mapping[str, RemotePerformer] = {"evict": evict, "find": find}
