"""Operations of an embedded cluster in which an actor is killed: a sample of the crash matrix on real processes.

Each test is one cell: an operation, one of its phases, and the actor that is killed there. HERDER_SEED chooses the
phases. The tests run in the order of the file: each continues with the cluster of the previous one.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import pytest

from herder.api.rke import operations
from herder.machine.host.client import HostClient, HostedMachine
from tests.support.clusters.embedded_cluster import AGENT_PID, Cluster, embedded_cluster
from tests.support.manager.node_agents import eventually
from tests.unit.cli.cluster.test_lifecycle import NAME

pytestmark = pytest.mark.soak

TIMEOUT = 600
DOWN_SECONDS = 5

COMMANDS: Mapping[str, tuple[str, ...]] = {
    operations.SNAPSHOT: ("snapshot", "create"),
    operations.CERTIFICATES: ("rotate", "certificates"),
    operations.ENCRYPTION_KEYS: ("rotate", "encryption-keys", "--yes"),
    operations.AGENTS: ("redeploy", "agents"),
    operations.RESTORE: ("snapshot", "restore", "--yes"),
}


def kill_manager(cluster: Cluster) -> None:
    cluster.site.server.kill()
    time.sleep(DOWN_SECONDS)
    cluster.site.server.start()


def kill_agent(cluster: Cluster) -> None:
    """Instructions that it runs go on. Its service starts another agent."""
    cluster.site.herder("ssh", cluster.server, "--", f"pkill -9 -P $(cat {AGENT_PID})")


def kill_machine(cluster: Cluster) -> None:
    machine = hosted(cluster)
    machine.kill()
    time.sleep(DOWN_SECONDS)
    machine.start()


def kill_api_server(cluster: Cluster) -> None:
    """It may be stopped in this phase."""
    with suppress(AssertionError):
        cluster.site.herder("ssh", cluster.server, "--", "kill -9 $(cat /run/herder-server.child)")


def hosted(cluster: Cluster) -> HostedMachine:
    record = json.loads((cluster.root(cluster.server).parent / "machine.json").read_text())
    client = HostClient.of(cluster.site.directory / "data" / "host")
    return client.machine(record["kind"], record["scope"], record["name"], record["token"])


ACTORS: Mapping[str, Callable[[Cluster], None]] = {
    "manager": kill_manager,
    "agent": kill_agent,
    "machine": kill_machine,
    "API server": kill_api_server,
}


def sample() -> Iterator[object]:
    """Each actor in one phase of each operation; in restores, in two."""
    chosen = random.Random(int(os.environ.get("HERDER_SEED", "1")))
    for kind in COMMANDS:
        phases = operations.phases_of(kind)
        for actor in ACTORS:
            for phase in chosen.sample(phases, min(2 if kind == operations.RESTORE else 1, len(phases))):
                yield pytest.param(kind, phase, actor, id=f"{kind} {phase}: {actor}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with embedded_cluster(tmp_path_factory.mktemp("site")) as running:
        yield running


@pytest.fixture(scope="module")
def snapshot(cluster: Cluster) -> str:
    """The snapshot that is restored."""
    cluster.write("before")
    cluster.site.herder("snapshot", "create", NAME)
    return str(cluster.snapshots()[0]["metadata"]["name"])


@pytest.mark.parametrize(("kind", "phase", "actor"), list(sample()))
def test(cluster: Cluster, snapshot: str, kind: str, phase: str, actor: str) -> None:
    cluster.write("later")
    machines, names = cluster.site.uids(), cluster.names()
    last = operation_id(cluster)
    request(cluster, snapshot, kind, "--no-wait")
    wanted = operations.phases_of(kind)
    position = wanted.index(phase)
    eventually(
        lambda: operation_id(cluster) != last and cluster.operation()["phase"] not in wanted[:position],
        f"the phase {phase}",
        TIMEOUT,
    )
    ACTORS[actor](cluster)
    eventually(lambda: operations.is_ended(phase_of(cluster)), "the operation has ended", TIMEOUT)
    ended = cluster.operation()
    cluster.until_nodes_match_machines()
    if ended["phase"] == operations.FAILED:
        print(f"failed: {ended['message']}")
        assert ended["message"]
        if operations.RESTORE_PHASE not in (ended.get("timings") or {}):
            assert cluster.names() == names
        request(cluster, snapshot, kind)
        cluster.until_nodes_match_machines()
    assert cluster.names() == ({"before"} if kind == operations.RESTORE else names)
    assert cluster.site.uids() == machines


def request(cluster: Cluster, snapshot: str, kind: str, *options: str) -> None:
    named = (snapshot,) if kind == operations.RESTORE else ()
    first, second, *more = COMMANDS[kind]
    cluster.site.herder(first, second, NAME, *named, *more, *options, timeout=TIMEOUT)


def operation_id(cluster: Cluster) -> str:
    return str((cluster.operation() or {}).get("id"))


def phase_of(cluster: Cluster) -> str:
    """Empty while the manager does not answer."""
    try:
        return str(cluster.operation()["phase"])
    except AssertionError:
        return ""
