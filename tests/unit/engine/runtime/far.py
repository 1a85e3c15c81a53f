"""Former names of `remote_cluster`, for tests outside `tests/unit/engine`. Remove with the last import."""

from __future__ import annotations

from tests.unit.engine.runtime.remote_cluster import RemoteCluster as Far
from tests.unit.engine.runtime.remote_cluster import run

__all__ = ["Far", "run"]
