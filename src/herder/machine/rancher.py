"""Run rancher-machine for drivers that are not native, with the same command line and exit status."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import NoReturn

from herder.machine.errors import MachineError

PROGRAM = "rancher-machine"
PROGRAM_VARIABLE = "HERDER_RANCHER_MACHINE"
STORAGE_VARIABLE = "MACHINE_STORAGE_PATH"


def program(environment: Mapping[str, str]) -> str:
    """Return the path of the executable."""
    said = environment.get(PROGRAM_VARIABLE, "")
    found = shutil.which(said or PROGRAM, path=environment.get("PATH"))
    if found is None:
        raise MachineError(
            f"{said or PROGRAM} not found, but this driver requires it",
            f"install it from https://github.com/rancher/machine/releases, or set {PROGRAM_VARIABLE} to its path",
        )
    return found


def become(words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    path = program(environment)
    os.execve(path, [path, *words], dict(environment))  # noqa: S606 - a list of words, no shell
