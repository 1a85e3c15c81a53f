"""The `rm` command: delete the instance first and its record last; resumable after a kill."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from herder.api.machines.drivers.flags import Flag, FlagType, Value
from herder.machine.cli.context import Context, OpenMachine, hand_over_others, native, print_error, say
from herder.machine.cli.flags import CommandHelp
from herder.machine.cli.updating import UPDATE_CONFIG, parse_with_driver
from herder.machine.errors import MachineError, ServerGone
from herder.machine.state.record import Phase, Record

FLAGS = (
    Flag("force", "Delete the local state even if the machine cannot be removed; implies -y", FlagType.BOOL, False),
    Flag("y", "Do not ask for confirmation", FlagType.BOOL, False),
    UPDATE_CONFIG,
)
SHORTS = {"f": "force"}
HELP_PAGES = {
    "rm": CommandHelp(
        "NAME...", ("herder-machine rm -y node-1", "herder-machine rm --force node-1 node-2"), FLAGS, SHORTS
    )
}


def run(context: Context, words: Sequence[str]) -> int:
    parsed, credentials = parse_with_driver(context, words, FLAGS, SHORTS)
    names = parsed.arguments
    if not names:
        raise MachineError("Error: Expected to get one or more machine names as arguments")
    hand_over_others(_readable(context, names))
    say(f"About to remove {', '.join(names)}")
    say("WARNING: This action will delete both local reference and remote instance.")
    force = parsed.on("force")
    if not (force or parsed.on("y") or _confirmed()):
        return 0
    failed = False
    for name in names:
        try:
            _remove(context, name, credentials)
        except MachineError as error:
            print_error(f'Error removing host "{name}": {error}')
            failed = failed or not force
            if force and context.store.load(name) is not None:
                context.store.remove(name)
                say(f"Successfully removed {name}")
    return 1 if failed else 0


def _readable(context: Context, names: Sequence[str]) -> list[Record]:
    """Skip damaged records: they are reported later, and can be removed with --force."""
    found = []
    for name in names:
        with contextlib.suppress(MachineError):
            found.append(context.record(name))
    return found


def _confirmed() -> bool:
    try:
        return input("Are you sure? (y/n): ").lower().startswith("y")
    except EOFError:
        return False


def _remove(context: Context, name: str, credentials: dict[str, Value]) -> None:
    record = context.find(name)
    if record is None:
        say(f"Machine config for {name} does not exists, so nothing to do...")
        return
    bench = OpenMachine(context, record, native(record))
    if credentials:
        bench.driver.update_credentials(credentials)
    bench.take_on()
    bench.enter(Phase.REMOVING)
    try:
        bench.driver.remove()
    except ServerGone:
        bench.machine.say("the provider no longer has this machine")
    context.store.remove(name)
    say(f"Successfully removed {name}")
