"""Scripts of tasks, run by a shell. Stand-ins for k3s and systemctl behave as the real ones were observed to."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from herder.controllers.planner.distributions.rancher import authorities, tasks
from herder.controllers.planner.distributions.tasks import DELETE_NODES_SCRIPT

SAVED = "echo 'level=info msg=\"Snapshot on-demand-s1-1 saved.\"' >&2"
LISTED = '{"kind":"List","items":[]}'


class Machine:
    """A directory of programs and one of data."""

    def __init__(self, directory: Path) -> None:
        self.programs, self.data = directory / "bin", directory / "data with spaces"
        self.db = self.data / "server" / "db"
        self.units = directory / "systemd units"
        for each in (self.programs, self.db):
            each.mkdir(parents=True)
        self.program("systemctl", 'echo "$@" >> "$0.log"')

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run(self, script: str, *arguments: str, operation: str = "") -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "OPERATION": operation}
        command = ["/bin/sh", "-c", script, "task", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def snapshot(content: bytes = b"e" * 1024) -> bytes:
    """A snapshot of etcd: whole pages, and the hash of them."""
    return content + hashlib.sha256(content).digest()


CORRUPT = b"x" + snapshot()[1:]


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("save", "content", "code", "error"),
    [
        (SAVED, snapshot(), 0, ""),
        (f"{SAVED}; {SAVED}", snapshot(), 0, ""),  # K3s prints the line twice if it also uploads the file
        (SAVED, CORRUPT, 1, "on-demand-s1-1 is corrupt: its hash is wrong"),
        (SAVED, snapshot()[:-512], 1, "its hash is wrong"),
        (SAVED, snapshot()[:-1], 1, "is not an etcd snapshot, or is truncated"),
        ("exit 0", snapshot(), 1, "no snapshot was saved"),  # the disk is full: k3s prints nothing
        ('echo "Error: bucket snaps does not exist" >&2; exit 1', b"", 1, "bucket snaps does not exist"),
    ],
)
def test_a_snapshot_is_saved_if_k3s_says_so_and_its_hash_is_right(
    machine: Machine, save: str, content: bytes, code: int, error: str
) -> None:
    machine.program("k3s", f"case $2 in save) {save} ;; ls) echo '{LISTED}' ;; esac")
    (machine.db / "on-demand-s1-1").write_bytes(content)
    done = machine.run(tasks.SAVE_SCRIPT, "k3s", str(machine.db))
    assert (done.returncode, error in done.stderr) == (code, True)
    if code == 0:
        expected = {"hashes": {"on-demand-s1-1": hash_of(content)}, "authorities": "", "list": json.loads(LISTED)}
        assert json.loads(done.stdout) == expected
    else:
        assert done.stdout == ""


def test_a_snapshot_names_its_certificate_authorities(machine: Machine) -> None:
    machine.program("k3s", f"case $2 in save) {SAVED} ;; ls) echo '{LISTED}' ;; esac")
    directory, tls = machine.db / "snapshots", machine.data / "server" / "tls"
    for each in (directory, tls / "etcd"):
        each.mkdir(parents=True)
    (directory / "on-demand-s1-1").write_bytes(snapshot())
    files = ("client-ca", "server-ca", "request-header-ca", "etcd/peer-ca", "etcd/server-ca")
    for number, name in enumerate(files):
        (tls / f"{name}.crt").write_text(f"{number}\n")
    done = machine.run(tasks.SAVE_SCRIPT, "k3s", str(directory))
    reported = machine.run(authorities.REPORT_SCRIPT, str(machine.data)).stdout.split()[-1]
    assert json.loads(done.stdout)["authorities"] == reported == hash_of(b"0\n1\n2\n3\n4\n")


def test_the_hash_of_a_compressed_or_remote_snapshot(machine: Machine) -> None:
    """A compressed file has no hash of its own, and the directory may be another one."""
    saved = SAVED.replace("on-demand-s1-1", "on-demand-s1-1.zip")
    machine.program("k3s", f"case $2 in save) {saved} ;; ls) echo '{LISTED}' ;; esac")
    done = machine.run(tasks.SAVE_SCRIPT, "k3s", str(machine.db))
    assert json.loads(done.stdout)["hashes"] == {}
    (machine.db / "on-demand-s1-1.zip").write_bytes(b"packed")
    done = machine.run(tasks.SAVE_SCRIPT, "k3s", str(machine.db))
    assert json.loads(done.stdout)["hashes"] == {"on-demand-s1-1.zip": hash_of(b"packed")}


@pytest.mark.parametrize(
    ("content", "recorded", "error"),
    [
        (snapshot(), "", ""),
        (snapshot(), hash_of(snapshot()), ""),
        (snapshot(b"o" * 512), hash_of(snapshot()), "is another file than the one that was saved"),
        (CORRUPT, "", "is corrupt: its hash is wrong"),
        (b"text\n", "", "is not an etcd snapshot, or is truncated"),
        (b"", "", "is empty or cannot be read"),
        (None, "", "does not exist"),
    ],
)
def test_a_snapshot_is_checked_before_servers_stop(
    machine: Machine, content: bytes | None, recorded: str, error: str
) -> None:
    """K3s moves the old data away before it finds that the hash of a file is wrong."""
    file = machine.db / "snapshot with spaces"
    if content is not None:
        file.write_bytes(content)
    done = machine.run(tasks.CHECK_SCRIPT, str(file), recorded)
    assert (done.returncode, error in done.stderr) == (1 if error else 0, True)


def put(machine: Machine, content: str) -> None:
    """The data of etcd, and the keys of the server."""
    (machine.db / "etcd").mkdir(exist_ok=True)
    (machine.db / "etcd" / "member").write_text(content)
    (machine.data / "server" / "cred").mkdir(exist_ok=True)
    (machine.data / "server" / "cred" / "keys").write_text(content)


def data_of(machine: Machine) -> tuple[str, str]:
    found = (machine.db / "etcd" / "member", machine.data / "server" / "cred" / "keys")
    return found[0].read_text().strip(), found[1].read_text().strip()


def files_of(machine: Machine) -> list[str]:
    return sorted(each.name for each in machine.db.iterdir())


def systemctl_of(machine: Machine) -> list[str]:
    return (machine.programs / "systemctl.log").read_text().splitlines()


def is_fenced(machine: Machine) -> bool:
    """Whether systemd would not start the service."""
    (drop_in,) = (machine.units / "k3s.service.d").iterdir()
    header, condition = drop_in.read_text().splitlines()
    name, _, path = condition.partition("=!")
    assert (drop_in.suffix, header, name) == (".conf", "[Unit]", "ConditionPathExists")
    return Path(path.replace("%%", "%")).exists()


def moves(machine: Machine, number: int = 2) -> str:
    """What K3s does before it restores the data."""
    return f'cd "{machine.db}" && mv etcd etcd-old-{number} && mkdir etcd && touch reset-flag'


def succeeds(machine: Machine, content: str = "new", number: int = 2) -> None:
    restored = f"echo {content} > etcd/member && echo {content} > ../cred/keys"
    machine.program("k3s", f"{moves(machine, number)} && {restored} && echo {content} >> restored.log")


def restore(machine: Machine, run: str = "run-1", accepted: str = "") -> subprocess.CompletedProcess[str]:
    arguments = ("k3s", str(machine.data), accepted, str(machine.units), "k3s", "server", "--cluster-reset")
    return machine.run(tasks.RESTORE_SCRIPT, *arguments, operation=f"{run}/Restore/1")


def undo(machine: Machine, run: str = "run-1", accepted: str = "") -> int:
    arguments = ("k3s", str(machine.data), accepted)
    return machine.run(tasks.UNDO_RESTORE_SCRIPT, *arguments, operation=f"{run}/Abort/1").returncode


def commit(machine: Machine, run: str = "run-1") -> int:
    arguments = ("k3s", str(machine.data), "")
    operation = f"{run}/InitialRestartCluster/1"
    return machine.run(tasks.COMMIT_RESTORE_SCRIPT, *arguments, operation=operation).returncode


def test_a_failed_restore_puts_the_old_data_back(machine: Machine) -> None:
    put(machine, "old")
    (machine.db / "etcd-old-1").mkdir()  # of an earlier restore
    machine.program("k3s", f"{moves(machine)} && echo bad >&2; exit 1")
    done = restore(machine)
    assert (done.returncode, done.stderr) == (1, "bad\n")
    assert (data_of(machine), files_of(machine)) == (("old", "old"), ["etcd", "etcd-old-1"])
    assert not is_fenced(machine)


def test_a_committed_restore_keeps_what_it_restored(machine: Machine) -> None:
    """The server is fenced until then: the manager may not know that the restore has completed."""
    put(machine, "old")
    succeeds(machine)
    assert restore(machine).returncode == 0
    assert systemctl_of(machine) == ["stop k3s", "daemon-reload"]
    assert is_fenced(machine)
    for _ in range(2):
        assert commit(machine) == 0
        assert not is_fenced(machine)
    assert undo(machine) == 0
    assert data_of(machine) == ("new", "new")
    assert files_of(machine) == ["etcd", "etcd-old-2", "reset-flag", "restored.log"]


def test_a_restore_that_completed_without_a_report_is_undone(machine: Machine) -> None:
    put(machine, "old")
    (machine.db / "etcd-old-1").mkdir()
    succeeds(machine)
    assert restore(machine).returncode == 0
    for _ in range(2):
        assert undo(machine) == 0
        assert data_of(machine) == ("old", "old")
        assert files_of(machine) == ["etcd", "etcd-old-1", "restored.log"]
        assert not is_fenced(machine)


def test_a_restore_that_cannot_be_undone_leaves_the_server_fenced(machine: Machine) -> None:
    """Its data is neither the old nor the restored data, and a plan without a task must not start it."""
    put(machine, "old")
    machine.program("mv", 'case $1 in */etcd-old-*) echo "read-only" >&2; exit 1 ;; *) exec /bin/mv "$@" ;; esac')
    machine.program("k3s", f'cd "{machine.db}" && /bin/mv etcd etcd-old-2; exit 1')
    assert restore(machine).returncode == 1
    assert is_fenced(machine)
    assert undo(machine) == 1
    assert is_fenced(machine)
    (machine.programs / "mv").unlink()
    assert undo(machine) == 0
    assert (data_of(machine), is_fenced(machine)) == (("old", "old"), False)


def test_a_restore_runs_once_in_each_operation(machine: Machine) -> None:
    """An agent that was killed before it reported the task runs it again."""
    put(machine, "old")
    succeeds(machine)
    assert [restore(machine).returncode for _ in range(2)] == [0, 0]
    assert (machine.db / "restored.log").read_text() == "new\n"
    machine.program("k3s", f"{moves(machine, 3)} && exit 1")
    assert restore(machine).returncode == 0
    assert undo(machine) == 0
    assert data_of(machine) == ("old", "old")


@pytest.mark.parametrize(("accepted", "before"), [("", "old"), ("run-0", "old"), ("run-1", "new")])
def test_the_next_operation_knows_which_data_the_cluster_has(machine: Machine, accepted: str, before: str) -> None:
    """An earlier restore that was not committed counts only if the cluster continues with its data."""
    put(machine, "old")
    succeeds(machine)
    assert restore(machine).returncode == 0
    machine.program("k3s", f"{moves(machine, 3)} && exit 1")
    assert restore(machine, "run-2", accepted).returncode == 1
    assert data_of(machine) == (before, before)


@pytest.mark.parametrize(("accepted", "after"), [("", "old"), ("run-0", "old"), ("run-1", "new")])
def test_an_aborted_operation_undoes_a_restore_that_is_not_accepted(
    machine: Machine, accepted: str, after: str
) -> None:
    put(machine, "old")
    succeeds(machine)
    assert restore(machine).returncode == 0
    assert undo(machine, "run-2", accepted) == 0
    assert data_of(machine) == (after, after)
    assert not {"restore-journal", "restore-cred"} & set(files_of(machine))


def test_only_a_completed_restore_of_the_operation_is_committed(machine: Machine) -> None:
    put(machine, "old")
    succeeds(machine)
    assert restore(machine).returncode == 0
    assert commit(machine, "run-2") == 1
    machine.program("k3s", f"{moves(machine, 3)} && kill -9 $PPID")
    assert restore(machine, "run-2").returncode == -9
    assert commit(machine, "run-2") == 1
    assert is_fenced(machine)
    assert undo(machine, "run-2") == 0
    assert data_of(machine) == ("old", "old")


MOVED = "mv etcd etcd-old-2 && mkdir etcd && touch reset-flag"


@pytest.mark.parametrize("moved", [MOVED, "mv etcd etcd-old-2", "true"])
def test_a_restore_that_was_interrupted_is_undone_before_the_service_starts(machine: Machine, moved: str) -> None:
    """Without data, the service would begin an empty cluster: it is fenced if the machine restarts."""
    put(machine, "old")
    (machine.db / "etcd-old-1").mkdir()  # of an earlier restore
    machine.program("k3s", f'cd "{machine.db}" && {moved} && kill -9 $PPID')
    assert restore(machine).returncode == -9
    assert is_fenced(machine)
    for _ in range(2):
        assert undo(machine) == 0
        assert (data_of(machine), files_of(machine)) == (("old", "old"), ["etcd", "etcd-old-1"])
        assert not is_fenced(machine)


def test_a_restore_that_was_interrupted_is_repeated_from_the_old_data(machine: Machine) -> None:
    put(machine, "old")
    machine.program("k3s", f"{moves(machine)} && kill -9 $PPID")
    assert restore(machine).returncode == -9
    machine.program("k3s", f"{moves(machine, 3)} && echo bad >&2; exit 1")
    assert restore(machine).returncode == 1
    assert (data_of(machine), files_of(machine)) == (("old", "old"), ["etcd"])


def test_data_is_dropped_once_in_each_restore(machine: Machine) -> None:
    """The second time, the server may have joined the restored cluster."""
    for operation, dropped in {
        "run-1/InitialRestartCluster/1": True,
        "run-1/InitialRestartCluster/2": False,
        "run-2/InitialRestartCluster/1": True,
    }.items():
        (machine.db / "etcd").mkdir(exist_ok=True)
        (machine.db / "restore-journal").touch()  # of a restore that was not reported
        done = machine.run(tasks.DROP_SCRIPT, "k3s", str(machine.data), operation=operation)
        assert done.returncode == 0, done.stderr
        assert (machine.db / "etcd").exists() != dropped
        assert (machine.db / "restore-journal").exists() != dropped
    assert (machine.programs / "systemctl.log").read_text() == "stop k3s\nstop k3s\n"


def test_a_new_server_without_data_is_restored(machine: Machine) -> None:
    """What a failed restore leaves would be the data of another cluster."""
    machine.db.rmdir()
    machine.program("k3s", f'mkdir "{machine.db}/etcd" && exit 1')
    assert restore(machine).returncode == 1
    assert files_of(machine) == []
    machine.program("k3s", f'mkdir "{machine.db}/etcd"')
    done = restore(machine, "run-2")
    assert (done.returncode, done.stderr) == (0, "")
    assert commit(machine, "run-2") == 0
    assert files_of(machine) == ["etcd"]


def test_certificates_are_rotated_while_the_service_is_stopped(machine: Machine) -> None:
    tls = machine.data / "server" / "tls" / "kube-scheduler"
    tls.mkdir(parents=True)
    (tls / "kube-scheduler.crt").touch()
    machine.program("k3s", 'echo rotate "$@" >> "$(dirname "$0")/systemctl.log"')
    arguments = ("k3s", str(machine.data), "k3s", "certificate", "rotate", "-s", "etcd")
    assert machine.run(tasks.ROTATE_SCRIPT, *arguments).returncode == 0
    log = (machine.programs / "systemctl.log").read_text().splitlines()
    assert log == ["stop k3s", "rotate certificate rotate -s etcd", "reset-failed k3s", "start k3s"]
    assert not (tls / "kube-scheduler.crt").exists()


def test_the_service_starts_after_a_rotation_that_failed(machine: Machine) -> None:
    tls = machine.data / "server" / "tls" / "kube-scheduler"
    tls.mkdir(parents=True)
    (tls / "kube-scheduler.crt").touch()
    machine.program("k3s", 'echo "no space left on device" >&2; exit 3')
    done = machine.run(tasks.ROTATE_SCRIPT, "k3s", str(machine.data), "k3s", "certificate", "rotate")
    assert (done.returncode, done.stderr) == (3, "no space left on device\n")
    log = (machine.programs / "systemctl.log").read_text().splitlines()
    assert log == ["stop k3s", "reset-failed k3s", "start k3s"]
    assert (tls / "kube-scheduler.crt").exists()


@pytest.mark.parametrize("fails", ["stop", "start"])
def test_a_rotation_fails_if_the_service_does_not_stop_or_start(machine: Machine, fails: str) -> None:
    machine.program(
        "systemctl", f'echo "$@" >> "$0.log"; [ "$1" != {fails} ] || {{ echo "{fails} failed" >&2; exit 5; }}'
    )
    machine.program("k3s", 'echo rotate >> "$(dirname "$0")/systemctl.log"')
    done = machine.run(tasks.ROTATE_SCRIPT, "k3s", str(machine.data), "k3s", "certificate", "rotate")
    assert (done.returncode, done.stderr) == (5, f"{fails} failed\n")
    log = (machine.programs / "systemctl.log").read_text().splitlines()
    assert ("rotate" in log, log[-1]) == (fails == "start", "start k3s")


class Encryption:
    """A K3s server that refuses the first step, as for some seconds after a restart."""

    def __init__(self, machine: Machine, stage: str, *, refuses: str = "") -> None:
        self._machine, self._state = machine, machine.data / "stage"
        self._state.write_text(f"{stage}\n")
        refusal = (
            f'[ "$1" = status ] || [ "$(cat "$state")" != "{refuses}" ] || {{ echo "incorrect stage" >&2; exit 1; }}'
        )
        machine.program("sleep", "exit 0")
        machine.program(
            "k3s",
            f"""state='{self._state}'
shift
{refusal}
case $1:$(cat "$state") in
    status:unknown) echo start > "$state"; echo 'runtime core not ready' >&2; exit 1 ;;
    status:*)
        printf 'Encryption Status: Enabled\\nCurrent Rotation Stage: %s\\n' "$(cat "$state")"
        case $(cat "$state") in reencrypt_*) echo reencrypt_finished > "$state" ;; esac ;;
    *)
        [ -e "$state.tried" ] || {{ touch "$state.tried"; exit 1; }}
        echo "$1" >> "$state.steps"
        case $1 in reencrypt) echo reencrypt_request > "$state" ;; *) echo "$1" > "$state" ;; esac ;;
esac""",
        )

    def run(self, step: str) -> tuple[int, str, list[str]]:
        """The exit code, the stage afterwards, and the steps that the server has accepted."""
        done = self._machine.run(tasks.ENCRYPT_SCRIPT, "k3s", step)
        steps = self._state.with_suffix(".steps")
        return done.returncode, self._state.read_text().strip(), steps.read_text().split() if steps.exists() else []


@pytest.mark.parametrize(
    ("step", "found", "stage", "ran"),
    [
        ("prepare", "start", "prepare", ["prepare"]),
        ("prepare", "unknown", "prepare", ["prepare"]),
        ("prepare", "reencrypt_finished", "prepare", ["prepare"]),
        ("rotate", "prepare", "rotate", ["rotate"]),
        ("reencrypt", "rotate", "reencrypt_finished", ["reencrypt"]),
        # what an interrupted rotation has left
        ("prepare", "prepare", "prepare", []),
        ("prepare", "rotate", "rotate", []),
        ("prepare", "reencrypt_request", "reencrypt_finished", []),
        ("prepare", "reencrypt_active", "reencrypt_finished", []),
        ("rotate", "rotate", "rotate", []),
        ("rotate", "reencrypt_finished", "reencrypt_finished", []),
        ("reencrypt", "reencrypt_active", "reencrypt_finished", []),
        ("reencrypt", "reencrypt_finished", "reencrypt_finished", []),
    ],
)
def test_a_key_rotation_goes_on_from_the_stage_that_it_finds(
    machine: Machine, step: str, found: str, stage: str, ran: list[str]
) -> None:
    assert Encryption(machine, found).run(step) == (0, stage, ran)


@pytest.mark.parametrize(("step", "found"), [("prepare", "start"), ("rotate", "start"), ("reencrypt", "prepare")])
def test_a_step_that_servers_refuse_fails(machine: Machine, step: str, found: str) -> None:
    assert Encryption(machine, found, refuses=found).run(step) == (1, found, [])


def test_a_key_rotation_needs_encryption(machine: Machine) -> None:
    machine.program("k3s", "echo 'Encryption Status: Disabled'")
    done = machine.run(tasks.ENCRYPT_SCRIPT, "k3s", "prepare")
    assert done.returncode == 1
    assert done.stderr.startswith("encryption of Secrets is not enabled")


def test_an_encryption_that_does_not_end_is_not_waited_for_forever(machine: Machine) -> None:
    machine.program("sleep", "exit 0")
    machine.program("k3s", "echo 'Current Rotation Stage: reencrypt_active'")
    done = machine.run(tasks.ENCRYPT_SCRIPT, "k3s", "reencrypt")
    assert (done.returncode, done.stderr) == (
        1,
        "Secrets are still being encrypted again: Current Rotation Stage: reencrypt_active\n",
    )


def test_nodes_without_a_machine_are_deleted(machine: Machine) -> None:
    machine.program(
        "k3s",
        'case $2 in get) printf "a uid-a\\nb uid-b\\nc \\n" ;; delete) echo "$@" >> "$0.log" ;; esac',
    )
    assert machine.run(DELETE_NODES_SCRIPT, "uid-a uid-x", "k3s", "kubectl").returncode == 0
    assert (machine.programs / "k3s.log").read_text() == "kubectl delete node b --ignore-not-found\n"


@pytest.mark.parametrize(("answers_at", "code"), [(2, 0), (100, 1)])
def test_the_deletion_of_nodes_waits_for_the_api_server(machine: Machine, answers_at: int, code: int) -> None:
    machine.program("sleep", "exit 0")
    machine.program(
        "k3s",
        f"""case $2 in
    get) echo x >> "$0.tries"; [ "$(wc -l < "$0.tries")" -ge {answers_at} ] || {{ echo refused >&2; exit 1; }}
        printf "a uid-a\nb uid-b\n" ;;
    delete) echo "$@" >> "$0.log" ;;
esac""",
    )
    done = machine.run(DELETE_NODES_SCRIPT, "uid-a", "k3s", "kubectl")
    assert (done.returncode, done.stderr.splitlines()[0]) == (code, "refused")
    assert (machine.programs / "k3s.log").exists() is (code == 0)


# --- restores and deletions -------------------------------------------------------------------------------------------

PROGRAMS = ["k3s", "rke2"]
WARNING = 'level=warning msg="Unknown flag --token found in config.yaml, skipping\\\\n"'
ROWS = """Name                    Location                                     Size Created
on-demand-s1-1          file:///data/server/db/snapshots/on-demand-s1-1 10 2026-11-16T07:25:41Z
on-demand-s1-10         s3://snaps/farm/on-demand-s1-10                 10 2026-11-16T07:25:41Z
old-on-demand-s1-2      s3://snaps/farm/old-on-demand-s1-2              10 2026-11-16T07:25:41Z
on-demand-s1-2          s3://snaps/farm/on-demand-s1-2                  10 2026-11-16T07:25:41Z
"""


def expect(machine: Machine, program: str, *arguments: str, then: str) -> None:
    """A program that accepts these arguments alone, and then does this."""
    wanted = "|".join(arguments)
    check = f"""given=
for each in "$@"; do given="$given${{given:+|}}$each"; done
if [ "$given" != '{wanted}' ]; then echo "unexpected arguments: $given" >&2; exit 64; fi
"""
    machine.program(program, f"{check}{then}")


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("on-demand-s1-2", 0),
        ("on-demand-s1-10", 0),
        ("on-demand-s1-1", 1),  # is only on the machine, and part of another name
        ("demand-s1-2", 1),
        ("on-demand-s1-*", 1),
        ("Name", 1),
    ],
)
def test_a_snapshot_in_s3_is_found_by_its_whole_name(machine: Machine, program: str, name: str, code: int) -> None:
    rows = f"cat << 'END'\n{ROWS}END\necho '{WARNING}' >&2"
    expect(machine, program, "etcd-snapshot", "ls", then=rows)
    done = machine.run(tasks.CHECK_S3_SCRIPT, name, program, "etcd-snapshot", "ls")
    assert done.returncode == code, done.stderr
    assert (f"the bucket has no snapshot {name}" in done.stderr) is (code == 1)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_bucket_that_cannot_be_listed_is_reported(machine: Machine, program: str) -> None:
    expect(machine, program, "etcd-snapshot", "ls", then="echo 'Error: Access Denied.' >&2; exit 1")
    done = machine.run(tasks.CHECK_S3_SCRIPT, "on-demand-s1-1", program, "etcd-snapshot", "ls")
    assert (done.returncode, done.stderr) == (1, "Error: Access Denied.\n")


def test_a_directory_is_no_snapshot(machine: Machine) -> None:
    assert machine.run(tasks.CHECK_SCRIPT, str(machine.db), "").returncode == 1


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("s3", "arguments"),
    [
        ("true", ["etcd-snapshot", "delete", "a b"]),
        ("false", ["etcd-snapshot", "delete", "--etcd-s3=false", "a b"]),
    ],
)
@pytest.mark.parametrize(
    ("then", "code", "error"),
    [
        ('echo "level=info msg=\\"Snapshot a b deleted.\\"" >&2', 0, ""),
        ('echo "level=warning msg=\\"Snapshot a b not found.\\"" >&2', 0, ""),
        ('echo "level=info msg=\\"Snapshot xa b deleted.\\"" >&2', 1, "a b was not deleted"),
        ("exit 0", 1, "a b was not deleted"),
        ("echo 'Error: Access Denied.' >&2; exit 3", 3, "Access Denied"),
    ],
)
def test_only_the_message_shows_that_a_snapshot_was_deleted(
    machine: Machine, program: str, s3: str, arguments: list[str], then: str, code: int, error: str
) -> None:
    expect(machine, program, *arguments, then=then)
    done = machine.run(tasks.DELETE_SCRIPT, program, s3, "a b")
    assert (done.returncode, error in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_snapshots_are_deleted_in_order_until_one_fails(machine: Machine, program: str) -> None:
    machine.program(
        program,
        """for name in "$@"; do :; done
echo "$*" >> "$0.log"
[ "$name" != bad ] || { echo "Error: broken" >&2; exit 5; }
echo "Snapshot $name deleted." >&2""",
    )
    files = ("true", "first", "false", "second", "false", "bad", "true", "never")
    assert machine.run(tasks.DELETE_SCRIPT, program, *files).returncode == 5
    assert (machine.programs / f"{program}.log").read_text().splitlines() == [
        "etcd-snapshot delete first",
        "etcd-snapshot delete --etcd-s3=false second",
        "etcd-snapshot delete --etcd-s3=false bad",
    ]


def stop(machine: Machine, program: str = "k3s", *, units: str = "") -> subprocess.CompletedProcess[str]:
    arguments = (f"{program}-killall.sh", "k3s", str(machine.data), units)
    return machine.run(tasks.STOP_SCRIPT, *arguments, operation="run-1/Shutdown/1")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_server_is_stopped_by_the_script_of_its_distribution(machine: Machine, program: str) -> None:
    expect(machine, f"{program}-killall.sh", then='echo stopped >> "$0.log"')
    assert stop(machine, program).returncode == 0
    assert (machine.programs / f"{program}-killall.sh.log").read_text() == "stopped\n"
    assert not machine.units.exists(), "it has no etcd"


def test_a_server_that_cannot_be_stopped_fails(machine: Machine) -> None:
    machine.program("k3s-killall.sh", "echo 'cannot stop' >&2; exit 7")
    done = stop(machine)
    assert (done.returncode, done.stderr) == (7, "cannot stop\n")
    assert stop(machine, "rke2").returncode == 127


@pytest.mark.parametrize("name", ["data", "100%data"])
def test_a_server_with_etcd_is_fenced_before_it_stops(machine: Machine, name: str) -> None:
    """A machine that restarts between both steps would start the service with the old data."""
    machine.data = machine.data.parent / name
    fence = machine.data / "server" / "db" / "restore-fence"
    expect(machine, "k3s-killall.sh", then=f'[ "$(cat "{fence}")" = run-1 ]')
    for _ in range(2):
        done = stop(machine, units=str(machine.units))
        assert (done.returncode, done.stderr, is_fenced(machine)) == (0, "", True)
    assert systemctl_of(machine) == ["daemon-reload", "daemon-reload"]
    assert undo(machine) == 0
    assert not is_fenced(machine)


def test_a_server_that_cannot_be_fenced_is_not_stopped(machine: Machine) -> None:
    machine.program("systemctl", "exit 1")
    machine.program("k3s-killall.sh", 'echo stopped >> "$0.log"')
    assert stop(machine, units=str(machine.units)).returncode == 1
    assert not (machine.programs / "k3s-killall.sh.log").exists()


def test_a_server_is_fenced_until_it_has_dropped_its_data(machine: Machine) -> None:
    """Also if the agent was killed after it had dropped the data."""
    machine.program("k3s-killall.sh", "exit 0")
    for dropped in (True, False):
        assert stop(machine, units=str(machine.units)).returncode == 0
        put(machine, "old")
        operation = "run-1/InitialRestartCluster/1"
        assert machine.run(tasks.DROP_SCRIPT, "k3s", str(machine.data), operation=operation).returncode == 0
        assert ((machine.db / "etcd").exists(), is_fenced(machine)) == (not dropped, False)


def test_a_server_whose_data_cannot_be_dropped_stays_fenced(machine: Machine) -> None:
    machine.program("k3s-killall.sh", "exit 0")
    assert stop(machine, units=str(machine.units)).returncode == 0
    machine.program("rm", 'case $1 in -rf) exit 1 ;; *) exec /bin/rm "$@" ;; esac')
    operation = "run-1/InitialRestartCluster/1"
    assert machine.run(tasks.DROP_SCRIPT, "k3s", str(machine.data), operation=operation).returncode == 1
    assert is_fenced(machine)
