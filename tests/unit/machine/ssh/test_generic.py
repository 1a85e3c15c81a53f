"""The `generic` driver, and SSH altogether, with a real OpenSSH server."""

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
    """`herder-machine` as people and Jobs run it."""

    def __init__(self, host: Sshd, directory: Path) -> None:
        self.host = host
        self.directory = directory
        self.store = directory / "store"

    def __call__(self, *words: str, status: int = 0, stdin: str = "") -> tuple[str, str]:
        done = subprocess.run(
            self.command(*words),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout, done.stderr

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.directory), "TERM": "xterm"}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "herder.machine.cli.main", "--storage-path", str(self.store), *words]

    def create(self, *words: str, script: str = SCRIPT, status: int = 0) -> tuple[str, str]:
        path = self.directory / "script"
        path.write_text(script)
        where = ("--generic-ip-address", self.host.address, "--generic-ssh-port", str(self.host.port))
        key = () if "--generic-ssh-key" in words else ("--generic-ssh-key", str(self.host.key))
        script_flag = ("--custom-install-script", str(path))
        return self("create", "--driver", "generic", *where, *key, *script_flag, *words, "m1", status=status)


@pytest.fixture
def machine(host: Sshd, tmp_path: Path) -> Machine:
    return Machine(host, tmp_path)


class TestCreate:
    def test_names_the_host_and_runs_the_script_there(self, machine: Machine) -> None:
        out, _ = machine.create()
        assert "(m1) running as root" in out.splitlines()
        assert machine.host.shell("cat /run/machine/ran") == "/tmp/install_script.sh\n"
        assert machine.host.shell("hostname; cat /etc/hostname; cat /etc/hosts").split("\n") == [
            *("m1", "m1", "127.0.0.1 localhost", "127.0.1.1 m1", "")
        ]
        assert machine.host.shell("stat -c %a /tmp/install_script.sh") == "600\n"

    def test_the_key_is_in_the_record_wherever_its_file_was(self, machine: Machine) -> None:
        machine.create()
        machine.host.key.unlink()
        assert machine("ssh", "m1", "hostname")[0] == "m1\n"

    def test_the_key_may_be_the_one_that_ssh_would_take(self, machine: Machine) -> None:
        (machine.directory / ".ssh").mkdir()
        (machine.directory / ".ssh/id_ed25519").write_bytes(machine.host.key.read_bytes())
        machine.create("--generic-ssh-key", "")

    def test_a_script_that_fails_is_told_and_tried_again(self, machine: Machine) -> None:
        failing = "echo trying; test -e /run/machine/better"
        out, err = machine.create(script=failing, status=1)
        assert "(m1) trying" in out
        assert "the install script failed with exit code 1" in err
        (machine.host.directory / "better").touch()
        assert "Resuming the interrupted creation of machine m1" in machine.create(script=failing)[0]

    def test_a_link_in_the_place_of_the_script_is_not_followed(self, machine: Machine) -> None:
        machine.host.shell("echo precious >/run/machine/precious; ln -s /run/machine/precious /tmp/install_script.sh")
        machine.create()
        assert (machine.host.directory / "precious").read_text() == "precious\n"

    def test_a_hostname_can_be_no_command(self, machine: Machine) -> None:
        _, err = machine.create("--hostname-override", "$(touch /run/machine/hacked)", status=1)
        assert "is not a valid hostname" in err
        assert not (machine.host.directory / "hacked").exists()

    def test_a_cloud_config_cannot_be_run(self, machine: Machine) -> None:
        _, err = machine.create(script="#cloud-config\nruncmd: [x]\n", status=1)
        assert "does not support #cloud-config; pass a shell script" in err

    def test_no_key_is_in_arguments_output_or_the_hosts_log(self, machine: Machine) -> None:
        secret = machine.host.key.read_text().splitlines()[1]
        out, err = machine.create()
        assert secret not in out + err + machine.host.log()
        assert secret not in machine("inspect", "m1")[0]


class TestChecksBeforeCreation:
    """Each failure says what to do, and leaves no record."""

    @pytest.fixture(autouse=True)
    def leaves_nothing(self, machine: Machine) -> None:
        yield  # type: ignore[misc]
        assert machine("ls", "-q")[0] == ""

    def test_the_port_is_closed(self, machine: Machine) -> None:
        _, err = machine.create("--generic-ssh-port", str(free_port()), status=3)
        assert "refuses connections; check that the SSH server is running and that the port is correct" in err

    def test_the_host_is_unreachable(self, machine: Machine) -> None:
        _, err = machine.create("--generic-ip-address", "no-such-host.invalid", status=3)
        assert "cannot reach " in err
        assert "check the address" in err

    def test_something_else_answers(self, machine: Machine) -> None:
        import socket
        import threading

        with socket.create_server(("127.0.0.1", 0)) as other:
            answering = threading.Thread(target=lambda: other.accept()[0].close())
            answering.start()
            _, err = machine.create("--generic-ssh-port", str(other.getsockname()[1]), status=3)
            answering.join()
        assert "cannot reach " in err

    @pytest.mark.parametrize("user", ["root", "nobody-of-this-name"])
    def test_the_key_or_the_user_is_wrong(self, machine: Machine, user: str) -> None:
        key = machine.directory / "other"
        key.write_bytes(new_key_pair()[0])
        _, err = machine.create("--generic-ssh-key", str(key), "--generic-ssh-user", user, status=3)
        assert f'rejects the SSH key of user \\"{user}\\"' in err
        assert "authorized_keys" in err

    def test_sudo_asks_for_a_password(self, machine: Machine) -> None:
        _, err = machine.create("--generic-ssh-user", USER, status=3)
        assert f'sudo asks user \\"{USER}\\" for a password' in err
        assert "NOPASSWD" in err

    def test_there_is_no_sudo(self, machine: Machine) -> None:
        (machine.host.directory / "bin/sudo").unlink()
        _, err = machine.create("--generic-ssh-user", USER, status=3)
        assert "has no sudo" in err

    def test_there_is_no_key(self, machine: Machine) -> None:
        assert "SSH key does not exist" in machine.create("--generic-ssh-key", "/none", status=3)[1]
        assert "no SSH key found in ~/.ssh" in machine.create("--generic-ssh-key", "", status=3)[1]

    def test_the_key_is_none(self, machine: Machine) -> None:
        key = machine.directory / "key"
        key.write_text("hello")
        assert "cannot parse the SSH key" in machine.create("--generic-ssh-key", str(key), status=3)[1]

    def test_the_key_has_a_passphrase(self, machine: Machine) -> None:
        key = serialization.load_pem_private_key(new_rsa_key_pair()[0], None)
        pem, openssl = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
        locked = key.private_bytes(pem, openssl, serialization.BestAvailableEncryption(b"hunter2"))
        machine.host.key.write_bytes(locked)
        assert "the SSH key has a passphrase" in machine.create(status=3)[1]


class TestEntering:
    @pytest.fixture(autouse=True)
    def created(self, machine: Machine) -> None:
        machine.create()

    def test_a_command_its_output_and_its_status(self, machine: Machine) -> None:
        assert machine("ssh", "m1", "echo out; echo err >&2; exit 7", status=7) == ("out\n", "err\n")
        assert machine("ssh", "m1", "--", "echo", "-n", "words") == ("words", "")

    def test_standard_input_reaches_it(self, machine: Machine) -> None:
        text = "line\n" * 10_000
        assert machine("ssh", "m1", "wc -c", stdin=text)[0].strip() == str(len(text))

    def test_with_a_terminal_it_has_one_too(self, machine: Machine) -> None:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            machine.command("ssh", "m1"), stdin=slave, stdout=slave, stderr=slave, env=machine.environment
        )
        os.close(slave)
        os.write(master, b"tty; hostname; exit 5\n")
        shown = b""
        while True:
            try:
                shown += os.read(master, 4096)
            except OSError:  # how a terminal says that nobody has it any more
                break
        assert process.wait(timeout=30) == 5
        os.close(master)
        assert b"/dev/pts/" in shown
        assert b"m1" in shown

    def test_a_changed_host_key_is_refused_until_it_is_accepted(self, machine: Machine) -> None:
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
    def test_copies_in_both_directions(self, machine: Machine, sftp: bool) -> None:
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
        ("words", "told"),
        [
            (("m1:/none", "/tmp"), "the copy failed: No such file"),
            (("/etc", "m1:/run/machine/etc-as-file"), "the copy failed: "),
            (("/a", "/b"), "neither /a nor /b is on a machine"),
            (("/a",), "Improper number of arguments"),
            (("other:/a", "/b"), '"other" does not exist'),
        ],
        ids=["no file", "a directory", "no machine", "one word", "unknown machine"],
    )
    def test_copies_that_cannot_be(self, machine: Machine, words: tuple[str, ...], told: str) -> None:
        assert told in machine("scp", *words, status=1)[1]

    def test_a_host_that_is_down(self, machine: Machine) -> None:
        machine.host.refuse()
        assert machine("status", "m1")[0] == "Stopped\n"
        assert 'Host "m1" is not running' in machine("ssh", "m1", "true", status=1)[1]

    def test_restart_asks_the_host_and_the_other_words_are_not_for_it(self, machine: Machine) -> None:
        machine("restart", "m1")
        assert machine.host.shell("cat /run/machine/shutdowns") == "-r now\n"
        assert "generic driver does not support stop" in machine("stop", "m1", status=1)[1]

    def test_rm_forgets_it_and_leaves_the_host_alone(self, machine: Machine) -> None:
        machine("rm", "-y", "m1")
        assert machine("ls", "-q")[0] == ""
        assert machine.host.shell("hostname") == "m1\n"

    def test_the_record_has_the_go_drivers_fields(self, machine: Machine) -> None:
        driver = json.loads(machine("inspect", "m1")[0])["Driver"]
        assert driver.keys() >= {"IPAddress", "SSHUser", "SSHPort", "SSHKeyPath", "SSHKey", "EnginePort", "StorePath"}
        assert driver["SSHKeyPath"] == f"{machine.store}/machines/m1/client_key"
