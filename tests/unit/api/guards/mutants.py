"""Mutants of the guards and of the permissions of operations, against their unit tests.

`make soak` tries every mutant. The result is a section of docs/results/mutants.md.

python -m tests.unit.api.guards.mutants [--only plans members …] [--sample 50 --seed 1] [--record]
"""

from __future__ import annotations

import argparse
import pkgutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.mutant_results import record
from tools.mutant_tests import KILLED, SURVIVED, TIMED_OUT, judge
from tools.mutants import Mutant, mutants_of, source_of

OPERATIONS = "herder.api.rke.operations"


def _modules(package: str) -> list[str]:
    """The package and its modules, none of which is imported."""
    found = pkgutil.iter_modules([str(source_of(package).parent)], f"{package}.")
    return [package, *sorted(each.name for each in found)]


MODULES = (*_modules("herder.api.guards"), OPERATIONS)
PRELOADED = ("herder.api.rke.node.plan_secret", "herder.engine.runtime.controller", "tests.support.builders")
GOAL = 0.95
_UNIT = Path(__file__).parents[2]
_TESTS: Mapping[str, tuple[str, ...]] = {
    "guards": ("api/test_guards_by_distribution.py",),
    "agents": ("api/guards/test_agents.py", "api/test_guards_by_distribution.py"),
    "example": ("api/guards/test_example.py", "api/test_guards.py"),
    "evictions": ("api/guards/test_evictions.py", "api/test_eviction_guards.py"),
    "machines": ("api/guards/test_machines.py", "api/test_machine_guards.py"),
    "observe_only": ("api/guards/test_observe_only.py", "api/test_observe_only_guard.py"),
    "members": (
        "api/guards/test_members.py",
        "api/test_member_guards.py",
        "api/test_disruption_guards.py",
        "api/test_plan_guards.py",
    ),
    "plan_changes": (
        "api/guards/test_plan_changes.py",
        "api/test_plan_guards.py",
        "api/test_disruption_guards.py",
        "api/test_member_guards.py",
    ),
    "plans": (
        "api/guards/test_plan_clusters.py",
        "api/guards/test_plans.py",
        "api/guards/test_concurrency.py",
        "api/test_plan_guards.py",
        "api/test_disruption_guards.py",
        "api/test_member_guards.py",
    ),
    "operations": ("api/rke/test_operations.py", "api/rke/test_operation_runs.py"),
    "restores": ("api/guards/test_restores.py",),
}
"""Tests of each module, the most specific first."""


EQUIVALENT: Mapping[tuple[str, str], str] = {
    (
        "TraitFilter = Callable[[PlanTraits], bool]",
        "[PlanTraits]: PlanTraits dropped",
    ): "a type, which nothing uses when it runs",
    (
        "if machine is None or found is None:",
        "machine is None dropped",
    ): "without a Machine, no plans are found either",
    (
        'control_plane = view.get(CONTROL_PLANE, meta["labels"][CLUSTER_NAME], meta["namespace"]) or {}',
        "{} dropped",
    ): "members of a cluster without a control plane are not checked",
    (
        "if not change.starts_run or not _redeploys(change.plan) or _redeploys(change.before.plan):",
        "not change.starts_run dropped",
    ): "a write that starts no run keeps the plan, which had the task before",
    (
        "if not change.starts_run or not _redeploys(change.plan) or _redeploys(change.before.plan):",
        "not _redeploys(change.plan) dropped",
    ): "a plan without the task names no agent, which is checked next",
    (
        'and run.is_own_phase(plan.annotations.get(names.PLAN_TASK, ""))',
        "'' → 'XX'",
    ): "neither is a mark of a phase",
    (
        'machine = _get_if_watched(view, MACHINE, (plan["metadata"].get("labels") or {}).get(names.MACHINE_NAME, ""))',
        "(plan['metadata'].get('labels') or {}).get(names.MACHINE_…: argument '' dropped",
    ): "no Machine has the name that a missing label gives",
    (
        'if machine is None or not is_true(machine, "Available") or _deletion_requested(machine):',
        "machine is None dropped",
    ): "without a Machine, no condition is true",
    (
        'return machine is not None and is_true(machine, "Available") '
        "and not set(owners).isdisjoint(member_keys(machine))",
        "machine is not None dropped",
    ): "without a Machine, no condition is true",
    (
        "if machine is None or found is None or _is_forced(machine, view) or is_unreachable(machine, view):",
        "machine is None dropped",
    ): "without a Machine, no plans are found either",
    (
        "if machine is None or found is None or _is_forced(machine, view):",
        "machine is None dropped",
    ): "without a Machine, no plans are found either",
    (
        "return bool(prefix and nodes) and all(is_removed_member(node, prefix) for node in nodes or ())",
        "prefix dropped",
    ): "no annotation begins with a slash",
    (
        "return bool(prefix and nodes) and all(is_removed_member(node, prefix) for node in nodes or ())",
        "() dropped",
    ): "without Nodes, none is looked at",
    (
        "return tuple(seen.objects) if isinstance(seen, Observed) else None",
        'None → ""',
    ): "both mean that no Node is observed",
    (
        'version = version_of(str((control_plane.get("spec") or {}).get("kubernetesVersion") or ""))',
        "'' → 'XX'",
    ): "neither is a version",
    (
        'version = version_of(str((control_plane.get("spec") or {}).get("kubernetesVersion") or ""))',
        "'' dropped",
    ): "neither is a version",
    (
        "return None if machine is None or is_deleting(machine) else machine",
        'None → ""',
    ): "both are no Machine",
    (
        "return machine if machine is not None and _removes_hook(act, machine) else None",
        'None → ""',
    ): "both are no Machine",
    (
        'return has_hook if annotations is None else annotations.get(names.ETCD_HOOK, "") is None',
        "'' → 'XX'",
    ): "neither is null, which removes the hook",
    (
        'if machine is None or not cluster or reference.get("kind") != BOOTSTRAP.kind:',
        "machine is None dropped",
    ): "without a Machine, there is no reference either",
    (
        'if machine is None or not cluster or reference.get("kind") != BOOTSTRAP.kind:',
        "not cluster dropped",
    ): "a cluster without a name does not exist, and counts as deleted",
    ("return 1  # watched by controllers that do not declare the index: each cluster must be looked up", "1 → 2"): (
        "any number means that clusters are looked up"
    ),
    (
        "return 0  # not watched: this process has no controller of such clusters",
        "return 0 → None",
    ): "both are false",
    (
        "return 0  # not watched: this process has no controller of such clusters",
        "0 → 1",
    ): "then clusters are looked up, and none is found",
    ("return False", "return False → None"): "both are false",
    (
        "if not _exists_any(view) or _is_harmless(act, view, reconciled):",
        "not _exists_any(view) dropped",
    ): "a shortcut: without it, no mark is found",
    (
        "return view.count(kind, (observe_only.INDEX, observe_only.MARKED))",
        "(observe_only.INDEX, observe_only.MARKED): observe_only.INDEX dropped",
    ): "then clusters are looked up, as without the index",
    ("if not cluster:", "if not cluster → False"): "no cluster has this name",
    (
        'return observe_only.mark_of(_get(view, MANAGEMENT_CLUSTER, cluster, ""))',
        "'' → 'XX'",
    ): "a management Cluster has no namespace",
    (
        'management = _get(view, MANAGEMENT_CLUSTER, cluster, "") or {}',
        "'' → 'XX'",
    ): "a management Cluster has no namespace",
    (
        'management = _get(view, MANAGEMENT_CLUSTER, cluster, "") or {}',
        "{} dropped",
    ): "only a cluster with a mark is shown, so it exists",
    (
        "found = {plan.name: plan for secret in stored if secret is not None for plan in (PlanSecret(secret),)}",
        "for secret in …: condition dropped",
    ): "groups hold keys of Secrets that exist",
    ("found.pop(done.before.name, None)", 'None → ""'): "the result is not used",
    (
        'scope = next(iter(_plans_of(secret)), "") if secret is not None else ""',
        "'' → 'XX'",
    ): "the next line requires the Secret, too",
    (
        "return (scope, PlanTraits.of(view, PlanSecret(secret))) if secret is not None and scope else None",
        "secret is not None dropped",
    ): "without a Secret, the scope is empty",
}
"""Mutants that no test can kill, by the line of the source and the change, with the reason."""


def _key(mutant: Mutant) -> tuple[str, str]:
    lines = source_of(mutant.module).read_text().splitlines()
    return lines[mutant.line - 1].strip(), mutant.change


def tests_of(module: str) -> list[Path]:
    found = [_UNIT / path for path in _TESTS[module.rpartition(".")[2]]]
    return [path for path in found if path.exists()]


def sample(module: str, count: int, seed: int) -> list[Mutant]:
    """Mutants of the module: all of them if `count` is 0."""
    everything = mutants_of(module)
    return Random(f"{module} {seed}").sample(everything, min(count or len(everything), len(everything)))


def run(modules: Sequence[str], count: int, seed: int, report: Callable[[str], Any]) -> list[Row]:
    rows = []
    for module in modules:
        verdicts = judge(sample(module, count, seed), tests_of, PRELOADED)
        alive = tuple(mutant for mutant, verdict in verdicts.items() if verdict == SURVIVED)
        row = Row(module, len(mutants_of(module)), Counter(verdicts.values()), alive)
        report("\n".join([str(row), *(f"  {mutant}" for mutant in alive)]))
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Row:
    """The result of one module."""

    module: str
    mutants: int  # all that the operators make of it
    verdicts: Counter[str]
    alive: tuple[Mutant, ...]

    @property
    def tried(self) -> int:
        return sum(self.verdicts.values())

    @property
    def survivors(self) -> list[Mutant]:
        return [each for each in self.alive if each not in self.equivalent]

    @property
    def equivalent(self) -> dict[Mutant, str]:
        """Survivors that no test can kill, with the reason."""
        return {each: EQUIVALENT[key] for each in self.alive if (key := _key(each)) in EQUIVALENT}

    def __str__(self) -> str:
        killed, ended, survived = self.verdicts[KILLED], self.verdicts[TIMED_OUT], len(self.survivors)
        equivalent = len(self.equivalent)
        return f"| {self.module} | {self.mutants} | {self.tried} | {killed} | {ended} | {survived} | {equivalent} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="last parts of module names")
    parser.add_argument("--sample", type=int, default=0, help="mutants of each module; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="write the section of docs/results/mutants.md")
    options = parser.parse_args()
    modules = [name for name in MODULES if not options.only or name.rpartition(".")[2] in options.only]
    rows = run(modules, options.sample, options.seed, lambda text: print(text, flush=True))
    if not options.sample and not options.only:
        check_equivalents(rows)
    if options.record:
        record("Guards", page(rows, options.sample, options.seed))
    print(summary(rows, options.sample, options.seed), flush=True)


def check_equivalents(rows: Sequence[Row]) -> None:
    """Fail if the table of equivalent mutants names one that does not survive any more."""
    found = {_key(each) for row in rows for each in row.alive}
    stale = sorted(set(EQUIVALENT) - found)
    if stale:
        raise RuntimeError(f"not survivors any more: {stale}; remove them from EQUIVALENT")


def summary(rows: Sequence[Row], count: int, seed: int) -> str:
    """Fails below the goal: mutants that end by their CPU limit are killed too."""
    tried, alive = sum(row.tried for row in rows), sum(len(row.survivors) for row in rows)
    killed = sum(row.verdicts[KILLED] + row.verdicts[TIMED_OUT] for row in rows)
    share = killed / (killed + alive)
    which = f"seed {seed}: a sample of {count} mutants of each module, {tried}" if count else f"all {tried}"
    text = f"{which} mutants of the guards: {killed} killed by unit tests, {alive} survived: {share:.1%}"
    if share < GOAL:
        raise RuntimeError(f"{text}, the goal is {GOAL:.0%}")
    return text


def page(rows: Sequence[Row], count: int, seed: int) -> list[str]:
    lines = [f"{summary(rows, count, seed)}.", ""]
    lines += [
        "| module | mutants | tried | killed | timed out | survived | equivalent |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [str(row) for row in rows]
    survivors = [f"- `{each}`" for row in rows for each in row.survivors]
    equivalent = [f"- `{each}`: {reason}" for row in rows for each, reason in row.equivalent.items()]
    lines += ["", "Survivors:", "", *survivors] if survivors else []
    lines += ["", "Equivalent, so that no test can kill them:", "", *equivalent] if equivalent else []
    return lines


if __name__ == "__main__":
    main()
