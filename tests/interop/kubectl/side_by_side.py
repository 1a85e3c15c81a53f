"""Runs one kubectl command on both engines: the output must be equal, except for generated values."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor

from tests.interop.kubectl.differences import without_differences
from tests.support.engines import Engine
from tests.support.peers import peer

MASKS = [
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? [+-]\d{4} \w+( m=\S+)?", "TIME"),
    (r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ", "LOG "),
    (r"\.[0-9a-f]{16}\b", ".HEX"),
    (r"eyJ[\w-]+\.[\w-]+\.[\w-]+", "TOKEN"),
    (r"(resourceVersion\"?: \"?)\d+", r"\1RV"),
    (r"(Resource Version:\s+)\d+", r"\1RV"),
    (r"https://127\.0\.0\.1:\d+", "https://SERVER"),
    (r"127\.0\.0\.1:\d+", "SERVER"),
    (r"\b10\.\d+\.\d+\.\d+\b", "10.IP"),
    (r"(?<![\w.\"-])((\d+d)?(\d+h)?(\d+m)?\d+s|(\d+d)?\d+h|(\d+h)?\d\d?m|\d+d)(?![\w.\"-])", "AGE"),
    (r"<invalid>", "AGE"),
    (r"(kube-api-access|debugger)-[a-z0-9]{5}", r"\1-XXXXX"),
    (r"^(diff -\S+ -\S+|---|\+\+\+) .*$", r"\1 FILES"),
    (r"/tmp/[\w./-]+", "FILE"),
    (r"[ \t]{2,}", "  "),  # the width of columns depends on the masked values
    (r"-{3,}", "---"),
    (r"[ \t]+$", ""),
]


def masked(text: str, namespace: str) -> str:
    text = text.replace(namespace, "NAMESPACE")
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


class SideBySide:
    def __init__(self, embedded: Engine, real: Engine) -> None:
        self.engines = (embedded, real)
        self.namespace = f"k-{uuid.uuid4().hex[:8]}"
        self._pool = ThreadPoolExecutor(2)
        self._disagreements: list[str] = []
        self.environment: dict[str, str] = {}

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """The output of both: stdout, stderr, and the exit status unless it is 0."""
        command = " ".join(arguments)
        ours, theirs = self._pool.map(lambda engine: self._output(engine, arguments, stdin), self.engines)
        ours, theirs = without_differences(command, ours), without_differences(command, theirs)
        if ours != theirs:
            lines = difflib.unified_diff(theirs.splitlines(), ours.splitlines(), "real", "embedded", lineterm="", n=2)
            self._disagreements.append(f"kubectl {command}\n" + "\n".join(lines))
        return theirs

    def check(self) -> None:
        """Fail on disagreements. All commands of a test run before the first disagreement fails it."""
        disagreements, self._disagreements = self._disagreements, []
        assert not disagreements, "\n\n".join(disagreements)

    def close(self) -> None:
        for engine in self.engines:
            engine.kubectl("delete", "namespace", self.namespace, "--wait=false", "--ignore-not-found")
        self._pool.shutdown()

    def _output(self, engine: Engine, arguments: tuple[str, ...], stdin: str) -> str:
        done = subprocess.run(
            [peer("kubectl"), *self._scope(arguments), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=os.environ
            | {"KUBECONFIG": str(engine.kubeconfig), "KUBECACHEDIR": f"{engine.kubeconfig}.cache"}
            | self.environment,
            timeout=60,
            check=False,
        )
        status = f"\nexit {done.returncode}" if done.returncode else ""
        return masked(done.stdout + done.stderr + status, self.namespace)

    def _scope(self, arguments: tuple[str, ...]) -> list[str]:
        return [] if {"-n", "-A", "config"} & set(arguments) else ["-n", self.namespace]
