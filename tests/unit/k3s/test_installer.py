"""The installer image of k3s clusters, and its script on a machine with a minimal k3s."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from herder.agent.images.staging import Stager
from herder.installers import InstallerError
from herder.k3s.installer import SCRIPTS, build, version_of
from herder.machine.host.local import image
from herder.oci import opened
from tests.support.embedded import HERDER
from tests.unit.machine.local.host import Booted, Host

VERSION = "v1.36.3+k3s1"
NAME = "rancher/system-agent-installer-k3s:v1.36.3-k3s1"
# It prints its version and its arguments, and fails if the file /run/problem exists.
K3S = """#!/bin/sh
[ "$1" != --version ] || exec echo "k3s version {version} (0123abcd)"
echo "k3s arguments: $*"
if read -r problem < /run/problem; then
    rm /run/problem
    echo "$problem"
    exit 1
fi 2> /dev/null
[ -z "${{NOTIFY_SOCKET:-}}" ] || systemd-notify --ready
exec sleep infinity
"""


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    return _binary(tmp_path / "k3s")


def _binary(path: Path, version: str = VERSION) -> Path:
    path.write_text(K3S.format(version=version))
    path.chmod(0o755)
    return path


# --- the image ------------------------------------------------------------------------------------------------------


def test_the_image_contains_the_binary_and_valid_scripts(binary: Path, tmp_path: Path) -> None:
    built = build(VERSION, binary, tmp_path)
    (layer,) = json.loads(built.manifest)["layers"]
    with opened(built.blobs[layer["digest"]]) as content, tarfile.open(fileobj=content, mode="r:gz") as archive:
        archive.extractall(tmp_path / "root", filter="tar")
    root = tmp_path / "root"
    assert {path.name for path in root.iterdir()} == {"VERSION", "k3s", *SCRIPTS}
    assert (root / "VERSION").read_text() == VERSION
    assert (root / "k3s").read_bytes() == binary.read_bytes()
    for script in SCRIPTS:
        subprocess.run(["sh", "-n", root / script], check=True)


@pytest.mark.parametrize("version", ["v1.36.3", "v1.36.3+rke2r1", "1.36.3+k3s1", "v1.36+k3s1"])
def test_a_version_of_another_distribution_is_rejected(binary: Path, tmp_path: Path, version: str) -> None:
    with pytest.raises(InstallerError, match="is not a k3s version"):
        build(version, binary, tmp_path)


def test_the_version_is_read_from_the_binary(tmp_path: Path) -> None:
    assert version_of(_binary(tmp_path / "candidate", "v1.37.0-rc1+k3s1")) == "v1.37.0-rc1+k3s1"
    assert version_of(_binary(tmp_path / "built", "dev")) == ""


def test_a_relative_path_of_the_binary_is_not_searched_in_path(
    binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert version_of(Path("./k3s")) == VERSION


# --- herder installer k3s -------------------------------------------------------------------------------------------


def herder(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HERDER, "installer", "k3s", *arguments], capture_output=True, text=True, check=False)


def test_a_node_agent_installs_from_the_archive_under_the_name_in_plans(binary: Path, tmp_path: Path) -> None:
    images, root = tmp_path / "images", tmp_path / "root"
    images.mkdir()
    root.mkdir()
    result = herder("--binary", binary, "--output", images / "k3s.tar")
    assert result.stdout == f"{images / 'k3s.tar'}\n", result.stderr
    Stager(str(images), str(tmp_path / "none"), str(tmp_path / "scratch"), print).stage(NAME, str(root))
    assert (root / "k3s").read_bytes() == binary.read_bytes()


def test_a_version_mismatch_of_the_binary_is_a_warning(binary: Path, tmp_path: Path) -> None:
    result = herder("--binary", binary, "--version", "v1.36.4+k3s1", "--output", tmp_path / "made.tar")
    assert result.returncode == 0
    assert f"WARNING: {binary} reports version {VERSION}" in result.stderr


def test_a_binary_without_a_version_needs_the_flag(tmp_path: Path) -> None:
    result = herder("--binary", _binary(tmp_path / "built", "dev"), "--output", tmp_path / "made.tar")
    assert "cannot read the version; pass it with --version" in result.stderr
    assert result.returncode


# --- the script on a machine ----------------------------------------------------------------------------------------


class Machine:
    """A machine with the unpacked image, as a node agent leaves it."""

    def __init__(self, booted: Booted) -> None:
        self.booted = booted
        self.files = booted.directory / "data" / "var-lib-rancher" / "installer"
        self.files.mkdir()
        scripts = Path(build.__code__.co_filename).parent
        for name in SCRIPTS:
            shutil.copy(scripts / name, self.files / name)
        (self.files / "VERSION").write_text(VERSION)
        _binary(self.files / "k3s")

    def install(self, *, check: bool = True, **environment: str) -> str:
        assignments = " ".join(shlex.quote(f"{name}={value}") for name, value in environment.items())
        code = self.run(f"env {assignments} sh /var/lib/rancher/installer/run.sh > /run/output 2>&1; echo $?")
        output = self.run("cat /run/output")
        assert (code == "0") is check, output
        return output

    def run(self, command: str, *, check: bool = True) -> str:
        """Runs in the namespaces of the machine: a login would take longer than most commands here."""
        enter = ("nsenter", f"--target={self.booted.guest}", "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup")
        shell = ("env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-c", command)
        result = subprocess.run([*enter, *shell], capture_output=True, text=True, check=False, timeout=60)
        assert not check or result.returncode == 0, result.stderr
        return result.stdout.strip()

    def show(self, unit: str, name: str) -> str:
        return self.run(f"systemctl show --value -p {name} {unit}")

    def invocation_id(self, unit: str) -> str:
        """The invocation ID of the running service, or ""."""
        return self.show(unit, "InvocationID") if self.show(unit, "ActiveState") == "active" else ""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("needs root: boots a machine")
    image.make("", lambda _percent, _text: None, kubernetes=True)
    with Host(tmp_path_factory.mktemp("host")) as host:
        yield Machine(host.create("one", kubernetes=True))


def test_the_server_runs_when_the_script_returns(machine: Machine) -> None:
    output = machine.install(
        RESTART_STAMP="a", K3S_TOKEN='s"e\\cret', HTTPS_PROXY="http://proxy:1", CATTLE_SERVER="https://x"
    )
    assert f"k3s is running, {VERSION}" in output
    assert machine.invocation_id("k3s")
    assert machine.show("k3s", "Type") == "notify"
    assert machine.run("systemctl is-enabled k3s") == "enabled"
    assert machine.run("cat /var/lib/rancher/k3s/restart_stamp") == "a"
    for program in ("kubectl", "crictl"):
        assert machine.run(f"readlink /usr/local/bin/{program}") == "k3s"
    assert machine.run("command -v ctr") == "/usr/bin/ctr", "that of the machine"
    assert "k3s arguments: server" in machine.run("journalctl -o cat -u k3s")
    env_file = machine.run("stat -c %a /etc/systemd/system/k3s.service.env; cat /etc/systemd/system/k3s.service.env")
    assert env_file.splitlines() == ["600", 'HTTPS_PROXY="http://proxy:1"', 'K3S_TOKEN="s\\"e\\\\cret"']
    running = machine.run("tr '\\0' '\\n' < /proc/$(systemctl show --value -p MainPID k3s)/environ")
    assert 'K3S_TOKEN=s"e\\cret' in running.splitlines()


CHANGES = {
    "a new stamp": {"RESTART_STAMP": "b"},
    "another environment": {"RESTART_STAMP": "b", "K3S_DEBUG": "true"},
    "another command": {"RESTART_STAMP": "b", "INSTALL_K3S_EXEC": "server --debug"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_changes_restart_the_service(machine: Machine, change: str) -> None:
    before = machine.invocation_id("k3s")
    machine.install(**CHANGES[change])
    after = machine.invocation_id("k3s")
    assert after not in ("", before)
    machine.install(**CHANGES[change])
    assert machine.invocation_id("k3s") == after


def test_a_new_binary_restarts_the_service(machine: Machine) -> None:
    machine.install(RESTART_STAMP="c")
    before = machine.invocation_id("k3s")
    _binary(machine.files / "k3s", "v1.36.4+k3s1")
    machine.install(RESTART_STAMP="c")
    assert machine.invocation_id("k3s") not in ("", before)
    assert "v1.36.4+k3s1" in machine.run("k3s --version")


def test_a_binary_that_cannot_run_is_not_installed(machine: Machine) -> None:
    before, good = machine.invocation_id("k3s"), (machine.files / "k3s").read_bytes()
    (machine.files / "k3s").write_text("#!/bin/sh\necho a library is too old >&2\nexit 1\n")
    output = machine.install(RESTART_STAMP="c", check=False)
    assert "does not run on this machine" in output
    assert "a library is too old" in output
    assert machine.invocation_id("k3s") == before
    assert "v1.36.4+k3s1" in machine.run("k3s --version")
    (machine.files / "k3s").write_bytes(good)


def test_a_stopped_service_is_started(machine: Machine) -> None:
    machine.run("systemctl stop k3s")
    machine.install(RESTART_STAMP="c")
    assert machine.invocation_id("k3s")


def test_skip_start_installs_without_a_restart(machine: Machine) -> None:
    before = machine.invocation_id("k3s")
    output = machine.install(RESTART_STAMP="d", INSTALL_K3S_SKIP_START="true")
    assert "is not started" in output
    assert machine.invocation_id("k3s") == before
    machine.install(RESTART_STAMP="d")
    assert machine.invocation_id("k3s") not in ("", before), "the deferred restart is done"


def test_a_failed_start_is_reported_and_retried_on_the_next_run(machine: Machine) -> None:
    machine.run("echo level=fatal msg=no such flag: herd > /run/problem")
    output = machine.install(RESTART_STAMP="e", check=False)
    assert "k3s does not start; last lines of its log" in output
    assert "no such flag: herd" in output
    machine.install(RESTART_STAMP="e")
    assert machine.invocation_id("k3s")


def test_a_join_is_retried_while_another_server_joins_etcd(machine: Machine) -> None:
    machine.run("echo etcdserver: too many learner members in cluster > /run/problem")
    output = machine.install(RESTART_STAMP="f", INSTALL_K3S_RETRY_SECONDS="1")
    assert "retrying k3s in 1 s" in output
    assert machine.invocation_id("k3s")


INVALID = {
    "INSTALL_K3S_EXEC": ("etcd", "must begin with server or agent"),
    "INSTALL_K3S_EXEC ": ("server --x=$(id)", "put such options into the config file"),
    "K3S_DATA_DIR": ("data", "must be an absolute path"),
    "K3S_DATA_DIR ": ("/a b", "must consist of letters"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_settings_are_rejected(machine: Machine, name: str) -> None:
    value, message = INVALID[name]
    assert message in machine.install(check=False, **{name.strip(): value})


def test_uninstall_removes_all_traces_of_a_server(machine: Machine) -> None:
    machine.run("iptables -N FLANNEL-FWD && iptables -A FORWARD -j FLANNEL-FWD && iptables -N KUBE-FORWARD")
    machine.run("k3s-uninstall.sh")
    paths = "/usr/local/bin/* /etc/systemd/system/k3s* /etc/rancher/k3s /var/lib/rancher/k3s"
    assert machine.run(f"ls -d {paths}", check=False) == ""
    assert machine.run("iptables-save | grep -e FLANNEL -e KUBE", check=False) == ""
    assert machine.show("k3s", "ActiveState") == "inactive"


def test_an_agent_is_another_service_with_an_optional_data_directory(machine: Machine) -> None:
    machine.install(RESTART_STAMP="a", INSTALL_K3S_EXEC="agent", K3S_DATA_DIR="/var/lib/rancher/other")
    assert machine.invocation_id("k3s-agent")
    assert machine.show("k3s-agent", "Type") == "exec"
    assert machine.run("cat /var/lib/rancher/other/restart_stamp") == "a"
    machine.run("k3s-agent-uninstall.sh")
    assert machine.run("ls -d /var/lib/rancher/other /usr/local/bin/*", check=False) == ""
