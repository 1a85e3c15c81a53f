"""Every word of the command, with a driver whose provider is a directory."""

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
    def test_says_what_it_does_and_remembers_what_it_made(self, machine: Command, provider: Provider) -> None:
        out, err = machine(*CREATE, "m1")
        assert out.splitlines() == ["Running pre-create checks...", "Creating machine...", "(m1) it is there"]
        assert err == ""
        assert list(provider.servers().values()) == ["Running"]
        assert record(machine)["Herder"] == {"Phase": "created", "Attempt": 1}

    def test_the_install_script_goes_by_user_data_where_there_is_any(
        self, machine: Command, provider: Provider, tmp_path: Path
    ) -> None:
        (tmp_path / "script").write_text("#!/bin/sh\necho hello\n")
        (tmp_path / "user").write_text("#cloud-config\npackages: [vim]\n")
        script, user = str(tmp_path / "script"), str(tmp_path / "user")
        out, _ = machine(*CREATE, "--custom-install-script", script, "--paper-userdata", user, "m1")
        assert out.splitlines()[-1] == "Custom install script was sent via userdata, provisioning complete..."
        sent = yaml.safe_load((provider.place / "user-data").read_bytes())
        assert (sent["packages"], sent["hostname"], len(sent["runcmd"])) == (["vim"], "m1", 1)

    def test_the_hostname_may_be_another(self, machine: Command, provider: Provider, tmp_path: Path) -> None:
        (tmp_path / "script").write_text("echo hello\n")
        machine(*CREATE, "--custom-install-script", str(tmp_path / "script"), "--hostname-override", "short", "m1")
        assert yaml.safe_load((provider.place / "user-data").read_bytes())["hostname"] == "short"

    def test_a_second_one_of_the_same_name_is_refused(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        _, err = machine(*CREATE, "m1", status=1)
        assert err == 'Docker machine "m1" already exists\n'
        assert len(provider.servers()) == 1

    def test_a_check_that_fails_leaves_nothing(self, machine: Command, provider: Provider) -> None:
        _, err = machine(*CREATE, "--paper-size", "huge", "m1", status=3)
        assert err == 'Error with pre-create check: "no \\"huge\\" here; ask for less"\n'
        assert provider.servers() == {}
        assert DirectoryStore(machine.store).names() == []

    def test_one_that_fails_can_be_removed(self, machine: Command, provider: Provider) -> None:
        _, err = machine(*CREATE, "--paper-size", "broken", "m1", status=1)
        assert err == "error creating machine: it broke; get another\n"
        machine("rm", "-y", "m1")
        assert provider.servers() == {}

    def test_one_that_failed_is_gone_on_with(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "--paper-size", "broken", "m1", status=1)
        (token,) = provider.servers()
        out, _ = machine(*CREATE, "--paper-password", "new", "m1", status=1)
        assert "Resuming the interrupted creation of machine m1" in out
        assert list(provider.servers()) == [token]
        assert record(machine)["Driver"]["Password"] == "new"  # type: ignore[index]

    @pytest.mark.parametrize(
        ("words", "told"),
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
    def test_what_is_wrong_is_said(
        self, machine: Command, provider: Provider, words: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("MACHINE_DRIVER", raising=False)
        assert told in machine(*words, status=1)[1]
        assert provider.servers() == {}

    def test_flags_about_docker_are_taken_and_said_to_do_nothing(self, machine: Command, provider: Provider) -> None:
        out, _ = machine(*CREATE, "--engine-opt", "a=b", "--swarm", "m1")
        assert "--engine-opt has no effect: Docker is not installed" in out

    def test_a_driver_that_nobody_has_needs_the_go_program(
        self, machine: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HERDER_RANCHER_MACHINE", "/none/rancher-machine")
        _, err = machine("create", "--driver", "digitalocean", "m1", status=1)
        assert "not found, but this driver requires it; install it" in err
        assert "HERDER_RANCHER_MACHINE" in err

    def test_help_shows_the_drivers_flags(self, machine: Command, provider: Provider) -> None:
        assert "--paper-size \tA size [$PAPER_SIZE]" in machine(*CREATE, "--help")[0]


class TestRemove:
    def test_says_what_it_does_and_leaves_nothing(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        out, _ = machine("rm", "-y", "m1")
        assert out.splitlines() == [
            "About to remove m1",
            "WARNING: This action will delete both local reference and remote instance.",
            "Successfully removed m1",
        ]
        assert provider.servers() == {}
        assert DirectoryStore(machine.store).names() == []

    def test_of_none_is_nothing_to_do(self, machine: Command) -> None:
        assert "Machine config for m1 does not exists, so nothing to do..." in machine("rm", "-y", "m1")[0]

    def test_asks_first(self, machine: Command, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
        machine(*CREATE, "m1")
        monkeypatch.setattr("builtins.input", lambda _: "n")
        machine("rm", "m1")
        assert len(provider.servers()) == 1
        monkeypatch.setattr("builtins.input", lambda _: "yes")
        machine("rm", "m1")
        assert provider.servers() == {}

    def test_with_new_credentials(self, machine: Command, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
        machine(*CREATE, "--paper-password", "old", "m1")
        _, err = machine("rm", "-y", "m1", status=1)
        assert err == 'Error removing host "m1": the password has expired; give a new one with --update-config\n'
        monkeypatch.setenv("PAPER_PASSWORD", "new")
        machine("rm", "-y", "--update-config", "m1")
        assert provider.servers() == {}

    def test_by_force_forgets_what_cannot_be_removed(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "--paper-password", "old", "m1")
        assert "Successfully removed m1" in machine("rm", "-f", "m1")[0]
        assert DirectoryStore(machine.store).names() == []
        assert len(provider.servers()) == 1

    def test_by_force_forgets_a_record_that_cannot_be_read(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        (machine.store / "machines/m1/config.json").write_text("{")
        assert "rm --force" in machine("rm", "-y", "m1", status=1)[1]
        machine("rm", "-f", "m1")
        assert DirectoryStore(machine.store).names() == []

    def test_several_at_once_and_one_failure_does_not_stop_the_rest(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "--paper-password", "old", "m1")
        machine(*CREATE, "m2")
        machine("rm", "-y", "m1", "m2", status=1)
        assert DirectoryStore(machine.store).names() == ["m1"]

    def test_one_that_is_being_removed_is_not_created(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "--paper-password", "old", "m1")
        machine("rm", "-y", "m1", status=1)
        assert "is being removed; finish the removal with rm -y m1" in machine(*CREATE, "m1", status=1)[1]


class TestShowing:
    def test_ip(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        assert machine("ip", "m1") == (f"{ADDRESS}\n", "")

    def test_status(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        assert machine("status", "m1") == ("Running\n", "")
        machine("stop", "m1")
        assert machine("status", "m1") == ("Stopped\n", "")

    def test_status_of_a_server_that_the_provider_lost(self, machine: Command, provider: Provider) -> None:
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

    @pytest.mark.parametrize("word", ["ip", "status", "url", "inspect", "start", "stop", "kill", "restart", "ssh"])
    def test_of_none(self, machine: Command, word: str) -> None:
        assert 'Docker machine "none" does not exist.' in machine(word, "none", status=1)[1]

    def test_asking_does_not_rewrite_a_record(self, machine: Command, provider: Provider) -> None:
        """One that the Go program wrote stays as it wrote it."""
        machine(*CREATE, "m1")
        path = machine.store / "machines/m1/config.json"
        of_go = {key: value for key, value in record(machine).items() if key != "Herder"}
        path.write_text(json.dumps(of_go))
        for word in ("ip", "status", "url", "inspect", "ls"):
            machine(word, *([] if word == "ls" else ["m1"]))
        assert path.read_text() == json.dumps(of_go)


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

    def test_all_are_tried_and_all_failures_told(self, machine: Command, provider: Provider) -> None:
        machine(*CREATE, "m1")
        machine(*CREATE, "m2")
        machine(*CREATE, "m3")
        machine("stop", "m1", "m3")
        _, err = machine("stop", "m1", "m2", "m3", status=1)
        assert err.splitlines() == ['Machine "m1" is already stopped.', 'Machine "m3" is already stopped.']
        assert set(provider.servers().values()) == {"Stopped"}


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)], ids=str)
def test_help_names_every_word(machine: Command, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    from herder.machine.cli.main import WORDS, guarded, run

    assert guarded(lambda: run(words, {})) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {word}" in shown for word in WORDS)


def test_a_store_that_cannot_be_used_is_told(machine: Command, provider: Provider) -> None:
    machine.store.write_text("not a directory")
    assert "Not a directory" in machine(*CREATE, "m1", status=1)[1]


def test_where_an_error_comes_from_is_shown_on_request(machine: Command) -> None:
    assert "Traceback" not in machine("ip", "m1", status=1)[1]
    assert "Traceback" in machine("--debug", "ip", "m1", status=1)[1]
