"""Plans from files: the kernel tells when there is one to apply, and where it does not, they are looked for.

Where nothing else is said, the period is so long that nothing happens because it has passed.
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
from tests.support.node_agents import NodeAgent, eventually, new_plan, decoded_outputs, sh, zipapp
from tests.unit.agent.nodes import hands_in

NEVER = 1e5  # seconds
LOG = Log("error")


class Node:
    """A daemon's part for files, running in a thread, and the directory that it applies plans from."""

    def __init__(self, directory: Path, period: float = NEVER) -> None:
        self.directory = directory
        self.period = period
        self.plans = directory / "plans"
        self.ran = directory / "ran"
        self.ran.touch()

    def plan(self, name: str, script: str = "true") -> str:
        """Notes each time that it is applied."""
        return json.dumps(new_plan(sh(f"echo {name}$CATTLE_AGENT_ATTEMPT_NUMBER >> {self.ran}; {script}")))

    def drop(self, name: str, script: str = "true", folder: str = "") -> None:
        (self.plans / folder / f"{name}.plan").write_text(self.plan(name, script))

    def agent(self) -> NodeAgent:
        settings = {"remoteEnabled": False, "localEnabled": True, "localPlanDirectory": str(self.plans)}
        return NodeAgent(self.directory / "agent", "", "", "", settings=settings)

    @contextmanager
    def running(self) -> Iterator[Node]:
        with closing(hands_in(self.directory)) as executor:
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
        """As the file is now, with its state told: what is done before that is done."""
        return any(
            path.with_suffix(".pos").exists()
            and json.loads(path.with_suffix(".pos").read_text())["appliedChecksum"] == checksum(path.read_bytes())
            for path in self.plans.rglob(f"{name}.plan")
        )

    def decoded_outputs(self, name: str) -> dict[str, str]:
        position = json.loads((self.plans / f"{name}.pos").read_text())
        return decoded_outputs(base64.b64decode(position["output"]))

    def until_applied(self, *names: str) -> None:
        for name in names:
            eventually(partial(self.is_applied, name), f"the plan {name}")

    def everything_told_is_done(self) -> list[str]:
        """All that was applied until now: one more plan comes after all that was told before it."""
        self.drop("last")
        self.until_applied("last")
        assert self.applied()[-1] == "last0"
        return self.applied()[1:-1]


class Asked(ThreadingHTTPServer):
    """Counts how often it is asked, and answers that all is well."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.times = 0
        self.url = f"http://127.0.0.1:{self.server_port}/"


class Answering(BaseHTTPRequestHandler):
    server: Asked

    def do_GET(self) -> None:
        self.server.times += 1
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def asked() -> Iterator[Asked]:
    with Asked() as server:
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


def test_plans_from_files_are_applied_once_whether_they_succeed_or_not(tmp_path: Path) -> None:
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
    assert node.said("good") == {"it": "hi\n"}
    assert node.said("bad") == {"it": "no\n"}
    assert node.applied() == ["bad0", "good0", "next0"]
    assert "junk" not in agent.log()


def test_a_plan_that_is_dropped_in_is_applied(node: Node) -> None:
    node.drop("a", "echo hi")
    node.until_applied("a")
    assert node.said("a") == {"it": "hi\n"}


def test_a_plan_that_is_moved_in_is_applied(node: Node) -> None:
    (node.plans / ".a.new").write_text(node.plan("a"))
    os.replace(node.plans / ".a.new", node.plans / "a.plan")
    (node.directory / "elsewhere").write_text(node.plan("b"))
    os.replace(node.directory / "elsewhere", node.plans / "b.plan")
    node.until_applied("a", "b")
    assert node.everything_told_is_done() == ["a0", "b0"]


def test_a_plan_is_applied_again_when_it_changed_or_its_state_was_removed(node: Node) -> None:
    node.drop("first", "echo changed")
    node.until_applied("first")
    assert node.applied() == ["first0"] * 2
    (node.plans / "first.pos").unlink()
    node.until_applied("first")
    assert node.applied() == ["first0"] * 3


def test_a_plan_that_is_still_being_written_is_not_taken(node: Node) -> None:
    """Though it could be read: its end would make another plan of it, which is applied once more."""
    with (node.plans / "a.plan").open("w") as stream:
        stream.write(node.plan("a"))
        stream.flush()
        assert node.everything_told_is_done() == []
        stream.write("\n")
    node.until_applied("a")
    assert node.applied().count("a0") == 1


def test_half_of_a_plan_that_was_left_is_not_applied_until_it_is_whole(node: Node) -> None:
    whole = node.plan("a")
    (node.plans / "a.plan").write_text(whole[:20])
    assert node.everything_told_is_done() == []
    (node.plans / "a.plan").write_text(whole)
    node.until_applied("a")


def test_a_plan_that_is_not_skipped_any_more_is_applied(node: Node) -> None:
    (node.plans / "a.plan.skip").touch()
    node.drop("a")
    assert node.everything_told_is_done() == []
    (node.plans / "a.plan.skip").unlink()
    node.until_applied("a")


def test_plans_in_folders_are_applied_also_when_the_folder_comes_later(node: Node) -> None:
    (node.plans / "x" / "y").mkdir(parents=True)
    node.drop("a", folder="x/y")
    node.until_applied("a")
    node.drop("b", folder="x/y")
    node.until_applied("b")


def removed(node: Node) -> None:
    for path in node.plans.iterdir():
        path.unlink()
    node.plans.rmdir()


def moved_away(node: Node) -> None:
    node.plans.rename(node.directory / "old")


@pytest.mark.parametrize("gone", [removed, moved_away])
def test_the_directory_may_be_made_again_later(node: Node, gone: Callable[[Node], None]) -> None:
    gone(node)
    node.plans.mkdir()
    node.drop("a")
    node.until_applied("a")
    node.drop("b")
    node.until_applied("b")


def test_the_directory_may_be_replaced_by_another_through_a_link_too(tmp_path: Path) -> None:
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


def test_when_the_kernel_could_not_keep_all_events_everything_is_looked_at(node: Node) -> None:
    gate = node.directory / "gate"
    os.mkfifo(gate)
    node.drop("a", f"cat {gate}")
    with gate.open("w"):  # opened when the plan runs: until it ends, nobody reads events
        for _ in range(int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()) // 3 + 1):
            (node.plans / "noise").touch()  # created and closed
            (node.plans / "noise").unlink()
        node.drop("b")
    node.until_applied("b")


# --- what is due though nobody has touched it -----------------------------------------------------------------------


def probing(of: Asked) -> dict[str, Any]:
    return {"probes": {"it": {"successThreshold": 2, "httpGet": {"url": of.url}}}}


def test_probes_are_asked_once_in_a_period_however_often_a_plan_is_touched(node: Node, asked: Asked) -> None:
    path = node.plans / "a.plan"
    path.write_text(json.dumps(probing(asked)))
    node.until_applied("a")
    for touched in [path, path.with_suffix(".pos")] * 3:
        os.replace(shutil.copy(touched, node.plans / "copy"), touched)
    assert node.everything_told_is_done() == []
    assert asked.times == 1


def test_probes_are_asked_again_when_a_period_has_passed(tmp_path: Path, asked: Asked) -> None:
    node = Node(tmp_path, period=0.01)
    node.plans.mkdir()
    path = node.plans / "first.plan"
    path.write_text(json.dumps(probing(asked)))
    with node.running():
        eventually(
            lambda: json.loads(path.with_suffix(".pos").read_text())["probeStatus"]["it"].get("healthy"), "health"
        )
    assert asked.times >= 2


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
def test_when_there_is_more_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any], pause: float | None
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    (tmp_path / "a.plan").write_text(json.dumps(plan))
    stop_signal = StopSignal()
    with closing(hands_in(tmp_path)) as executor, closing(stop_signal):
        positions = Positions(executor, LOG, stop_signal, 5.0)
        assert positions.advance(str(tmp_path / "a.plan"), probing=True) == pause
        written = (tmp_path / "a.pos").stat().st_mtime_ns
        assert positions.advance(str(tmp_path / "a.plan"), probing=False) == pause
        assert (tmp_path / "a.pos").stat().st_mtime_ns == written, "to look once more changes nothing"
        stop_signal.ring()


# --- where the kernel does not tell -----------------------------------------------------------------------------------

IMPATIENT = """
import sys
sys.path.insert(0, sys.argv[1])
from herder.agent import cli
from herder.agent.local import directory

directory.Local.__init__.__defaults__ = (0.05,)
sys.exit(cli.main(["sentinel"]))
"""
WITHOUT = 'echo 0 > /proc/sys/user/$0 && exec "$@"'


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("max_inotify_instances", "the limit fs.inotify.max_user_instances, or that of open files, is reached"),
        ("max_inotify_watches", "the limit fs.inotify.max_user_watches is reached"),
    ],
)
def test_where_the_kernel_tells_nothing_plans_are_looked_for_and_that_is_said_once(
    tmp_path: Path, limit: str, reason: str
) -> None:
    """In a user namespace of its own, which has such limits of its own."""
    node = Node(tmp_path)
    agent = node.agent()
    agent.command = ["unshare", "--user", "--map-root-user", "sh", "-c", WITHOUT, limit]
    agent.command += [sys.executable, "-c", IMPATIENT, zipapp(tmp_path)]
    with agent:
        eventually(node.plans.exists, "the daemon's start")
        for name in ("a", "b"):
            node.drop(name)
            node.until_applied(name)
        assert agent.stop() == 0
    assert node.applied() == ["a0", "b0"]
    assert agent.log().count(f"inotify is not available ({reason}); looking for plans every 0.05 s") == 1
