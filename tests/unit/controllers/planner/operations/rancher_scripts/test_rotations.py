"""Scripts that rotate certificates and encryption keys."""

from __future__ import annotations

import pytest

from herder.controllers.planner.distributions.rancher import tasks
from tests.unit.controllers.planner.operations.rancher_scripts.machine import Machine


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
