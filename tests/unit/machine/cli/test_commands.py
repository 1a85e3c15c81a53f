"""Every command of `herder-machine`, with a driver whose provider is a directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from herder.machine.state.store import DirectoryStore
from tests.unit.machine.cli.conftest import Command
from tests.unit.machine.cli.paper import ADDRESS, Provider

CREATE = ("create", "--driver", "paper")


def record(machine: Command, name: str = "m1") -> dict[str, object]:
    files = DirectoryStore(machine.store).load(name)
    assert files is not None
    found: dict[str, object] = json.loads(files["config.json"])
    return found


class TestCreate:
    def test_create_reports_progress_and_stores_the_record(self, machine: Command, provider: Provider) -> None:
        out, err = machine(*CREATE, "m1")
        assert out.splitlines() == ["Running pre-create checks...", "Creating machine...", "(m1) it is there"]
        assert err == ""
        assert list(provider.servers().values()) == ["Running"]
        assert record(machine)["Herder"] == {"Phase": "created", "Attempt": 1}

    def test_the_install_script_is_passed_as_user_data(
        self, machine: Command, provider: Provider, tmp_path: Path
    ) -> None:
        (tmp_path / "script").write_text("#!/bin/sh\necho hello\n")
        (tmp_path / "user").write_text("#cloud-config\npackages: [vim]\n")
        script, user = str(tmp_path / "script"), str(tmp_path / "user")
        out, _ = machine(*CREATE, "--custom-install-script", script, "--paper-userdata", user, "m1")
        assert out.splitlines()[-1] == "Custom install script was sent via userdata, provisioning complete..."
        sent = yaml.safe_load((provider.place / "user-data").read_bytes())
        assert (sent["packages"], sent["hostname"], len(sent["runcmd"])) == (["vim"], "m1", 1)

    def test_the_hostname_can_be_overridden(self, machine: Command, provider: Provider, tmp_path: Path) -> None:
        (tmp_path / "script").write_text("echo hello\n")
        machine(*CREATE, "--custom-install-script", str(tmp_path / "script"), "--hostname-override", "short", "m1")
        assert yaml.safe_load((provider.place / "user-data").read_bytes())["hostname"] == "short"

    def test_a_duplicate_name_is_rejected(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        _, err = machine(*CREATE, "m1", status=1)
        assert err == 'Docker machine "m1" already exists\n'
        assert len(provider.servers()) == 1

    def test_a_failed_check_leaves_nothing_behind(self, machine: Command, provider: Provider) -> None:
        _, err = machine(*CREATE, "--paper-size", "huge", "m1", status=3)
        assert err == 'Error with pre-create check: "no \\"huge\\" here; ask for less"\n'
        assert provider.servers() == {}
        assert DirectoryStore(machine.store).names() == []

    def test_a_failed_machine_can_be_removed(self, machine: Command, provider: Provider) -> None:
        _, err = machine(*CREATE, "--paper-size", "broken", "m1", status=1)
        assert err == "error creating machine: it broke; get another\n"
        machine("rm", "-y", "m1")
        assert provider.servers() == {}

    def test_a_failed_create_is_continued(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "--paper-size", "broken", "m1", status=1)
        (token,) = provider.servers()
        out, _ = machine(*CREATE, "--paper-password", "new", "m1", status=1)
        assert "Resuming the interrupted creation of machine m1" in out
        assert list(provider.servers()) == [token]
        assert record(machine)["Driver"]["Password"] == "new"  # type: ignore[index]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("create", "m1"), "--driver is required; use "),
            (CREATE, "No machine name specified"),
            ((*CREATE, "a", "b"), "found extra arguments"),
            ((*CREATE, "-under_score"), "unknown flag -under_score"),
            ((*CREATE, "under_score"), "Invalid hostname specified"),
            ((*CREATE, "--hostname-override", "a;b", "m1"), "--hostname-override"),
            ((*CREATE, "--custom-install-script", "/none", "m1"), "--custom-install-script: /none: No such file"),
            ((*CREATE, "--paper-userdata", "/none", "m1"), "--paper-userdata: /none: No such file"),
            (("create", "--driver", "generic", "m1"), "requires the --generic-ip-address option"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
    )
    def test_invalid_arguments_are_reported(
        self,
        machine: Command,
        provider: Provider,
        arguments: tuple[str, ...],
        message: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.delenv("MACHINE_DRIVER", raising=False)
        assert message in machine(*arguments, status=1)[1]
        assert provider.servers() == {}

    def test_docker_flags_are_accepted_without_effect(self, machine: Command, provider: Provider) -> None:
        out, _ = machine(*CREATE, "--engine-opt", "a=b", "--swarm", "m1")
        assert "--engine-opt has no effect: Docker is not installed" in out

    def test_an_unknown_driver_needs_the_go_program(self, machine: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HERDER_RANCHER_MACHINE", "/none/rancher-machine")
        _, err = machine("create", "--driver", "digitalocean", "m1", status=1)
        assert "not found, but this driver requires it; install it" in err
        assert "HERDER_RANCHER_MACHINE" in err

    def test_help_lists_the_drivers_flags(self, machine: Command, provider: Provider) -> None:
        assert "--paper-size \tA size [$PAPER_SIZE]" in machine(*CREATE, "--help")[0]


class TestRemove:
    def test_remove_reports_progress_and_leaves_nothing_behind(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        out, _ = machine("rm", "-y", "m1")
        assert out.splitlines() == [
            "About to remove m1",
            "WARNING: This action will delete both local reference and remote instance.",
            "Successfully removed m1",
        ]
        assert provider.servers() == {}
        assert DirectoryStore(machine.store).names() == []

    def test_removing_an_unknown_machine_does_nothing(self, machine: Command) -> None:
        assert "Machine config for m1 does not exists, so nothing to do..." in machine("rm", "-y", "m1")[0]

    def test_remove_asks_for_confirmation(
        self, machine: Command, provider: Provider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine(*CREATE, "m1")
        monkeypatch.setattr("builtins.input", lambda _: "n")
        machine("rm", "m1")
        assert len(provider.servers()) == 1
        monkeypatch.setattr("builtins.input", lambda _: "yes")
        machine("rm", "m1")
        assert provider.servers() == {}

    def test_remove_uses_new_credentials(
        self, machine: Command, provider: Provider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine(*CREATE, "--paper-password", "old", "m1")
        _, err = machine("rm", "-y", "m1", status=1)
        assert err == 'Error removing host "m1": the password has expired; give a new one with --update-config\n'
        monkeypatch.setenv("PAPER_PASSWORD", "new")
        machine("rm", "-y", "--update-config", "m1")
        assert provider.servers() == {}

    def test_force_deletes_the_record_if_removal_fails(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "--paper-password", "old", "m1")
        assert "Successfully removed m1" in machine("rm", "-f", "m1")[0]
        assert DirectoryStore(machine.store).names() == []
        assert len(provider.servers()) == 1

    def test_force_deletes_an_unreadable_record(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        (machine.store / "machines/m1/config.json").write_text("{")
        assert "rm --force" in machine("rm", "-y", "m1", status=1)[1]
        machine("rm", "-f", "m1")
        assert DirectoryStore(machine.store).names() == []

    def test_one_failure_does_not_stop_the_removal_of_others(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "--paper-password", "old", "m1")
        machine(*CREATE, "m2")
        machine("rm", "-y", "m1", "m2", status=1)
        assert DirectoryStore(machine.store).names() == ["m1"]

    def test_a_machine_that_is_being_removed_is_not_created(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "--paper-password", "old", "m1")
        machine("rm", "-y", "m1", status=1)
        assert "is being removed; finish the removal with rm -y m1" in machine(*CREATE, "m1", status=1)[1]


class TestInspection:
    def test_ip(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        assert machine("ip", "m1") == (f"{ADDRESS}\n", "")

    def test_status(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        assert machine("status", "m1") == ("Running\n", "")
        machine("stop", "m1")
        assert machine("status", "m1") == ("Stopped\n", "")

    def test_status_of_a_missing_server(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        for token in provider.servers():
            provider.server(token).unlink()
        assert machine("status", "m1", status=4) == ("Not Found\n", "m1 not found\n")

    def test_url(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        assert machine("url", "m1")[0] == f"tcp://{ADDRESS}:2376\n"
        machine("stop", "m1")
        assert machine("url", "m1", status=1)[1] == "Host is not running\n"

    def test_inspect(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        out, _ = machine("inspect", "m1")
        assert json.loads(out) == record(machine)
        assert out.startswith('{\n    "ConfigVersion": 3')

    def test_ls(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        machine(*CREATE, "--paper-size", "broken", "m2", status=1)
        machine(*CREATE, "m3")
        (machine.store / "machines/m3/config.json").write_text("{")
        rows = [line.split(maxsplit=3) for line in machine("ls")[0].splitlines()]
        assert [row[:3] for row in rows[1:3]] == [["m1", "paper", "Running"], ["m2", "paper", "Creating"]]
        assert rows[3][0] == "m3"
        assert "damaged" in rows[3][3]
        assert machine("ls", "-q")[0].split() == ["m1", "m2", "m3"]

    def test_version(self, machine: Command, provider: Provider) -> None:
        assert machine("version")[0].startswith("herder-machine version ")
        machine(*CREATE, "m1")
        assert machine("version", "m1")[0] == "Docker was not installed on machine\n"

    @pytest.mark.parametrize("command", ["ip", "status", "url", "inspect", "start", "stop", "kill", "restart", "ssh"])
    def test_commands_for_unknown_machines_fail(self, machine: Command, command: str) -> None:
        assert 'Docker machine "none" does not exist.' in machine(command, "none", status=1)[1]

    def test_read_only_commands_do_not_rewrite_the_record(self, machine: Command, provider: Provider) -> None:
        """A record of the Go program stays unchanged."""
        machine(*CREATE, "m1")
        path = machine.store / "machines/m1/config.json"
        go_record = {key: value for key, value in record(machine).items() if key != "Herder"}
        path.write_text(json.dumps(go_record))
        for command in ("ip", "status", "url", "inspect", "ls"):
            machine(command, *([] if command == "ls" else ["m1"]))
        assert path.read_text() == json.dumps(go_record)


class TestPower:
    def test_stop_and_start(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        assert machine("stop", "m1")[0].splitlines() == ['Stopping "m1"...', 'Machine "m1" was stopped.']
        assert machine("stop", "m1", status=1)[1] == 'Machine "m1" is already stopped.\n'
        assert machine("start", "m1")[0].splitlines()[:2] == ['Starting "m1"...', 'Machine "m1" was started.']
        assert machine("start", "m1", status=1)[1] == 'Machine "m1" is already running.\n'

    def test_kill(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        assert machine("kill", "--update-config", "m1")[0].splitlines()[-1] == 'Machine "m1" was killed.'
        assert list(provider.servers().values()) == ["Stopped"]

    def test_restart(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        machine("stop", "m1")
        assert machine("restart", "m1")[0].splitlines()[0] == 'Restarting "m1"...'
        assert list(provider.servers().values()) == ["Running"]

    def test_all_machines_are_tried_and_all_failures_reported(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        machine(*CREATE, "m2")
        machine(*CREATE, "m3")
        machine("stop", "m1", "m3")
        _, err = machine("stop", "m1", "m2", "m3", status=1)
        assert err.splitlines() == ['Machine "m1" is already stopped.', 'Machine "m3" is already stopped.']
        assert set(provider.servers().values()) == {"Stopped"}


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)], ids=str)
def test_help_lists_every_command(
    machine: Command, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    from herder.machine.cli.main import WORDS, guarded, run

    assert guarded(lambda: run(arguments, {})) == 0
    output = capsys.readouterr().out
    assert all(f"\n  {command}" in output for command in WORDS)


def test_an_unusable_store_is_reported(machine: Command, provider: Provider) -> None:
    machine.store.write_text("not a directory")
    assert "Not a directory" in machine(*CREATE, "m1", status=1)[1]


def test_debug_prints_the_traceback_of_an_error(machine: Command) -> None:
    assert "Traceback" not in machine("ip", "m1", status=1)[1]
    assert "Traceback" in machine("--debug", "ip", "m1", status=1)[1]
