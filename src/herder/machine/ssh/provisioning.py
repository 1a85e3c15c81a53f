"""Run the install script by SSH, for machines without user data."""

from __future__ import annotations

import contextlib
import shlex

from herder.machine.driver import Driver, Machine, Reach
from herder.machine.errors import MachineError, PreCreateFailed, Unreachable
from herder.machine.ssh.client import Outcome, Shell, connected
from herder.machine.ssh.hosts import HostKeys
from herder.machine.state.saved_machine import private_key

SCRIPT = "/tmp/install_script.sh"  # noqa: S108 - rancher-machine's path; `put` does not follow links
TRIES, PAUSE = 60, 3.0

# The name is passed by stdin, so that it cannot inject commands. /etc/hosts is rewritten in place, because it is a
# mount in containers.
_SET_HOSTNAME = r"""IFS= read -r name && hostname "$name" && echo "$name" >/etc/hostname || exit
grep -q "[[:space:]]$name\$" /etc/hosts && exit
hosts=$(grep -v '^127\.0\.1\.1[[:space:]]' /etc/hosts)
printf '%s\n127.0.1.1 %s\n' "$hosts" "$name" >/etc/hosts"""


def check_access(reach: Reach, machine: Machine) -> None:
    """Check that a script can run as root."""
    try:
        with _into(reach, machine) as shell:
            if not _as_root(shell):
                return
            outcome = shell.run("sudo -n true")
    except MachineError as error:
        raise PreCreateFailed(error.message, error.advice) from error
    if outcome.status == 127:
        raise PreCreateFailed(
            f'{reach.host} has no sudo and user "{reach.user}" is not root', "install sudo, or log in as root"
        )
    if outcome.status:
        raise PreCreateFailed(
            f'sudo asks user "{reach.user}" for a password on {reach.host}',
            f'add the line "{reach.user} ALL=(ALL) NOPASSWD: ALL" to a file in /etc/sudoers.d',
        )


def run_install_script(driver: Driver, machine: Machine) -> None:
    with contextlib.ExitStack() as stack:
        shell = _waited_for(driver, machine, stack)
        as_root = _as_root(shell)
        machine.say(f"setting its hostname to {machine.hostname}")
        _done(shell.run(f"{as_root}sh -c {shlex.quote(_SET_HOSTNAME)}", stdin=f"{machine.hostname}\n".encode()))
        shell.put(machine.script, SCRIPT)
        machine.say("running the install script")
        outcome = shell.run(f"{as_root}sh {SCRIPT}", say=machine.say, timeout=None)
        if outcome.status:
            raise MachineError(f"the install script failed with exit code {outcome.status}", "check its output above")


def reboot(reach: Reach, machine: Machine) -> None:
    with contextlib.suppress(Unreachable), _into(reach, machine) as shell:  # it may shut down before it responds
        _done(shell.run(f"{_as_root(shell)}shutdown -r now"))


def _into(reach: Reach, machine: Machine) -> contextlib.AbstractContextManager[Shell]:
    return connected(reach, private_key(machine.config, machine.files), HostKeys(reach, machine.files))


def _waited_for(driver: Driver, machine: Machine, stack: contextlib.ExitStack) -> Shell:
    """Wait for the SSH server of a new machine."""
    for left in reversed(range(TRIES)):
        try:
            return stack.enter_context(_into(driver.reach(), machine))
        except Unreachable:
            if not left:
                raise
            machine.sleep(PAUSE)
    raise AssertionError("the last try returns or raises")


def _as_root(shell: Shell) -> str:
    """Return the prefix for running a command as root."""
    return "" if shell.run("id -u").output.strip() == "0" else "sudo -n "


def _done(outcome: Outcome) -> None:
    if outcome.status:
        raise MachineError(f"cannot set up the machine: {outcome.output.strip()}")
