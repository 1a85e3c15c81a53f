"""Plans from files, applied on inotify events or, without inotify, by polling.

Unless a test sets a period, it is so long that it never elapses.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from herder.agent.core.plan import checksum
from herder.agent.local.directory import Local
from herder.agent.local.inotify import StopSignal
from herder.agent.local.plan_file import Positions
from herder.agent.log import Log
from tests.support.manager.node_agents import NodeAgent, decoded_outputs, eventually, new_plan, sh, zipapp
from tests.unit.agent.nodes import new_executor

NEVER = 1e5  # seconds
LOG = Log("error")


class Node:
    """The part of the agent that applies plan files, running in a thread, and its plan directory."""

    def __init__(self, directory: Path, period: float = NEVER) -> None:
        self.directory = directory
        self.period = period
        self.plans = directory / "plans"
        self.ran = directory / "ran"
        self.ran.touch()

    def plan(self, name: str, script: str = "true") -> str:
        """Return a plan that records each time it is applied."""
        return json.dumps(new_plan(sh(f"echo {name}$CATTLE_AGENT_ATTEMPT_NUMBER >> {self.ran}; {script}")))

    def drop(self, name: str, script: str = "true", folder: str = "") -> None:
        (self.plans / folder / f"{name}.plan").write_text(self.plan(name, script))

    def agent(self) -> NodeAgent:
        settings = {"remoteEnabled": False, "localEnabled": True, "localPlanDirectory": str(self.plans)}
        return NodeAgent(self.directory / "agent", "", "", "", settings=settings)

    @contextmanager
    def running(self) -> Iterator[Node]:
        with closing(new_executor(self.directory)) as executor:
            local = Local(str(self.plans), executor, LOG, self.period)
            thread = threading.Thread(target=local.run)
            thread.start()
            try:
                self.until_applied("first")
                yield self
            finally:
                local.stop()
                thread.join(30)
                assert not thread.is_alive()

    def applied(self) -> list[str]:
        return self.ran.read_text().split()

    def is_applied(self, name: str) -> bool:
        """Whether the current content of the plan file was applied and its state is written."""
        return any(
            path.with_suffix(".pos").exists()
            and json.loads(path.with_suffix(".pos").read_text())["appliedChecksum"] == checksum(path.read_bytes())
            for path in self.plans.rglob(f"{name}.plan")
        )

    def outputs(self, name: str) -> dict[str, str]:
        position = json.loads((self.plans / f"{name}.pos").read_text())
        return decoded_outputs(base64.b64decode(position["output"]))

    def until_applied(self, *names: str) -> None:
        for name in names:
            eventually(partial(self.is_applied, name), f"the plan {name}")

    def applied_so_far(self) -> list[str]:
        """Return what was applied until now: one more plan is applied after all events before it were handled."""
        self.drop("last")
        self.until_applied("last")
        assert self.applied()[-1] == "last0"
        return self.applied()[1:-1]


class ProbeTarget(ThreadingHTTPServer):
    """Counts requests and responds with status 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ProbeHandler)
        self.requests = 0
        self.url = f"http://127.0.0.1:{self.server_port}/"


class ProbeHandler(BaseHTTPRequestHandler):
    server: ProbeTarget

    def do_GET(self) -> None:
        self.server.requests += 1
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def probe_target() -> Iterator[ProbeTarget]:
    with ProbeTarget() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    node.plans.mkdir()
    node.drop("first")
    with node.running():
        yield node


def test_plan_files_are_applied_once_whether_or_not_they_succeed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.plans.mkdir()
    node.drop("good", "echo hi")
    node.drop("bad", "echo no; exit 1")
    (node.plans / ".hidden.plan").write_text("junk")
    (node.plans / "skipped.plan").write_text("junk")
    (node.plans / "skipped.plan.skip").touch()
    agent = node.agent()
    for last in ("good", "next"):
        with agent:
            node.until_applied(last)
            assert agent.stop() == 0
        node.drop("next")
    assert node.outputs("good") == {"it": "hi\n"}
    assert node.outputs("bad") == {"it": "no\n"}
    assert node.applied() == ["bad0", "good0", "next0"]
    assert "junk" not in agent.log()


def test_a_new_plan_file_is_applied(node: Node) -> None:
    node.drop("a", "echo hi")
    node.until_applied("a")
    assert node.outputs("a") == {"it": "hi\n"}


def test_a_renamed_plan_file_is_applied(node: Node) -> None:
    (node.plans / ".a.new").write_text(node.plan("a"))
    os.replace(node.plans / ".a.new", node.plans / "a.plan")
    (node.directory / "elsewhere").write_text(node.plan("b"))
    os.replace(node.directory / "elsewhere", node.plans / "b.plan")
    node.until_applied("a", "b")
    assert node.applied_so_far() == ["a0", "b0"]


def test_a_plan_is_applied_again_after_a_change_or_without_its_state(node: Node) -> None:
    node.drop("first", "echo changed")
    node.until_applied("first")
    assert node.applied() == ["first0"] * 2
    (node.plans / "first.pos").unlink()
    node.until_applied("first")
    assert node.applied() == ["first0"] * 3


def test_a_plan_that_is_still_being_written_is_not_applied(node: Node) -> None:
    """The file is already a valid plan, but the rest of the write changes its checksum, so it would run twice."""
    with (node.plans / "a.plan").open("w") as stream:
        stream.write(node.plan("a"))
        stream.flush()
        assert node.applied_so_far() == []
        stream.write("\n")
    node.until_applied("a")
    assert node.applied().count("a0") == 1


def test_an_incomplete_plan_is_not_applied_until_it_is_complete(node: Node) -> None:
    complete = node.plan("a")
    (node.plans / "a.plan").write_text(complete[:20])
    assert node.applied_so_far() == []
    (node.plans / "a.plan").write_text(complete)
    node.until_applied("a")


def test_a_plan_is_applied_after_its_skip_file_is_deleted(node: Node) -> None:
    (node.plans / "a.plan.skip").touch()
    node.drop("a")
    assert node.applied_so_far() == []
    (node.plans / "a.plan.skip").unlink()
    node.until_applied("a")


def test_plans_in_new_subdirectories_are_applied(node: Node) -> None:
    (node.plans / "x" / "y").mkdir(parents=True)
    node.drop("a", folder="x/y")
    node.until_applied("a")
    node.drop("b", folder="x/y")
    node.until_applied("b")


def delete_directory(node: Node) -> None:
    for path in node.plans.iterdir():
        path.unlink()
    node.plans.rmdir()


def move_directory(node: Node) -> None:
    node.plans.rename(node.directory / "old")


@pytest.mark.parametrize("remove", [delete_directory, move_directory])
def test_a_recreated_plan_directory_is_watched(node: Node, remove: Callable[[Node], None]) -> None:
    remove(node)
    node.plans.mkdir()
    node.drop("a")
    node.until_applied("a")
    node.drop("b")
    node.until_applied("b")


def test_a_plan_directory_replaced_through_a_link_is_watched(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name / "plans").mkdir(parents=True)
        (tmp_path / f"{name}.link").symlink_to(name)
    node.plans = tmp_path / "link" / "plans"
    (tmp_path / "one.link").rename(tmp_path / "link")
    node.drop("first")
    with node.running():
        (tmp_path / "two.link").replace(tmp_path / "link")
        node.drop("a")
        node.until_applied("a")
        (tmp_path / "two").rename(tmp_path / "three")
        (tmp_path / "two" / "plans").mkdir(parents=True)
        node.drop("b")
        node.until_applied("b")


def test_all_plans_are_scanned_after_an_event_queue_overflow(node: Node) -> None:
    gate = node.directory / "gate"
    os.mkfifo(gate)
    node.drop("a", f"cat {gate}")
    with gate.open("w"):  # blocks until the plan runs; nothing reads events until the plan ends
        for _ in range(int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()) // 3 + 1):
            (node.plans / "noise").touch()  # one event each for create and close
            (node.plans / "noise").unlink()
        node.drop("b")
    node.until_applied("b")


# --- probes and periodic instructions --------------------------------------------------------------------------------


def plan_with_probe(target: ProbeTarget) -> dict[str, Any]:
    return {"probes": {"it": {"successThreshold": 2, "httpGet": {"url": target.url}}}}


def test_probes_run_once_per_period_however_often_a_plan_is_touched(node: Node, probe_target: ProbeTarget) -> None:
    path = node.plans / "a.plan"
    path.write_text(json.dumps(plan_with_probe(probe_target)))
    node.until_applied("a")
    for touched in [path, path.with_suffix(".pos")] * 3:
        os.replace(shutil.copy(touched, node.plans / "copy"), touched)
    assert node.applied_so_far() == []
    assert probe_target.requests == 1


def test_probes_run_again_after_a_period(tmp_path: Path, probe_target: ProbeTarget) -> None:
    node = Node(tmp_path, period=0.01)
    node.plans.mkdir()
    path = node.plans / "first.plan"
    path.write_text(json.dumps(plan_with_probe(probe_target)))
    with node.running():
        eventually(
            lambda: json.loads(path.with_suffix(".pos").read_text())["probeStatus"]["it"].get("healthy"), "health"
        )
    assert probe_target.requests >= 2


PERIODIC = {"name": "p", "command": "sh", "periodSeconds": 600}


@pytest.mark.parametrize(
    ("plan", "pause"),
    [
        ({}, None),
        ({"instructions": [{"command": "false"}]}, None),
        ({"periodicInstructions": [{**PERIODIC, "args": ["-c", "true"]}]}, 600.0),
        ({"periodicInstructions": [{**PERIODIC, "args": ["-c", "false"]}]}, 30.0),
        ({"periodicInstructions": [{**PERIODIC, "args": ["-c", "true"], "periodSeconds": 1}]}, 5.0),
        ({"probes": {"it": {"httpGet": {"url": "http://127.0.0.1:1"}}}}, 5.0),
    ],
    ids=["nothing", "once, and failed", "periodic", "periodic, and failed", "very often", "probed"],
)
def test_when_a_plan_is_due_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any], pause: float | None
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    (tmp_path / "a.plan").write_text(json.dumps(plan))
    stop_signal = StopSignal()
    with closing(new_executor(tmp_path)) as executor, closing(stop_signal):
        positions = Positions(executor, LOG, stop_signal, 5.0)
        assert positions.advance(str(tmp_path / "a.plan"), probing=True) == pause
        written = (tmp_path / "a.pos").stat().st_mtime_ns
        assert positions.advance(str(tmp_path / "a.plan"), probing=False) == pause
        assert (tmp_path / "a.pos").stat().st_mtime_ns == written, "a second pass changes nothing"
        stop_signal.ring()


# --- without inotify --------------------------------------------------------------------------------------------------

SHORT_PERIOD = """
import sys
sys.path.insert(0, sys.argv[1])
from herder.agent import cli
from herder.agent.local import directory

directory.Local.__init__.__defaults__ = (0.05,)
sys.exit(cli.main(["sentinel"]))
"""
SET_LIMIT_TO_ZERO = 'echo 0 > /proc/sys/user/$0 && exec "$@"'


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("max_inotify_instances", "the limit fs.inotify.max_user_instances, or that of open files, is reached"),
        ("max_inotify_watches", "the limit fs.inotify.max_user_watches is reached"),
    ],
)
def test_without_inotify_plans_are_polled_and_a_warning_is_logged_once(tmp_path: Path, limit: str, reason: str) -> None:
    """A separate user namespace has its own inotify limits."""
    node = Node(tmp_path)
    agent = node.agent()
    agent.command = ["unshare", "--user", "--map-root-user", "sh", "-c", SET_LIMIT_TO_ZERO, limit]
    agent.command += [sys.executable, "-c", SHORT_PERIOD, zipapp(tmp_path)]
    with agent:
        eventually(node.plans.exists, "the daemon's start")
        for name in ("a", "b"):
            node.drop(name)
            node.until_applied(name)
        assert agent.stop() == 0
    assert node.applied() == ["a0", "b0"]
    assert agent.log().count(f"inotify is not available ({reason}); looking for plans every 0.05 s") == 1
