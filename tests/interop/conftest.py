"""Servers of this folder's own: what kubectl prints of a whole cluster is compared, so nobody else may leave traces."""

from tests.support.engines import admin, api, client, embedded_engine, engine, real_engine

__all__ = ["admin", "api", "client", "embedded_engine", "engine", "real_engine"]
