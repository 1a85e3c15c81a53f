"""Fixtures that more than one folder of tests uses; each server starts with the first test that wants it."""

from tests.support.engines import admin, api, client, embedded_engine, engine, real_engine

__all__ = ["admin", "api", "client", "embedded_engine", "engine", "real_engine"]
