"""The `ssh` and `scp` commands."""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.machines.drivers.flags import Flag, FlagType
from herder.machine.cli.context import Context, OpenMachine, named
from herder.machine.cli.flags import CommandHelp, parse
from herder.machine.driver import State
from herder.machine.errors import MachineError
from herder.machine.state.saved_machine import SavedMachine

ACCEPT_NEW = Flag(
    "accept-new-host-key",
    "Replace the known host key, for example after a reinstallation of the machine",
    FlagType.BOOL,
    False,
)
COPY_FLAGS = (
    Flag("recursive", "Copy directories recursively", FlagType.BOOL, False),
    Flag("quiet", "Ignored; copies are always quiet", FlagType.BOOL, False),
    Flag("delta", "Not supported", FlagType.BOOL, False),
)
COPY_SHORTS = {"r": "recursive", "q": "quiet", "d": "delta"}
HELP_PAGES = {
    "ssh": CommandHelp(
        "NAME [COMMAND...]", ("herder-machine ssh node-1", "herder-machine ssh node-1 uptime"), (ACCEPT_NEW,)
    ),
    "scp": CommandHelp(
        "SOURCE TARGET",
        ("herder-machine scp notes.txt node-1:/root/", "herder-machine scp -r node-1:/var/log ./logs"),
        COPY_FLAGS,
        COPY_SHORTS,
    ),
}


def ssh(context: Context, words: Sequence[str]) -> int:
    parsed = parse(words, (ACCEPT_NEW,), context.environment, until_argument=True)
    if not parsed.arguments:
        raise MachineError("Error: Expected one machine name as an argument")
    name, *command = parsed.arguments
    (bench,) = named(context, [name])
    if bench.driver.state() is not State.RUNNING:
        raise MachineError(f'Error: Cannot run SSH command: Host "{name}" is not running')
    from herder.machine.ssh.session import interactive

    command = command[1:] if command[:1] == ["--"] else command
    accept = parsed.on(ACCEPT_NEW.name)
    return interactive(_saved(bench), command, remember=bench.save, accept_new_host_key=accept)


def scp(context: Context, words: Sequence[str]) -> int:
    parsed = parse(words, COPY_FLAGS, context.environment, shorts=COPY_SHORTS)
    if len(parsed.arguments) != 2:
        raise MachineError("Improper number of arguments", "pass a source and a target")
    if parsed.on("delta"):
        raise MachineError("--delta is not supported", "omit it, or use rsync with the SSH key that inspect shows")
    from herder.machine.ssh.copying import copy

    benches: dict[str, OpenMachine] = {}

    def find(name: str) -> SavedMachine:
        (benches[name],) = named(context, [name])
        return _saved(benches[name])

    source, target = parsed.arguments
    copy(
        source,
        target,
        find,
        recursive=parsed.on("recursive"),
        remember=lambda saved: benches[saved.name].save(),
    )
    return 0


def _saved(bench: OpenMachine) -> SavedMachine:
    record = bench.record
    return SavedMachine(record.name, record.driver, bench.machine.config, bench.machine.files, bench.driver.reach())
