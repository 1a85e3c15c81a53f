"""The unit that `herder up --systemd-unit` prints."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from herder.cli.server import background
from tests.support.embedded import HERDER


def unit(*flags: str) -> str:
    variables = os.environ | {"HERDER_DATA_DIR": ""}
    done = subprocess.run(
        [HERDER, "up", "--systemd-unit", *flags], capture_output=True, text=True, check=True, env=variables
    )
    return done.stdout


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def test_a_service_of_another_user_is_hardened() -> None:
    found = settings(unit("--systemd-user", "herder", "--in-memory"))
    assert found["ExecStart"] == f"{HERDER} up --data-dir /var/lib/herder --in-memory"
    assert found["User"] == "herder"
    assert found["StateDirectory"] == "herder"
    assert found["WantedBy"] == "multi-user.target"
    assert (found["CapabilityBoundingSet"], found["NoNewPrivileges"]) == ("", "yes")
    assert "AmbientCapabilities" not in found


def test_a_service_of_root_is_not_hardened_because_local_machines_need_all_of_it() -> None:
    found = settings(background.systemd_unit(["--data-dir", "/srv/herder"], Path("/srv/herder")))
    assert found["KillMode"] == "process"
    assert found["OOMPolicy"] == "continue"
    assert not {"User", "NoNewPrivileges", "ProtectSystem", "StateDirectory"} & set(found)


def test_low_ports_need_a_capability() -> None:
    found = settings(unit("--systemd-user", "herder", "--listen", "0.0.0.0:443"))
    assert found["CapabilityBoundingSet"] == found["AmbientCapabilities"] == "CAP_NET_BIND_SERVICE"


def test_the_user_needs_a_unit() -> None:
    done = subprocess.run([HERDER, "up", "--systemd-user", "herder"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--systemd-user needs --systemd-unit" in done.stderr


@pytest.mark.parametrize("name", ["herder", "with spaces", "x%h", "a/../b"])
def test_only_plain_directories_below_var_lib_are_created_by_systemd(name: str) -> None:
    found = settings(background.systemd_unit([], Path("/var/lib") / name, user="herder"))
    assert found.get("StateDirectory") == ("herder" if name == "herder" else None)


@pytest.mark.parametrize("flags", [(), ("--systemd-user", "daemon"), ("--systemd-user", "daemon", "--listen", ":443")])
def test_systemd_accepts_the_unit(flags: tuple[str, ...], tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    file = tmp_path / "herder.service"
    file.write_text(unit(*flags))
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
