"""A kube-apiserver for each module of this folder: the chart can be installed once on a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.engines import CONTROLLERS, Engine
from tests.support.kube import RealKube


@pytest.fixture(scope="module")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKube]:
    directory = tmp_path_factory.mktemp("kube")
    with RealKube(directory, controller_manager=True, controllers=CONTROLLERS, audited=True) as running:
        yield running


@pytest.fixture(scope="module")
def engine(kube: RealKube) -> Engine:
    return Engine("real", kube.kubeconfig)
