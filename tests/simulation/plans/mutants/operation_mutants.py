"""Mutants of the operations engine and of the tasks of all distributions, in simulated operations.

Each mutant runs one operation on one distribution, chosen by the seed, under the unmodified guards. It takes over when
the cluster is prepared, so that it does not fail before the operation begins. The network may be rough, or one or two
servers may be cut off from the manager. Whatever the mutant computes, no violation may reach a machine; one that does
reveals a gap in the guards.

python -m tests.simulation.plans.mutants.operation_mutants [--count 60] [--seed 1] [--only MODULE …] [--record]
"""

from __future__ import annotations

import argparse
import logging
import pkgutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from herder.engine.meta.kinds import Object
from tests.mutant_results import record
from tests.simulation.plans.crash_operations.operation import DISTRIBUTIONS
from tests.simulation.plans.crash_operations.restores import RestoreData, RestoreOnNewServers, RestoreVersion
from tests.simulation.plans.crash_operations.rotations import Certificates, EncryptionKeys, NodeAgents
from tests.simulation.plans.crash_operations.snapshots import (
    ScheduledSnapshot,
    SnapshotBeforeUpgrade,
    SnapshotDeletion,
    SnapshotOnDemand,
)
from tests.simulation.plans.mutants.planner_mutants import ALIVE, NOTICED, REFUSED, VIOLATION
from tests.simulation.plans.mutants.scenarios import (
    PARTITION,
    SCENARIOS,
    Case,
    DamagedBefore,
    DamagedMeanwhile,
    PreparedCluster,
    cases,
    run_prepared,
)
from tools.mutants import Mutant, mutants_of, source_of

_PLANNER = "herder.controllers.planner"
_OPERATIONS, _DISTRIBUTIONS = f"{_PLANNER}.operations", f"{_PLANNER}.distributions"
OF_ROLLOUTS = frozenset(
    f"{_DISTRIBUTIONS}.{name}"
    for name in (
        *("agent_status", "certificate_report", "digest", "embedded", "interface", "lookup"),
        *("selected_files", "selector_config"),
        *(f"kubeadm.{each}" for each in ("bootstrap_files", "components", "distribution", "node_files", "paths")),
        *("kubeadm.registries", "kubeadm.user_config"),
        *(f"rancher.{each}" for each in ("addresses", "components", "config", "distribution", "install", "manifests")),
        *(f"rancher.{each}" for each in ("probes", "registries", "runtime", "scripts", "text", "user_config")),
    )
)
"""Modules of distributions that render the plans of rollouts, or on which both depend. Others render tasks."""


def _modules(package: str) -> list[str]:
    """The modules of a package and of those in it. None is imported."""
    found: list[str] = []
    for each in pkgutil.iter_modules([str(Path(source_of(package)).parent)], f"{package}."):
        found += _modules(each.name) if each.ispkg else [each.name]
    return sorted(found)


MODULES = (*_modules(_OPERATIONS), *(each for each in _modules(_DISTRIBUTIONS) if each not in OF_ROLLOUTS))

_RESTORES = (RestoreData, RestoreVersion, RestoreOnNewServers, DamagedBefore, DamagedMeanwhile)
_ABORTED = tuple(each for title, each in SCENARIOS.items() if "aborted" in title)
_ABORTED_RESTORES = tuple(each for each in _ABORTED if issubclass(each, RestoreData))
_SNAPSHOTS = (SnapshotOnDemand, ScheduledSnapshot, SnapshotBeforeUpgrade)
_OF_MODULE: Mapping[str, Sequence[type[Any]]] = {
    "agents": (NodeAgents,),
    "agent_task": (NodeAgents,),
    "certificates": (Certificates,),
    "deletion": (SnapshotDeletion,),
    "embedded_rotation": (Certificates, EncryptionKeys),
    "embedded_tasks": (*_RESTORES, *_SNAPSHOTS, SnapshotDeletion),
    "encryption": (EncryptionKeys,),
    "encryption_keys": (EncryptionKeys,),
    "failures": (DamagedBefore, DamagedMeanwhile),
    "inverse": (RestoreData, RestoreVersion, SnapshotBeforeUpgrade),
    "listing": (*_SNAPSHOTS, *_RESTORES, SnapshotDeletion),
    "restore": (*_RESTORES, *_ABORTED_RESTORES),
    "s3": (RestoreOnNewServers,),
    "schedule": (ScheduledSnapshot,),
    "snapshot": (*_SNAPSHOTS, *_RESTORES),
    "snapshot_keys": (RestoreData, EncryptionKeys),
    "snapshot_program": (*_SNAPSHOTS, *_RESTORES, SnapshotDeletion),
    "snapshots": (*_SNAPSHOTS, *_RESTORES, SnapshotDeletion),
    "upgrade_snapshot": (SnapshotBeforeUpgrade,),
}
"""Scenarios that execute a module; all of them for other modules."""
_DISTRIBUTIONS_OF = {"kubeadm": ("kubeadm",), "embedded": ("embedded",), "rancher": ("k3s", "rke2")}
_OWN_PROGRAM = ("snapshot_program",)


def cases_of(module: str) -> list[Case]:
    last = module.rpartition(".")[2]
    kinds = _OF_MODULE.get(last, tuple(SCENARIOS.values()))
    distributions = next((found for part, found in _DISTRIBUTIONS_OF.items() if part in module), tuple(DISTRIBUTIONS))
    if last in _OWN_PROGRAM:
        distributions = ("kubeadm", "embedded")
    return cases([each.title for each in kinds], distributions)


# --- many mutants -----------------------------------------------------------------------------------------------------


def sample(count: int, seed: int, only: Sequence[str] = ()) -> list[tuple[Mutant, Case]]:
    """Mutants, each with its case. As many of each module, as far as it has them."""
    random = Random(f"operations {seed}")
    wanted = [name for name in MODULES if not only or name.rpartition(".")[2] in only]
    queues = {name: random.sample(found, len(found)) for name in wanted if (found := mutants_of(name))}
    chosen: list[tuple[Mutant, Case]] = []
    while queues and len(chosen) < count:
        for name in list(queues):
            chosen.append((queues[name].pop(), random.choice(cases_of(name))))
            if not queues[name]:
                del queues[name]
    return chosen[:count]


Found = dict[tuple[Mutant, Case], Object]


def judge(chosen: Sequence[tuple[Mutant, Case]], report: Callable[[Mutant, Case, Object], None]) -> Found:
    """The verdicts on all mutants. The cluster of an operation on a distribution is prepared once."""
    groups: dict[tuple[str, str], list[tuple[Mutant, Case]]] = {}
    for mutant, case in chosen:
        groups.setdefault((case.title, case.distribution), []).append((mutant, case))
    verdicts: Found = {}

    async def judge_group(prepared: PreparedCluster, group: Sequence[tuple[Mutant, Case]]) -> None:
        baselines: dict[Case, Object] = {}
        for mutant, case in group:
            found = await prepared.evaluate(mutant, case)
            if found["verdict"] == VIOLATION or found["refusals"]:
                if case not in baselines:
                    baselines[case] = await prepared.evaluate(None, case)
                found = _compared(found, baselines[case], case)
            verdicts[(mutant, case)] = found
            report(mutant, case, found)

    for (title, distribution), group in groups.items():
        run_prepared(title, distribution, lambda prepared, group=group: judge_group(prepared, group))  # type: ignore[misc]
    return verdicts


def _compared(found: Object, correct: Object, case: Case) -> Object:
    """What guards refuse to this planner only is a refusal; the correct one must not violate anything."""
    if correct["verdict"] == VIOLATION or (correct["verdict"] != ALIVE and not case.disturbance.startswith(PARTITION)):
        raise RuntimeError(f"the unmodified planner: {case}: {correct}")
    refused = sorted({*found["refusals"]} - {*correct["refusals"]})
    if not refused or found["verdict"] == VIOLATION:
        return found
    return {**found, "verdict": REFUSED, "details": f"{', '.join(refused)}; {found['details']}"}


def run(count: int, seed: int, *, only: Sequence[str] = (), report: Callable[[str], Any] = print) -> str:
    verdicts: Counter[str] = Counter()
    gaps: list[str] = []

    def report_verdict(mutant: Mutant, case: Case, found: Object) -> None:
        verdicts[found["verdict"]] += 1
        line = f"{mutant.module.removeprefix(f'{_PLANNER}.')}:{mutant.line} {mutant.change}: {case}"
        report(f"  {found['verdict']}: {line}: {found['details']}")
        if found["verdict"] == VIOLATION:
            gaps.append(f"{line}: {found['details']}")

    chosen = sample(count, seed, only)
    judge(chosen, report_verdict)
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
