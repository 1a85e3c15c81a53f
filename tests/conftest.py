"""Fixtures that several test folders share; each server starts with the first test that needs it.

It also enforces two rules for every test: it leaks no secret, and no status field has two writers.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.support.canaries import SCANNER
from tests.support.checks.status_writers import STATUS_WRITERS
from tests.support.engines import admin, api, client, embedded_engine, engine, real_engine

# Workload clusters of tests listen on loopback addresses, which an administrator must allow.
os.environ.setdefault("CATTLE_LOCAL_CLUSTER_ADDRESSES", "true")

# The same examples in every run: an unlucky draw must not fail a change that has nothing to do with it.
# HERDER_RANDOM_EXAMPLES draws new ones.
settings.register_profile("seeded", derandomize=True)
if not os.environ.get("HERDER_RANDOM_EXAMPLES"):
    settings.load_profile("seeded")

FIRST = ("test_kubeadm_clusters.py", "test_demo.py", "test_capi_both_engines.py")

__all__ = ["admin", "api", "client", "embedded_engine", "engine", "real_engine"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "allow_secret_in(resource, because): objects of this resource may hold a secret in this test"
    )
    config.addinivalue_line(
        "markers", "extended: needs a peer that `make test` does not build; run by `make interop`, results committed"
    )
    config.addinivalue_line("markers", "soak: takes long; run by `make soak`, results committed")
    SCANNER.watch_stores()
    STATUS_WRITERS.watch()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first, and the unit tests last: workers take whole files, and should end together.

    The other files with Kubernetes by kubeadm follow much later, because each of them can keep both cores busy.
    """
    items.sort(key=lambda item: next((n for n, name in enumerate(FIRST) if item.path.name == name), len(FIRST)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    SCANNER.check_report(report, allowed=[mark.args[0] for mark in item.iter_markers("allow_secret_in")])
    STATUS_WRITERS.check_report(report)
    return report
