"""Operations of an embedded cluster in which an actor is killed: a sample of the crash matrix on real processes.

The tests run in the order of the file: each continues with the cluster of the previous one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import pytest

from herder.machine.host.client import HostClient, HostedMachine
from tests.support.clusters.embedded_cluster import AGENT_PID, Cluster, embedded_cluster
from tests.support.clusters.operation_crashes import (
    ACTORS,
    AGENT,
    API_SERVER,
    MACHINE,
    MANAGER,
    TIMEOUT,
    cells,
    kill_in_phase,
    restart_machine,
    restart_manager,
)
from tests.unit.cli.cluster.test_lifecycle import NAME

pytestmark = pytest.mark.soak


def kill_manager(cluster: Cluster) -> None:
    restart_manager(cluster.site.server)


def kill_agent(cluster: Cluster) -> None:
    """Instructions that it runs go on. Its service starts another agent."""
    cluster.site.herder("ssh", cluster.server, "--", f"pkill -9 -P $(cat {AGENT_PID})")


def kill_machine(cluster: Cluster) -> None:
    restart_machine(hosted(cluster))


def kill_api_server(cluster: Cluster) -> None:
    """It may be stopped in this phase."""
    with suppress(AssertionError):
        cluster.site.herder("ssh", cluster.server, "--", "kill -9 $(cat /run/herder-server.child)")


def hosted(cluster: Cluster) -> HostedMachine:
    record = json.loads((cluster.root(cluster.server).parent / "machine.json").read_text())
    client = HostClient.of(cluster.site.directory / "data" / "host")
    return client.machine(record["kind"], record["scope"], record["name"], record["token"])


KILLS: Mapping[str, Callable[[Cluster], None]] = {
    MANAGER: kill_manager,
    AGENT: kill_agent,
    MACHINE: kill_machine,
    API_SERVER: kill_api_server,
}


class CrashingCluster(Cluster):
    def request(self, *command: str) -> None:
        first, second, *more = command
        self.site.herder(first, second, NAME, *more, timeout=TIMEOUT)

    def uids(self) -> dict[str, str]:
        return self.site.uids()

    def kill(self, actor: str) -> None:
        KILLS[actor](self)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashingCluster]:
    with embedded_cluster(tmp_path_factory.mktemp("site")) as running:
        yield CrashingCluster(running.site, running.s3)


@pytest.fixture(scope="module")
def snapshot(cluster: CrashingCluster) -> str:
    """The snapshot that is restored."""
    cluster.write("before")
    cluster.site.herder("snapshot", "create", NAME)
    return str(cluster.snapshots()[0]["metadata"]["name"])


@pytest.mark.parametrize(("kind", "phase", "actor"), [*cells(lambda _kind: ACTORS, of_restores=2)])
def test(cluster: CrashingCluster, snapshot: str, kind: str, phase: str, actor: str) -> None:
    kill_in_phase(cluster, snapshot, kind, phase, actor)
