from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cloud.s3 import BUCKET, S3Server
from tests.support.clusters.static_pods import StaticPodServer
from tests.support.snapshots import SnapshotProgram


@pytest.fixture(scope="session")
def running_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(running_s3: S3Server) -> S3Server:
    """The server with an empty bucket."""
    for path in (running_s3.objects / BUCKET).iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return running_s3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StaticPodServer]:
    with StaticPodServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def program(server: StaticPodServer, tmp_path: Path) -> SnapshotProgram:
    return SnapshotProgram(tmp_path, distribution="kubeadm", kubeadm=server.settings())
