"""What a new server of a restored cluster needs: the keys of the lost one, and no Nodes of machines that are gone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from herder.api.capi.kinds import NODE
from herder.api.rke.names import MACHINE_UID
from herder.controllers.planner.distributions import embedded_tasks
from herder.embedded import keys, stale_nodes
from herder.embedded.stale_nodes import TRIES, delete_stale_nodes, delete_with_retries
from herder.engine.client.client import Client
from herder.engine.meta.errors import ServiceUnavailable
from tests.support.builders import new_manifest
from tests.support.embedded import Embedded
from tests.support.engines import Engine


def configured(directory: Path, token: str) -> Path:
    directory.mkdir()
    config = {"token": token, "node-ip": ["127.0.0.1"], "data-dir": str(directory / "data")}
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    return directory


def test_servers_of_one_cluster_have_the_same_keys(tmp_path: Path) -> None:
    key_files = []
    for name, token in (("lost", "one"), ("new", "one"), ("other", "two")):
        directory = configured(tmp_path / name, token)
        assert keys.main(directory) == 0
        file = directory / "data" / "server" / "db" / "encryption.key"
        assert file.stat().st_mode & 0o777 == 0o600
        key_files.append(file.read_bytes())
    assert key_files[0] == key_files[1] != key_files[2]
    numbers = [keys.service_account_key(token).private_numbers() for token in ("one", "one", "two")]
    assert numbers[0] == numbers[1] != numbers[2]


def test_a_server_keeps_the_key_that_it_has(tmp_path: Path) -> None:
    directory = configured(tmp_path / "server", "one")
    file = directory / "data" / "server" / "db" / "encryption.key"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"its own")
    assert keys.main(directory) == 0
    assert file.read_bytes() == b"its own"


def test_an_invalid_configuration_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keys.main(tmp_path) == 1
    assert "node-ip is required" in capsys.readouterr().err


async def test_nodes_of_other_machines_are_deleted(tmp_path: Path) -> None:
    with Embedded(tmp_path / "server") as server:
        client: Client = Engine("embedded", server.kubeconfig).client()
        for name, uid in (("a", "uid-a"), ("b", "uid-b"), ("c", "")):
            node = new_manifest(NODE, name, labels={MACHINE_UID: uid} if uid else {})
            await client.create(NODE.resource, node)
        assert await delete_stale_nodes(client, ["uid-a", "uid-x"]) == ["b"]
        left = (await client.list(NODE.resource)).items
        assert sorted(each["metadata"]["name"] for each in left) == ["a", "c"]
        await client.close()


@pytest.mark.parametrize("failures", [0, TRIES - 1, TRIES])
async def test_an_api_server_that_restarts_is_waited_for(failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    async def delete(_client: Client, _machines: Collection[str]) -> list[str]:
        nonlocal calls
        calls += 1
        if calls <= failures:
            raise ServiceUnavailable("connection refused")
        return ["b"]

    monkeypatch.setattr(stale_nodes, "delete_stale_nodes", delete)
    client = Client(cast(Any, None))
    if failures < TRIES:
        assert await delete_with_retries(client, ["uid-a"], seconds=0) == ["b"]
    else:
        with pytest.raises(ServiceUnavailable):
            await delete_with_retries(client, ["uid-a"], seconds=0)
    assert calls == min(failures + 1, TRIES)


# --- scripts of tasks, without systemd --------------------------------------------------------------------------------


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", "-c", script, "task", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def service() -> str:
    """The name of a service with its own pid file."""
    if Path("/run/systemd/system").exists() or os.geteuid() != 0:
        pytest.skip("needs root, on a host without systemd")
    return f"herder-test-{os.getpid()}"


def test_a_restore_runs_while_the_service_is_stopped(service: str, tmp_path: Path) -> None:
    boot = tmp_path / "boot"
    boot.write_text(f"#!/bin/sh\necho $$ > /run/{service}.pid\nexec sleep 600\n")
    boot.chmod(0o755)
    pid_file = Path(f"/run/{service}.pid")
    try:
        assert run(embedded_tasks.STOP_SCRIPT, service).returncode == 0, "it does not run yet"
        assert run(embedded_tasks.START_SCRIPT, service, str(boot)).returncode == 0
        deadline = time.monotonic() + 30
        while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        pid = int(pid_file.read_text())
        run(embedded_tasks.START_SCRIPT, service, str(boot))
        assert int(pid_file.read_text()) == pid, "it runs already"
        check = f"kill -0 {pid} 2> /dev/null && exit 3; echo restored; exit 7"
        done = run(embedded_tasks.RESTORE_SCRIPT, service, "sh", "-c", check)
        assert (done.returncode, done.stdout) == (7, "restored\n")
    finally:
        run(embedded_tasks.STOP_SCRIPT, service)
        pid_file.unlink(missing_ok=True)
