"""The embedded API server compared with kube-apiserver and etcd (fsync on): same requests, same Go client."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.embedded import Embedded
from tests.support.kube import RealKube
from tests.support.peers import peer

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.bench.herder.io}
spec:
  group: bench.herder.io
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              payload: {type: string}
              number: {type: integer}
              stamp: {type: integer, format: int64}
"""


@dataclass
class Subject:
    """A server under test and its results."""

    name: str
    start: Callable[[], Any]
    pids: Callable[[Any], list[int]]
    seconds_to_ready: float = 0.0
    results: dict[str, float] = field(default_factory=dict)
    server: Any = None

    def load(self, mode: str, **options: object) -> dict[str, Any]:
        flags = [f"-{name}={value}" for name, value in options.items()]
        finished = subprocess.run(
            [peer("load"), f"-kubeconfig={self.server.kubeconfig}", f"-mode={mode}", *flags],
            capture_output=True, text=True, check=True, timeout=900,
        )  # fmt: skip
        result: dict[str, Any] = json.loads(finished.stdout)
        if result.get("failed") or result.get("missing"):
            raise RuntimeError(f"{self.name} {mode}: {result} {finished.stderr[-500:]}")
        return result

    def kubectl(self, *arguments: str, text: str = "") -> None:
        subprocess.run(
            [peer("kubectl"), f"--kubeconfig={self.server.kubeconfig}", *arguments],
            input=text, text=True, check=True, capture_output=True,
        )  # fmt: skip

    def resident_mb(self) -> float:
        return sum(_resident(pid) for pid in self.pids(self.server)) / 1024


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def servers(directory: Path) -> list[Subject]:
    """Return the embedded server, including its store, and kube-apiserver, including etcd."""

    def start_real() -> RealKube:
        (directory / "real").mkdir()
        return RealKube(directory / "real", fsync=True).start()

    return [
        Subject("herder", lambda: Embedded(directory / "herder").start(), lambda server: [server.process.pid]),
        Subject("kube-apiserver + etcd", start_real, lambda server: [p.pid for p in server.processes.values()]),
    ]


def run(directory: Path, *, objects: int = 10_000) -> str:
    subjects = servers(directory)
    for subject in subjects:  # one at a time: they share two cores with the client
        measure(subject, objects)
    return report(*subjects, objects)


def measure(subject: Subject, objects: int) -> None:
    started = time.perf_counter()
    subject.server = subject.start()
    results = subject.results
    results["start"] = time.perf_counter() - started
    try:
        subject.kubectl("apply", "-f", "-", text=CRD)
        subject.kubectl("wait", "--for=condition=Established", "crd/things.bench.herder.io", "--timeout=60s")
        subject.kubectl("create", "namespace", "bench")
        time.sleep(1)
        subject.load("create", n=200, first=900_000)  # warm-up
        created = subject.load("create", n=objects)
        results["creates"], results["create p50"], results["create p99"] = (
            created["rate"], created["p50"], created["p99"],
        )  # fmt: skip
        results["list"] = subject.load("list", rounds=5)["seconds"]
        results["list, gzip"] = subject.load("list", rounds=3, gzip="true")["seconds"]
        results["resident"] = subject.resident_mb()
        grow_history(subject, objects)
        subject.kubectl("create", "namespace", "watched")
        measure_watchers(subject)
    finally:
        subject.server.stop()


def grow_history(subject: Subject, objects: int) -> None:
    """Write three more revisions of every object and repeat the measurements: no cost may grow with history."""
    results = subject.results
    for _ in range(3):
        updated = subject.load("update", n=objects)
    results["updates"] = updated["rate"]
    created = subject.load("create", n=2000, first=500_000)
    results["creates, after history"], results["create p99, after history"] = created["rate"], created["p99"]
    results["list, after history"] = subject.load("list", rounds=3)["seconds"]
    results["resident, after history"] = subject.resident_mb()


def measure_watchers(subject: Subject) -> None:
    subject.kubectl("delete", "things", "--all", "-n", "bench", "--wait=false")
    time.sleep(3)
    watched = subject.load("watch", watchers=500, n=300, first=700_000, parallel=8)
    subject.results["watch events"] = watched["events"]


ROWS = [  # name, goal, higher is better, label
    ("creates", "≥ 4×", True, "durable creates/s, 32 parallel"),
    ("create p99", "≤ 1/2", False, "p99 of a create under that load, s"),
    ("create p50", "", False, "p50, s"),
    ("updates", "", True, "durable updates/s, 32 parallel"),
    ("list", "≤ 1/4", False, "list of all objects, s"),
    ("list, gzip", "", False, "the same, compressed, s"),
    ("watch events", "≥ 1×", True, "events/s, each seen by 500 watchers"),
    ("start", "≤ 1/8", False, "start to ready, s"),
    ("resident", "≤ 1/4", False, "resident memory with all objects, MB"),
    ("creates, after history", "≥ 4×", True, "creates/s after 3 more revisions of everything"),
    ("create p99, after history", "≤ 1/2", False, "p99 after that, s"),
    ("list, after history", "≤ 1/4", False, "list after that, s"),
    ("resident, after history", "≤ 1/4", False, "resident memory after that, MB"),
]


def report(ours: Subject, theirs: Subject, objects: int) -> str:
    lines = [
        f"## API server: {objects:,} custom resources of 3 KB",
        "",
        f"| measurement | {ours.name} | {theirs.name} | ratio | goal | |",
        "|---|---|---|---|---|---|",
    ]
    for name, goal, higher, label in ROWS:
        our_value, their_value = ours.results[name], theirs.results[name]
        ratio = our_value / their_value
        lines.append(
            f"| {label} | {_number(our_value)} | {_number(their_value)} | {ratio:.2f}× | {goal} "
            f"| {_met(ratio, goal, higher)} |"
        )
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _met(ratio: float, goal: str, higher: bool) -> str:
    if not goal:
        return ""
    text = goal.lstrip("≥≤ ").rstrip("×")
    above, _, below = text.partition("/")
    bound = float(above) / float(below or 1)
    return "reached" if (ratio >= bound if higher else ratio <= bound) else "not reached"
