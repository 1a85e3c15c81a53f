"""Scripts that delete snapshots, and Nodes without a machine."""

from __future__ import annotations

import pytest

from herder.controllers.planner.distributions.rancher import tasks
from herder.controllers.planner.distributions.tasks import DELETE_NODES_SCRIPT
from tests.unit.controllers.planner.operations.rancher_scripts.machine import PROGRAMS, Machine, expect


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
