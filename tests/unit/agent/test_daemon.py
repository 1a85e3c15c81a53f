"""The daemon as a process: killed, stopped, cut off, with a wrong authority; and what it tells, to the letter."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.agent.core import outputs
from herder.engine import certificates
from tests.support.api import Api
from tests.support.engines import Engine
from tests.support.node_agents import NodeAgent, decoded, encoded, eventually, new_plan, plan_secret, decoded_outputs, sh, zipapp

DYING = """
import os, signal, sys
from herder.agent import cli
from herder.agent.apply.journal import Journal

left, when, write = int(sys.argv[1]), sys.argv[2], Journal.write

def dying(journal, record):
    global left
    left -= 1
    if left == 0 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    write(journal, record)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

Journal.write = dying
sys.exit(cli.main(["sentinel"]))
"""


FAILING = """
import sys
from herder.agent import cli
from herder.agent.secret import client

client.Api.watch = lambda *_: 1 / 0
sys.exit(cli.main(["sentinel"]))
"""


@dataclass
class Node:
    api: Api
    agent: NodeAgent
    place: Path

    async def order(self, script: str, **data: str) -> None:
        """A plan of one instruction, which notes each time that it runs."""
        noting = f"echo $CATTLE_AGENT_ATTEMPT_NUMBER >> {self.place}/ran; {script}"
        change = {"data": encoded({"plan": json.dumps(new_plan(sh(noting))), "plan-state": "pending", **data})}
        (await self.api.patch(self.api.at("secrets", "plan"), change)).expect(200)

    async def told(self, key: str, value: str) -> dict[str, bytes]:
        url = self.api.at("secrets", "plan")
        return decoded(await self.api.until_object(url, lambda found: decoded(found).get(key) == value.encode()))

    @property
    def ran(self) -> str:
        path = self.place / "ran"
        return path.read_text() if path.exists() else ""


@pytest.fixture
async def node(embedded_engine: Engine, tmp_path: Path) -> AsyncIterator[Node]:
    admin = Api(embedded_engine.connection)
    api = await admin.in_new_namespace()
    await api.create("secrets", plan_secret("plan", {}))
    agent = NodeAgent(tmp_path / "agent", embedded_engine.kubeconfig.read_text(), api.namespace, "plan")
    yield Node(api, agent.prepare(), tmp_path)
    agent.kill()
    await admin.close()


async def test_what_is_told_of_a_plan_to_the_letter(node: Node) -> None:
    plan = '{"instructions":[{"name":"hello","command":"sh","args":["-c","echo hi"],"saveOutput":true}]}'
    order = {"plan": plan, "plan-state": "pending", "max-failures": "-1", "failure-threshold": "1"}
    (await node.api.patch(node.api.at("secrets", "plan"), {"data": encoded(order)})).expect(200)
    node.agent.start()
    told = await node.told("plan-state", "succeeded")
    assert gzip.decompress(told.pop("applied-output")) == b'{"hello":"aGkK"}', (
        "base64 of what it said, hi and a newline"
    )
    assert gzip.decompress(told.pop("applied-periodic-output")) == b"{}"
    assert outputs.parse_unix_date(told.pop("last-apply-time").decode())
    assert told == {
        **{key: value.encode() for key, value in order.items()},
        "plan-state": b"succeeded",
        "plan-revision": b"1",
        "applied-checksum": b"fa1b55e3770a8688464b41bec7c9d9a2e12246661841809a8be80c661278a6a6",
        "failed-checksum": b"",
        "failed-output": b"",
        "failure-count": b"0",
        "success-count": b"1",
        "probe-statuses": b"{}",
    }


@pytest.mark.parametrize(
    ("point", "when", "runs"),
    [(1, "before", "1\n"), (1, "after", "1\n"), (2, "before", "1\n2\n"), (2, "after", "1\n")],
    ids=["before it is noted", "before it is run", "before the result is noted", "before the result is told"],
)
async def test_killed_at_any_point_it_goes_on_and_runs_nothing_again_that_was_finished(
    node: Node, point: int, when: str, runs: str
) -> None:
    node.agent.command = [sys.executable, "-c", DYING, str(point), when]
    await node.order("echo hi")
    node.agent.start()
    assert node.agent.wait() == -signal.SIGKILL
    node.agent.command = None
    node.agent.start()
    told = await node.told("plan-state", "succeeded")
    assert decoded_outputs(told["applied-output"]) == {"it": "hi\n"}
    assert (told["plan-revision"], node.ran) == (b"1", runs)
    assert list((node.agent.directory / "interlock").iterdir()) == []


async def test_asked_to_stop_it_lets_an_instruction_end_and_tells_of_it(node: Node) -> None:
    os.mkfifo(node.place / "go")
    node.agent.start()
    await node.order(f"cat {node.place}/go")
    await node.told("plan-state", "in-progress")
    eventually(lambda: node.ran, "the instruction's start")
    assert node.agent.process is not None
    node.agent.process.send_signal(signal.SIGTERM)
    (node.place / "go").write_text("on\n")
    assert node.agent.wait() == 0
    told = await node.told("plan-state", "succeeded")
    assert decoded_outputs(told["applied-output"]) == {"it": "on\n"}


async def test_stopped_together_with_its_instruction_it_runs_the_plan_anew(node: Node) -> None:
    """As service managers do, which send the signal to all of a service."""
    os.mkfifo(node.place / "go")
    node.agent.start()
    await node.order(f"echo $$ > {node.place}/pid; test -e {node.place}/again || cat {node.place}/go")
    eventually((node.place / "pid").exists, "its pid")
    pid = int(eventually((node.place / "pid").read_text, "its pid"))
    eventually(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text(), "the command inside")
    assert node.agent.process is not None
    node.agent.process.send_signal(signal.SIGTERM)
    os.killpg(pid, signal.SIGTERM)
    assert node.agent.wait() == 0
    (node.place / "again").touch()
    node.agent.start()
    await node.told("plan-state", "succeeded")
    assert node.ran == "1\n2\n"


async def test_what_nobody_expected_ends_it_so_that_it_is_started_again(node: Node) -> None:
    node.agent.command = [sys.executable, "-c", FAILING]
    node.agent.start()
    assert await asyncio.to_thread(node.agent.wait) == 1
    assert "ZeroDivisionError" in node.agent.log()


async def test_only_one_of_them_runs(node: Node) -> None:
    node.agent.start()
    await node.order("true")
    await node.told("plan-state", "succeeded")
    second = NodeAgent(node.agent.directory, node.agent.kubeconfig, node.api.namespace, "plan")
    second.start()
    assert second.wait() == 1
    assert "another herder-agent uses" in node.agent.log()


async def test_a_plan_is_applied_as_somebody_who_is_not_root(node: Node, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    for path in [*tmp_path.rglob("*"), tmp_path]:
        os.chown(path, 65534, 65534)
    closed = [path for path in tmp_path.parents if path.stat().st_mode & 0o011 != 0o011]  # pytest's own, for its user
    modes = {path: path.stat().st_mode for path in closed}
    for path, mode in modes.items():
        path.chmod(mode | 0o011)
    try:
        node.agent.command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3"]
        node.agent.command += [zipapp(tmp_path), "sentinel"]
        node.agent.start()
        await node.order("id -u")
        told = await node.told("plan-state", "succeeded")
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert decoded_outputs(told["applied-output"]) == {"it": "65534\n"}


# --- authorities ----------------------------------------------------------------------------------------------------


def with_authority(kubeconfig: str, authority: bytes | None) -> str:
    value: dict[str, Any] = yaml.safe_load(kubeconfig)
    cluster = value["clusters"][0]["cluster"]
    cluster.pop("certificate-authority-data", None)
    if authority:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    return yaml.safe_dump(value)


@pytest.mark.parametrize("strict", [True, False])
async def test_an_authority_that_is_not_the_servers(node: Node, strict: bool, embedded_engine: Engine) -> None:
    """Given up for those of the system, unless that is forbidden; here the system trusts the right one."""
    other = certificates.authority("other", now=datetime.now(UTC), life=timedelta(days=1)).certificate_pem
    (node.place / "ca.pem").write_bytes(embedded_engine.connection.ca or b"")
    node.agent.kubeconfig = with_authority(node.agent.kubeconfig, other)
    node.agent.environment = {
        "CATTLE_AGENT_STRICT_VERIFY": str(strict).lower(),
        "SSL_CERT_FILE": str(node.place / "ca.pem"),
    }
    node.agent.prepare().start()
    await node.order("true")
    if strict:
        eventually(lambda: "CERTIFICATE_VERIFY_FAILED" in node.agent.log(), "the refusal")
        assert node.ran == ""
    else:
        await node.told("plan-state", "succeeded")


async def test_strictness_wants_an_authority(node: Node) -> None:
    node.agent.kubeconfig = with_authority(node.agent.kubeconfig, None)
    node.agent.environment = {"CATTLE_AGENT_STRICT_VERIFY": "true"}
    node.agent.prepare().start()
    assert await asyncio.to_thread(node.agent.wait) == 1
    assert "has no certificate-authority-data, which CATTLE_AGENT_STRICT_VERIFY=true requires" in node.agent.log()
