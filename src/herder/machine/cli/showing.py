"""The read-only commands: `inspect`, `ip`, `ls`, `status`, `url`, `version`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from herder import __version__
from herder.api.machines.drivers.flags import Flag, FlagType
from herder.machine.cli.context import Context, OpenMachine, named, native, say
from herder.machine.cli.flags import CommandHelp, parse
from herder.machine.cli.updating import UPDATE_CONFIG, parse_with_driver
from herder.machine.driver import State
from herder.machine.drivers import NATIVE
from herder.machine.errors import MachineError, ServerGone
from herder.machine.state import record as records
from herder.machine.state.record import Phase
from herder.machine.state.saved_machine import reach_of

LIST_FLAGS = (Flag("quiet", "Print only machine names", FlagType.BOOL, False),)
LIST_SHORTS = {"q": "quiet"}
HELP_PAGES = {
    "inspect": CommandHelp("NAME", ("herder-machine inspect node-1",)),
    "ip": CommandHelp("NAME...", ("herder-machine ip node-1",)),
    "ls": CommandHelp("", ("herder-machine ls", "herder-machine ls -q"), LIST_FLAGS, LIST_SHORTS),
    "status": CommandHelp("NAME", ("herder-machine status node-1",), (UPDATE_CONFIG,)),
    "url": CommandHelp("NAME", ("herder-machine url node-1",), (UPDATE_CONFIG,)),
    "version": CommandHelp("[NAME]", ("herder-machine version",)),
}


def ip(context: Context, words: Sequence[str]) -> int:
    parsed = parse(words, (), context.environment)
    for bench in named(context, parsed.arguments):
        address = bench.driver.address()
        if not address:
            raise MachineError(
                f'machine "{bench.record.name}" has no IP address',
                "check that it is running with herder-machine status",
            )
        say(address)
        bench.save_if_changed()
    return 0


def status(context: Context, words: Sequence[str]) -> int:
    bench = _the_one(context, words)
    try:
        state = bench.driver.state()
    except ServerGone:
        state = State.NOT_FOUND
    say(state.value)
    bench.save_if_changed()
    if state is State.NOT_FOUND:
        raise ServerGone(f"{bench.record.name} not found")
    return 0


def url(context: Context, words: Sequence[str]) -> int:
    bench = _the_one(context, words)
    if bench.driver.state() is not State.RUNNING:
        raise MachineError("Host is not running")
    address = bench.driver.address()
    shown = f"[{address}]" if ":" in address else address
    say(f"tcp://{shown}:{bench.machine.config.get('EnginePort') or 2376}")
    return 0


def inspect(context: Context, words: Sequence[str]) -> int:
    name = _one_name(parse(words, (), context.environment).arguments)
    say(json.dumps(records.as_json(context.record(name)), indent=4, ensure_ascii=False))
    return 0


def version(context: Context, words: Sequence[str]) -> int:
    if words:
        context.record(_one_name(words))
        say("Docker was not installed on machine")
    else:
        say(f"herder-machine version {__version__}")
    return 0


def _one_name(arguments: Sequence[str]) -> str:
    if len(arguments) != 1:
        raise MachineError("Error: Expected one machine name as an argument")
    return arguments[0]


def _the_one(context: Context, words: Sequence[str]) -> OpenMachine:
    parsed, credentials = parse_with_driver(context, words, (UPDATE_CONFIG,))
    (bench,) = named(context, [_one_name(parsed.arguments)])
    if credentials:
        bench.driver.update_credentials(credentials)
    return bench


def ls(context: Context, words: Sequence[str]) -> int:
    parsed = parse(words, LIST_FLAGS, context.environment, shorts=LIST_SHORTS)
    if parsed.on("quiet"):
        for name in context.store.names():
            say(name)
        return 0
    rows = [("NAME", "DRIVER", "STATE", "ADDRESS", "ERRORS"), *(_row(context, name) for name in context.store.names())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        say("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _row(context: Context, name: str) -> tuple[str, str, str, str, str]:
    """An unreachable machine does not prevent the others from being listed."""
    driver = address = ""
    try:
        record = context.record(name)
        driver, address = record.driver, reach_of(record.config).host
        if record.phase is not Phase.CREATED:
            return name, driver, record.phase.value.capitalize(), address, ""
        if driver not in NATIVE:
            return name, driver, "", address, f"run: rancher-machine status {name}"
        bench = OpenMachine(context, record, native(record))
        return name, driver, bench.driver.state().value, address, ""
    except ServerGone:
        return name, driver, State.NOT_FOUND.value, address, ""
    except MachineError as error:
        return name, driver or "not found", State.ERROR.value, address, " ".join(str(error).split())
