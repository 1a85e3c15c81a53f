"""Mutants of the operations engine and of the tasks of all distributions, in simulated operations.

Each mutant runs one operation on one distribution, chosen by the seed, under the unmodified guards. Whatever it
computes, no violation may reach a machine; one that does reveals a gap in the guards.

python -m tests.simulation.plans.operation_mutants [--count 60] [--seed 1] [--only MODULE …] [--record]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any

from herder.api.guards import GUARDS
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import names, operations
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.engine.meta.kinds import Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.provisioned import NAME, WORKSPACE
from tests.mutant_results import record
from tests.simulation.plans.mutants import (
    ALIVE,
    NOTICED,
    REFUSED,
    VIOLATION,
    import_mutated,
    in_own_process,
    recording,
)
from tests.simulation.plans.operated_cluster import HOUR, OperatedCluster
from tests.simulation.plans.test_restores import create_with_s3, lose_all_servers, saved_in_s3
from tools.mutants import Mutant, mutants_of

_PLANNER = "herder.controllers.planner"
MODULES = (
    *(
        f"{_PLANNER}.operations.{name}"
        for name in (
            "certificates",
            "encryption_keys",
            "engine",
            "interface",
            "inverse",
            "listing",
            "restore",
            "snapshot",
            "snapshot_keys",
        )
    ),
    *(
        f"{_PLANNER}.distributions.{name}"
        for name in (
            "tasks",
            "snapshot_program",
            "embedded_rotation",
            "embedded_tasks",
            "rancher.tasks",
            "kubeadm.certificates",
            "kubeadm.encryption",
            "kubeadm.snapshots",
        )
    ),
)
SERVERS = {"v1.34.1+k3s1": 3, "v1.34.1+rke2r1": 3, "v1.34.1+kubeadm1": 3, "v1.34.1+herder1": 1}
Verify = Callable[[OperatedCluster], Awaitable[None]]


# --- operations -------------------------------------------------------------------------------------------------------


async def _snapshot(cluster: OperatedCluster) -> Object:
    saved = await cluster.run(operations.SNAPSHOT)
    assert saved.phase == "Finished", saved.message
    found = await cluster.simulation.sim.all(ETCD_SNAPSHOT)
    assert {each["snapshotFile"]["nodeName"] for each in found} == {node.name for node in cluster.servers}
    return found[-1]


async def restore_in_place(cluster: OperatedCluster) -> None:
    await cluster.write("before")
    snapshot = await _snapshot(cluster)
    await cluster.write("after")
    restored = await cluster.run(operations.RESTORE, name=snapshot["metadata"]["name"])
    assert restored.phase == "Finished", restored.message
    assert (await cluster.has("before"), await cluster.has("after")) == (True, False)
    assert all(node.running for node in cluster.simulation.nodes)


async def restore_on_new_servers(cluster: OperatedCluster) -> None:
    await cluster.write("before")
    snapshot = await saved_in_s3(cluster)
    await lose_all_servers(cluster)
    restored = await cluster.run(operations.RESTORE, name=snapshot["metadata"]["name"])
    assert restored.phase == "Finished", restored.message
    assert await cluster.has("before")


async def aborted_restore(cluster: OperatedCluster) -> None:
    """Aborted while all servers are being stopped."""
    await cluster.write("before")
    snapshot, sim = await _snapshot(cluster), cluster.simulation.sim
    await cluster.write("after")
    request = {"generation": 1, "name": snapshot["metadata"]["name"]}
    await sim.edit({"rkeConfig": {operations.RESTORE: request}})
    run = await _run_in_phase(cluster, operations.RESTORE, "Shutdown")
    mark = {"metadata": {"annotations": {names.ABORT_OPERATION: run.id}}}
    await sim.patch(PROVISIONING_CLUSTER, NAME, mark)
    ended = await cluster.run(operations.RESTORE, **request)
    assert (ended.phase, operations.ABORTED in ended.message) == ("Failed", True), ended.message
    assert await cluster.has("after")
    assert all(node.running for node in cluster.simulation.nodes)


async def _run_in_phase(cluster: OperatedCluster, kind: str, phase: str) -> operations.Run:
    """Return the run as soon as this phase of it is stored: servers stop within less than a second."""
    client = cluster.simulation.sim.world.client
    async with asyncio.timeout(10 * HOUR):
        async for event in client.watch(CONTROL_PLANE.resource, namespace=WORKSPACE, initial_events=True):
            run = operations.Run.of(event.object) if event.type != "BOOKMARK" else None
            if run is not None and (run.kind, run.phase) == (kind, phase):
                return run
    raise AssertionError("the watch has ended")


async def rotate_certificates(cluster: OperatedCluster) -> None:
    rotated = await cluster.run(operations.CERTIFICATES)
    assert rotated.phase == "Finished", rotated.message


async def rotate_keys(cluster: OperatedCluster) -> None:
    rotated = await cluster.run(operations.ENCRYPTION_KEYS)
    assert rotated.phase == "Done", rotated.message
    assert all(node.reads_secrets for node in cluster.servers)


SCENARIOS: Mapping[str, Verify] = {
    "restore in place": restore_in_place,
    "restore on new servers": restore_on_new_servers,
    "aborted restore": aborted_restore,
    "certificate rotation": rotate_certificates,
    "key rotation": rotate_keys,
}
_OF_MODULE: Mapping[str, Sequence[str]] = {
    "certificates": ("certificate rotation",),
    "encryption_keys": ("key rotation",),
    "encryption": ("key rotation",),
    "embedded_rotation": ("certificate rotation", "key rotation"),
    "restore": ("restore in place", "restore on new servers", "aborted restore"),
    "snapshot_keys": ("restore in place",),
    "inverse": ("restore in place",),
    "listing": ("restore in place", "restore on new servers"),
    "snapshot": ("restore in place", "aborted restore"),
    "snapshot_program": ("restore in place", "restore on new servers"),
    "snapshots": ("restore in place", "restore on new servers", "aborted restore"),
    "embedded_tasks": ("restore in place", "restore on new servers", "aborted restore"),
}
"""Scenarios that execute a module; all of them for other modules."""


def versions_of(module: str) -> list[str]:
    known = {
        "kubeadm": ("kubeadm",),
        "embedded": ("herder",),
        "rancher": ("k3s", "rke2"),
        "program": ("kubeadm", "herder"),
    }
    wanted = next((builds for part, builds in known.items() if part in module), ("",))
    return [version for version in SERVERS if any(build in version for build in wanted)]


# --- one mutant -------------------------------------------------------------------------------------------------------


def simulate(version: str, scenario: str, faults: Faults, refusals: list[str]) -> Object:
    """Simulate one operation with the imported planner, and return the verdict."""
    cluster = OperatedCluster(version, faults, SERVERS[version], [recording(guard, refusals) for guard in GUARDS])
    where, violations = f"{scenario}, {version}", list[str]()

    async def run() -> None:
        async with cluster.simulation:
            prepare = create_with_s3 if scenario == "restore on new servers" else OperatedCluster.create
            try:
                await prepare(cluster)
                await SCENARIOS[scenario](cluster)
            finally:  # when the simulation ends, it destroys machines
                violations.extend(cluster.simulation.invariants.all_violations)

    try:
        loop.run(run())
        verdict = {"verdict": ALIVE, "details": where}
    except Exception as error:  # any failure would be noticed
        verdict = {"verdict": NOTICED, "details": f"{where}: {type(error).__name__}: {error}"[:300]}
    return {"verdict": VIOLATION, "details": f"{where}: {'; '.join(violations)}"} if violations else verdict


def evaluate(mutant: Mutant | None, version: str, scenario: str, faults: Faults, expected: frozenset[str]) -> Object:
    """The verdict on a mutant, in its own process. `expected`: guards that also refuse the correct planner."""

    def simulate_here() -> Object:
        refusals: list[str] = []
        if mutant is not None:
            import_mutated(mutant)
        found = simulate(version, scenario, faults, refusals)
        refused = sorted(set(refusals) - expected)
        if refused and found["verdict"] != VIOLATION and mutant is not None:
            found = {"verdict": REFUSED, "details": f"{', '.join(refused)}; {found['details']}"}
        return {**found, "refusals": sorted(set(refusals))}

    return in_own_process(simulate_here)


# --- many mutants -----------------------------------------------------------------------------------------------------


def sample(count: int, seed: int, only: Sequence[str] = ()) -> list[tuple[Mutant, str, str, Faults]]:
    """Mutants, each with its version, scenario and faults. As many of each module, as far as it has them."""
    random = Random(f"operations {seed}")
    wanted = [name for name in MODULES if not only or name.rpartition(".")[2] in only]
    queues = {name: random.sample(found, len(found)) for name in wanted if (found := mutants_of(name))}
    chosen: list[tuple[Mutant, str, str, Faults]] = []
    while queues and len(chosen) < count:
        for name in list(queues):
            mutant = queues[name].pop()
            scenario = random.choice(_OF_MODULE.get(name.rpartition(".")[2], tuple(SCENARIOS)))
            chosen.append((mutant, random.choice(versions_of(name)), scenario, random.choice((NONE, ROUGH))))
            if not queues[name]:
                del queues[name]
    return chosen[:count]


def run(count: int, seed: int, *, only: Sequence[str] = (), report: Callable[[str], Any] = print) -> str:
    chosen = sample(count, seed, only)
    baselines: dict[tuple[str, str, bool], frozenset[str]] = {}
    verdicts: Counter[str] = Counter()
    gaps: list[str] = []
    for mutant, version, scenario, faults in chosen:
        case = (version, scenario, faults is ROUGH)
        if case not in baselines:
            correct = evaluate(None, version, scenario, faults, frozenset())
            if correct["verdict"] != ALIVE:
                raise RuntimeError(f"the unmodified planner: {correct}")
            baselines[case] = frozenset(correct["refusals"])
        found = evaluate(mutant, version, scenario, faults, baselines[case])
        verdicts[found["verdict"]] += 1
        line = f"{mutant.module.removeprefix(f'{_PLANNER}.')}:{mutant.line} {mutant.change}"
        report(f"  {found['verdict']}: {line}: {found['details']}")
        if found["verdict"] == VIOLATION:
            gaps.append(f"{line}: {found['details']}")
    if gaps:
        raise RuntimeError("violations reached machines:\n" + "\n".join(gaps))
    summary = ", ".join(f"{verdicts[verdict]} {description}" for verdict, description in _DESCRIPTIONS.items())
    return f"seed {seed}: {len(chosen)} mutants of operations, no violation reached a machine: {summary}"


_DESCRIPTIONS = {
    REFUSED: "refused by guards",
    NOTICED: "noticed because the operation or its judge fails",
    ALIVE: "alive in the scenario that was simulated",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="last parts of module names")
    parser.add_argument("--record", action="store_true", help="write the section of docs/results/mutants.md")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    lines: list[str] = []

    def report(line: str) -> None:
        print(line, flush=True)
        lines.append(f"- `{line.strip()}`")

    summary = run(options.count, options.seed, only=options.only, report=report)
    if options.record:
        record("Operations", [f"{summary}.", "", *lines])
    print(summary, flush=True)


if __name__ == "__main__":
    main()
