"""The installer image of k3s clusters, and what its script does on a machine, with a k3s of a few lines."""

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
# It tells its version, says how it was called, and fails as often as a file asks it to.
K3S = """#!/bin/sh
[ "$1" != --version ] || exec echo "k3s version {version} (0123abcd)"
echo "k3s was told: $*"
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


def test_it_holds_the_binary_and_scripts_that_a_shell_can_read(binary: Path, tmp_path: Path) -> None:
    made = build(VERSION, binary, tmp_path)
    (only,) = json.loads(made.manifest)["layers"]
    with opened(made.blobs[only["digest"]]) as content, tarfile.open(fileobj=content, mode="r:gz") as archive:
        archive.extractall(tmp_path / "root", filter="tar")
    root = tmp_path / "root"
    assert {path.name for path in root.iterdir()} == {"VERSION", "k3s", *SCRIPTS}
    assert (root / "VERSION").read_text() == VERSION
    assert (root / "k3s").read_bytes() == binary.read_bytes()
    for script in SCRIPTS:
        subprocess.run(["sh", "-n", root / script], check=True)


@pytest.mark.parametrize("version", ["v1.36.3", "v1.36.3+rke2r1", "1.36.3+k3s1", "v1.36+k3s1"])
def test_a_version_of_another_distribution_is_refused(binary: Path, tmp_path: Path, version: str) -> None:
    with pytest.raises(InstallerError, match="is not a k3s version"):
        build(version, binary, tmp_path)


def test_a_binary_tells_its_version_or_nothing(tmp_path: Path) -> None:
    assert version_of(_binary(tmp_path / "candidate", "v1.37.0-rc1+k3s1")) == "v1.37.0-rc1+k3s1"
    assert version_of(_binary(tmp_path / "built", "dev")) == ""


def test_a_binary_is_the_file_of_that_name_here(binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert version_of(Path("./k3s")) == VERSION


# --- herder installer k3s -------------------------------------------------------------------------------------------


def herder(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HERDER, "installer", "k3s", *words], capture_output=True, text=True, check=False)


def test_a_node_agent_installs_from_the_archive_under_the_name_that_plans_ask_for(binary: Path, tmp_path: Path) -> None:
    images, root = tmp_path / "images", tmp_path / "root"
    images.mkdir()
    root.mkdir()
    done = herder("--binary", binary, "--output", images / "k3s.tar")
    assert done.stdout == f"{images / 'k3s.tar'}\n", done.stderr
    Stager(str(images), str(tmp_path / "none"), str(tmp_path / "scratch"), print).stage(NAME, str(root))
    assert (root / "k3s").read_bytes() == binary.read_bytes()


def test_a_binary_that_is_another_than_is_said_is_told(binary: Path, tmp_path: Path) -> None:
    done = herder("--binary", binary, "--version", "v1.36.4+k3s1", "--output", tmp_path / "made.tar")
    assert done.returncode == 0
    assert f"WARNING: {binary} reports version {VERSION}" in done.stderr


def test_what_tells_no_version_needs_one(tmp_path: Path) -> None:
    done = herder("--binary", _binary(tmp_path / "built", "dev"), "--output", tmp_path / "made.tar")
    assert "cannot read the version; pass it with --version" in done.stderr
    assert done.returncode


# --- its script, on a machine ---------------------------------------------------------------------------------------


class Machine:
    """One that the image was unpacked on, as node agents do it."""

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
        given = " ".join(shlex.quote(f"{name}={value}") for name, value in environment.items())
        code = self.run(f"env {given} sh /var/lib/rancher/installer/run.sh > /run/told 2>&1; echo $?")
        told = self.run("cat /run/told")
        assert (code == "0") is check, told
        return told

    def run(self, command: str, *, check: bool = True) -> str:
        """Entered from outside: a login takes longer than most of what is asked here."""
        within = ("nsenter", f"--target={self.booted.guest}", "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup")
        plain = ("env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-c", command)
        done = subprocess.run([*within, *plain], capture_output=True, text=True, check=False, timeout=60)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def show(self, unit: str, name: str) -> str:
        return self.run(f"systemctl show --value -p {name} {unit}")

    def start_of(self, unit: str) -> str:
        """Which of its starts runs."""
        return self.show(unit, "InvocationID") if self.show(unit, "ActiveState") == "active" else ""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("a machine of the test's own: needs root")
    image.make("", lambda _percent, _text: None, kubernetes=True)
    with Host(tmp_path_factory.mktemp("host")) as host:
        yield Machine(host.create("one", kubernetes=True))


def test_a_server_is_up_when_the_script_returns(machine: Machine) -> None:
    told = machine.install(
        RESTART_STAMP="a", K3S_TOKEN='s"e\\cret', HTTPS_PROXY="http://proxy:1", CATTLE_SERVER="https://x"
    )
    assert f"k3s is running, {VERSION}" in told
    assert machine.start_of("k3s")
    assert machine.show("k3s", "Type") == "notify"
    assert machine.run("systemctl is-enabled k3s") == "enabled"
    assert machine.run("cat /var/lib/rancher/k3s/restart_stamp") == "a"
    for program in ("kubectl", "crictl"):
        assert machine.run(f"readlink /usr/local/bin/{program}") == "k3s"
    assert machine.run("command -v ctr") == "/usr/bin/ctr", "the machine's own"
    assert "k3s was told: server" in machine.run("journalctl -o cat -u k3s")
    kept = machine.run("stat -c %a /etc/systemd/system/k3s.service.env; cat /etc/systemd/system/k3s.service.env")
    assert kept.splitlines() == ["600", 'HTTPS_PROXY="http://proxy:1"', 'K3S_TOKEN="s\\"e\\\\cret"']
    running = machine.run("tr '\\0' '\\n' < /proc/$(systemctl show --value -p MainPID k3s)/environ")
    assert 'K3S_TOKEN=s"e\\cret' in running.splitlines()


CHANGES = {
    "a new stamp": {"RESTART_STAMP": "b"},
    "another environment": {"RESTART_STAMP": "b", "K3S_DEBUG": "true"},
    "another command": {"RESTART_STAMP": "b", "INSTALL_K3S_EXEC": "server --debug"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_new_starts_it_again_and_what_is_not_does_not(machine: Machine, change: str) -> None:
    before = machine.start_of("k3s")
    machine.install(**CHANGES[change])
    after = machine.start_of("k3s")
    assert after not in ("", before)
    machine.install(**CHANGES[change])
    assert machine.start_of("k3s") == after


def test_another_binary_starts_it_again(machine: Machine) -> None:
    machine.install(RESTART_STAMP="c")
    before = machine.start_of("k3s")
    _binary(machine.files / "k3s", "v1.36.4+k3s1")
    machine.install(RESTART_STAMP="c")
    assert machine.start_of("k3s") not in ("", before)
    assert "v1.36.4+k3s1" in machine.run("k3s --version")


def test_a_binary_that_cannot_be_run_takes_nobodys_place(machine: Machine) -> None:
    before, good = machine.start_of("k3s"), (machine.files / "k3s").read_bytes()
    (machine.files / "k3s").write_text("#!/bin/sh\necho a library is too old >&2\nexit 1\n")
    told = machine.install(RESTART_STAMP="c", check=False)
    assert "does not run on this machine" in told
    assert "a library is too old" in told
    assert machine.start_of("k3s") == before
    assert "v1.36.4+k3s1" in machine.run("k3s --version")
    (machine.files / "k3s").write_bytes(good)


def test_who_was_stopped_is_started(machine: Machine) -> None:
    machine.run("systemctl stop k3s")
    machine.install(RESTART_STAMP="c")
    assert machine.start_of("k3s")


def test_asked_not_to_start_it_changes_what_is_installed_alone(machine: Machine) -> None:
    before = machine.start_of("k3s")
    told = machine.install(RESTART_STAMP="d", INSTALL_K3S_SKIP_START="true")
    assert "is not started" in told
    assert machine.start_of("k3s") == before
    machine.install(RESTART_STAMP="d")
    assert machine.start_of("k3s") not in ("", before), "what was put off is done"


def test_why_it_does_not_start_is_told_and_tried_anew_when_asked_again(machine: Machine) -> None:
    machine.run("echo level=fatal msg=no such flag: herd > /run/problem")
    told = machine.install(RESTART_STAMP="e", check=False)
    assert "k3s does not start; last lines of its log" in told
    assert "no such flag: herd" in told
    machine.install(RESTART_STAMP="e")
    assert machine.start_of("k3s")


def test_a_server_that_comes_while_another_joins_etcd_comes_again(machine: Machine) -> None:
    machine.run("echo etcdserver: too many learner members in cluster > /run/problem")
    told = machine.install(RESTART_STAMP="f", INSTALL_K3S_RETRY_SECONDS="1")
    assert "retrying k3s in 1 s" in told
    assert machine.start_of("k3s")


REFUSED = {
    "INSTALL_K3S_EXEC": ("etcd", "must begin with server or agent"),
    "INSTALL_K3S_EXEC ": ("server --x=$(id)", "put such options into the config file"),
    "K3S_DATA_DIR": ("data", "must be an absolute path"),
    "K3S_DATA_DIR ": ("/a b", "must consist of letters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused(machine: Machine, name: str) -> None:
    value, why = REFUSED[name]
    assert why in machine.install(check=False, **{name.strip(): value})


def test_a_server_is_taken_away_without_a_trace(machine: Machine) -> None:
    machine.run("iptables -N FLANNEL-FWD && iptables -A FORWARD -j FLANNEL-FWD && iptables -N KUBE-FORWARD")
    machine.run("k3s-uninstall.sh")
    places = "/usr/local/bin/* /etc/systemd/system/k3s* /etc/rancher/k3s /var/lib/rancher/k3s"
    assert machine.run(f"ls -d {places}", check=False) == ""
    assert machine.run("iptables-save | grep -e FLANNEL -e KUBE", check=False) == ""
    assert machine.show("k3s", "ActiveState") == "inactive"


def test_an_agent_is_another_service_and_its_data_may_be_elsewhere(machine: Machine) -> None:
    machine.install(RESTART_STAMP="a", INSTALL_K3S_EXEC="agent", K3S_DATA_DIR="/var/lib/rancher/other")
    assert machine.start_of("k3s-agent")
    assert machine.show("k3s-agent", "Type") == "exec"
    assert machine.run("cat /var/lib/rancher/other/restart_stamp") == "a"
    machine.run("k3s-agent-uninstall.sh")
    assert machine.run("ls -d /var/lib/rancher/other /usr/local/bin/*", check=False) == ""
