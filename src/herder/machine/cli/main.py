"""The `herder-machine` command: global flags, dispatch to a subcommand, and exit codes."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence

from herder.machine import rancher
from herder.machine.cli.context import GLOBAL_FLAGS, GLOBAL_SHORTS, Context, OfOtherProgram, print_error, say
from herder.machine.cli.flags import CommandHelp, described, listed, parse
from herder.machine.errors import MachineError

# Subcommand → (module, function, summary).
WORDS = {
    "create": ("create", "run", "Create a machine"),
    "inspect": ("showing", "inspect", "Inspect information about a machine"),
    "ip": ("showing", "ip", "Get the IP address of a machine"),
    "kill": ("power", "kill", "Kill a machine"),
    "ls": ("showing", "ls", "List machines"),
    "restart": ("power", "restart", "Restart a machine"),
    "rm": ("rm", "run", "Remove a machine"),
    "scp": ("entering", "scp", "Copy files between machines"),
    "ssh": ("entering", "ssh", "Log into or run a command on a machine with SSH"),
    "start": ("power", "start", "Start a machine"),
    "status": ("showing", "status", "Get the status of a machine"),
    "stop": ("power", "stop", "Stop a machine"),
    "url": ("showing", "url", "Get the URL of a machine"),
    "version": ("showing", "version", "Show the version"),
}


Other = Callable[[Sequence[str], Mapping[str, str]], int]
"""Runs rancher-machine with a command line, and returns its exit status."""


def main() -> int:
    return guarded(lambda: run(sys.argv[1:], os.environ))


def guarded(act: Callable[[], int]) -> int:
    """Return the exit status: 0, 1, 3 if a pre-create check failed, 4 if the instance does not exist at the
    provider.
    """
    try:
        return act()
    except MachineError as error:
        print_error(str(error))
        return error.exit_code
    except OSError as error:  # usually of the store: a full disk, or a directory of another user
        print_error(str(error))
        return 1
    except KeyboardInterrupt:
        print_error("interrupted; resume with create, or clean up with rm")
        return 130
    except Exception:  # a bug; in a Job, the traceback ends up in the termination log
        traceback.print_exc()
        return 1


def run(words: Sequence[str], environment: Mapping[str, str], *, other: Other = rancher.become) -> int:
    if words and words[0] in ("--version", "-v"):
        words = ["version"]
    if not words or words[0] in ("--help", "-h", "help"):
        say(_help())
        return 0
    options = parse(words, GLOBAL_FLAGS, environment, shorts=GLOBAL_SHORTS, until_argument=True)
    if not options.arguments:
        say(_help())
        return 0
    word, *rest = options.arguments
    if word not in WORDS:
        raise MachineError(f"herder-machine: '{word}' is not a herder-machine command. See 'herder-machine --help'.")
    if word != "create" and rest[:1] in (["--help"], ["-h"]):
        say(command_help(word))
        return 0
    module, function, _ = WORDS[word]
    command: Callable[[Context, Sequence[str]], int] = getattr(
        importlib.import_module(f"herder.machine.cli.{module}"), function
    )
    context = Context(options, environment)
    try:
        return command(context, rest)
    except MachineError:
        if options.on("debug"):
            traceback.print_exc()
        raise
    except OfOtherProgram:  # it must find the records where we would
        return other(words, {**environment, rancher.STORAGE_VARIABLE: context.store_path})


EXAMPLES = (
    "herder-machine create --driver process node-1",
    "herder-machine create --driver generic --generic-ip-address 192.0.2.10 node-2",
    "herder-machine ls",
    "herder-machine rm -y node-1",
)


def command_help(word: str) -> str:
    module, _, summary = WORDS[word]
    known: CommandHelp = importlib.import_module(f"herder.machine.cli.{module}").HELP_PAGES[word]
    return known.page(word, summary)


def _help() -> str:
    commands = "\n".join(f"  {word:10}{reported}" for word, (_, _, reported) in WORDS.items())
    return (
        "Usage: herder-machine [OPTIONS] COMMAND [arg...]\n\nCreate and manage machines.\n\n"
        f"Options:\n{described(GLOBAL_FLAGS, GLOBAL_SHORTS)}\n\nCommands:\n{commands}\n\n"
        "Run 'herder-machine COMMAND --help' for more information on a command.\n\n"
        f"Examples:\n{listed(EXAMPLES)}"
    )


if __name__ == "__main__":
    sys.exit(main())
