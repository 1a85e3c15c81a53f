"""The API-machinery conformance specs of the real `e2e.test`, run on an engine that has no real node.

python -m tests.interop.conformance [--focus REGEX] [--report FILE]     run them all on a fresh embedded server
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.support.embedded import Embedded
from tests.support.engines import Engine
from tests.support.peers import peer

SUITE = r"\[sig-api-machinery\].*\[Conformance\]"
NEEDS_PODS = {
    r"AdmissionWebhook": "its webhook server is a pod",
    r"CustomResourceConversionWebhook": "its webhook server is a pod",
    r"Aggregator Should": "its API server is a pod",
    r"ensure that all pods are removed": "waits for a pod to run",
    r"created by (deployment|rc)": "waits for what a workload controller makes",
    r"keep the rc around": "waits for what a workload controller makes",
    r"both valid owner and owner": "waits for what a workload controller makes",
}
"""Specs that start pods, by name, and what for. They need a node, or the controllers of workloads."""

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "stand-in"},
    "status": {
        "capacity": {"cpu": "2", "memory": "4Gi", "pods": "110"},
        "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "110"},
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "StandsIn", "message": "runs nothing"}],
    },
}
"""The suite refuses to begin without a ready node, whatever its specs need."""

WITHOUT_RUNNER = ("--no-runner",)
"""The runner's node is tainted, and the suite waits for every node to take pods."""


@dataclass(frozen=True)
class Spec:
    name: str
    state: str  # passed, failed, skipped, timedout, …
    seconds: float
    failure: str = ""


def run(engine: Engine, focus: str, directory: Path, *, skip: str = "", minutes: float = 30) -> list[Spec]:
    """Those that ran. Specs are not shuffled; each makes namespaces of its own."""
    engine.kubectl("apply", "-f", "-", stdin=msgspec.json.encode(NODE).decode())
    engine.kubectl(
        "patch",
        "node",
        "stand-in",
        "--subresource=status",
        "--type=merge",
        "-p",
        msgspec.json.encode({"status": NODE["status"]}).decode(),
    )
    report = directory / "e2e.json"
    with (directory / "e2e.log").open("wb") as log:
        subprocess.run(
            [
                peer("e2e"),
                "--provider=local",
                f"--kubeconfig={engine.kubeconfig}",
                f"--ginkgo.focus={focus}",
                *([f"--ginkgo.skip={skip}"] if skip else []),
                f"--ginkgo.json-report={report}",
                f"--ginkgo.timeout={minutes:.0f}m",
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--focus", default=SUITE)
    parser.add_argument("--skip", default="")
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    directory = arguments.directory or Path(tempfile.mkdtemp())
    with Embedded(directory / "embedded", flags=WITHOUT_RUNNER) as server:
        engine = Engine("embedded", server.kubeconfig)
        specs = run(engine, arguments.focus, directory, skip="|".join([*NEEDS_PODS, *filter(None, [arguments.skip])]))
    for spec in sorted(specs, key=lambda spec: spec.seconds):
        print(f"{spec.state:<8} {spec.seconds:7.2f}  {re.sub(r' *[[][^]]*[]]', '', spec.name)}")
        if spec.failure:
            print("    " + spec.failure[:600].replace("\n", "\n    "))
    print(dict(Counter(spec.state for spec in specs)), datetime.datetime.now(datetime.UTC).isoformat())


if __name__ == "__main__":
    main()
