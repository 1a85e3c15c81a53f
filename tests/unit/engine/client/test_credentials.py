"""Credentials are refreshed when files rotate, when exec plugin output expires, and after a 401."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from herder.engine.client import credentials as credentials_module
from herder.engine.client.credentials import Credentials, credentials_for
from herder.engine.client.kubeconfig import ExecPlugin, RestConfig
from herder.engine.meta.errors import Unauthorized


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_fixed_credentials() -> None:
    assert await credentials_for(RestConfig("https://h")).header() == ""
    assert await credentials_for(RestConfig("https://h", token="t")).header() == "Bearer t"
    pair = base64.b64encode(b"me:secret").decode()
    assert await credentials_for(RestConfig("https://h", username="me", password="secret")).header() == f"Basic {pair}"


async def test_a_token_file_is_reloaded_each_minute_and_after_a_401(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    found = credentials_for(RestConfig("https://h", token_file=str(path)), clock=clock)
    assert await found.header() == "Bearer one"
    path.write_text("two")
    assert await found.header() == "Bearer one"
    clock.now += 61
    assert await found.header() == "Bearer two"
    path.write_text("three")
    found.invalidate()
    assert await found.header() == "Bearer three"


async def test_a_missing_token_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Unauthorized, match=r"token file .*/none: .*No such file"):
        await credentials_for(RestConfig("https://h", token_file=str(tmp_path / "none"))).header()


class Plugin:
    """An exec credential plugin that records each run and prints the status that the test sets."""

    def __init__(self, directory: Path) -> None:
        self.answer = directory / "answer"
        self.runs = directory / "runs"
        self.runs.touch()
        self.script = (
            "import os, sys\n"
            f"open({str(self.runs)!r}, 'a').write(os.environ['KUBERNETES_EXEC_INFO'] + os.environ['EXTRA'] + '\\n')\n"
            f"print(open({str(self.answer)!r}).read())\n"
        )

    def set_status(self, **status: Any) -> None:
        self.answer.write_text(json.dumps({"kind": "ExecCredential", "status": status}))

    def credentials(self, clock: Clock) -> Credentials:
        plugin = ExecPlugin(
            sys.executable, ("-c", self.script), (("EXTRA", "more"),), "client.authentication.k8s.io/v1"
        )
        return credentials_for(RestConfig("https://h", exec_plugin=plugin), clock=clock)

    def count(self) -> int:
        return len(self.runs.read_text().splitlines())


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


async def test_concurrent_callers_share_one_plugin_run_until_the_credential_expires(
    plugin: Plugin, clock: Clock
) -> None:
    plugin.set_status(token="one", expirationTimestamp="1970-01-12T14:00:00Z")  # 1,000,800 s
    found = plugin.credentials(clock)
    assert await asyncio.gather(*(found.header() for _ in range(5))) == ["Bearer one"] * 5
    assert plugin.count() == 1
    plugin.set_status(token="two")
    clock.now += 780
    assert await found.header() == "Bearer two", "a little before it expires"
    plugin.set_status(token="three")
    clock.now += 1e6
    assert await found.header() == "Bearer two", "which does not expire"
    found.invalidate()
    assert await found.header() == "Bearer three"
    assert '"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"' in plugin.runs.read_text()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("nonsense", "did not print an ExecCredential"),
        ("[]", "did not print an ExecCredential"),
        ('{"status": {}}', "returned no token"),
        ('{"status": "fine"}', "returned no token"),
        ('{"status": {"token": "t", "expirationTimestamp": "soon"}}', "expirationTimestamp"),
    ],
)
async def test_invalid_plugin_output_is_reported(plugin: Plugin, clock: Clock, answer: str, message: str) -> None:
    plugin.answer.write_text(answer)
    with pytest.raises(Unauthorized, match=message):
        await plugin.credentials(clock).header()


async def test_plugins_that_fail_hang_or_are_missing_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*command: str, hint: str = "") -> None:
        plugin = ExecPlugin(command[0], command[1:], (), "client.authentication.k8s.io/v1", hint)
        await credentials_for(RestConfig("https://h", exec_plugin=plugin)).header()

    with pytest.raises(Unauthorized, match="exited with status 3"):
        await ask(sys.executable, "-c", "raise SystemExit(3)")
    with pytest.raises(Unauthorized, match="cannot be started: No such file or directory; get it from the shop"):
        await ask("/nowhere/plugin", hint="get it from the shop")
    monkeypatch.setattr(credentials_module, "PLUGIN_SECONDS", 0.2)
    with pytest.raises(Unauthorized, match="timed out"):
        await ask(sys.executable, "-c", "import time; time.sleep(60)")
