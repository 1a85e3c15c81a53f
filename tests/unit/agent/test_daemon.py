"""The agent as a process: killed, stopped, with a wrong CA; and the exact content of the plan Secret."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder import __version__
from herder.agent.core import outputs
from herder.engine import certificates
from tests.support.api import Api
from tests.support.engines import Engine
from tests.support.manager.node_agents import (
    NodeAgent,
    decoded,
    decoded_outputs,
    encoded,
    eventually,
    new_plan,
    plan_secret,
    sh,
    zipapp,
)

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
    directory: Path

    async def request_plan(self, script: str, **data: str) -> None:
        """Write a plan with one instruction that records each of its attempts."""
        recording = f"echo $CATTLE_AGENT_ATTEMPT_NUMBER >> {self.directory}/ran; {script}"
        change = {"data": encoded({"plan": json.dumps(new_plan(sh(recording))), "plan-state": "pending", **data})}
        (await self.api.patch(self.api.at("secrets", "plan"), change)).expect(200)

    async def secret_with(self, key: str, value: str) -> dict[str, bytes]:
        url = self.api.at("secrets", "plan")
        return decoded(await self.api.until_object(url, lambda found: decoded(found).get(key) == value.encode()))

    @property
    def attempts(self) -> str:
        path = self.directory / "ran"
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


async def test_the_secret_after_a_plan_is_exact(node: Node) -> None:
    plan = '{"instructions":[{"name":"hello","command":"sh","args":["-c","echo hi"],"saveOutput":true}]}'
    data = {"plan": plan, "plan-state": "pending", "max-failures": "-1", "failure-threshold": "1"}
    (await node.api.patch(node.api.at("secrets", "plan"), {"data": encoded(data)})).expect(200)
    node.agent.start()
    secret = await node.secret_with("plan-state", "succeeded")
    assert gzip.decompress(secret.pop("applied-output")) == b'{"hello":"aGkK"}', (
        "base64 of its output, hi and a newline"
    )
    assert gzip.decompress(secret.pop("applied-periodic-output")) == b"{}"
    assert outputs.parse_unix_date(secret.pop("last-apply-time").decode())
    assert secret.pop("agent-version").decode() == __version__
    program = zipapp(node.agent.directory)
    assert secret.pop("agent-checksum").decode() == hashlib.sha256(program.read_bytes()).hexdigest()
    assert secret == {
        **{key: value.encode() for key, value in data.items()},
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
    ids=["before the start is recorded", "before the run", "before the result is recorded", "before the report"],
)
async def test_a_killed_agent_continues_and_repeats_no_finished_plan(
    node: Node, point: int, when: str, runs: str
) -> None:
    node.agent.command = [sys.executable, "-c", DYING, str(point), when]
    await node.request_plan("echo hi")
    node.agent.start()
    assert node.agent.wait() == -signal.SIGKILL
    node.agent.command = None
    node.agent.start()
    secret = await node.secret_with("plan-state", "succeeded")
    assert decoded_outputs(secret["applied-output"]) == {"it": "hi\n"}
    assert (secret["plan-revision"], node.attempts) == (b"1", runs)
    assert list((node.agent.directory / "interlock").iterdir()) == []


async def test_sigterm_waits_for_the_instruction_and_reports_its_result(node: Node) -> None:
    os.mkfifo(node.directory / "go")
    node.agent.start()
    await node.request_plan(f"cat {node.directory}/go")
    await node.secret_with("plan-state", "in-progress")
    eventually(lambda: node.attempts, "the instruction's start")
    assert node.agent.process is not None
    node.agent.process.send_signal(signal.SIGTERM)
    (node.directory / "go").write_text("on\n")
    assert node.agent.wait() == 0
    secret = await node.secret_with("plan-state", "succeeded")
    assert decoded_outputs(secret["applied-output"]) == {"it": "on\n"}


@pytest.mark.parametrize("first", ["the agent", "the instruction"])
async def test_a_plan_runs_again_if_its_instruction_was_stopped_with_the_agent(node: Node, first: str) -> None:
    """Service managers send the signal to every process of a service, in any order."""
    os.mkfifo(node.directory / "go")
    node.agent.start()
    await node.request_plan(
        f"echo $$ > {node.directory}/pid; test -e {node.directory}/again || cat {node.directory}/go"
    )
    eventually((node.directory / "pid").exists, "its pid")
    pid = int(eventually((node.directory / "pid").read_text, "its pid"))
    eventually(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text(), "the command inside")
    assert node.agent.process is not None
    signals = [partial(node.agent.process.send_signal, signal.SIGTERM), partial(os.killpg, pid, signal.SIGTERM)]
    for send in signals if first == "the agent" else reversed(signals):
        send()
        time.sleep(0.2)  # enough to report a failure
    assert node.agent.wait() == 0
    (node.directory / "again").touch()
    node.agent.start()
    await node.secret_with("plan-state", "succeeded")
    assert node.attempts == "1\n2\n"


async def test_an_unexpected_error_exits_so_that_the_service_restarts(node: Node) -> None:
    node.agent.command = [sys.executable, "-c", FAILING]
    node.agent.start()
    assert await asyncio.to_thread(node.agent.wait) == 1
    assert "ZeroDivisionError" in node.agent.log()


async def test_a_second_agent_exits(node: Node) -> None:
    node.agent.start()
    await node.request_plan("true")
    await node.secret_with("plan-state", "succeeded")
    second = NodeAgent(node.agent.directory, node.agent.kubeconfig, node.api.namespace, "plan")
    second.start()
    assert second.wait() == 1
    assert "another herder-agent uses" in node.agent.log()


async def test_an_unprivileged_agent_applies_plans(node: Node, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to change the user")
    for path in [*tmp_path.rglob("*"), tmp_path]:
        os.chown(path, 65534, 65534)
    closed = [path for path in tmp_path.parents if path.stat().st_mode & 0o011 != 0o011]
    modes = {path: path.stat().st_mode for path in closed}
    for path, mode in modes.items():
        path.chmod(mode | 0o011)
    try:
        node.agent.command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3"]
        node.agent.command += [zipapp(tmp_path), "sentinel"]
        node.agent.start()
        await node.request_plan("id -u")
        secret = await node.secret_with("plan-state", "succeeded")
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert decoded_outputs(secret["applied-output"]) == {"it": "65534\n"}


# --- certificate authorities ---------------------------------------------------------------------------------------


def with_ca(kubeconfig: str, ca: bytes | None) -> str:
    value: dict[str, Any] = yaml.safe_load(kubeconfig)
    cluster = value["clusters"][0]["cluster"]
    cluster.pop("certificate-authority-data", None)
    if ca:
        cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    return yaml.safe_dump(value)


@pytest.mark.parametrize("strict", [True, False])
async def test_a_wrong_ca_falls_back_to_the_system_roots_unless_strict(
    node: Node, strict: bool, embedded_engine: Engine
) -> None:
    """Here the system roots contain the right CA. CATTLE_AGENT_STRICT_VERIFY forbids the fallback."""
    other = certificates.authority("other", now=datetime.now(UTC), life=timedelta(days=1)).certificate_pem
    (node.directory / "ca.pem").write_bytes(embedded_engine.connection.ca or b"")
    node.agent.kubeconfig = with_ca(node.agent.kubeconfig, other)
    node.agent.environment = {
        "CATTLE_AGENT_STRICT_VERIFY": str(strict).lower(),
        "SSL_CERT_FILE": str(node.directory / "ca.pem"),
    }
    node.agent.prepare().start()
    await node.request_plan("true")
    if strict:
        eventually(lambda: "CERTIFICATE_VERIFY_FAILED" in node.agent.log(), "the refusal")
        assert node.attempts == ""
    else:
        await node.secret_with("plan-state", "succeeded")


async def test_strict_verification_requires_a_ca(node: Node) -> None:
    node.agent.kubeconfig = with_ca(node.agent.kubeconfig, None)
    node.agent.environment = {"CATTLE_AGENT_STRICT_VERIFY": "true"}
    node.agent.prepare().start()
    assert await asyncio.to_thread(node.agent.wait) == 1
    assert "has no certificate-authority-data, which CATTLE_AGENT_STRICT_VERIFY=true requires" in node.agent.log()
