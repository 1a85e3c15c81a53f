"""A sample of the crash matrix on real clusters: operations in which an actor is killed.

Each cell is an operation, one of its phases, and the actor that is killed there. HERDER_SEED chooses the phases.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pytest

from herder.api.rke import operations
from herder.machine.host.client import HostedMachine
from tests.support.embedded import Embedded
from tests.support.manager.node_agents import eventually

TIMEOUT = 600
DOWN_SECONDS = 5
MANAGER, AGENT, MACHINE, API_SERVER = ACTORS = ("manager", "agent", "machine", "API server")

COMMANDS: Mapping[str, tuple[str, ...]] = {
    operations.SNAPSHOT: ("snapshot", "create"),
    operations.CERTIFICATES: ("rotate", "certificates"),
    operations.ENCRYPTION_KEYS: ("rotate", "encryption-keys", "--yes"),
    operations.AGENTS: ("redeploy", "agents"),
    operations.RESTORE: ("snapshot", "restore", "--yes"),
}


class OperatedCluster(Protocol):
    """A cluster with one server, the names of whose objects tell which data it has."""

    def request(self, *command: str) -> None: ...
    def operation(self) -> Any: ...
    def write(self, name: str) -> None: ...
    def names(self) -> set[str]: ...
    def uids(self) -> dict[str, str]: ...
    def until_nodes_match_machines(self) -> None: ...
    def kill(self, actor: str) -> None: ...


def cells(actors_of: Callable[[str], Sequence[str]], *, of_restores: int = 1) -> Iterator[object]:
    """Yield one phase per operation and actor; `of_restores` phases for restores."""
    chosen = random.Random(int(os.environ.get("HERDER_SEED", "1")))
    for kind in COMMANDS:
        phases = operations.phases_of(kind)
        count = of_restores if kind == operations.RESTORE else 1
        for actor in actors_of(kind):
            for phase in chosen.sample(phases, min(count, len(phases))):
                yield pytest.param(kind, phase, actor, id=f"{kind} {phase}: {actor}")


def kill_in_phase(cluster: OperatedCluster, snapshot: str, kind: str, phase: str, actor: str) -> None:
    """Kill the actor when the operation has reached the phase. It finishes, or can be requested again.

    A short phase may have passed by then; the phase is printed.

    `snapshot` is restored; the cluster had one object, `before`, when it was saved.
    """
    cluster.write("later")
    machines, names, last = cluster.uids(), cluster.names(), _id(cluster)
    _request(cluster, snapshot, kind, "--no-wait")
    phases = operations.phases_of(kind)
    earlier = phases[: phases.index(phase)]
    eventually(lambda: _id(cluster) not in (last, "") and _phase(cluster) not in earlier, f"the phase {phase}", TIMEOUT)
    if operations.is_ended(reached := _phase(cluster)):
        pytest.skip(f"the operation has ended before the {actor} could be killed")
    print(f"killed in {reached}")
    cluster.kill(actor)
    eventually(lambda: operations.is_ended(_phase(cluster)), "the operation has ended", TIMEOUT)
    ended = cluster.operation()
    cluster.until_nodes_match_machines()
    if ended["phase"] == operations.FAILED:
        print(f"failed: {ended['message']}")
        assert ended["message"]
        if operations.RESTORE_PHASE not in (ended.get("timings") or {}):
            assert cluster.names() == names
        _request(cluster, snapshot, kind)
        cluster.until_nodes_match_machines()
    assert cluster.names() == ({"before"} if kind == operations.RESTORE else names)
    assert cluster.uids() == machines


def restart_manager(manager: Embedded) -> None:
    manager.kill()
    time.sleep(DOWN_SECONDS)
    manager.start()


def restart_machine(machine: HostedMachine) -> None:
    machine.kill()
    time.sleep(DOWN_SECONDS)
    machine.start()


def _request(cluster: OperatedCluster, snapshot: str, kind: str, *options: str) -> None:
    first, second, *more = COMMANDS[kind]
    named = (snapshot,) if kind == operations.RESTORE else ()
    cluster.request(first, second, *named, *more, *options)


def _id(cluster: OperatedCluster) -> str:
    return str(_operation(cluster).get("id", ""))


def _phase(cluster: OperatedCluster) -> str:
    return str(_operation(cluster).get("phase", ""))


def _operation(cluster: OperatedCluster) -> Mapping[str, Any]:
    """Empty while the manager does not answer."""
    try:
        return cluster.operation() or {}
    except AssertionError:
        return {}
