"""Commands that read Secrets which editors of a namespace can write: their contents control no terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click
import pytest
from click.testing import CliRunner

from herder.cli import main
from herder.machine.errors import MachineError
from herder.machine.ssh.keys import new_key_pair
from herder.machine.ssh.session import interactive
from herder.machine.state import archive
from herder.machine.state.saved_machine import saved_machine

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def state(**driver: Any) -> bytes:
    config = {"ConfigVersion": 3, "Driver": {"IPAddress": "127.0.0.1", "SSHPort": 9, **driver}, "DriverName": "generic"}
    files = {"config.json": json.dumps({**config, "Name": "m"}).encode(), "id_rsa": new_key_pair()[0]}
    return archive.pack({f"/store/machines/m/{name}": content for name, content in files.items()})


@pytest.mark.parametrize(
    "driver",
    [
        {"HostKey": f"{ESCAPE} AAAA"},
        {"HostKey": "no-such-algorithm AAAA"},
        {"HostKey": "ssh-ed25519"},
        {"SSHUser": f"root{ESCAPE}"},
        {"SSHUser": "\x00"},
        {"SSHUser": "\ud800"},
        {"IPAddress": ESCAPE},
        {"IPAddress": "a\x00b"},
        {"IPAddress": "\ud800"},
    ],
    ids=str,
)
def test_ssh_reports_a_hostile_state_as_an_error(driver: Mapping[str, Any]) -> None:
    with pytest.raises(MachineError) as raised:
        interactive(saved_machine(state(**driver)), ["true"])
    assert not set(str(raised.value)) & {"\x1b", "\x07"}


def test_errors_of_commands_contain_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise click.ClickException(f"cluster meadow is stalled: {ESCAPE}; fix it")

    command = click.Command("get", callback=fail)
    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_arguments: command)
    shown = CliRunner().invoke(main.herder, ["get"], color=True)
    assert "cluster meadow is stalled" in shown.output
    assert not set(shown.output) & {"\x1b", "\x07"}
