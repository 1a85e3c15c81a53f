from __future__ import annotations

from collections.abc import Iterator

import pytest

from herder.api.capi.crds import CRDS as CORE_CRDS
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.api.rke.kinds import CONTROL_PLANE
from herder.app.install import install_kinds
from tests.support.builders import new_manifest
from tests.support.embedded import Embedded
from tests.support.engines import Engine, unique
from tests.unit.cli.operations.cluster import NAMESPACE, Cluster


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Embedded(tmp_path_factory.mktemp("embedded")) as server:
        yield Engine("embedded", server.kubeconfig)


@pytest.fixture
async def cluster(server: Engine) -> Cluster:
    client = server.client()
    try:
        await install_kinds(client, (*CORE_CRDS, *MANAGEMENT_CRDS, *RKE_CRDS))
    finally:
        await client.close()
    server.kubectl("create", "namespace", NAMESPACE, check=False)
    found = Cluster(server, unique("meadow"))
    found.create(new_manifest(PROVISIONING_CLUSTER, found.name, NAMESPACE, spec={"rkeConfig": {}}))
    spec = {"clusterName": found.name, "managementClusterName": "c-m-1"}
    found.create(new_manifest(CONTROL_PLANE, found.name, NAMESPACE, spec=spec))
    return found
