"""State of a crash-looping service, as the agent reports it with the failed probes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from herder.agent.apply import service
from herder.agent.apply.service import ServiceState
from herder.agent.core import protocol
from herder.agent.core.events import Probed
from herder.agent.core.plan import parse
from herder.agent.core.probe_health import Probing

LOG = "starting k3s\\nfatal: failed to find memory cgroup (v2)"


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, **units: str) -> None:
    """Programs that answer like systemctl and journalctl for these units: active state, substate and restarts."""
    cases = "".join(
        f"{unit}.service) printf 'LoadState=loaded\\nActiveState=%s\\nSubState=%s\\nNRestarts=%s\\n' {state};;\n"
        for unit, state in units.items()
    )
    programs = {"systemctl": f'case "$2" in\n{cases}*) echo LoadState=not-found;;\nesac', "journalctl": f"echo '{LOG}'"}
    for name, script in programs.items():
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("state", "reported"),
    [
        ("activating auto-restart 7", "activating (auto-restart), 7 restarts; last log lines: "),
        ("failed failed 0", "failed (failed), 0 restarts; last log lines: "),
        ("activating start 0", ""),  # for the first time
        ("active running 3", ""),
    ],
)
def test_a_failing_service_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, reported: str
) -> None:
    install(tmp_path, monkeypatch, k3s=state)
    unit, text = ServiceState().read()
    assert (unit, text[: len(reported)]) == (("k3s.service", reported) if reported else ("", ""))
    if reported:
        assert text.endswith("starting k3s | fatal: failed to find memory cgroup (v2)")


def test_a_long_log_is_cut_between_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manager redacts join tokens, and would not recognize a part of one."""
    install(tmp_path, monkeypatch, k3s="failed failed 1")
    end = " end" * 170  # the limit is in the middle of the token
    (tmp_path / "journalctl").write_text(f"#!/bin/sh\necho '--token={'t0k3n' * 10}{end}'\n")
    text = ServiceState().read()[1]
    assert text.endswith(f"last log lines: {end.strip()}")


def test_several_probes_read_the_service_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, k3s="failed failed 1")
    known = ServiceState()
    before = known.read()
    install(tmp_path, monkeypatch, k3s="failed failed 2")
    assert known.read() == before
    monkeypatch.setattr(service, "REFRESH_SECONDS", 0.0)
    assert "2 restarts" in known.read()[1]


def test_a_machine_without_systemd_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ServiceState().read() == ("", "")


def test_restarts_are_reported_each_time_they_have_doubled() -> None:
    plan = b'{"probes": {"kubelet": {"httpGet": {"url": "http://127.0.0.1:1"}, "failureThreshold": 1}}}'
    probing, data, reported = Probing(), dict[str, bytes](), []
    probing.watch(parse(plan).probes, data)
    for restarts in range(1, 20):
        (started,) = probing.start_round()
        state = ("k3s.service", f"activating (auto-restart), {restarts} restarts; last log lines: x")
        probing.take(Probed(started.round, "kubelet", False, "refused", state), float(restarts), 5.0)
        after = probing.with_changes(data)
        reported += [restarts] if after is not data else []
        data = after
    assert reported == [1, 2, 4, 8, 16]
    assert json.loads(data[protocol.PROBE_ERRORS])["k3s.service"].startswith("activating (auto-restart), 16 restarts")
    (started,) = probing.start_round()
    probing.take(Probed(started.round, "kubelet", True), 30.0, 5.0)
    assert json.loads(probing.with_changes(data)[protocol.PROBE_ERRORS]) == {}
