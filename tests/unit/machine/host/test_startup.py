"""The daemon process starts on demand, once, and keeps running."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from herder.machine.errors import Unreachable
from herder.machine.host import places
from herder.machine.host.autostart import answers, ensure_running
from herder.machine.host.client import HostClient
from tests.unit.machine.host.hosts import Host, wait_for_exit


def test_concurrent_clients_start_one_daemon(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: ensure_running(host.state_dir), range(4)))
        assert len(host.daemons()) == 1
        assert host.state_dir.stat().st_mode & 0o777 == 0o700
        assert (host.state_dir / places.API).stat().st_mode & 0o777 == 0o755


def test_the_daemon_does_not_inherit_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very secret")
    with Host(tmp_path) as host:
        host.start()
        assert b"very secret" not in Path(f"/proc/{host.pid}/environ").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_new_daemon_serves_after_the_old_one_ends(tmp_path: Path, number: signal.Signals) -> None:
    with Host(tmp_path) as host:
        host.start()
        first = host.pid
        os.kill(first, number)
        wait_for_exit(first)
        assert not answers(host.state_dir)
        host.start()
        assert host.pid != first


def test_the_owner_can_shut_it_down(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.start()
        host.client.shutdown()
        wait_for_exit(host.pid)


def test_a_failed_start_names_the_log(tmp_path: Path) -> None:
    state_dir = tmp_path / "host"
    state_dir.mkdir()
    (state_dir / places.MACHINES).touch()  # blocks the directory of the daemon
    with pytest.raises(Unreachable, match=f"did not start; see {state_dir / places.LOG}"):
        ensure_running(state_dir)


def test_the_default_is_the_users_own_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERDER_DATA_DIR", str(tmp_path / "data"))
    with Host(tmp_path):
        assert HostClient.from_environment({}).machines() == []
