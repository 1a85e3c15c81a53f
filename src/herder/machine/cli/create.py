"""The `create` command: create a machine that runs its install script.

Crash-safe: after a kill at any point, the next `create` resumes, and `rm` finds everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from herder.api.machines.drivers.flags import Flag, FlagType, Value
from herder.api.machines.drivers.known import user_data_flag
from herder.machine import userdata
from herder.machine.cli.context import Context, OfOtherProgram, OpenMachine, say
from herder.machine.cli.flags import CommandHelp, Parsed, parse
from herder.machine.driver import Driver
from herder.machine.drivers import NATIVE, driver_class
from herder.machine.errors import MachineError, PreCreateFailed
from herder.machine.state.record import Phase, Record, new_record

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9\-.]*")

FLAGS = (
    Flag("driver", "Driver to create machine with", env="MACHINE_DRIVER"),
    Flag("custom-install-script", "Path of a script that the machine runs at its first boot"),
    Flag("hostname-override", "Hostname of the machine (default: the machine name)"),
)
SUMMARY = "Create a machine. Pass --driver NAME --help to list the flags of a driver."
SHORTS = {"d": "driver", "h": "help"}
HELP = Flag("help", "Show help", FlagType.BOOL, False)
EXAMPLES = (
    "herder-machine create --driver process node-1",
    "herder-machine create --driver generic --generic-ip-address 192.0.2.10 --generic-ssh-user ubuntu node-2",
    "herder-machine create --driver amazonec2 --amazonec2-region eu-central-1 node-3",
    "herder-machine create --driver amazonec2 --help",
)

# Docker flags; accepted for compatibility with rancher-machine, and ignored.
_DOCKER_FLAGS = tuple(
    Flag(name, "Ignored; Docker is not installed", kind, () if kind is FlagType.LIST else "")
    for kind, names in {
        FlagType.STRING: "engine-install-url engine-storage-driver swarm-image swarm-discovery swarm-strategy "
        "swarm-host swarm-addr",
        FlagType.LIST: "engine-opt engine-insecure-registry engine-registry-mirror engine-label engine-env swarm-opt "
        "swarm-join-opt tls-san",
        FlagType.BOOL: "swarm swarm-master swarm-experimental",
    }.items()
    for name in names.split()
)


def run(context: Context, words: Sequence[str]) -> int:
    name = _driver_name(words, context)
    driver = driver_class(name)
    if name and driver is None:
        raise OfOtherProgram
    own = driver.flags if driver else ()
    see = f"see herder-machine create --driver {name or 'NAME'} --help"
    parsed = parse(words, (*FLAGS, *_DOCKER_FLAGS, HELP, *own), context.environment, shorts=SHORTS, help_line=see)
    if parsed.on("help"):
        say(CommandHelp("NAME", EXAMPLES, (*FLAGS, HELP, *own), SHORTS).page("create", SUMMARY))
        return 0
    if driver is None:
        raise MachineError("--driver is required", f"use {', '.join(NATIVE)} or a driver of rancher-machine")
    for flag in _DOCKER_FLAGS:
        if flag.name in parsed.given:
            say(f"--{flag.name} has no effect: Docker is not installed")
    _create(context, driver, parsed)
    return 0


def _driver_name(words: Sequence[str], context: Context) -> str:
    """Find --driver first, because the available flags depend on it."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        flag, has_value, value = word.partition("=")
        if flag in ("--driver", "-driver", "-d", "--d"):
            return value if has_value else following
    return context.environment.get("MACHINE_DRIVER", "")


def _create(context: Context, driver: type[Driver], parsed: Parsed) -> None:
    name = _machine_name(parsed.arguments)
    found = context.find(name)
    if found is not None:
        _check_unfinished(found, driver)
        bench = OpenMachine(context, found, driver)
    else:
        fresh = new_record(
            name,
            driver.name,
            context.store_path,
            script_path=parsed.text("custom-install-script"),
            hostname=parsed.text("hostname-override"),
        )
        bench = OpenMachine(context, fresh, driver)
    by_ssh = _bring_script(bench, driver, parsed)
    bench.take_on()
    if found is not None:
        say(f"Resuming the interrupted creation of machine {name}...")
        bench.driver.update_credentials(_of_driver(driver, parsed.given))
    else:
        _begin(bench, driver, parsed)
    bench.save()
    say("Creating machine...")
    try:
        bench.driver.create()
        bench.save()
        if by_ssh:
            _provision_by_ssh(bench)
    except MachineError as error:
        raise MachineError(f"error creating machine: {error.message}", error.advice) from error
    if parsed.text("custom-install-script") and not bench.machine.script:
        say("Custom install script was sent via userdata, provisioning complete...")
    bench.enter(Phase.CREATED)


def _machine_name(arguments: Sequence[str]) -> str:
    if not arguments:
        raise MachineError("error: No machine name specified")
    if len(arguments) > 1:
        raise MachineError(f"invalid arguments: found extra arguments {list(arguments[1:])}")
    if not _NAME.fullmatch(arguments[0]):
        raise MachineError(
            "error creating machine: [Invalid hostname specified. Allowed hostname chars are: 0-9a-zA-Z . -]"
        )
    return arguments[0]


def _check_unfinished(found: Record, driver: type[Driver]) -> None:
    if found.phase is Phase.CREATED:
        raise MachineError(f'Docker machine "{found.name}" already exists')
    if found.phase is Phase.REMOVING:
        raise MachineError(f'machine "{found.name}" is being removed', f"finish the removal with rm -y {found.name}")
    if found.driver != driver.name:
        raise MachineError(
            f'machine "{found.name}" is being created with driver {found.driver}',
            f"remove it first with rm -y {found.name}",
        )


def _begin(bench: OpenMachine, driver: type[Driver], parsed: Parsed) -> None:
    bench.driver.configure(_of_driver(driver, parsed.values))
    say("Running pre-create checks...")
    try:
        bench.driver.check()
    except MachineError as error:
        reported = json.dumps(str(error), ensure_ascii=False)
        raise PreCreateFailed(f"Error with pre-create check: {reported}") from error


def _of_driver(driver: type[Driver], values: dict[str, Value]) -> dict[str, Value]:
    own = {flag.name for flag in driver.flags}
    return {name: value for name, value in values.items() if name in own}


def _bring_script(bench: OpenMachine, driver: type[Driver], parsed: Parsed) -> bool:
    """Pass script and user data to the driver; return whether the script must be run by SSH instead."""
    machine = bench.machine
    path = parsed.text("custom-install-script")
    script = _content(path, "--custom-install-script") if path else b""
    machine.hostname = parsed.text("hostname-override") or machine.name
    if not _NAME.fullmatch(machine.hostname):
        raise MachineError(
            f'--hostname-override: "{machine.hostname}" is not a valid hostname', "use letters, digits, . and -"
        )
    flag = user_data_flag(driver.flags)
    user_path = parsed.text(flag.name) if flag else ""
    user = _content(user_path, f"--{flag.name}") if flag and user_path else b""
    if not script:
        machine.user_data = user
        return False
    if userdata.is_cloud_config(script) and not flag:
        raise MachineError(
            f"--custom-install-script: driver {driver.name} does not support #cloud-config",
            "pass a shell script",
        )
    if flag and (not driver.seeds or userdata.is_cloud_config(script)):
        system = next((parsed.text(flag.name) for flag in driver.flags if flag.name.endswith("-os")), "")
        machine.user_data = userdata.cloud_config(
            script, user, hostname=machine.hostname, windows="windows" in system.lower()
        )
        return False
    machine.script, machine.user_data = script, user
    return not driver.seeds


def _content(path: str, flag: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise MachineError(f"{flag}: {path}: {error.strerror}") from error


def _provision_by_ssh(bench: OpenMachine) -> None:
    from herder.machine.ssh.provisioning import run_install_script

    run_install_script(bench.driver, bench.machine)
