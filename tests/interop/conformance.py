"""The API-machinery conformance specs of the real `e2e.test`, run on an engine without a real node.

python -m tests.interop.conformance [--focus REGEX]     on a fresh embedded server; results go to docs/results/
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.__main__ import machine
from tests.support.embedded import Embedded
from tests.support.engines import Engine
from tests.support.peers import peer

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "e2e.md"
SUITE = r"\[sig-api-machinery\].*\[Conformance\]"
NEEDS_PODS = {
    r"AdmissionWebhook": "its webhook server is a pod",
    r"CustomResourceConversionWebhook": "its webhook server is a pod",
    r"CustomResourceFieldSelectors": "its webhook server is a pod",
    r"Aggregator Should": "its API server is a pod",
    r"ensure that all pods are removed": "waits for a pod to run",
    r"created by (deployment|rc)": "waits for objects of a workload controller",
    r"OrderedNamespaceDeletion": "waits for a pod to run",
    r"keep the rc around": "waits for objects of a workload controller",
    r"both valid owner and owner": "waits for objects of a workload controller",
}
"""Specs that start pods, by name, with the reason. They need a node, or workload controllers."""

HEARTBEAT = 8.0
READY = {"type": "Ready", "status": "True", "reason": "StandsIn", "message": "runs nothing"}
NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "stand-in"},
    "status": {
        "capacity": {"cpu": "2", "memory": "4Gi", "pods": "110"},
        "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "110"},
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
    },
}
"""The suite requires a ready node, even if no spec needs one."""

FLAGS = ("--no-runner", "--set", "history-retention=2m")
"""The runner's node is tainted, and the suite waits until every node accepts pods. One spec waits until old revisions
are compacted, for as long as kube-apiserver keeps them."""


@dataclass(frozen=True)
class Spec:
    name: str
    state: str  # passed, failed, skipped, timedout, …
    seconds: float
    failure: str = ""


def run(engine: Engine, focus: str, directory: Path, *, skip: str = "", minutes: float = 30) -> list[Spec]:
    """Run the specs in a fixed order and return their results; each creates its own namespaces."""
    report = directory / "e2e.json"
    with (directory / "e2e.log").open("wb") as log, node_with_heartbeat(engine):
        subprocess.run(
            [
                peer("e2e"),
                "--provider=local",
                f"--kubeconfig={engine.kubeconfig}",
                f"--kubectl-path={peer('kubectl')}",
                f"--ginkgo.focus={focus}",
                *([f"--ginkgo.skip={skip}"] if skip else []),
                f"--ginkgo.json-report={report}",
                f"--ginkgo.timeout={minutes:.0f}m",
                "--ginkgo.seed=1",
                "--ginkgo.no-color",
                "--ginkgo.v",
                "--delete-namespace=true",
                "--disable-log-dump",
            ],
            stdout=log,
            stderr=log,
            timeout=minutes * 60 + 60,
            check=False,
            cwd=directory,
        )
    return _read(report)


@contextmanager
def node_with_heartbeat(engine: Engine) -> Iterator[None]:
    """A Node with a heartbeat every few seconds, as kubelets send it: no cluster is ever completely idle."""
    engine.kubectl("apply", "-f", "-", stdin=msgspec.json.encode(NODE).decode())
    stopped = threading.Event()

    def beat() -> None:
        while True:
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            status = NODE["status"] | {"conditions": [READY | {"lastHeartbeatTime": now}]}
            patch = msgspec.json.encode({"status": status}).decode()
            engine.kubectl("patch", "node", "stand-in", "--subresource=status", "--type=merge", "-p", patch)
            if stopped.wait(HEARTBEAT):
                return

    with ThreadPoolExecutor(1) as executor:
        heartbeat = executor.submit(beat)
        try:
            yield
        finally:
            stopped.set()
            heartbeat.result()


def _read(report: Path) -> list[Spec]:
    (suite,) = msgspec.json.decode(report.read_bytes())
    specs = []
    for entry in suite["SpecReports"] or ():
        if entry["LeafNodeType"] != "It" or (entry["State"] == "skipped" and not entry.get("Failure")):
            continue
        name = " ".join([*(entry["ContainerHierarchyTexts"] or ()), entry["LeafNodeText"]])
        failure = (entry.get("Failure") or {}).get("Message", "")
        specs.append(Spec(name, entry["State"], entry["RunTime"] / 1e9, failure))
    return specs


def suite(directory: Path) -> list[str]:
    """Names of all specs."""
    listed = subprocess.run(
        [peer("e2e"), f"--ginkgo.focus={SUITE}", "--ginkgo.dry-run", f"--ginkgo.json-report={directory / 'all.json'}"],
        capture_output=True,
        check=True,
        timeout=120,
        cwd=directory,
    )
    assert listed.returncode == 0
    return [spec.name for spec in _read(directory / "all.json")]


def explained(names: list[str], reasons: dict[str, str]) -> dict[str, str]:
    """The names that match a pattern, each with its reason."""
    return {name: why for name in names for pattern, why in reasons.items() if re.search(pattern, name)}


def page(specs: list[Spec], skipped: dict[str, str]) -> str:
    """The results as a page."""
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    lines = [
        "# API-machinery conformance specs of `e2e.test`",
        "",
        f"{today}, {machine()}. Written by `make soak`. The real suite of Kubernetes v1.36.3, focus `{SUITE}`,",
        "on a fresh embedded server with one hand-made Node. Specs that start pods are left out: no node runs them.",
        "",
        summary(specs, skipped),
        "",
        "| spec | result | seconds |",
        "|---|---|---|",
        *(f"| {_plain(spec.name)} | {spec.state} | {spec.seconds:.1f} |" for spec in specs),
        "",
    ]
    if failed := [spec for spec in specs if spec.state != "passed"]:
        lines += [
            "## What failed",
            "",
            "Shown with 0.0 seconds: would wait for ever, so counted as failed without a run.",
            "",
        ]
        lines += [f"- {_plain(spec.name)}: {' '.join(spec.failure.split())[:300]}" for spec in failed] + [""]
    lines += ["## What was left out", "", "| spec | why |", "|---|---|"]
    lines += [f"| {_plain(name)} | {why} |" for name, why in skipped.items()]
    return "\n".join(lines) + "\n"


def summary(specs: list[Spec], skipped: dict[str, str]) -> str:
    states = Counter(spec.state for spec in specs)
    passed = states.pop("passed", 0)
    return f"{passed} passed, {states.total()} failed, {len(skipped)} left out because they start pods."


def _plain(name: str) -> str:
    return re.sub(r" *\[[^]]*\] ?", " ", name).strip().replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--focus", default=SUITE, help="run only these; the published results are not changed")
    parser.add_argument("--skip", default="")
    parser.add_argument("--directory", type=Path, help="directory for the suite's log and the server's files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        names = suite(directory)
        skipped = explained(names, NEEDS_PODS)
        with Embedded(directory / "embedded", flags=FLAGS) as server:
            patterns = [*NEEDS_PODS, *filter(None, [arguments.skip])]
            specs = run(Engine("embedded", server.kubeconfig), arguments.focus, directory, skip="|".join(patterns))
    for spec in specs:
        print(f"{spec.state:<8} {spec.seconds:7.2f}  {_plain(spec.name)}")
        if spec.state != "passed":
            print("    " + spec.failure[:600].replace("\n", "\n    "))
    if arguments.focus == SUITE and not arguments.skip:
        RESULTS.write_text(page(specs, skipped))
    print(summary(specs, skipped))


if __name__ == "__main__":
    main()
