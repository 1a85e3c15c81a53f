"""Separate servers for this folder: kubectl's output for a whole cluster is compared, so other tests must not change
it.
"""

from tests.support.engines import admin, api, client, embedded_engine, engine, real_engine

__all__ = ["admin", "api", "client", "embedded_engine", "engine", "real_engine"]
