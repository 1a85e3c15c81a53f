"""The two engines of the conformance suite: the embedded server, and kube-apiserver with etcd.

Each server is started once for all tests that need it, as users start it, and accessed over TLS with its kubeconfig.
`HERDER_TEST_EMBEDDED` and `HERDER_TEST_REAL` name the kubeconfig of a server that runs already.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from herder.api.capi.kinds import DEFINITION
from herder.engine.client import kubeconfig
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from tests.support.api import Api
from tests.support.embedded import Embedded
from tests.support.kube import RealKube
from tests.support.peers import peer

CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "service-cidr-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
)
"""Controllers that the embedded server has, too. Workload controllers run on neither engine."""


@dataclass(frozen=True)
class Engine:
    name: str  # embedded or real
    kubeconfig: Path

    @property
    def is_real(self) -> bool:
        return self.name == "real"

    @property
    def connection(self) -> RestConfig:
        """The connection of the administrator."""
        return kubeconfig.load(self.kubeconfig)

    def client(self) -> Client:
        return Client(HttpTransport(self.connection), field_manager="tester")

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the real kubectl on this engine, with a discovery cache per engine."""
        environment = os.environ | {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": f"{self.kubeconfig}.cache"}
        done = subprocess.run(
            [peer("kubectl"), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done


@pytest.fixture(scope="session")
def embedded_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if running := os.environ.get("HERDER_TEST_EMBEDDED"):
        yield Engine("embedded", Path(running))
        return
    with Embedded(tmp_path_factory.mktemp("embedded")) as server:
        yield Engine("embedded", server.kubeconfig)


@pytest.fixture(scope="session")
def real_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """kube-apiserver with a controller-manager, for garbage collection, namespaces and service accounts."""
    if running := os.environ.get("HERDER_TEST_REAL"):
        yield Engine("real", Path(running))
        return
    with RealKube(tmp_path_factory.mktemp("real"), controller_manager=True, controllers=CONTROLLERS) as kube:
        yield Engine("real", kube.kubeconfig)


@pytest.fixture(scope="session", params=["embedded", "real"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(f"{request.param}_engine")
    return found


@pytest.fixture(scope="session")
async def admin(engine: Engine) -> AsyncIterator[Api]:
    """The engine's administrator, in the namespace `default`."""
    api = Api(engine.connection)
    yield api
    await api.close()


@pytest.fixture
async def api(admin: Api) -> Api:
    """The administrator in a new namespace for this test."""
    return await admin.in_new_namespace()


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[Client]:
    client = engine.client()
    yield client
    await client.close()


def unique(prefix: str = "t") -> str:
    """A unique name for cluster-scoped objects."""
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


async def remove_kinds(client: Client, names: Iterable[str]) -> None:
    """Delete CustomResourceDefinitions and wait until they are removed, so that the next test can define them again."""
    wanted = list(names)
    for name in wanted:
        with suppress(NotFound):
            await client.delete(DEFINITION.resource, name)
    definition: Object = {}
    try:
        async with asyncio.timeout(120):
            for name in wanted:
                with suppress(NotFound):
                    while True:
                        definition = await client.get(DEFINITION.resource, name)
                        await asyncio.sleep(0.05)
    except TimeoutError:
        conditions = definition["status"]["conditions"]
        raise AssertionError(
            f"{definition['metadata']['name']} is not deleted after two minutes: {conditions}"
        ) from None
