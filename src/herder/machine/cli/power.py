"""The `start`, `stop`, `restart` and `kill` commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from herder.machine.cli.context import Context, OpenMachine, named, say
from herder.machine.cli.flags import CommandHelp
from herder.machine.cli.updating import UPDATE_CONFIG, parse_with_driver
from herder.machine.driver import State
from herder.machine.errors import MachineError

HELP_PAGES = {
    word: CommandHelp("NAME...", (f"herder-machine {word} node-1",), (UPDATE_CONFIG,))
    for word in ("start", "stop", "restart", "kill")
}
_NEW_ADDRESSES = "{} machines may have new IP addresses. You may need to re-run the `docker-machine env` command."


def start(context: Context, words: Sequence[str]) -> int:
    _each(context, words, _start)
    say(_NEW_ADDRESSES.format("Started"))
    return 0


def stop(context: Context, words: Sequence[str]) -> int:
    _each(context, words, lambda bench: _end(bench, bench.driver.stop, "Stopping", "stopped"))
    return 0


def kill(context: Context, words: Sequence[str]) -> int:
    _each(context, words, lambda bench: _end(bench, bench.driver.kill, "Killing", "killed"))
    return 0


def restart(context: Context, words: Sequence[str]) -> int:
    _each(context, words, _restart)
    say(_NEW_ADDRESSES.format("Restarted"))
    return 0


def _each(context: Context, words: Sequence[str], act: Callable[[OpenMachine], None]) -> None:
    """Process all machines even if one fails, and report the failures together."""
    parsed, credentials = parse_with_driver(context, words, (UPDATE_CONFIG,))
    failures = []
    for bench in named(context, parsed.arguments):
        try:
            if credentials:
                bench.driver.update_credentials(credentials)
            act(bench)
            bench.save_if_changed()
        except MachineError as error:
            failures.append(str(error))
    if failures:
        raise MachineError("\n".join(failures))


def _start(bench: OpenMachine) -> None:
    name = bench.record.name
    say(f'Starting "{name}"...')
    if bench.driver.state() is State.RUNNING:
        raise MachineError(f'Machine "{name}" is already running.')
    bench.driver.start()
    say(f'Machine "{name}" was started.')


def _end(bench: OpenMachine, act: Callable[[], None], doing: str, done: str) -> None:
    name = bench.record.name
    say(f'{doing} "{name}"...')
    if bench.driver.state() is State.STOPPED:
        raise MachineError(f'Machine "{name}" is already stopped.')
    act()
    say(f'Machine "{name}" was {done}.')


def _restart(bench: OpenMachine) -> None:
    say(f'Restarting "{bench.record.name}"...')
    if bench.driver.state() is State.STOPPED:
        bench.driver.start()
    else:
        bench.driver.restart()
