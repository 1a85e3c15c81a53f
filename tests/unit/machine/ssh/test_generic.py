"""The `generic` driver and SSH commands, with a real OpenSSH server."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from herder.machine.ssh.keys import new_key_pair, new_rsa_key_pair
from tests.support.kube import free_port
from tests.support.sshd import USER, Sshd

SCRIPT = "#!/bin/sh\necho running as $(id -un)\necho $0 >/run/machine/ran\n"


class Machine:
    """Runs `herder-machine` as users and Jobs do."""

    def __init__(self, host: Sshd, directory: Path) -> None:
        self.host = host
        self.directory = directory
        self.store = directory / "store"

    def __call__(self, *arguments: str, status: int = 0, stdin: str = "") -> tuple[str, str]:
        finished = subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment,
        )
        assert finished.returncode == status, finished.stdout + finished.stderr
        return finished.stdout, finished.stderr

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.directory), "TERM": "xterm"}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "herder.machine.cli.main", "--storage-path", str(self.store), *arguments]

    def create(self, *arguments: str, script: str = SCRIPT, status: int = 0) -> tuple[str, str]:
        path = self.directory / "script"
        path.write_text(script)
        where = ("--generic-ip-address", self.host.address, "--generic-ssh-port", str(self.host.port))
        key = () if "--generic-ssh-key" in arguments else ("--generic-ssh-key", str(self.host.key))
        script_flag = ("--custom-install-script", str(path))
        return self("create", "--driver", "generic", *where, *key, *script_flag, *arguments, "m1", status=status)


@pytest.fixture
def machine(host: Sshd, tmp_path: Path) -> Machine:
    return Machine(host, tmp_path)


class TestCreate:
    def test_create_sets_the_hostname_and_runs_the_script(self, machine: Machine) -> None:
        out, _ = machine.create()
        assert "(m1) running as root" in out.splitlines()
        assert machine.host.shell("cat /run/machine/ran") == "/tmp/install_script.sh\n"
        assert machine.host.shell("hostname; cat /etc/hostname; cat /etc/hosts").split("\n") == [
            *("m1", "m1", "127.0.0.1 localhost", "127.0.1.1 m1", "")
        ]
        assert machine.host.shell("stat -c %a /tmp/install_script.sh") == "600\n"

    def test_the_record_contains_the_private_key(self, machine: Machine) -> None:
        machine.create()
        machine.host.key.unlink()
        assert machine("ssh", "m1", "hostname")[0] == "m1\n"

    def test_the_default_key_is_that_of_ssh(self, machine: Machine) -> None:
        (machine.directory / ".ssh").mkdir()
        (machine.directory / ".ssh/id_ed25519").write_bytes(machine.host.key.read_bytes())
        machine.create("--generic-ssh-key", "")

    def test_a_failed_script_is_reported_and_retried(self, machine: Machine) -> None:
        failing = "echo trying; test -e /run/machine/better"
        out, err = machine.create(script=failing, status=1)
        assert "(m1) trying" in out
        assert "the install script failed with exit code 1" in err
        (machine.host.directory / "better").touch()
        assert "Resuming the interrupted creation of machine m1" in machine.create(script=failing)[0]

    def test_a_link_at_the_scripts_path_is_not_followed(self, machine: Machine) -> None:
        machine.host.shell("echo precious >/run/machine/precious; ln -s /run/machine/precious /tmp/install_script.sh")
        machine.create()
        assert (machine.host.directory / "precious").read_text() == "precious\n"

    def test_a_hostname_cannot_inject_a_command(self, machine: Machine) -> None:
        _, err = machine.create("--hostname-override", "$(touch /run/machine/hacked)", status=1)
        assert "is not a valid hostname" in err
        assert not (machine.host.directory / "hacked").exists()

    def test_a_cloud_config_is_rejected(self, machine: Machine) -> None:
        _, err = machine.create(script="#cloud-config\nruncmd: [x]\n", status=1)
        assert "does not support #cloud-config; pass a shell script" in err

    def test_keys_are_not_in_arguments_output_or_the_hosts_log(self, machine: Machine) -> None:
        secret = machine.host.key.read_text().splitlines()[1]
        out, err = machine.create()
        assert secret not in out + err + machine.host.log()
        assert secret not in machine("inspect", "m1")[0]


class TestChecksBeforeCreation:
    """Each failed check says what to do, and leaves no record."""

    @pytest.fixture(autouse=True)
    def leaves_no_record(self, machine: Machine) -> None:
        yield  # type: ignore[misc]
        assert machine("ls", "-q")[0] == ""

    def test_a_closed_port_is_reported(self, machine: Machine) -> None:
        _, err = machine.create("--generic-ssh-port", str(free_port()), status=3)
        assert "refuses connections; check that the SSH server is running and that the port is correct" in err

    def test_an_unreachable_host_is_reported(self, machine: Machine) -> None:
        _, err = machine.create("--generic-ip-address", "no-such-host.invalid", status=3)
        assert "cannot reach " in err
        assert "check the address" in err

    def test_another_service_on_the_port_is_reported(self, machine: Machine) -> None:
        import socket
        import threading

        with socket.create_server(("127.0.0.1", 0)) as other:
            answering = threading.Thread(target=lambda: other.accept()[0].close())
            answering.start()
            _, err = machine.create("--generic-ssh-port", str(other.getsockname()[1]), status=3)
            answering.join()
        assert "cannot reach " in err

    @pytest.mark.parametrize("user", ["root", "nobody-of-this-name"])
    def test_a_wrong_key_or_user_is_reported(self, machine: Machine, user: str) -> None:
        key = machine.directory / "other"
        key.write_bytes(new_key_pair()[0])
        _, err = machine.create("--generic-ssh-key", str(key), "--generic-ssh-user", user, status=3)
        assert f'rejects the SSH key of user \\"{user}\\"' in err
        assert "authorized_keys" in err

    def test_a_sudo_password_prompt_is_reported(self, machine: Machine) -> None:
        _, err = machine.create("--generic-ssh-user", USER, status=3)
        assert f'sudo asks user \\"{USER}\\" for a password' in err
        assert "NOPASSWD" in err

    def test_missing_sudo_is_reported(self, machine: Machine) -> None:
        (machine.host.directory / "bin/sudo").unlink()
        _, err = machine.create("--generic-ssh-user", USER, status=3)
        assert "has no sudo" in err

    def test_a_missing_key_is_reported(self, machine: Machine) -> None:
        assert "SSH key does not exist" in machine.create("--generic-ssh-key", "/none", status=3)[1]
        assert "no SSH key found in ~/.ssh" in machine.create("--generic-ssh-key", "", status=3)[1]

    def test_an_invalid_key_is_reported(self, machine: Machine) -> None:
        key = machine.directory / "key"
        key.write_text("hello")
        assert "cannot parse the SSH key" in machine.create("--generic-ssh-key", str(key), status=3)[1]

    def test_a_key_with_a_passphrase_is_reported(self, machine: Machine) -> None:
        key = serialization.load_pem_private_key(new_rsa_key_pair()[0], None)
        pem, openssl = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
        locked = key.private_bytes(pem, openssl, serialization.BestAvailableEncryption(b"hunter2"))
        machine.host.key.write_bytes(locked)
        assert "the SSH key has a passphrase" in machine.create(status=3)[1]


class TestSsh:
    @pytest.fixture(autouse=True)
    def created(self, machine: Machine) -> None:
        machine.create()

    def test_ssh_returns_output_and_exit_status(self, machine: Machine) -> None:
        assert machine("ssh", "m1", "echo out; echo err >&2; exit 7", status=7) == ("out\n", "err\n")
        assert machine("ssh", "m1", "--", "echo", "-n", "words") == ("words", "")

    def test_standard_input_reaches_the_command(self, machine: Machine) -> None:
        text = "line\n" * 10_000
        assert machine("ssh", "m1", "wc -c", stdin=text)[0].strip() == str(len(text))

    def test_a_command_gets_a_terminal_if_the_client_has_one(self, machine: Machine) -> None:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            machine.command("ssh", "m1"), stdin=slave, stdout=slave, stderr=slave, env=machine.environment
        )
        os.close(slave)
        os.write(master, b"tty; hostname; exit 5\n")
        output = b""
        while True:
            try:
                output += os.read(master, 4096)
            except OSError:  # the terminal was closed by its last process
                break
        assert process.wait(timeout=30) == 5
        os.close(master)
        assert b"/dev/pts/" in output
        assert b"m1" in output

    def test_a_changed_host_key_is_rejected_until_it_is_accepted(self, machine: Machine) -> None:
        machine.host.new_host_key()
        _, err = machine("ssh", "m1", "true", status=1)
        assert "the host key of 127.0.0.1 has changed: " in err
        assert (
            "the host key of 127.0.0.1 has changed: "
            in machine("scp", "m1:/etc/hostname", str(machine.directory), status=1)[1]
        )
        machine("ssh", "--accept-new-host-key", "m1", "true")
        machine("ssh", "m1", "true")

    @pytest.mark.parametrize("sftp", [True, False], ids=["SFTP", "no SFTP there"])
    def test_scp_copies_in_both_directions(self, machine: Machine, sftp: bool) -> None:
        if not sftp:
            machine.host.without_sftp()
        (machine.directory / "tree/sub").mkdir(parents=True)
        (machine.directory / "tree/sub/file").write_text("hello")
        machine("scp", str(machine.directory / "tree/sub/file"), "m1:/run/machine/there")
        assert (machine.host.directory / "there").read_text() == "hello"
        machine("scp", "-r", str(machine.directory / "tree"), "root@m1:/run/machine/")
        machine("scp", "-r", "m1:/run/machine/tree", str(machine.directory / "back"))
        assert (machine.directory / "back/sub/file").read_text() == "hello"
        machine("scp", "m1:/run/machine/there", "m1:/run/machine/copy")
        assert (machine.host.directory / "copy").read_text() == "hello"
        machine("scp", "m1:/run/machine/tree", str(machine.directory / "tree-as-file"), status=1)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("m1:/none", "/tmp"), "the copy failed: No such file"),
            (("/etc", "m1:/run/machine/etc-as-file"), "the copy failed: "),
            (("/a", "/b"), "neither /a nor /b is on a machine"),
            (("/a",), "Improper number of arguments"),
            (("other:/a", "/b"), '"other" does not exist'),
        ],
        ids=["no file", "a directory", "no machine", "one word", "unknown machine"],
    )
    def test_invalid_copies_are_rejected(self, machine: Machine, arguments: tuple[str, ...], message: str) -> None:
        assert message in machine("scp", *arguments, status=1)[1]

    def test_a_host_that_is_down_is_reported(self, machine: Machine) -> None:
        machine.host.refuse()
        assert machine("status", "m1")[0] == "Stopped\n"
        assert 'Host "m1" is not running' in machine("ssh", "m1", "true", status=1)[1]

    def test_restart_is_supported_and_other_power_commands_are_not(self, machine: Machine) -> None:
        machine("restart", "m1")
        assert machine.host.shell("cat /run/machine/shutdowns") == "-r now\n"
        assert "generic driver does not support stop" in machine("stop", "m1", status=1)[1]

    def test_rm_deletes_the_record_and_leaves_the_host_unchanged(self, machine: Machine) -> None:
        machine("rm", "-y", "m1")
        assert machine("ls", "-q")[0] == ""
        assert machine.host.shell("hostname") == "m1\n"

    def test_the_record_has_the_fields_of_the_go_driver(self, machine: Machine) -> None:
        driver = json.loads(machine("inspect", "m1")[0])["Driver"]
        assert driver.keys() >= {"IPAddress", "SSHUser", "SSHPort", "SSHKeyPath", "SSHKey", "EnginePort", "StorePath"}
        assert driver["SSHKeyPath"] == f"{machine.store}/machines/m1/client_key"
