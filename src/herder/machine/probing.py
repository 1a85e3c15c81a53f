"""Read the flags of a downloaded driver from the help of rancher-machine.

The driver is untrusted code. It runs once, in its own directory and network, with an empty environment, and as nobody
if we are root. It serves RPC without authentication, which process machines could use in the host's network.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from herder.api.machines.drivers.flags import Flag, FlagType, Value
from herder.api.machines.drivers.schemas import flag_to_object
from herder.machine import plugins
from herder.machine.errors import MachineError
from herder.machine.host.process.programs import module_program

HELP_SECONDS = 30.0
NOBODY = 65534
PRIVATE_NETWORK = "herder.machine.private_network"
GENERAL = "none"  # a driver whose help shows only the common flags


class DriverUnusable(MachineError):
    """The driver cannot be used as it is."""


async def driver_flags(arguments: Mapping[str, Any], *, rancher_machine: str) -> dict[str, Any]:
    """Performer of the effect `driver-flags`: returns `{name, flags}` of the driver at `url`."""
    return await asyncio.to_thread(_probe, arguments["url"], arguments["checksum"], rancher_machine)


def _probe(url: str, checksum: str, rancher_machine: str) -> dict[str, Any]:
    if not checksum and urlsplit(url).scheme == "http":
        raise DriverUnusable(
            "spec.checksum is empty, and spec.url does not use TLS", "set a checksum, or use an https:// URL"
        )
    program = _found(rancher_machine)
    with tempfile.TemporaryDirectory(prefix="herder-driver-") as made:
        directory = Path(made)
        driver = plugins.install(url, checksum, directory)
        name = driver.name.removeprefix(plugins.PREFIX)
        flags = _flags(program, name, directory)
    if not flags:
        raise DriverUnusable(f"driver {name} has no flags", "check that it is built for rancher-machine")
    return {"name": name, "flags": [flag_to_object(flag) for flag in flags]}


def _found(rancher_machine: str) -> Path:
    path = shutil.which(rancher_machine)
    if path is None:
        raise DriverUnusable(
            f'program "{rancher_machine}" not found, but downloaded node drivers require it',
            "install rancher-machine, or set the setting rancher-machine-path to its path",
        )
    return Path(path)


# --- help output ----------------------------------------------------------------------------------------------------


def _flags(program: Path, driver: str, directory: Path) -> list[Flag]:
    general = {flag.name for flag in read_help(_help(program, GENERAL, directory))}
    return [flag for flag in read_help(_help(program, driver, directory)) if flag.name not in general]


def _help(program: Path, driver: str, directory: Path) -> str:
    executable, user = _reachable(program, directory)
    child = subprocess.Popen(
        module_program(PRIVATE_NETWORK, str(user), str(executable), "create", "--driver", driver, "--help"),
        env={"PATH": str(directory), "HOME": str(directory), "MACHINE_STORAGE_PATH": str(directory / "store")},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        shown, complaints = child.communicate(timeout=HELP_SECONDS)
    except subprocess.TimeoutExpired:
        raise DriverUnusable(
            f"driver {driver} did not answer within {HELP_SECONDS:.0f} s", "check that it runs on this platform"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # the driver is a child process of its own, and may linger
        child.wait()
    if child.returncode:
        said = (complaints or shown).strip().splitlines()[-1:] or [f"exit status {child.returncode}"]
        raise DriverUnusable(
            f"cannot read the flags of driver {driver}: {said[0]}", "check that it is built for this platform"
        )
    return shown


def _reachable(program: Path, directory: Path) -> tuple[Path, int]:
    """Return the program and the UID to run it as; copied if nobody cannot reach it."""
    store = directory / "store"
    store.mkdir(exist_ok=True)
    if os.geteuid() != 0:
        return program, os.geteuid()
    directory.chmod(0o711)
    os.chown(store, NOBODY, NOBODY)
    copy = directory / "rancher-machine"
    if not copy.exists():
        shutil.copyfile(program, copy)
        copy.chmod(0o755)
    return copy, NOBODY


_LINE = re.compile(
    r"""^\ {3}--(?P<name>[^\s,]+)(?:,\ -\S+)*
    (?P<value>\ "(?P<default>.*)"|\ \[--\S+\ option\ --\S+\ option\]|\ )?
    \t+(?P<usage>.*)$""",
    re.VERBOSE,
)
_ENVIRONMENT = re.compile(r"\s*\[\$(?P<name>\w+)(?:, \$\w+)*\]$")
_NUMBER = re.compile(r"-?[0-9]+")


def read_help(shown: str) -> list[Flag]:
    """Parse the flags of `create --help`.

    A string without default has a space after its name, a boolean has none; defaults of lists are not shown; a number
    is recognized by its default.
    """
    return [_flag(found) for line in shown.splitlines() if (found := _LINE.match(line))]


def _flag(found: re.Match[str]) -> Flag:
    usage, env = found["usage"].strip(), ""
    if hint := _ENVIRONMENT.search(found["usage"]):
        usage, env = found["usage"][: hint.start()].strip(), hint["name"]
    type_, default = _value(found["value"], found["default"])
    return Flag(found["name"], usage, type_, default, env)


def _value(value: str | None, default: str | None) -> tuple[FlagType, Value]:
    if value is None:
        return FlagType.BOOL, False
    if default is None:
        return (FlagType.LIST, ()) if value.strip() else (FlagType.STRING, "")
    return (FlagType.INT, int(default)) if _NUMBER.fullmatch(default) else (FlagType.STRING, default)
