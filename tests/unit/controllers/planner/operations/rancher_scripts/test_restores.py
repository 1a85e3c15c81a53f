"""Scripts that restore the data of a server, undo the restore, or commit it."""

from __future__ import annotations

import subprocess

import pytest

from herder.controllers.planner.distributions.rancher import tasks
from tests.unit.controllers.planner.operations.rancher_scripts.machine import (
    Machine,
    is_fenced,
    put,
    systemctl_of,
    undo,
)


def data_of(machine: Machine) -> tuple[str, str]:
    found = (machine.db / "etcd" / "member", machine.data / "server" / "cred" / "keys")
    return found[0].read_text().strip(), found[1].read_text().strip()


def files_of(machine: Machine) -> list[str]:
    return sorted(each.name for each in machine.db.iterdir())


def moves(machine: Machine, number: int = 2) -> str:
    """What K3s does before it restores the data."""
    return f'cd "{machine.db}" && mv etcd etcd-old-{number} && mkdir etcd && touch reset-flag'


def succeeds(machine: Machine, content: str = "new", number: int = 2) -> None:
    restored = f"echo {content} > etcd/member && echo {content} > ../cred/keys"
    machine.program("k3s", f"{moves(machine, number)} && {restored} && echo {content} >> restored.log")


def restore(machine: Machine, run: str = "run-1", accepted: str = "") -> subprocess.CompletedProcess[str]:
    arguments = ("k3s", str(machine.data), accepted, str(machine.units), "k3s", "server", "--cluster-reset")
    return machine.run(tasks.RESTORE_SCRIPT, *arguments, operation=f"{run}/Restore/1")


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
