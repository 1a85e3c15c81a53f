"""The `--update-config` flag: update a machine's credentials from its driver's flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from herder.api.machines.drivers.flags import Flag, FlagType, Value
from herder.machine.cli.context import Context
from herder.machine.cli.flags import Parsed, parse
from herder.machine.drivers import create_flags
from herder.machine.errors import MachineError

UPDATE_CONFIG = Flag(
    "update-config", "Update the stored credentials from flags and environment variables", FlagType.BOOL, False
)


def parse_with_driver(
    context: Context, words: Sequence[str], flags: tuple[Flag, ...], shorts: Mapping[str, str] | None = None
) -> tuple[Parsed, dict[str, Value]]:
    """Return the parsed flags, and the driver's values among them (none without --update-config)."""
    if not any(word.lstrip("-").partition("=")[0] == UPDATE_CONFIG.name for word in words if word.startswith("-")):
        return parse(words, flags, context.environment, shorts=shorts), {}
    if not words or words[-1].startswith("-"):
        raise MachineError("Error: Expected to get one or more machine names as arguments")
    record = context.record(words[-1])  # like rancher-machine: the last argument is a machine
    own = create_flags(record.driver) or ()
    parsed = parse(words, (*flags, *own), context.environment, shorts=shorts)
    if not parsed.on(UPDATE_CONFIG.name):
        return parsed, {}
    return parsed, {flag.name: parsed.given[flag.name] for flag in own if flag.name in parsed.given}
