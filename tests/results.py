"""Run a selection of the tests and write the results to docs/results/.

    python -m tests.results interop     the tests against extended peers, one row each
    python -m tests.results slowest     everything that `make test` runs; the 20 slowest tests

Both exit with pytest's own status, so that a failed run is never published as a success.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from bench.__main__ import RESULTS, machine

SLOWEST = 20


@dataclass(frozen=True)
class Case:
    name: str  # a pytest ID, without the folder "tests"
    outcome: str
    seconds: float

    @property
    def label(self) -> str:
        """The parameters of the test."""
        return self.name.partition("[")[2].rstrip("]")


def interop() -> int:
    status, cases = run("-m", "extended")
    rows = [f"| `{case.name}` | {case.outcome} | {case.seconds:.0f} |" for case in cases]
    publish("interop.md", "Interoperation with the extended peers", "make interop", ("test", "result", "seconds"), rows)
    return status


def slowest() -> int:
    status, cases = run("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-m", "not extended and not soak")
    ranked = sorted(cases, key=lambda case: -case.seconds)[:SLOWEST]
    rows = [f"| `{case.name}` | {case.seconds:.0f} |" for case in ranked]
    title = f"The {SLOWEST} slowest tests of {len(cases)}"
    publish("slowest.md", title, "python -m tests.results slowest", ("test", "seconds with its fixtures"), rows)
    return status


def run(*selection: str, output: TextIO | None = None) -> tuple[int, list[Case]]:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        status = subprocess.run(
            [sys.executable, "-m", "pytest", *selection, f"--junitxml={report}"], stdout=output, check=False
        ).returncode
        cases = ElementTree.parse(report).iter("testcase")
        # A run that is interrupted reports that as a case without a class.
        return status, [case(element) for element in cases if "classname" in element.attrib]


def case(element: ElementTree.Element) -> Case:
    module = element.attrib["classname"].removeprefix("tests.").replace(".", "/")
    bad = [child.tag for child in element if child.tag in ("failure", "error", "skipped")]
    return Case(f"{module}.py::{element.attrib['name']}", bad[0] if bad else "passed", float(element.attrib["time"]))


def publish(file: str, title: str, command: str, columns: tuple[str, ...], rows: list[str]) -> None:
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    head = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    text = f"# {title}\n\n{today}, {machine()}. Written by `{command}`.\n\n"
    (RESULTS / file).write_text(text + "\n".join([*head, *rows]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["interop", "slowest"])
    sys.exit({"interop": interop, "slowest": slowest}[parser.parse_args().what]())


if __name__ == "__main__":
    main()
