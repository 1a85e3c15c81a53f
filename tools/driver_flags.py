"""Write the table of create flags, asked of the drivers of the real rancher-machine.

    python -m tools.driver_flags

Run it when peers/machine requires another version of rancher-machine; a test compares the table with the program.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from herder.api.machines import tables
from herder.api.machines.tables import flags
from peers import build

TABLE = Path(flags.__file__)
_HEAD = '"""The create flags of the drivers of rancher-machine, as JSON. Written by tools/driver_flags.py."""'


def asked(programs: Mapping[str, Path], *drivers: str) -> dict[str, list[dict[str, Any]]]:
    """The flags of these drivers, or of all that rancher-machine has; `programs` are put on the PATH by these names."""
    with tempfile.TemporaryDirectory() as found:
        for name, path in programs.items():
            os.symlink(path, Path(found) / name)
        names = drivers or json.loads(_ask(found, "--list"))
        told: dict[str, list[dict[str, Any]]] = json.loads(_ask(found, *names))
    return told


def _ask(found: str, *arguments: str) -> str:
    """Without the variables of whoever runs this: some drivers take defaults from them."""
    program = build.path_of("machine-driver-flags")
    environment = {"PATH": found, "HOME": "/nonexistent"}
    return subprocess.run(
        [program, *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=60
    ).stdout


def rancher_machine() -> dict[str, Path]:
    return {"rancher-machine": build.path_of("rancher-machine")}


def version() -> str:
    return build.module_version(build.BY_NAME["rancher-machine"])


def rows(listed: Iterable[Mapping[str, Any]]) -> list[tables.Row]:
    return [_row(**flag) for flag in listed]


def _row(*, name: str, type: str, default: Any, env: str, usage: str) -> tables.Row:
    """Without what goes without saying, and without the words of its help."""
    return msgspec.convert({"name": name, "type": type, "default": default or None, "env": env}, tables.Row)


def rendered(listed: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """The module, with a line for each flag, so that a change is easy to read. Drivers without flags on this platform
    are left out."""
    drivers = []
    for driver, found in sorted(listed.items()):
        if found:
            lines = ",\n".join(f"    {msgspec.json.encode(row).decode()}" for row in rows(found))
            drivers.append(f'  "{driver}": [\n{lines}\n  ]')
    together = ",\n".join(drivers)
    content = f'{{"version": "{version()}", "drivers": {{\n{together}\n}}}}\n'
    assert "\\" not in content, "a backslash would be an escape in the module"
    return f'{_HEAD}\n\n# ruff: noqa: E501\nFLAGS = """\\\n{content}"""\n'


def main() -> None:
    TABLE.write_text(rendered(asked(rancher_machine())))
    print(f"{TABLE.name}: flags of {len(tables.table().drivers)} drivers of rancher-machine {version()}")


if __name__ == "__main__":
    main()
