import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kube import RealKube
from tests.unit.engine.patch.servers import RealServer


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A real kube-apiserver that serves Widgets: a running one, or one started for these tests."""
    running = os.environ.get("HERDER_REAL_KUBECONFIG")
    if running:
        server = RealServer(Path(running))
        server.install()
        yield server
        return
    with RealKube(tmp_path_factory.mktemp("kube")) as kube:
        server = RealServer(kube.kubeconfig)
        server.install()
        yield server
